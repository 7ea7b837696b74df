"""A second process that compiles kernels of placers, since numba compiles one kernel at a time in a process.

The second process places a tiny graph by the same placers, the last one first. What it compiles reaches the first process
through numba's cache on disk. A kernel that the first process compiles is skipped, so the two meet in the middle. It ends
with its caller.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

from ..errors import BaechiLabError
from ..graph import Cluster
from ..graph.generators import random_dag
from ..graph.kernels import jit
from ..workers.executors import cores
from ..workers.isolated import die_with_parent, isolated_command
from .evaluation.evaluate import evaluate
from .registry import make_placer

VARIABLE = "BAECHI_LAB_SECOND_COMPILER"
"""Environment variable: with "0" there is no second process."""


@contextlib.contextmanager
def compile_in_second_process(placers: Sequence[str]) -> Iterator[None]:
    """Within this context a second process compiles kernels of `placers`, if they are missing and a core is free."""
    if not (placers and _has_free_core() and jit.is_missing(evaluate)):  # the largest kernel, for all of them
        yield
        return
    try:
        process = subprocess.Popen(
            isolated_command(__name__, *reversed(placers)),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:  # no process more is allowed: this one compiles alone
        yield
        return
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def _has_free_core() -> bool:
    if os.environ.get(VARIABLE) == "0" or not hasattr(os, "getloadavg"):
        return False
    return cores() > 1 and os.getloadavg()[0] <= cores() - 1


def _end_with_caller() -> None:
    os.read(sys.stdin.fileno(), 1)  # nothing is written: it returns at the end of the pipe
    os._exit(0)


def main() -> None:
    """Compiles what the placers named as arguments need."""
    die_with_parent()
    threading.Thread(target=_end_with_caller, daemon=True).start()
    jit.become_second_compiler()
    graph, cluster = random_dag(30, seed=0), Cluster.uniform(2, memory_bytes="8GB", comm="sequential")
    for name in sys.argv[1:]:
        with contextlib.suppress(BaechiLabError, *jit.SKIPPED_ERRORS):
            make_placer(name).assign(graph, cluster)


if __name__ == "__main__":
    main()
