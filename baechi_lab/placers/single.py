"""`single`: everything on one device, the rival that every split must beat.

The device is the one with the smallest sum of durations (ties by device index) of those whose memory suffices. An op that
may not run there goes to its fastest allowed device, with its colocation group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InfeasiblePlacement, InvalidInput
from ..graph import Cluster, OpGraph, Placement, allowed_devices, durations
from ..graph.kernels.csr import Floats, Integers, grouped_sum
from ..graph.units import format_bytes
from ..simulator import makespan_and_peak
from .base import Placer
from .problem import allowed_group_devices, groups_of


@dataclass(frozen=True)
class Single(Placer):
    """Everything on the one device that runs it fastest, of those with room for it (`device=` names another).

    Args:
        device: its name or number; empty for the one that takes the least time.
    """

    name = "single"
    device: str | int | None = None

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        devices = [self.device] if self.device is not None else different_devices(graph, cluster)
        return on_first_with_room(graph, cluster, devices)


def on_first_with_room(graph: OpGraph, cluster: Cluster, devices: Sequence[str | int]) -> Placement:
    """Places everything on the first of `devices` whose memory suffices; the `InfeasiblePlacement` is that of the first one."""
    refusal: InfeasiblePlacement | None = None
    for device in devices:
        placement = on_one_device(graph, cluster, device)
        _, peak = makespan_and_peak(graph, cluster, placement)
        if np.all(peak <= cluster.memory_bytes):
            return placement
        d = int(np.argmax(peak - cluster.memory_bytes))
        refusal = refusal or InfeasiblePlacement(
            f"device {cluster.names[d]} needs {format_bytes(int(peak[d]))} to run everything in the order of "
            f"readiness and has {format_bytes(int(cluster.memory_bytes[d]))}",
            int(peak[d]),
            cluster.memory_bytes.tolist(),
        )
    raise refusal or InvalidInput("no device is given")


def on_one_device(graph: OpGraph, cluster: Cluster, device: str | int | None = None) -> Placement:
    """Places everything on one device, the fastest or the named one, whether or not it fits there.

    >>> on_one_device(OpGraph.from_edges([1, 2]), Cluster.uniform(2)).device.tolist()
    [0, 0]
    """
    if graph.n == 0:
        return Placement(device=np.zeros(0, dtype=np.int32))
    total, group, group_allowed = _group_times(graph, cluster)
    main_device = _devices_by_time(total, group_allowed)[0] if device is None else cluster.index(device)
    fallback = np.argmin(np.where(group_allowed, total, np.inf), axis=1)
    return Placement(device=np.where(group_allowed[:, main_device], main_device, fallback)[group].astype(np.int32))


def _devices_by_time(total: Floats, group_allowed: NDArray[np.bool_]) -> list[int]:
    """Returns the devices, first those on which most groups may run, of these the fastest."""
    keys = np.arange(total.shape[1]), total.sum(axis=0), -group_allowed.sum(axis=0)
    order: list[int] = np.lexsort(keys).tolist()
    return order


def different_devices(graph: OpGraph, cluster: Cluster) -> list[int]:
    """Returns the devices by time, one of those of equal kind, time and memory that may run the same ops."""
    total, _, group_allowed = _group_times(graph, cluster)
    devices: dict[object, int] = {}
    for d in _devices_by_time(total, group_allowed):
        device, allowed = cluster.devices[d], group_allowed[:, d].tobytes()
        key = device.kind, float(total[:, d].sum()), device.memory_bytes, allowed
        devices.setdefault(key, d)
    return list(devices.values())


def _group_times(graph: OpGraph, cluster: Cluster) -> tuple[Floats, Integers, NDArray[np.bool_]]:
    """Returns float64[groups, devices], the time of each colocation group; the group of each op; where each may run."""
    allowed, group = allowed_devices(graph, cluster), groups_of(graph)
    groups = int(group.max(initial=-1)) + 1
    cost: Floats = np.where(allowed, durations(graph, cluster), 0.0)
    return grouped_sum(cost, group, groups), group, allowed_group_devices(graph, cluster, group)
