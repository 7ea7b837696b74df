"""Make the SCT linear program smaller without changing its optimum.

Two facts about any feasible x, and what follows:

*An edge that never binds.* Whatever x is, `j` starts no earlier than `low(j)`: the in-edges of `j` share one saving, so
`low(j)` is the smallest t with `sum over i of (low(i) + k_i + c_ij - t)+ / c_ij <= 1`. And `i` starts no later than
`high(i)`, the longest path with every transfer paid. Where `high(i) + k_i + c_ij < low(j)`, the edge never decides when
`j` starts, even if paid in full: its row goes and x_ij = 1, which leaves the saving to others. The same holds
backwards in time, for how long before the end `i` must have finished.

*An edge without rivals.* The only edge out of `i` and the only one into `j` is free: x_ij = 0, and `i`, `j` become one op.

Each opens the way for the other, so they take turns while a round removes 1% of the edges. O(ops + edges log degree)
per round. On a GNMT step 32,102 edges become 19,000 and simplex takes half the time; optimized, 16,835 become 3,600
to 6,600 with the link. Not from the paper, which hands the whole program to the solver.

Of the edges that are left, some have a row that the rows of a longer path imply (`implied_rows`): without these 2,262 of
21,635 rows of a GNMT step, the program takes .75 of the time and has the same optimum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import CycleError
from ...graph.kernels.csr import Integers, offsets, topological_order
from ...graph.kernels.heaps import pop, push
from ...graph.kernels.jit import njit
from .lp import SctProblem

SCANNED_OPS = 200_000_000
"""Most ops that the search for implied rows looks at: in large graphs it leaves out edges that span many ops."""
_ROUNDING = 1 - 1e-12  # an edge that may bind but for rounding is kept


@dataclass(frozen=True)
class ReducedProblem:
    """`problem` has the same optimum as the original. Its edge `i` is edge `edge[i]` of the original.

    Of the other edges, those in `free` (bool[e]) have x = 0, the rest x = 1.
    """

    problem: SctProblem
    edge: NDArray[np.int64]
    free: NDArray[np.bool_]

    def expand(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns float64[e]: x of every original edge, from those of `problem`."""
        full = np.where(self.free, 0.0, 1.0)
        full[self.edge] = x
        return full


def reduce_problem(problem: SctProblem) -> ReducedProblem:
    """Drops edges that never bind and merges edges without rivals, until a round removes less than 1% of the edges.

    >>> chain = SctProblem(np.array([0, 1]), np.array([1, 2]), np.array([9.0, 9.0]), np.array([1.0, 2.0, 3.0]))
    >>> reduce_problem(chain).problem.compute
    array([6.])
    """
    n, edge = len(problem.compute), np.arange(len(problem.source))
    free, before = np.zeros(len(edge), dtype=np.bool_), np.inf
    compute: NDArray[np.float64] = problem.compute
    source, target = problem.source.astype(np.int64), problem.target.astype(np.int64)
    order = topological_order(n, source, target)
    if order is None:
        raise CycleError("the edges of the SCT program form a cycle")
    while len(edge) < 0.99 * before:
        before = len(edge)
        for backwards in (False, True):
            endpoints = (source, target) if backwards else (target, source)
            binds = _may_bind(order[::-1] if backwards else order, *endpoints, compute, problem.transfer[edge])
            edge, source, target = edge[binds], source[binds], target[binds]
        alone = (np.bincount(source, minlength=n)[source] == 1) & (np.bincount(target, minlength=n)[target] == 1)
        free[edge[alone]] = True
        # The first op of each op's chain, which keeps its place in `order`; for most ops the op itself.
        first = np.arange(n)
        first[target[alone]] = source[alone]
        while not np.array_equal(first[first], first):  # distances double with every step
            first = first[first]
        compute = np.bincount(first, weights=compute, minlength=n).astype(np.float64)
        edge, source, target = edge[~alone], first[source[~alone]], target[~alone]
    # Numbers the ops that still have edges. Of the other ops only the longest can decide the makespan.
    used = np.zeros(len(compute), dtype=np.bool_)
    used[source] = used[target] = True
    if not used.all():
        used[np.argmax(np.where(used, -1.0, compute))] = True
    number = np.cumsum(used) - 1
    edge_ends = number[source].astype(np.int32), number[target].astype(np.int32)
    return ReducedProblem(SctProblem(*edge_ends, problem.transfer[edge], compute[used]), edge, free)


