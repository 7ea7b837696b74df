"""`schedule` places a graph by the earliest-start list scheduler: the common part of ETF, SCT, m-ETF and m-SCT."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from ...graph import Cluster, Link, OpGraph, Placement
from ...graph.kernels.csr import Integers
from ...graph.units import format_bytes
from ..problem import devices_are_equal, make_problem

FIRST_DEVICES = 64
"""The number of devices that are tried first where all are equal."""
MAX_PAIRS, MAX_PAIRS_WITH_FAVOURITES = 100_000_000, 20_000_000
"""The most pairs of ops and devices that are scheduled: each takes about 100 bytes."""

_NO_FAVOURITES: NDArray[np.int32] = np.zeros(0, dtype=np.int32)


def schedule(
    graph: OpGraph,
    cluster: Cluster,
    *,
    child: Integers | None = None,
    parent: Integers | None = None,
    memory_limits: bool = True,
    reservation: bool = False,
    explain: bool = False,
) -> Placement:
    """Places `graph` by earliest starts.

    Of equal devices with equal links the lowest unused one is as good as any other. So a plan for the first few devices is
    the plan for all, provided that it leaves one of them unused.

    Args:
        child, parent: int32[n], the favourite child and parent of each op, or -1 (SCT); None for ETF.
        memory_limits: keep to the devices' memory.
        reservation: keep room for each group's largest temporary and output too (Jeon et al. 2020, section 4.2).
        explain: also log the decisions. The readable twin then schedules, which takes far longer.

    Returns:
        A placement with an order. Its `info` has `planned_makespan_us`, `overflows` (the number of ops put on a device that
        lacks the memory) and, with `explain`, `decisions`.

    Raises:
        InvalidInput: there are too many pairs of ops and devices.
    """
    count = FIRST_DEVICES
    while count < cluster.n and not explain and devices_are_equal(graph, cluster):
        link = Link(float(cluster.latency_us[0, 1]), float(cluster.us_per_byte[0, 1]))
        first_devices = Cluster(cluster.devices[:count], link, cluster.comm)
        plan = _plan(graph, first_devices, child, parent, memory_limits, reservation, False)
        if plan.device.max(initial=-1) < count - 1:
            return plan
        count *= 4
    return _plan(graph, cluster, child, parent, memory_limits, reservation, explain)


def _plan(
    graph: OpGraph,
    cluster: Cluster,
    child: Integers | None,
    parent: Integers | None,
    memory_limits: bool,
    reservation: bool,
    explain: bool,
) -> Placement:
    """Places `graph` on all devices of `cluster`; see `schedule`."""
    max_pairs = MAX_PAIRS if child is None else MAX_PAIRS_WITH_FAVOURITES
    if graph.n * cluster.n > max_pairs:
        raise InvalidInput(
            f"{graph.n:,} ops on {cluster.n:,} devices are {graph.n * cluster.n:,} pairs, which would take about "
            f"{format_bytes(graph.n * cluster.n * 100)} and many minutes to schedule; at most {max_pairs:,} pairs are "
            "scheduled: optimize the graph first, or use 'heft' or 'm-topo'"
        )
    problem = make_problem(graph, cluster, memory_limits=memory_limits, reservation=reservation)
    info: dict[str, object] = {}
    if explain:
        from .earliest_start_reference import earliest_start_reference

        none = np.full(graph.n, -1, dtype=np.int32)
        favourites = (none if child is None else child, none if parent is None else parent)
        plan, info["decisions"] = earliest_start_reference(problem, *favourites)
    else:
        from .earliest_start import earliest_start

        favourites = (_NO_FAVOURITES if child is None else child, _NO_FAVOURITES if parent is None else parent)
        plan = earliest_start(problem, *favourites)
    info |= {"planned_makespan_us": float(plan.finish.max(initial=0.0)), "overflows": plan.overflows}
    return Placement(device=plan.device, order=plan.position.astype(np.float64), info=info)
