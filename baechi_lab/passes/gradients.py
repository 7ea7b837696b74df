"""Gradients that the replicas of a pipeline stage add up: their bytes, and the time of a ring of devices for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..graph import CONTROL_BYTES, Cluster, OpGraph
from .roles import SETUP, UPDATE, roles


def gradient_bytes(graph: OpGraph) -> NDArray[np.int64]:
    """Returns int64[n]: the bytes of the gradients that each op produces for the updates of parameters.

    In a graph without updates, such as PyTorch's layer graphs, they are the persistent bytes (the parameters) of ops with a
    backward op. They are 0 in a graph without backward ops.

    >>> gradient_bytes(OpGraph.from_edges([1, 2], [(0, 1, 4)], persistent_bytes=[100, 0], forward_of=[-1, 0])).tolist()
    [100, 0]
    """
    gradient_sizes = np.zeros(graph.n, dtype=np.int64)
    trained_ops = graph.forward_of[graph.forward_of >= 0]
    if not len(trained_ops):
        return gradient_sizes
    role = roles(graph)
    runs_per_micro_batch = (role != SETUP) & (role != UPDATE)
    edges = (role[graph.consumers] == UPDATE) & runs_per_micro_batch[graph.edge_source]
    read = np.unique(graph.edge_tensor[edges])
    read = read[graph.tensor_bytes[read] > CONTROL_BYTES]
    np.add.at(gradient_sizes, graph.tensor_producer[read], graph.tensor_bytes[read])
    if not len(read):
        gradient_sizes[trained_ops] = graph.persistent_bytes[trained_ops]
    return gradient_sizes


def ring_us(cluster: Cluster, devices: Sequence[int], size_bytes: float) -> float:
    """Returns the microseconds of a ring all-reduce among r `devices`: 2 (r - 1) parts of `size_bytes / r` on the slowest link.

    (Patarasuk, Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.)

    >>> from baechi_lab import Link
    >>> ring_us(Cluster.uniform(3, link=Link(1.0, 0.5)), (0, 1, 2), 30.0)    # 4 parts of 10 bytes: 4 * (1 + 5)
    24.0
    """
    if size_bytes <= 0 or len(devices) < 2:
        return 0.0
    ring = list(devices)
    pairs = np.ix_(ring, ring)
    is_link = ~np.eye(len(ring), dtype=bool)
    latency = float(cluster.latency_us[pairs][is_link].max())
    per_byte = float(cluster.us_per_byte[pairs][is_link].max())
    return 2.0 * (len(ring) - 1) * (latency + per_byte * size_bytes / len(ring))
