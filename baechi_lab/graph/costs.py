"""What an op costs on a device and where it may run: OpGraph x Cluster -> arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import InfeasiblePlacement
from .cluster import Cluster
from .opgraph import OpGraph


def durations(graph: OpGraph, cluster: Cluster) -> NDArray[np.float64]:
    """float64[n, devices]: `duration_us(op, kind) / speed` in microseconds (DESIGN section 4)."""
    table = np.empty((graph.n, cluster.n), dtype=np.float64)
    for d, device in enumerate(cluster.devices):
        table[:, d] = graph.duration_by_kind.get(device.kind, graph.duration_us) / device.speed
    return table


def allowed_devices(graph: OpGraph, cluster: Cluster) -> NDArray[np.bool_]:
    """bool[n, devices]: may the op run there, its own list and those of its colocation group considered.

    Raises `InfeasiblePlacement` naming an op that no device of the cluster may run.
    """
    mask = np.ones((graph.n, cluster.n), dtype=np.bool_)
    if graph.allowed_sets:
        rows = [[bool({d.name, d.kind} & set(codes)) for d in cluster.devices] for codes in graph.allowed_sets]
        table = np.array([*rows, [True] * cluster.n], dtype=np.bool_)
        mask = table[graph.allowed]
        if len(graph.colocation_names):
            grouped = graph.colocation >= 0
            group = np.ones((len(graph.colocation_names), cluster.n), dtype=np.bool_)
            np.logical_and.at(group, graph.colocation[grouped], mask[grouped])
            mask[grouped] &= group[graph.colocation[grouped]]
    bad = np.flatnonzero(~mask.any(axis=1))
    if len(bad):
        op = int(bad[0])
        codes = (
            graph.allowed_sets[graph.allowed[op]] if graph.allowed[op] >= 0 else ("that its colocation group allows",)
        )
        raise InfeasiblePlacement(
            f"op {graph.names[op]!r} may run only on {', '.join(codes)}; the cluster has {', '.join(cluster.names)}"
        )
    return mask
