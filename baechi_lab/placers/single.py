"""`single`: everything on one device, the rival that every split must beat.

The device is the one with the smallest sum of durations (ties by device index). An op that may not run there goes
to its fastest allowed device, with its colocation group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import InfeasiblePlacement, InvalidInput
from ..graph import Cluster, OpGraph, Placement, allowed_devices, durations
from ..graph.units import format_bytes
from ..simulator import makespan_and_peak
from .base import Placer
from .problem import allowed_group_devices, groups_of


@dataclass(frozen=True)
class Single(Placer):
    """Everything on the one device that runs it fastest (`device=` names another).

    Args:
        device: its name or number; empty for the one that takes the least time.
    """

    name = "single"
    device: str | int | None = None

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        placement = on_one_device(graph, cluster, self.device)
        _, peak = makespan_and_peak(graph, cluster, placement)
        if np.any(peak > cluster.memory_bytes):
            d = int(np.argmax(peak - cluster.memory_bytes))
            raise InfeasiblePlacement(
                f"device {cluster.names[d]} needs {format_bytes(int(peak[d]))} to run everything in the order of "
                f"readiness and has {format_bytes(int(cluster.memory_bytes[d]))}",
                int(peak[d]),
                cluster.memory_bytes.tolist(),
            )
        return placement


def on_one_device(graph: OpGraph, cluster: Cluster, device: str | int | None = None) -> Placement:
    """Places everything on one device, the fastest or the named one, whether or not it fits there.

    >>> on_one_device(OpGraph.from_edges([1, 2]), Cluster.uniform(2)).device.tolist()
    [0, 0]
    """
    if graph.n == 0:
        return Placement(device=np.zeros(0, dtype=np.int32))
    allowed, group = allowed_devices(graph, cluster), groups_of(graph)
    groups = int(group.max()) + 1
    cost = np.where(allowed, durations(graph, cluster), 0.0)
    total = np.stack([np.bincount(group, cost[:, d], groups) for d in range(cluster.n)], axis=1)
    group_allowed = allowed_group_devices(graph, cluster, group)
    if device is None:
        keys = np.arange(cluster.n), total.sum(axis=0), -group_allowed.sum(axis=0)
        main_device = int(np.lexsort(keys)[0])
    elif isinstance(device, str):
        main_device = cluster.index(device)
    elif 0 <= device < cluster.n:
        main_device = device
    else:
        raise InvalidInput(f"device is {device}; the cluster has devices 0..{cluster.n - 1}")
    fallback = np.argmin(np.where(group_allowed, total, np.inf), axis=1)
    return Placement(device=np.where(group_allowed[:, main_device], main_device, fallback)[group].astype(np.int32))
