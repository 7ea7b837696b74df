"""Equal devices: the model considers one numbering of each assignment."""

from __future__ import annotations

import numpy as np

from ...graph import Cluster, OpGraph
from .variables import ExactModel


def devices_are_equal(graph: OpGraph, cluster: Cluster) -> bool:
    """Whether renumbering the devices keeps the length of every schedule (with copies sent in any order)."""
    same = len({(d.kind, d.memory_bytes, d.speed) for d in cluster.devices}) == 1
    off = ~np.eye(cluster.n, dtype=bool)
    links = all(len(np.unique(a[off])) <= 1 for a in (cluster.latency_us, cluster.us_per_byte))
    return same and links and not graph.allowed_sets and cluster.n > 1


def first_numbering(m: ExactModel) -> None:
    """Group g may use device d only if a group before it is on device d - 1."""
    for g, row in enumerate(m.x):
        for d in range(1, m.cluster.n):
            m.model.add_bool_or([*(m.x[h][d - 1] for h in range(g)), ~row[d]])
