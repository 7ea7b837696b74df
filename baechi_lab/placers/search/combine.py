"""Combination of two placements: the current one takes over the segments of another one that make it faster.

Two chains find good placements of different parts of a graph, and often a part of one improves the other: if blocks follow
each other, the step is nearly a sum over the blocks. Single moves do not find this, because a part changes many units and their
order at once. A *segment* is a run of consecutive units in an order of all units (`line_of`). Before a segment is taken over,
the devices of the other placement are renumbered so that most work agrees.

Source: after the combine operator of Sanders and Schulz 2012, doi:10.1137/1.9781611972924.2, which works on cuts of a graph;
here it works on segments and simulated times. Complexity: one simulation and O(ops) per segment.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from ...graph import OpGraph
from ...graph.kernels.csr import gather
from ...graph.kernels.jit import njit
from ..evaluation.assignment import Assignment
from ..evaluation.cost import Objective, candidate_cost
from ..evaluation.moves import State, Units, reassign, remember_if_best, undo
from .instance import Instance

LINES = ("topological", "folded", "structure", "distance")
"""Kinds of orders of units (`line_of`)."""


class Donor(NamedTuple):
    """Another placement, from which segments of `line` (units) are taken; `steps`: the number of segments to try."""

    line: NDArray[np.int64]
    assignment: Assignment
    steps: int


def line_of(kind: str, instance: Instance, units: Units, rng: np.random.Generator) -> NDArray[np.int64]:
    """Returns an order of the units, by their first ops.

    It is the topological order; with "folded" the same with backward ops beside their forward ops; with "structure" by the
    labels of a structure; with "distance" by the distance from a random op.

    >>> from baechi_lab import Cluster, OpGraph
    >>> graph = OpGraph.from_edges([1.0] * 4, [(0, 1, 4), (1, 2, 4), (2, 3, 4)]).replace(forward_of=[-1, -1, 1, 0])
    >>> instance = Instance(graph, Cluster.uniform(2))
    >>> line_of("folded", instance, instance.groups, np.random.default_rng(0)).tolist()
    [0, 3, 1, 2]
    """
    first = units.ops[units.ptr[:-1]]
    if kind == "topological":
        return np.arange(len(first))
    if kind == "folded":
        forward = instance.graph.forward_of[first]
        return np.argsort(instance.position[np.where(forward >= 0, forward, first)], kind="stable")
    if kind == "structure":
        labels = instance.structures[int(rng.integers(0, len(instance.structures)))]
        return np.argsort(labels[first], kind="stable")
    return around(instance.graph, units, rng)


def around(graph: OpGraph, units: Units, rng: np.random.Generator) -> NDArray[np.int64]:
    """Returns the units that are connected to a random op, in the order of a breadth-first search in both directions.

    >>> from baechi_lab.placers.evaluation.moves import make_units
    >>> graph = OpGraph.from_edges([1.0] * 4, [(0, 1, 4), (2, 3, 4)])
    >>> units = make_units(np.arange(4), np.arange(4), np.ones((4, 2), dtype=bool))
    >>> sorted(around(graph, units, np.random.default_rng(0)).tolist()) in ([0, 1], [2, 3])
    True
    """
    (after, reader), (before, producer) = graph.successors, graph.predecessors
    frontier = np.array([rng.integers(0, graph.n)])
    is_visited = np.zeros(graph.n, dtype=np.bool_)
    is_visited[frontier] = True
    region: dict[int, None] = {}
    while len(frontier):
        region.update(dict.fromkeys(rng.permutation(units.of[frontier]).tolist()))
        near = np.concatenate([gather(after, reader, frontier)[1], gather(before, producer, frontier)[1]])
        frontier = np.unique(near[~is_visited[near]])
        is_visited[frontier] = True
    return np.array(list(region), dtype=np.int64)


def renumber_devices(
    device: NDArray[np.int32], like: NDArray[np.int32], work: NDArray[np.float64], devices: int
) -> NDArray[np.int32]:
    """Renumbers the devices of `device` int32[n] so that as much `work` float64[n] as possible is on the devices of `like`.

    >>> renumber_devices(np.array([0, 0, 1]), np.array([1, 1, 1]), np.ones(3), 2).tolist()
    [1, 1, 0]
    """
    overlap = np.zeros((devices, devices))
    np.add.at(overlap, (device, like), work)
    return linear_sum_assignment(-overlap)[1][device].astype(np.int32)


@njit(cache=True, nogil=True)
def combine(objective: Objective, s: State, units: Units, donor: Donor, rng: np.random.Generator) -> int:
    """Try random segments of the `donor` in the current candidate of the state `s`, and keep those that make it faster.

    If priorities are searched and the donor has some, half of the segments also take over the order of their ops. Returns the
    number of simulations; an equal segment needs none.
    """
    line, (device, _, at, has_order), steps = donor
    simulations, old_device = 0, np.empty(len(device), np.int32)
    inside = np.zeros(len(device), np.bool_)
    for _ in range(steps):
        length = int(2.0 ** (rng.random() * np.log2(float(len(line)))))
        first = int(rng.random() * (len(line) - length + 1))
        changed_count = _adopt(units, s, line[first : first + length], device, inside)
        takes_order = s.by_rank and has_order and rng.random() < 0.5
        if takes_order:
            old_device[:] = s.at
            takes_order = _reorder(s, old_device, at, inside)
        if changed_count == 0 and not takes_order:
            continue
        simulations += 1
        cost, time, overflow_bytes = candidate_cost(objective, s, s.cost[0])
        if cost < s.cost[0]:
            s.cost[0] = cost
            remember_if_best(s, cost, time, overflow_bytes)
            continue
        undo(s, changed_count)
        if takes_order:
            _line_up(s, old_device)
    return simulations


@njit(cache=True, nogil=True)
def _adopt(
    units: Units, s: State, segment: NDArray[np.int64], device: NDArray[np.int32], inside: NDArray[np.bool_]
) -> int:
    """Move the units of `segment` to their devices in `device`, and mark their ops; returns the number of moved ops."""
    changed_count = 0
    inside[:] = False
    for u in segment:
        op = units.ops[units.ptr[u]]
        d = device[op]
        if not units.allowed[u, d]:
            continue
        if s.device[op] != d:
            changed_count = reassign(u, d, changed_count, units, s)
        for k in range(units.ptr[u], units.ptr[u + 1]):
            inside[units.ops[k]] = True
    return changed_count


@njit(cache=True, nogil=True)
def _reorder(
    s: State, own_positions: NDArray[np.int32], donor_positions: NDArray[np.int32], inside: NDArray[np.bool_]
) -> bool:
    """Merge two orders of all ops: those `inside` as in `donor_positions`, the rest as in `own_positions`.

    Returns whether that changes anything.
    """
    z = 0
    for k in range(len(own_positions)):
        if not inside[own_positions[k]]:
            s.at[z] = own_positions[k]
            z += 1
        if inside[donor_positions[k]]:
            s.at[z] = donor_positions[k]
            z += 1
    is_changed = False
    for k in range(len(own_positions)):
        s.position[s.at[k]] = k
        is_changed = is_changed or s.at[k] != own_positions[k]
    return is_changed


@njit(cache=True, nogil=True)
def _line_up(s: State, at: NDArray[np.int32]) -> None:
    s.at[:] = at
    for k in range(len(at)):
        s.position[at[k]] = k
