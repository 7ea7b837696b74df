"""METIS in a separate process.

METIS prints to C's standard output when a part is empty, whatever its options say, and this text would end up in `--json`
output. Only a whole process can be silenced without silencing other threads. All threads share one such process; it starts
with the first request and ends with its caller.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import ExecutionError
from .isolated import isolated
from .messages import read_message, write_message

_lock = threading.Lock()
_process: subprocess.Popen[bytes] | None = None
_owner = 0
"""The process id that `_process` belongs to: a fork of this one must not write into its pipes."""


def metis_parts(
    pointer: Sequence[int],
    neighbour: Sequence[int],
    edge_weight: Sequence[int],
    part_count: int,
    *,
    recursive: bool,
    seed: int,
    vertex_weight: Sequence[int] | None = None,
    share: Sequence[float] | None = None,
    imbalance: float | None = None,
) -> NDArray[np.int64]:
    """Returns the part of every vertex, int64[vertices], as METIS divides the graph.

    Args:
        pointer, neighbour, edge_weight: the graph in CSR form.
        part_count: how many.
        recursive: by recursive bisection instead of k-way refinement.
        seed: of METIS.
        vertex_weight: 1 each unless given.
        share: of the weight, per part; equal unless given.
        imbalance: the excess over its share that a part may have; METIS's default unless given.

    Raises:
        ExecutionError: the process cannot be started, or ended.
    """
    optional = {"vertex_weight": vertex_weight, "share": share}
    optional_arrays = {name: np.asarray(values) for name, values in optional.items() if values is not None}
    header: dict[str, object] = {
        "parts": part_count,
        "recursive": recursive,
        "seed": seed,
        "imbalance": imbalance,
        "columns": list(optional_arrays),
    }
    arrays = [np.asarray(values, dtype=np.int64) for values in (pointer, neighbour, edge_weight)]
    with _lock:
        return _answer(header, [*arrays, *optional_arrays.values()])


def _answer(header: dict[str, object], arrays: list[NDArray[np.generic]]) -> NDArray[np.int64]:
    try:
        process = _running()
        write_message(process.stdin, "divide", header, arrays)  # type: ignore[arg-type]
        answer = read_message(process.stdout)  # type: ignore[arg-type]
    except OSError as error:
        end_process()
        raise ExecutionError(f"METIS runs in a process of its own, which failed: {error.strerror or error}") from error
    except BaseException:  # interrupted between question and answer: the next one would get this answer
        end_process()
        raise
    if answer is None:
        end_process()
        raise ExecutionError("METIS runs in a process of its own, which ended without an answer")
    return np.asarray(answer.arrays[0], dtype=np.int64)


def _running() -> subprocess.Popen[bytes]:
    global _process, _owner
    if _process is None or _owner != os.getpid() or _process.poll() is not None:
        end_process()
        _process = subprocess.Popen(
            isolated(__name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _owner = os.getpid()
    return _process


@atexit.register
def end_process() -> None:
    """Ends the process, if this one started it; the next request starts another."""
    global _process
    process, _process = _process, None
    if process is not None and _owner == os.getpid():
        process.kill()
        process.communicate()


def main() -> None:
    """Answers requests until the input ends."""
    import pymetis

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what METIS prints
    while (request := read_message(sys.stdin.buffer)) is not None:
        header, (pointer, neighbour, cost, *more_arrays) = request.header, request.arrays
        optional_arrays = dict(zip(header["columns"], more_arrays, strict=True))
        tolerance = {} if header["imbalance"] is None else {"ufactor": max(1, round(header["imbalance"] * 1000))}
        weight, share = optional_arrays.get("vertex_weight"), optional_arrays.get("share")
        _, membership = pymetis.part_graph(
            header["parts"],
            pymetis.CSRAdjacency(pointer.tolist(), neighbour.tolist()),
            vweights=None if weight is None else weight.tolist(),
            eweights=cost.tolist(),
            tpwgts=None if share is None else share.tolist(),
            recursive=header["recursive"],
            options=pymetis.Options(seed=header["seed"], numbering=0, **tolerance),
        )
        write_message(answers, "parts", {}, [np.asarray(membership, dtype=np.int64)])


if __name__ == "__main__":
    main()
