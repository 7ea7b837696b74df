"""From records to the list-scheduling kernel and back: what ETF, SCT and their memory-aware forms share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from ...graph import Cluster, Link, OpGraph, Placement
from ...graph.kernels.csr import Integers
from ...graph.units import format_bytes
from ..problem import devices_are_equal, make_problem

FEW = 64
"""Devices that are tried first where all are equal."""
MOST_PAIRS, MOST_FAVOURED = 100_000_000, 20_000_000
"""Pairs of ops and devices that are scheduled, without and with favourites: each takes about 100 bytes."""

_NOBODY: NDArray[np.int32] = np.zeros(0, dtype=np.int32)


def schedule(
    graph: OpGraph,
    cluster: Cluster,
    *,
    child: Integers | None = None,
    parent: Integers | None = None,
    limited: bool = True,
    reservation: bool = False,
    explain: bool = False,
) -> Placement:
    """Plans with `earliest_start`; `child` and `parent` int32[n] are favourites (-1: none).

    Of equal devices with equal links the lowest unused one is as good as any other, so a plan for the first few of them is the
    plan for all as long as it leaves one unused.

    Raises `InvalidInput` where there are too many pairs of ops and devices.

    `info` of the result: `planned_makespan_us`, `overflows` (ops put where memory is lacking) and, where `explain`,
    `decisions`: the log made by the readable twin, which takes far longer.
    """
    few = FEW
    while few < cluster.n and not explain and devices_are_equal(graph, cluster):
        link = Link(float(cluster.latency_us[0, 1]), float(cluster.us_per_byte[0, 1]))
        first_devices = Cluster(cluster.devices[:few], link, cluster.comm)
        plan = _plan(graph, first_devices, child, parent, limited, reservation, False)
        if plan.device.max(initial=-1) < few - 1:
            return plan
        few *= 4
    return _plan(graph, cluster, child, parent, limited, reservation, explain)


def _plan(
    graph: OpGraph,
    cluster: Cluster,
    child: Integers | None,
    parent: Integers | None,
    limited: bool,
    reservation: bool,
    explain: bool,
) -> Placement:
    """Plans on these devices; see `schedule`."""
    max_pairs = MOST_PAIRS if child is None else MOST_FAVOURED
    if graph.n * cluster.n > max_pairs:
        raise InvalidInput(
            f"{graph.n:,} ops on {cluster.n:,} devices are {graph.n * cluster.n:,} pairs, which would take about "
            f"{format_bytes(graph.n * cluster.n * 100)} and many minutes to schedule; at most {max_pairs:,} pairs are "
            "scheduled: optimize the graph first, or use 'heft' or 'm-topo'"
        )
    problem = make_problem(graph, cluster, limited=limited, reservation=reservation)
    info: dict[str, object] = {}
    if explain:
        from .earliest_start_reference import earliest_start_reference

        none = np.full(graph.n, -1, dtype=np.int32)
        favourites = (none if child is None else child, none if parent is None else parent)
        device, _, finish, position, overflows, info["decisions"] = earliest_start_reference(problem, *favourites, True)
    else:
        from .earliest_start import earliest_start

        favourites = (_NOBODY if child is None else child, _NOBODY if parent is None else parent)
        device, _, finish, position, overflows = earliest_start(problem, *favourites)
    info |= {"planned_makespan_us": float(finish.max(initial=0.0)), "overflows": int(overflows)}
    return Placement(device=device, order=position, info=info)
