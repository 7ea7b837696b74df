"""Combining two placements: the present one takes over, stretch by stretch, what another one does better.

Two lines of search settle different parts of a graph well, and often a part of one fits into the other: where blocks
follow each other, time is nearly a sum over the blocks. One move at a time never gets there, as a part changes many units
and their order at once. A *stretch* is a run of units along a line of all of them (`line_of`). Before it is taken over, the
devices of the other placement are renumbered so that most work agrees.

Source: after the combine operator of Sanders and Schulz 2012, doi:10.1137/1.9781611972924.2, which works on cuts of a graph;
here on stretches and simulated times. Complexity: one simulation, O(ops) besides, per stretch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from ...graph import OpGraph
from ...graph.kernels.jit import njit
from .anneal import Units, candidate_cost, reassign, remember, undo
from .regions import around

LINES = 4
"""Kinds of lines."""

NEIGHBOURHOOD = 8
"""A line by distance holds the nearest units, one in so many of all."""


def line_of(
    kind: int, graph: OpGraph, units: Units, structures: Sequence[NDArray[np.int64]], position: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.int64]:  # fmt: skip
    """Units in a line, by their first ops: 0, in topological order (`position` int64[n]); 1, the same with backward ops
    beside their forward ops; 2, by the labels of one of the `structures`; 3, by distance from a random op.

    >>> graph = OpGraph.from_edges([1.0] * 4, [(0, 1, 4), (1, 2, 4), (2, 3, 4)]).replace(forward_of=[-1, -1, 1, 0])
    >>> from baechi_lab.placers.search.anneal import make_units
    >>> units = make_units(np.arange(4), np.arange(4), np.ones((4, 2), dtype=bool))
    >>> line_of(1, graph, units, [], np.arange(4), np.random.default_rng(0)).tolist()
    [0, 3, 1, 2]
    """
    first = units.ops[units.ptr[:-1]]
    if kind == 0:
        return np.arange(len(first))
    if kind == 1:
        forward = graph.forward_of[first]
        return np.argsort(position[np.where(forward >= 0, forward, first)], kind="stable")
    if kind == 2:
        labels = structures[int(rng.integers(0, len(structures)))]
        return np.argsort(labels[first], kind="stable")
    return around(graph, units, len(first) // NEIGHBOURHOOD + 2, rng)


def renumbered(
    device: NDArray[np.int32], like: NDArray[np.int32], work: NDArray[np.float64], devices: int
) -> NDArray[np.int32]:
    """`device` int32[n] with its numbers exchanged so that as much as possible of the `work` float64[n] is where `like` has it.

    >>> renumbered(np.array([0, 0, 1]), np.array([1, 1, 1]), np.ones(3), 2).tolist()
    [1, 1, 0]
    """
    both = np.zeros((devices, devices))
    np.add.at(both, (device, like), work)
    return linear_sum_assignment(-both)[1][device].astype(np.int32)


@njit(cache=True, nogil=True)
def combine(
    m: Any, w: Any, units: Any, s: Any, samples: Any, by_rank: bool, track: bool, weight: Any, line: Any, device: Any,
    at: Any, ordered: bool, steps: int, rng: Any,
) -> int:  # fmt: skip
    """Simulate the current candidate with each of `steps` random stretches of `line` (units) as `device` int32[n] has them.

    Where priorities are searched and the other placement is `ordered`, too, half of the stretches also take over the order
    `at` int32[n] of their ops. What is faster stays. Returns the number of simulations: a stretch that is equal needs none.
    """
    done, old = 0, np.empty(len(device), np.int32)
    inside = np.zeros(len(device), np.bool_)
    for _ in range(steps):
        length = int(2.0 ** (rng.random() * np.log2(float(len(line)))))
        first = int(rng.random() * (len(line) - length + 1))
        changed = _adopt(units, s, line[first : first + length], device, inside)
        lined = by_rank and ordered and rng.random() < 0.5
        if lined:
            old[:] = s.at
            lined = _reorder(s, old, at, inside)
        if changed == 0 and not lined:
            continue
        done += 1
        cost, time, over = candidate_cost(m, w, s, samples, by_rank, track, weight, s.cost[0], -1, False)
        if cost < s.cost[0]:
            s.cost[0] = cost
            final = cost + (weight[3] - weight[1]) * over
            if final < s.cost[1]:
                remember(s, final, time, over)
            continue
        undo(s, changed)
        if lined:
            _line_up(s, old)
    return done


@njit(cache=True, nogil=True)
def _adopt(units: Any, s: Any, stretch: Any, device: Any, inside: Any) -> int:
    """Move the units of `stretch` to where `device` has them, and mark their ops; how many ops moved (see `undo_op`)."""
    changed = 0
    inside[:] = False
    for u in stretch:
        op = units.ops[units.ptr[u]]
        d = device[op]
        if not units.allowed[u, d]:
            continue
        if s.device[op] != d:
            changed = reassign(u, d, changed, units, s)
        for k in range(units.ptr[u], units.ptr[u + 1]):
            inside[units.ops[k]] = True
    return changed


@njit(cache=True, nogil=True)
def _reorder(s: Any, mine: Any, other: Any, inside: Any) -> bool:
    """Merge two orders of all ops: those `inside` as in `other`, the rest as in `mine`; whether that changes anything."""
    z = 0
    for k in range(len(mine)):
        if not inside[mine[k]]:
            s.at[z] = mine[k]
            z += 1
        if inside[other[k]]:
            s.at[z] = other[k]
            z += 1
    changed = False
    for k in range(len(mine)):
        s.position[s.at[k]] = k
        changed = changed or s.at[k] != mine[k]
    return changed


@njit(cache=True, nogil=True)
def _line_up(s: Any, at: Any) -> None:
    s.at[:] = at
    for k in range(len(at)):
        s.position[at[k]] = k
