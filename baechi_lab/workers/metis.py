"""METIS in a separate process.

METIS prints to C's standard output when a part is empty, whatever its options say, and this text would end up in `--json`
output. Only a whole process can be silenced without silencing other threads. All threads share one such process; it starts
with the first request and ends with its caller.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ExecutionError
from .pool import Pool


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
    tolerance = {} if imbalance is None else {"ufactor": max(1, round(imbalance * 1000))}
    pool = _pool(os.getpid())
    weights = {"eweights": edge_weight, "vweights": vertex_weight, "tpwgts": share}
    future = pool.submit(
        _divide, pointer, neighbour, {"seed": int(seed), **tolerance}, part_count, recursive=recursive, **weights
    )
    try:
        return np.asarray(future.result(), dtype=np.int64)
    except BrokenExecutor as error:
        raise ExecutionError(f"METIS runs in a process of its own, which failed: {error}") from error
    except KeyboardInterrupt:  # the next request need not wait for this one
        _pool.cache_clear()
        pool.kill()
        raise


@functools.lru_cache(maxsize=1)
def _pool(process_id: int) -> Pool:
    """Returns the pool of the process with this id: a fork of it has none of its threads."""
    return Pool(1, imports_main=False)


def _divide(
    pointer: Sequence[int], neighbour: Sequence[int], options: dict[str, int], part_count: int, **arguments: Any
) -> list[int]:
    """Divides a graph in the process of METIS; `arguments` are those of `pymetis.part_graph`."""
    import pymetis

    adjacency, metis_options = pymetis.CSRAdjacency(pointer, neighbour), pymetis.Options(numbering=0, **options)
    _, membership = pymetis.part_graph(part_count, adjacency, options=metis_options, **arguments)
    return list(membership)
