"""`bounds`: lower bounds on the makespan by name.

The proof of each bound is beside its code: those of `work`, `group` and `memory-cut` in the docstrings below, the others in the
modules that `bounds` names. A bound without a module there follows from its definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...checks import check_flag, check_text
from ...errors import InvalidInput
from ...graph import Cluster, OpGraph, Placement
from ...graph.arguments import check_records
from ...graph.costs import allowed_durations
from ...graph.groups import components
from ...graph.kernels.compiling import working_seconds
from ...graph.kernels.csr import Floats, grouped_sum
from ...graph.kernels.jit import HAS_NUMBA
from ..paths import computing_us, heads_and_tails
from .assignment import assignment
from .energy import energy_heads, window_bound
from .merge import forced_merges
from .pipeline import period_bounds, step_bounds
from .probe import probe_heads
from .problem import REACH_OPS, MergeProblem, cheapest_transfer_us, merge_problem, work_bound
from .stagger import staggered_work_us
from .sweep import paid_heads

EFFORTS = ("normal", "high")

SMALL = 1000 if HAS_NUMBA else 50
"""The largest number of ops for which raising heads and tails takes milliseconds."""

ZONES = {"normal": (40,), "high": (40, 150, 300, 600)}
"""Ancestors that are probed together, per effort."""

RAISE_SHARE = 0.5, 0.95
"""Shares of `time_limit` for heads and tails: for graphs of at most `REACH_OPS` ops, and for larger ones."""

ASSIGN_SHARE = 0.05
"""Share of `time_limit` for the assignment program."""


class Bounds(dict[str, float]):
    """Name -> lower bound on the makespan in microseconds; `best` is the largest."""

    @property
    def best(self) -> float:
        """The tightest of them."""
        return max(self.values(), default=0.0)


def bounds(
    graph: OpGraph,
    cluster: Cluster,
    effort: str = "normal",
    time_limit: float = 10.0,
    *,
    micro_batches: int | None = None,
    placement: Placement | None = None,
    period: bool = False,
) -> Bounds:
    """Returns lower bounds on the makespan of `graph` on `cluster`, in microseconds.

    Effort "normal" takes milliseconds; it has `probed-path` and `energy` for graphs of at most `SMALL` ops. Effort "high"
    takes up to `time_limit` seconds more for tighter forms of these two, and for the last two:

    - `critical-path`: the longest path, each op on its fastest allowed device, transfers free.
    - `work`: total work over total speed.
    - `restricted-work`: the same for the ops that only some devices may run, over those devices.
    - `group`: a colocation group runs on one device, one op after the other, between its earliest start and
      the least that must follow.
    - `memory-cut`: where no device holds a connected part of the graph, some edge of it must be paid for.
    - `local-or-paid`: every producer either runs on its reader's device or its transfer is paid (`paid_bounds`).
    - `staggered-work`: work, with the time for which devices wait for their first and after their last op.
    - `probed-path`: the longest path with heads and tails for which whole neighbourhoods are local or paid (`bounds.probe`).
    - `energy`: the same, with the work of all ancestors and all descendants shared by all devices (`bounds.energy`).
    - `assignment` (effort "high"): the best assignment of the heaviest units to devices within memory, with the transfers,
      queues and paths that it forces, as a mixed-integer program (`bounds.assignment`).
    - `forced-merges` (effort "high"): what every schedule within a makespan must do, up to a contradiction, with the
      colocation, separations and transfers that this forces (`bounds.merge`).

    Collectives run beside what their device computes: they count in paths, and in `communication`, their total time over all
    devices. A graph with collectives has the first five bounds and that one.

    A step of several micro-batches obeys those of one micro-batch, and more: `all-work`, `same-device`, and for a given
    placement `device-load` and `placed-path` (`bounds.pipeline`, proofs there; as for the period).

    Args:
        graph, cluster: what is to be placed, and where. No placement is asked for: the bounds hold for all of them.
        effort: "normal" or "high".
        time_limit: seconds for what "high" adds.
        micro_batches: bound a step of so many runs of `graph`, under any schedule.
        placement: with `micro_batches` (1 if not given), bound the step under this placement as well.
        period: bound the period of `bl.throughput` instead, over all placements.

    Returns:
        A mapping from the name of each bound to microseconds; its `best` is the largest.

    Raises:
        InfeasiblePlacement: an op has no allowed device.
        InvalidInput: an unknown effort.

    >>> from baechi_lab import Cluster, OpGraph
    >>> bounds(OpGraph.from_edges([5, 10, 10, 5]), Cluster.uniform(2))
    {'critical-path': 10.0, 'work': 15.0, 'restricted-work': 15.0, 'group': 10.0, 'memory-cut': 0.0, \
'local-or-paid': 10.0, 'staggered-work': 15.0, 'probed-path': 10.0, 'energy': 15.0}
    """
    check_records(graph=graph, cluster=cluster)
    check_text("effort", effort, EFFORTS)
    check_flag("period", period)
    if period:
        if micro_batches is not None or placement is not None:
            raise InvalidInput("period=True bounds endless micro-batches under any placement; give nothing beside it")
        return Bounds(period_bounds(graph, cluster))
    if micro_batches is not None or placement is not None:
        count = 1 if micro_batches is None else micro_batches
        return Bounds(bounds(graph, cluster, effort, time_limit) | step_bounds(graph, cluster, count, placement))
    if graph.n == 0:
        return Bounds({"critical-path": 0.0})
    table = allowed_durations(graph, cluster)
    fastest = table.min(axis=1)
    head, tail = heads_and_tails(graph, fastest)
    computing = computing_us(graph, table)
    work = work_bound(computing, cluster.speed)
    lower_bounds = Bounds(
        {
            "critical-path": float((head + fastest + tail).max()),
            "work": work,
            "restricted-work": max([work, *_restricted_work(cluster, computing)]),
            "group": _group(graph, computing, head, tail),
            "memory-cut": _memory_cut(graph, cluster, fastest, head, tail),
        }
    )
    if graph.on_communication_lane.any():  # the other bounds take a device for one machine
        lower_bounds["communication"] = work_bound(
            np.where(graph.on_communication_lane[:, None], table, 0.0), np.ones(cluster.n)
        )
        return lower_bounds
    lower_bounds.update(paid_bounds(graph, cluster))
    if cluster.n > 1 and (effort == "high" or graph.n <= SMALL):
        deadline = working_seconds() + time_limit
        share = RAISE_SHARE[graph.n > REACH_OPS]
        raised_times = raise_heads_and_tails(
            merge_problem(graph, cluster, reach=False), ZONES[effort], share * time_limit
        )
        lower_bounds.update(raised_times.bounds)
        if effort == "high":
            assignment_seconds = ASSIGN_SHARE * time_limit
            lower_bounds["assignment"] = assignment(
                graph, cluster, table, raised_times.head, raised_times.tail, lower_bounds.best, assignment_seconds
            )
            seconds_left, start = deadline - working_seconds(), (raised_times.head, raised_times.tail)
            lower_bounds["forced-merges"] = forced_merges(
                graph, cluster, lower_bounds.best, np.inf, seconds_left, start=start
            )
    return lower_bounds


def _restricted_work(cluster: Cluster, table: Floats) -> list[float]:
    """Returns the work bound of the ops that may run only on some devices, for each such set of devices."""
    mask = np.isfinite(table)
    if mask.all():
        return []
    bounds_per_subset = []
    for subset in np.unique(mask, axis=0):
        bound_ops = ~np.any(mask & ~subset, axis=1)  # may run on these devices alone
        if not subset.all() and bound_ops.any():
            bounds_per_subset.append(work_bound(table[np.ix_(bound_ops, subset)], cluster.speed[subset]))
    return bounds_per_subset


def _group(graph: OpGraph, table: Floats, head: Floats, tail: Floats) -> float:
    """Returns the largest r + p + q over the groups: smallest head, durations on the best device, smallest tail.

    An op without a group is a group of its own.
    """
    _, group = np.unique(graph.device_unit, return_inverse=True)
    groups = int(group.max()) + 1
    total = grouped_sum(table, group, groups)
    least_head, least_tail = np.full(groups, np.inf), np.full(groups, np.inf)
    np.minimum.at(least_head, group, head)
    np.minimum.at(least_tail, group, tail)
    return float((least_head + total.min(axis=1) + least_tail).max())


def _memory_cut(graph: OpGraph, cluster: Cluster, fastest: Floats, head: Floats, tail: Floats) -> float:
    """Returns the longest path through the cheapest edge of a connected part that fits on no device, so that an edge is cut.

    Every op and its tensors stay on one device, so a part on one device needs all of its persistent bytes there.
    """
    if graph.edge_count == 0 or cluster.n < 2 or int(graph.persistent_bytes.sum()) <= int(cluster.memory_bytes.max()):
        return 0.0
    source, target = graph.edge_source, graph.consumers
    component = components(graph.n, source, target)
    component_bytes = np.bincount(component, graph.persistent_bytes, graph.n)
    cost = cheapest_transfer_us(graph, cluster)[graph.edge_tensor]
    path_us = (head + fastest)[source] + cost + (fastest + tail)[target]
    is_colocated = (graph.colocation[source] >= 0) & (graph.colocation[source] == graph.colocation[target])
    path_us[is_colocated] = np.inf  # never cut
    cheapest_cut = np.full(graph.n, np.inf)
    np.minimum.at(cheapest_cut, component[source], path_us)
    cuts = cheapest_cut[(component_bytes > cluster.memory_bytes.max()) & np.isfinite(cheapest_cut)]
    return float(cuts.max(initial=0.0))


PROBE_SHARE = 0.6
"""Share of the time for probes; small zones come first."""


class RaisedTimes(NamedTuple):
    """Valid heads and tails float64[n] and the bounds that follow from them, by name."""

    head: NDArray[np.float64]
    tail: NDArray[np.float64]
    bounds: dict[str, float]


def raise_heads_and_tails(problem: MergeProblem, zones: Sequence[int], seconds: float = np.inf) -> RaisedTimes:
    """Raises the heads of `paid_heads` by probing with each size of zone in turn, then by energy."""
    x, began = problem, working_seconds()
    head, tail = paid_heads(x)
    for k, zone in enumerate(zones):
        probe_heads(x, head, tail, zone, began + seconds * PROBE_SHARE * (k + 1) / len(zones))
    probed_path_us = float((head + x.p + tail).max())
    energy_heads(x, head, tail, began + seconds)
    last = float(staggered_work_us(x, x.unit, head, tail))
    energy = max(float((head + x.p + tail).max()), window_bound(x, head, tail), last)
    return RaisedTimes(head, tail, {"probed-path": probed_path_us, "energy": energy})


def paid_bounds(graph: OpGraph, cluster: Cluster) -> dict[str, float]:
    """Returns both bounds by name. O(ops + edges) apart from sorting.

    `local-or-paid`: the longest path on which every producer delays its reader, either because it runs on the reader's device or
    by its transfer from another one (rules 1 and 5 of `bounds.merge`). Heads h are such paths from the front, tails q from the
    back. With an op of duration p, the step lasts at least h + p + q.

    `staggered-work`: see `bounds.stagger`.
    """
    if graph.n == 0 or cluster.n < 2:
        return {}
    x = merge_problem(graph, cluster, reach=False)
    head, tail = paid_heads(x)
    return {
        "local-or-paid": float((head + x.p + tail).max()),
        "staggered-work": float(staggered_work_us(x, x.unit, head, tail)),
    }
