"""Memory that placers do not count as it is: outputs that lie in the memory of others (`OpGraph.reuse`), late messages.

Placers give every output bytes of its own. Where one refuses a graph whose outputs share memory, it is asked again with
larger limits, and what it finds is simulated with the limits that there are. The first placement that keeps within them
counts. Small problems are tried out: all placements, first in, first out and depth first.

A view keeps the whole of what it lies in, which may be more than its own bytes, and messages that take processor time end
ops later than planned: so a placement can also need more than its placer counted.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from ...errors import InfeasiblePlacement
from ...graph import Cluster, OpGraph, Placement, allowed_devices
from ...simulator import simulate
from ..problem import groups_of
from .order import depth_first_order

TRIES = 4
"""Placements of a placer that counts too little; of those that take a time limit half as many."""

LARGER = (1.25, 2.0)
"""Limits that are tried, as multiples of the devices' memory."""

MOST = 1000
"""Placements of a small problem: each is simulated twice."""


def with_shared_memory(
    graph: OpGraph, cluster: Cluster, assign: Callable[[OpGraph, Cluster], Placement]
) -> Placement | None:
    """What `assign` finds with larger limits, where it keeps within those of `cluster` when it is simulated.

    >>> graph = OpGraph.from_edges([1, 1, 1], [(0, 1, 30), (1, 2, 30)], reuse=[0, 1, 0])    # op 1 writes over its input
    >>> import baechi_lab as bl
    >>> plain = lambda graph, cluster: bl.place(graph.replace(reuse=None), cluster, "single")
    >>> with_shared_memory(graph, Cluster.uniform(1, memory_bytes=30), plain).info["limits"]
    2.0
    """
    for factor in LARGER:
        room = np.minimum(cluster.memory_bytes * factor, float(1 << 60)).astype(np.int64)
        try:
            found = assign(graph, cluster.with_memory(room.tolist()))
        except InfeasiblePlacement:
            continue
        if simulate(graph, cluster, found).feasible:
            return found.replace(info={**found.info, "limits": factor})
    return None


def kept_within(
    cluster: Cluster, assign: Callable[[Cluster], Placement], found: Placement,
    held: Callable[[Cluster, Placement], Any], counted: Callable[[Cluster, Placement], Any], tries: int = TRIES,
) -> Placement | None:  # fmt: skip
    """`found`, or what `assign` finds with limits that are smaller by what the last one exceeded, once it fits.

    `held` gives int64[devices], the bytes that a placement needs on a cluster, `counted` those that placers count. None where
    none of `tries` placements fits.
    """
    seen, room = cluster.without_overhead(), cluster.memory_bytes.copy()
    for left in reversed(range(tries)):
        over = np.maximum(held(cluster, found) - cluster.memory_bytes, 0)
        if not over.any():
            return found
        room = np.where(over > 0, np.maximum(np.minimum(room, counted(seen, found)) - over, 0), room)
        try:
            found = assign(seen.with_memory(room.tolist())) if left else found
        except InfeasiblePlacement:
            break
    return None


def tried_out(graph: OpGraph, cluster: Cluster) -> Placement | None:
    """The fastest of all placements of a small problem that keep within memory; None for none, and for large problems."""
    group = groups_of(graph)
    able = np.ones((int(group.max(initial=-1)) + 1, cluster.n), dtype=np.bool_)
    np.logical_and.at(able, group, allowed_devices(graph, cluster))
    if np.log(np.maximum(able.sum(axis=1), 1)).sum() > np.log(MOST):
        return None
    best: tuple[float, Placement] | None = None
    for home in product(*(np.flatnonzero(row).tolist() for row in able)):
        for order in (None, depth_first_order(graph)):
            placed = Placement(device=np.array(home, dtype=np.int32)[group], order=order)
            timeline = simulate(graph, cluster, placed)
            if timeline.feasible and (best is None or timeline.makespan_us < best[0]):
                best = timeline.makespan_us, placed
    return None if best is None else best[1].replace(info={"limits": "tried out"})
