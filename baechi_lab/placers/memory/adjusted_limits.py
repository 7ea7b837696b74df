"""Places with adjusted memory limits where placers count other bytes than the simulation.

Placers give every output bytes of its own. If a placer refuses a graph whose outputs share memory (`OpGraph.reuse`), it is
asked again with larger limits, and then with less on the devices that exceed the real ones. The first placement that fits when
it is simulated with the real limits is taken. Small graphs are tried out: all placements, first in first out and depth first.

A placement may also need more than its placer counted: a view keeps the whole buffer in which it lies, and messages with
processor time end ops later than planned. The placer is then asked again with smaller limits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...errors import InfeasiblePlacement
from ...graph import Cluster, OpGraph, Placement
from ...simulator import makespan_and_peak, simulate_step
from ..problem import allowed_group_devices, every_assignment, groups_of
from .depth_first import depth_first_order

TRIES = 4
"""Placements per placer if it counts too few bytes; half as many for placers with a time limit."""
LIMIT_FACTORS = (1.02, 1.05, 1.1, 1.25, 2.0)
"""Larger limits, as multiples of the devices' memory."""
FEW_LIMIT_FACTORS = (1.25, 2.0)
"""Larger limits for large graphs, and for placers that take long."""
FEW_OPS = 2000
"""Ops of a graph up to which all larger limits are tried."""
MAX_PLACEMENTS = 1000
"""Most placements of a small graph; each is simulated twice."""


def place_with_larger_limits(
    graph: OpGraph, cluster: Cluster, assign: Callable[[OpGraph, Cluster], Placement], takes_long: bool = False
) -> Placement | None:
    """Returns a placement of `assign` with larger limits that fits the real limits when it is simulated, or None.

    `takes_long` says that `assign` is worth few tries.

    >>> graph = OpGraph.from_edges([1, 1, 1], [(0, 1, 30), (1, 2, 30)], reuse=[0, 1, 0])    # op 1 writes over its input
    >>> import baechi_lab as bl
    >>> plain = lambda graph, cluster: bl.place(graph.replace(reuse=None), cluster, "single")
    >>> place_with_larger_limits(graph, Cluster.uniform(1, memory_bytes=30), plain).info["limits"]
    2.0
    """
    few_tries = takes_long or graph.n > FEW_OPS
    for factor in FEW_LIMIT_FACTORS if few_tries else LIMIT_FACTORS:
        limits = np.minimum(cluster.memory_bytes * factor, float(1 << 60)).astype(np.int64)
        try:
            placement = place_with_smaller_limits(
                cluster,
                lambda limited_cluster: assign(graph, limited_cluster),
                assign(graph, cluster.with_memory(limits.tolist())),
                lambda on, candidate: simulate_step(graph, on, candidate).peak_bytes,
                lambda on, candidate: makespan_and_peak(graph, on, candidate)[1],
                1 if few_tries else TRIES,
                limits,
            )
        except InfeasiblePlacement:
            continue
        if placement is not None:
            return placement.replace(info={**placement.info, "limits": factor})
    return None


def place_with_smaller_limits(
    cluster: Cluster,
    assign: Callable[[Cluster], Placement],
    placement: Placement,
    measured_bytes: Callable[[Cluster, Placement], NDArray[np.int64]],
    planned_bytes: Callable[[Cluster, Placement], NDArray[np.int64]],
    tries: int = TRIES,
    limits: NDArray[np.int64] | None = None,
) -> Placement | None:
    """Returns `placement` if it fits, else the first that fits of `assign` with limits lowered by the bytes exceeded last.

    `measured_bytes` returns int64[devices], the bytes that a placement needs on a cluster; `planned_bytes` the bytes that placers
    count. `limits` are those of `placement`, by default the memory of the devices. Returns None if none of `tries` placements
    fits.
    """
    cluster_for_placers = cluster.without_overhead()
    limits = cluster.memory_bytes.copy() if limits is None else limits
    for tries_left in reversed(range(tries)):
        overflow_bytes = np.maximum(measured_bytes(cluster, placement) - cluster.memory_bytes, 0)
        if not overflow_bytes.any():
            return placement
        limits = np.where(
            overflow_bytes > 0,
            np.maximum(np.minimum(limits, planned_bytes(cluster_for_placers, placement)) - overflow_bytes, 0),
            limits,
        )
        try:
            placement = assign(cluster_for_placers.with_memory(limits.tolist())) if tries_left else placement
        except InfeasiblePlacement:
            break
    return None


def fastest_of_all_placements(graph: OpGraph, cluster: Cluster) -> Placement | None:
    """Returns the fastest placement of a small graph that fits in memory; None if none fits or the graph is large."""
    group = groups_of(graph)
    allowed = allowed_group_devices(graph, cluster, group)
    best: tuple[float, Placement] | None = None
    for assignment in every_assignment(allowed, MAX_PLACEMENTS):
        for order in (None, depth_first_order(graph)):
            placement = Placement(device=assignment.astype(np.int32)[group], order=order)
            timeline = simulate_step(graph, cluster, placement)
            if timeline.feasible and (best is None or timeline.makespan_us < best[0]):
                best = timeline.makespan_us, placement
    return None if best is None else best[1].replace(info={"limits": "tried out"})
