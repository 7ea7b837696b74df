"""A second process that compiles kernels of placers, since numba compiles one kernel at a time in a process.

The second process places a tiny graph by the same placers, the last one first. What it compiles reaches the first process
through numba's cache on disk. A kernel that the first process compiles is skipped, so the two meet in the middle.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..errors import BaechiLabError
from ..graph import Cluster, OpGraph, Placement, allowed_devices
from ..graph.generators import random_dag
from ..graph.kernels import jit
from ..simulator import simulate_step
from ..simulator.kernel import _run as simulation_kernel
from ..workers.executors import cores
from ..workers.pool import Pool
from .evaluation.cost import make_objective
from .evaluation.evaluate import evaluate
from .evaluation.improve import improve
from .evaluation.model import make_model
from .evaluation.moves import make_units
from .problem import groups_of
from .registry import make_placer

VARIABLE = "BAECHI_LAB_SECOND_COMPILER"
"""Environment variable: with "0" there is no second process."""
COMPARED_PLACERS, COMPARED_OPS = ("m-topo", "m-etf", "m-sct"), 5_000
"""The paper's placers, of which a first call usually precedes calls of the others, and ops above which they are compiled."""
ADVISED_PLACERS, ADVISED_OPS = ("m-etf", "contiguous", "dfs", "heft", "mite"), 1_000
"""Placers with kernels of their own that advice asks, the first ones first, and ops from which kernels are not interpreted."""
SAMPLES, SAMPLE_SECONDS = 9, 0.01
"""How often running threads are counted, and the time before each count."""


_is_started = False


def compile_ahead(placer: str, ops: int) -> None:
    """While `placer` places so many ops, another process begins to compile the paper's other placers, if they are missing.

    A program starts one such process, if a core is free. It ends when all are compiled, or with this process.
    """
    global _is_started
    if _is_started or placer not in COMPARED_PLACERS or ops < COMPARED_OPS:
        return
    from .sct_program.reductions import dominated_edges  # a kernel of the last placer, whose module imports SciPy

    if jit.is_missing(dominated_edges) and _has_free_core():
        _is_started = True
        pool = Pool(1, tries=1, imports_main=False)
        pool.submit(compile_kernels, *reversed(COMPARED_PLACERS))
        pool.shutdown(wait=False)


def compile_for_advice(ops: int) -> None:
    """Another process begins to compile what advice on a placement of so many ops calls, if it is missing.

    The workbench asks for it before its first picture: advice comes after that, and needs other kernels.
    """
    global _is_started
    from .list_scheduling.earliest_start import _schedule as list_scheduling_kernel

    is_missing = jit.is_missing(simulation_kernel) or jit.is_missing(list_scheduling_kernel)
    if not _is_started and ops >= ADVISED_OPS and is_missing and _has_free_core():
        _is_started = True
        pool = Pool(1, tries=1, imports_main=False)
        pool.submit(compile_schedulers)
        pool.submit(compile_kernels, *ADVISED_PLACERS, *reversed(COMPARED_PLACERS))
        pool.shutdown(wait=False)


@contextlib.contextmanager
def compile_in_second_process(placers: Sequence[str], annealing: bool = False) -> Iterator[None]:
    """Within this context a second process compiles kernels of `placers`, if they are missing and a core is free.

    With `annealing` it first compiles what improves placements, which this process needs last.
    """
    if not (placers and jit.is_missing(evaluate) and _has_free_core()):  # the largest kernel, for all of them
        yield
        return
    pool = Pool(1, tries=1, imports_main=False)
    if annealing:
        pool.submit(compile_annealing)
    pool.submit(compile_kernels, *reversed(placers))  # where no process more is allowed, this one compiles alone
    try:
        yield
    finally:
        pool.kill()


def _has_free_core() -> bool:
    return os.environ.get(VARIABLE) != "0" and cores() > 1 and running_threads() < cores()


def running_threads() -> float:
    """Returns how many threads of the machine run or wait for a core, this one included.

    The load average of the last minute would count programs that have ended, such as an installation before the first call.
    """
    try:
        counts = []
        for _ in range(SAMPLES):
            time.sleep(SAMPLE_SECONDS)  # in which this thread does not run
            counts.append(int(Path("/proc/loadavg").read_text("ascii").split()[3].split("/")[0]))
        return statistics.median(counts)
    except (OSError, IndexError, ValueError):  # a system without it
        return os.getloadavg()[0] + 1 if hasattr(os, "getloadavg") else float("inf")


def _tiny_case() -> tuple[OpGraph, Cluster]:
    return random_dag(30, seed=0), Cluster.uniform(2, memory_bytes="8GB", comm="sequential")


def compile_kernels(*placers: str) -> None:
    """Compiles what the placers need, in this order, except what another process is compiling."""
    jit.become_second_compiler()
    graph, cluster = _tiny_case()
    for name in placers:
        with contextlib.suppress(BaechiLabError, *jit.SKIPPED_ERRORS):
            make_placer(name).assign(graph, cluster)


def compile_annealing() -> None:
    """Compiles what improves the best placements of `auto`, and waits for the parts that another process is compiling."""
    graph, cluster = _tiny_case()
    units = make_units(groups_of(graph), graph.position, allowed_devices(graph, cluster))
    device, rank = np.arange(graph.n, dtype=np.int32) % cluster.n, graph.position.astype(np.float64)
    with contextlib.suppress(BaechiLabError):
        improve(make_objective(make_model(graph, cluster)), units, device, rank, 1.0, 1, np.random.default_rng(0))


def compile_schedulers() -> None:
    """Compiles the simulation of orders that no placer planned, unless another process is compiling it."""
    jit.become_second_compiler()
    graph, cluster = _tiny_case()
    with contextlib.suppress(BaechiLabError, *jit.SKIPPED_ERRORS):
        simulate_step(graph, cluster, Placement(device=np.arange(graph.n, dtype=np.int32) % cluster.n), "pct")
