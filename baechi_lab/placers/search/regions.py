"""Large neighbourhoods: parts of a graph that are re-optimised on their own while the rest stays where it is.

Two kinds, as what should move together is near in the graph or near in time: the units around an op, by edges, and the
units that start one after the other in the present schedule. The search anneals the units of the part, the finest there are,
and keeps the result where the whole step got shorter.

Source: Shaw 1998, doi:10.1007/3-540-49481-2_30 (large-neighbourhood search, related parts). O(ops + edges) per part.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph import OpGraph
from ...graph.kernels.csr import Integers, offsets
from ..evaluation.moves import Units


def around(graph: OpGraph, units: Units, unit_count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Up to `unit_count` units as a breadth-first traversal of the edges, in both directions, meets them from a random op.

    >>> from baechi_lab.placers.evaluation.moves import make_units
    >>> graph = OpGraph.from_edges([1.0] * 4, [(0, 1, 4), (2, 3, 4)])
    >>> units = make_units(np.arange(4), np.arange(4), np.ones((4, 2), dtype=bool))
    >>> sorted(around(graph, units, 3, np.random.default_rng(0)).tolist()) in ([0, 1], [2, 3])
    True
    """
    (after, reader), (before, producer) = graph.successors, graph.predecessors
    frontier = np.array([rng.integers(0, graph.n)])
    met = np.zeros(graph.n, dtype=np.bool_)
    met[frontier] = True
    region: dict[int, None] = {}
    while len(frontier) and len(region) < unit_count:
        region.update(dict.fromkeys(rng.permutation(units.of[frontier]).tolist()))
        near = np.concatenate([_rows(after, reader, frontier), _rows(before, producer, frontier)])
        frontier = np.unique(near[~met[near]])
        met[frontier] = True
    return np.array(list(region)[:unit_count], dtype=np.int64)


def in_time(
    start_us: NDArray[np.float64], units: Units, unit_count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Up to `unit_count` units whose first ops start one after the other; `start_us` float64[n] is the present schedule."""
    count = len(units.ptr) - 1
    first = np.minimum.reduceat(start_us[units.ops], units.ptr[:-1]) if count else np.zeros(0)
    line = np.argsort(first, kind="stable")
    at = int(rng.integers(0, max(count - unit_count, 0) + 1))
    return line[at : at + unit_count]


def selected_units(units: Units, selected: NDArray[np.int64]) -> Units:
    """The `selected` units alone, in their order; `of` still tells the unit of every op among all units."""
    sorted_units = np.sort(selected)
    size = np.diff(units.ptr)[sorted_units]
    ops = _rows(units.ptr, units.ops, sorted_units)
    return Units(
        offsets(np.repeat(np.arange(len(sorted_units)), size), len(sorted_units)),
        ops,
        units.of,
        units.allowed[sorted_units],
    )


def _rows(pointer: Integers, column: NDArray[np.int32], rows: NDArray[np.int64]) -> NDArray[np.int32]:
    """The entries of several rows of a CSR, one row after the other."""
    size = pointer[rows + 1] - pointer[rows]
    first = np.repeat(pointer[rows] - np.concatenate([[0], np.cumsum(size)[:-1]]), size) if len(rows) else size
    return column[first + np.arange(int(size.sum()))]
