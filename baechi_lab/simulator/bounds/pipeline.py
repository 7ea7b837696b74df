"""Lower bounds on a step of several micro-batches, and on the period of endless micro-batches.

All copies of an op are on the op's device, so a set of ops that shares a device does so for all micro-batches. Placements
with replicas spread copies over devices: for a given placement with replicas the other bounds hold; over all such
placements only those of one micro-batch do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, Placement
from ...graph.costs import allowed_durations, placed_durations
from ...graph.kernels.csr import Floats, Ints, grouped_sum
from ...passes.unroll import unroll
from ..paths import computing_us, heads_and_tails
from .problem import work_bound


def step_bounds(
    graph: OpGraph, cluster: Cluster, micro_batches: int, placement: Placement | None = None
) -> dict[str, float]:
    """Returns lower bounds in microseconds on a step of `micro_batches` runs of `graph`; every schedule obeys them.

    - `all-work`: the work of the unrolled graph over total speed.
    - `same-device`: the copies of an op, and of its colocation group, run on one device one after the other: after the
      earliest that one of them can start, and before the least that follows one of them. Not for replicas.

    With a placement, bounds that hold for it alone:

    - `device-load`: a device does all its work one op after the other, after the earliest start of one of its ops, and
      the least that follows one of them comes after its last. Starts and ends by longest paths with transfers. For a
      chain of stages with loads f and b that is max over s of sum_{j<s} (f_j + b_j) + M (f_s + b_s).
    - `placed-path`: the longest path, transfers included.

    >>> chain = OpGraph.from_edges([2, 3, 4], [(0, 1, 1), (1, 2, 1)])
    >>> step_bounds(chain, Cluster.uniform(2), 5)["same-device"]    # 2 + 3 + 5 * 4
    25.0
    """
    step_graph = unroll(graph, micro_batches, placement)
    if step_graph.n == 0:
        return {"all-work": 0.0}
    table = allowed_durations(step_graph, cluster)
    head, tail = heads_and_tails(step_graph, table.min(axis=1))
    table = computing_us(step_graph, table)
    lower_bounds = {"all-work": work_bound(table, cluster.speed)}
    if placement is None or not placement.replicas:
        unit = _same_device_unit(step_graph)
        count = int(unit.max()) + 1
        total = grouped_sum(table, unit, count).min(axis=1)
        lower_bounds["same-device"] = float(
            (_least_per_unit(unit, head, count) + total + _least_per_unit(unit, tail, count)).max()
        )
    return lower_bounds if placement is None else lower_bounds | _placed_bounds(step_graph, cluster, placement)


def period_bounds(graph: OpGraph, cluster: Cluster) -> dict[str, float]:
    """Returns lower bounds in microseconds on the period of `bl.throughput` over all placements without replicas.

    - `all-work`: a period in which every device works all the time does total speed times its length of work.
    - `same-device`: the ops of a colocation group, or one op, load one device.

    Both hold with `sum=True` as well, where transfers only add to loads.

    >>> period_bounds(OpGraph.from_edges([2, 3, 4], [(0, 1, 1), (1, 2, 1)]), Cluster.uniform(2))
    {'all-work': 4.5, 'same-device': 4.0}
    """
    if graph.n == 0:
        return {"all-work": 0.0}
    table = computing_us(graph, allowed_durations(graph, cluster))
    unit = _same_device_unit(graph)
    total = grouped_sum(table, unit, int(unit.max()) + 1).min(axis=1)
    return {"all-work": work_bound(table, cluster.speed), "same-device": float(total.max())}


def _same_device_unit(graph: OpGraph) -> NDArray[np.int64]:
    """Returns int64[n]: colocation group, or else the original op; renumbered without gaps."""
    original_op = np.arange(graph.n) if graph.copy_of is None else graph.copy_of
    groups = len(graph.colocation_names)
    return np.unique(np.where(graph.colocation >= 0, graph.colocation, groups + original_op), return_inverse=True)[1]


def _least_per_unit(unit: Ints | NDArray[np.int32], values: Floats, count: int) -> NDArray[np.float64]:
    least = np.full(count, np.inf)
    np.minimum.at(least, unit, values)
    return least


def _placed_bounds(step_graph: OpGraph, cluster: Cluster, placement: Placement) -> dict[str, float]:
    device = placement.checked(step_graph, cluster.n).device
    duration_us = placed_durations(step_graph, cluster, device)
    a, b = device[step_graph.edge_source], device[step_graph.consumers]
    cost = cluster.latency_us[a, b] + cluster.us_per_byte[a, b] * step_graph.tensor_bytes[step_graph.edge_tensor]
    head, tail = heads_and_tails(step_graph, duration_us, cost)
    lane, lanes = device + cluster.n * step_graph.on_communication_lane, 2 * cluster.n
    load = np.bincount(lane, duration_us, lanes)
    used = np.bincount(lane, minlength=lanes) > 0
    bound = (_least_per_unit(lane, head, lanes) + load + _least_per_unit(lane, tail, lanes))[used]
    return {"device-load": float(bound.max()), "placed-path": float((head + duration_us + tail).max())}
