"""`dfs`: walk the graph depth first and place each op where traffic x execution time is least.

Idea (Mayer et al. 2017, section 3.3.2, doi:10.1145/3154842.3154843): an op that is visited right after its producer finds it
placed, so the traffic score keeps neighbours together. The walk starts at the source of the highest total rank, visits
successors by total rank, and goes on with the next source. A visited unit goes to the device with the least

    traffic(i, l) x execTime(i, l)                                                               (equation 11),

both as in `mite`. O(ops log ops + (groups + edges) x devices).

Where products are equal (0 on every device that needs no transfer) the execution time decides, then the speed for the
whole graph, then the device index: the paper leaves it open. Nothing in equation 11 spreads work, so only memory limits
and groups move an op away from the fastest device that its inputs are on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, OpGraph, Placement
from ..graph.kernels.jit import has_few_entries, njit
from ..simulator.ranks import total_rank
from .base import Placer
from .memory.feasible import within_memory
from .partition import (
    DeviceUsage,
    Incoming,
    assign_unit,
    emptiest,
    empty_usage,
    feasible,
    incoming,
    make_units,
    traffic,
)


@dataclass(frozen=True)
class Dfs(Placer):
    """Depth first from the source of the longest path, each op where traffic x execution time is least (Mayer et al. 2017)."""

    name = "dfs"

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        return within_memory(graph, cluster, lambda limits, careful: first_plan(graph, limits))


def first_plan(graph: OpGraph, cluster: Cluster) -> Placement:
    """Returns the placement before it is simulated or repaired."""
    units = make_units(graph, cluster)
    usage = empty_usage(units)
    _choose_devices(walk(graph), units.group, units.cost, units.pace, incoming(graph, cluster, units.group), usage)
    return Placement(device=usage.unit_device[units.group])


def walk(graph: OpGraph) -> NDArray[np.int64]:
    """Returns int64[n]: the ops in the order of the visit.

    >>> walk(OpGraph.from_edges([1, 1, 5, 1], [(0, 1, 1), (0, 2, 1), (3, 2, 1)])).tolist()
    [0, 2, 1, 3]
    """
    pointer, successor = graph.successors
    rank = total_rank(graph)
    op = np.repeat(np.arange(graph.n), np.diff(pointer))
    by_rank = np.lexsort((successor, -rank[successor], op))
    sources = np.flatnonzero(np.diff(graph.inputs[0]) == 0)
    return _visit(sources[np.lexsort((sources, -rank[sources]))], pointer, successor[by_rank])


@njit(cache=True, interpreted_if=has_few_entries)
def _visit(sources: NDArray[np.int64], pointer: NDArray[np.int64], successor: NDArray[np.int32]) -> NDArray[np.int64]:
    """Returns int64[n]: the ops depth first from each source; `successor` has the successors of op i from `pointer[i]` on."""
    n = len(pointer) - 1
    visit_order, visited, visit_count = np.empty(n, np.int64), np.zeros(n, np.bool_), 0
    stack, next_edge = np.empty(n, np.int64), np.empty(n, np.int64)  # the path, and the next successor of each op on it
    for source in sources:
        if visited[source]:
            continue
        stack[0], next_edge[0], depth = source, pointer[source], 1
        visited[source], visit_order[visit_count] = True, source
        visit_count += 1
        while depth > 0:
            op = stack[depth - 1]
            if next_edge[depth - 1] == pointer[op + 1]:
                depth -= 1
                continue
            successor_op = successor[next_edge[depth - 1]]
            next_edge[depth - 1] += 1
            if not visited[successor_op]:
                visited[successor_op], visit_order[visit_count] = True, successor_op
                visit_count += 1
                stack[depth], next_edge[depth] = successor_op, pointer[successor_op]
                depth += 1
    return visit_order


@njit(cache=True, interpreted_if=has_few_entries)
def _choose_devices(
    visit: NDArray[np.int64],
    group: NDArray[np.int32],
    cost: NDArray[np.float64],
    pace: NDArray[np.float64],
    edges: Incoming,
    usage: DeviceUsage,
) -> None:
    """Puts each op, in visiting order, and its group on the device with the least product of time and transfers, in place."""
    unit_device, devices = usage.unit_device, len(usage.limit)
    mask, transfer_us = np.zeros(devices, np.bool_), np.zeros(devices)
    for i in visit:
        g = group[i]
        if unit_device[g] >= 0:
            continue
        has_room = feasible(g, usage, mask)
        traffic(g, edges, usage.unit_device, transfer_us)
        best = -1
        for d in range(devices):
            if not mask[d] or not has_room:
                continue
            if best < 0:
                best = d
                continue
            score, least = transfer_us[d] * cost[g, d], transfer_us[best] * cost[g, best]
            faster = cost[g, d] < cost[g, best] or (cost[g, d] == cost[g, best] and pace[d] > pace[best])
            if score < least or (score == least and faster):
                best = d
        if best < 0:
            best = emptiest(mask, usage)
        assign_unit(g, best, usage)