def implied_rows(problem: SctProblem) -> NDArray[np.bool_]:
    """Returns bool[e]: whether the rows of a longer path between an edge's ends imply `s_j >= s_i + k_i + c_ij x_ij`.

    The path takes at least `k_i + c_ij` even if all its transfers are saved. Its own edges span fewer ops, so rows that
    imply one another cannot all go.

    >>> implied_rows(SctProblem(np.array([0, 0, 1]), np.array([1, 2, 2]), np.array([9.0, 4.0, 9.0]), np.array([1.0, 5.0, 1.0])))
    array([False,  True, False])
    """
    n = len(problem.compute)
    source, target = problem.source.astype(np.int64), problem.target.astype(np.int64)
    order = topological_order(n, source, target)
    if order is None:
        raise CycleError("the edges of the SCT program form a cycle")
    edges, span = np.argsort(source, kind="stable"), SCANNED_OPS // max(n, 1)
    return dominated_edges(
        order.astype(np.int64), offsets(source, n), edges, target, problem.compute, problem.transfer, span
    )


def _may_bind(
    order: Integers, target: Integers, source: Integers, compute: NDArray[np.float64], transfer: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Returns bool[e]: whether an edge may decide when `target` starts. `source` is its other end, earlier in `order`."""
    low, high = start_bounds(
        order.astype(np.int64),
        offsets(target, len(compute)),
        np.argsort(target, kind="stable"),
        source,
        compute,
        transfer,
    )
    return high[source] + compute[source] + transfer >= low[target] * _ROUNDING


@njit(cache=True)
def start_bounds(
    order: NDArray[np.int64],
    pointer: NDArray[np.int64],
    edges: NDArray[np.int64],
    source: NDArray[np.int64],
    compute: NDArray[np.float64],
    transfer: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`low` and `high` float64[n]; edges `edges[pointer[j]:pointer[j+1]]` lead into `j`."""
    low, high = np.zeros(len(compute)), np.zeros(len(compute))
    for j in order:
        first, end = pointer[j], pointer[j + 1]
        if first == end:
            continue
        local_arrival, transfers = np.empty(end - first), np.empty(end - first)
        for k in range(end - first):
            edge = edges[first + k]
            i = source[edge]
            local_arrival[k] = low[i] + compute[i]
            transfers[k] = transfer[edge]
            high[j] = max(high[j], high[i] + compute[i] + transfer[edge])
        low[j] = earliest_joint_start(local_arrival, transfers)
    return low, high


@njit(cache=True)
def dominated_edges(
    order: NDArray[np.int64],
    pointer: NDArray[np.int64],
    edges: NDArray[np.int64],
    target: NDArray[np.int64],
    compute: NDArray[np.float64],
    transfer: NDArray[np.float64],
    span: int,
) -> NDArray[np.bool_]:
    """bool[e]: whether a path beside the edge is longer, for edges that span at most `span` ops of `order`.

    Edges `edges[pointer[i]:pointer[i+1]]` lead out of `i`.
    """
    # Loops compile in a fraction of the time of NumPy's slices.
    is_dominated, position = np.zeros(len(target), np.bool_), np.empty(len(order), np.int64)
    for place in range(len(order)):
        position[order[place]] = place
    longest = np.full(len(order), -1.0)  # path from the start of `i` to that of each op without transfers; -1: none
    for first in range(len(order)):
        i, last = order[first], first
        for k in range(pointer[i], pointer[i + 1]):
            if position[target[edges[k]]] <= first + span:
                last = max(last, position[target[edges[k]]])
        longest[i] = 0.0
        for place in range(first, last):
            j = order[place]
            if longest[j] >= 0:
                for k in range(pointer[j], pointer[j + 1]):
                    end = target[edges[k]]
                    if position[end] <= last:
                        longest[end] = max(longest[end], longest[j] + compute[j])
        for k in range(pointer[i], pointer[i + 1]):
            path = longest[target[edges[k]]]
            is_dominated[edges[k]] = path > compute[i] and path * _ROUNDING >= compute[i] + transfer[edges[k]]
        for place in range(first, last + 1):
            longest[order[place]] = -1.0
    return is_dominated


@njit(cache=True)
def earliest_joint_start(local_arrival: NDArray[np.float64], transfer: NDArray[np.float64]) -> float:
    """The smallest t >= max(saved) with `sum (saved + transfer - t)+ / transfer <= 1`: the edges share one saving.

    Edges are taken latest first: if the k latest share, `t = (sum (saved + transfer) / transfer - 1) / sum 1 / transfer`.
    """
    # Loops and the shared heap compile in a third of the time of NumPy's sort.
    arrival, edge, size, start = np.empty(len(local_arrival)), np.empty(len(local_arrival), np.int64), 0, 0.0
    for i in range(len(local_arrival)):
        size = push(arrival, edge, 0, size, -(local_arrival[i] + transfer[i]), i)
        start = max(start, local_arrival[i])
    number, weight = 0.0, 0.0
    while size > 0 and -arrival[0] > start:
        i, remote_arrival = edge[0], -arrival[0]
        size = pop(arrival, edge, 0, size)
        number += remote_arrival / transfer[i]
        weight += 1.0 / transfer[i]
        start = max(start, (number - 1.0) / weight)
    return start
