"""Common parts of the partitioners of Mayer et al. 2017: colocation groups as units, free memory, traffic between devices.

A partitioner gives every unit a device, one unit after the other. A scheduler (`fifo`, `pct`, `msr`) then orders the ops of
each device. A device is feasible for a unit if it is allowed for all members and has enough memory: for the persistent
bytes, which stay throughout, and for all bytes (with outputs and temporaries), by which the paper counts utilization.
If no device has enough memory for all bytes, those with enough for the persistent bytes are feasible, the emptiest first:
outputs are freed while the step runs, so that the sum may exceed the memory. `feasible.py` simulates the result.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, OpGraph, durations
from ..graph.kernels.csr import Integers, grouped_sum, offsets
from ..graph.kernels.jit import njit
from ..simulator.ranks import total_rank
from .problem import allowed_group_devices, groups_of


class Units(NamedTuple):
    """The G units of a graph to place on D devices.

    Args:
        group: int32[n], the unit of every op.
        cost: float64[G, D], the duration of all members.
        allowed: bool[G, D].
        persistent_bytes, need: int64[G], the persistent and all bytes.
        rank: float64[G], the largest total rank of a member (Mayer et al. 2017, equations 5 and 6).
        first: int64[G], the topological position of the first member.
        limit: int64[D], bytes.
        pace: float64[D], the speed of each device for the whole graph; 1 for the fastest.
    """

    group: NDArray[np.int32]
    cost: NDArray[np.float64]
    allowed: NDArray[np.bool_]
    persistent_bytes: NDArray[np.int64]
    need: NDArray[np.int64]
    rank: NDArray[np.float64]
    first: NDArray[np.int64]
    limit: NDArray[np.int64]
    pace: NDArray[np.float64]


def make_units(graph: OpGraph, cluster: Cluster) -> Units:
    """Returns the units of `graph`: colocation groups and single ops. Raises `InfeasiblePlacement` for an op without a device."""
    group, table = groups_of(graph), durations(graph, cluster)
    count = int(group.max(initial=-1)) + 1
    cost = grouped_sum(table, group, count)
    allowed = allowed_group_devices(graph, cluster, group)
    rank, first = np.zeros(count), np.full(count, graph.n)
    persistent_bytes = grouped_sum(graph.persistent_bytes, group, count)
    need = persistent_bytes + grouped_sum(graph.output_bytes + graph.temp_bytes, group, count)
    np.maximum.at(rank, group, total_rank(graph))
    np.minimum.at(first, group, graph.position)
    total = table.sum(axis=0)
    pace = total.min() / total if np.all(total > 0) else cluster.speed / cluster.speed.max()
    return Units(group, cost, allowed, persistent_bytes, need, rank, first, cluster.memory_bytes, pace)


def units_by_rank(units: Units) -> NDArray[np.int64]:
    """Returns int64[G]: units by total rank, highest first; ties in topological order."""
    return np.lexsort((units.first, -units.rank))


class DeviceUsage(NamedTuple):
    """The bytes that G units need and that D devices have in use, for the kernels.

    Args:
        allowed: bool[G, D].
        persistent_bytes, need: int64[G], as in `Units`.
        limit: int64[D], bytes.
        used_persistent, used: int64[D], the bytes of the units placed so far.
        unit_device: int32[G], -1 for a unit that is not placed yet.
    """

    allowed: NDArray[np.bool_]
    persistent_bytes: NDArray[np.int64]
    need: NDArray[np.int64]
    limit: NDArray[np.int64]
    used_persistent: NDArray[np.int64]
    used: NDArray[np.int64]
    unit_device: NDArray[np.int32]


def empty_usage(units: Units) -> DeviceUsage:
    """Returns the usage before any unit is placed."""
    used_persistent, used = (np.zeros(len(units.limit), dtype=np.int64) for _ in range(2))
    unit_device = np.full(len(units.need), -1, dtype=np.int32)
    return DeviceUsage(
        units.allowed, units.persistent_bytes, units.need, units.limit, used_persistent, used, unit_device
    )


@njit(cache=True)
def feasible(g: int, usage: DeviceUsage, mask: NDArray[np.bool_]) -> bool:
    """Sets `mask` bool[D] to the feasible devices of unit `g`; returns whether they have memory for all of its bytes."""
    allowed, persistent_bytes, need, limit, used_persistent, used, _ = usage
    any_feasible = any_without_outputs = False
    for d in range(len(limit)):
        mask[d] = (
            allowed[g, d] and used_persistent[d] + persistent_bytes[g] <= limit[d] and used[d] + need[g] <= limit[d]
        )
        any_feasible = any_feasible or mask[d]
    if any_feasible:
        return True
    for d in range(len(limit)):
        mask[d] = allowed[g, d] and used_persistent[d] + persistent_bytes[g] <= limit[d]
        any_without_outputs = any_without_outputs or mask[d]
    if not any_without_outputs:
        for d in range(len(limit)):
            mask[d] = allowed[g, d]
    return False


@njit(cache=True)
def emptiest(mask: NDArray[np.bool_], usage: DeviceUsage) -> int:
    """Returns the device of `mask` with the lowest utilization; ties by device index."""
    used, limit = usage.used, usage.limit
    best, least = -1, np.inf
    for d in range(len(limit)):
        level = used[d] / limit[d] if limit[d] > 0 else np.inf
        if mask[d] and (best < 0 or level < least):
            best, least = d, level
    return best


@njit(cache=True)
def assign_unit(g: int, d: int, usage: DeviceUsage) -> None:
    """Places unit `g` on device `d`."""
    usage.unit_device[g] = d
    usage.used_persistent[d] += usage.persistent_bytes[g]
    usage.used[d] += usage.need[g]


class Incoming(NamedTuple):
    """Edges into each unit from others, and their costs.

    CSR: `pointer` int64[G + 1], `source` int32[k] units, `size` int64[k] bytes; `latency`, `per_byte` float64[D, D].
    """

    pointer: NDArray[np.int64]
    source: NDArray[np.int32]
    size: NDArray[np.int64]
    latency: NDArray[np.float64]
    per_byte: NDArray[np.float64]


def incoming(graph: OpGraph, cluster: Cluster, group: Integers) -> Incoming:
    """Returns the edges that each unit reads from other units."""
    source, target = group[graph.edge_source], group[graph.consumers]
    between = np.flatnonzero(source != target)
    order = between[np.argsort(target[between], kind="stable")]
    count = int(group.max(initial=-1)) + 1
    size = graph.tensor_bytes[graph.edge_tensor[order]]
    return Incoming(offsets(target[order], count), source[order], size, cluster.latency_us, cluster.us_per_byte)


@njit(cache=True)
def traffic(g: int, edges: Incoming, unit_device: NDArray[np.int32], out: NDArray[np.float64]) -> None:
    """Equation 10: sets `out` float64[D] to the time to bring the placed inputs of `g` to each device."""
    pointer, source, size, latency, per_byte = edges
    out[:] = 0.0
    for e in range(pointer[g], pointer[g + 1]):
        p = unit_device[source[e]]
        if p >= 0:
            for d in range(len(out)):
                if d != p:
                    out[d] += latency[p, d] + per_byte[p, d] * size[e]
