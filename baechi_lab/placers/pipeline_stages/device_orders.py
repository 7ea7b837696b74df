"""Orders of a cluster's devices along a pipeline."""

from __future__ import annotations

from itertools import islice, permutations

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster

MAX_KIND_ORDERS = 24
"""Most orders of different kinds of devices that are tried."""


def device_orders(cluster: Cluster, allowed: NDArray[np.bool_] | None = None) -> list[tuple[int, ...]]:
    """Returns the cluster's own order first, then every order of its kinds of devices, then orders across its islands.

    `allowed` bool[units, devices]: devices that differ in it are of different kinds.

    >>> from baechi_lab import Device
    >>> device_orders(Cluster.uniform(3))
    [(0, 1, 2)]
    >>> device_orders(Cluster([Device("a", "gpu", 8), Device("b", "gpu", 8, speed=2.0)]))
    [(0, 1), (1, 0)]
    """
    cluster_order = tuple(range(cluster.n))
    kind = [
        (d.kind, d.memory_bytes, d.speed, b"" if allowed is None else allowed[:, k].tobytes())
        for k, d in enumerate(cluster.devices)
    ]
    kinds = list(dict.fromkeys(kind))
    orders = [cluster_order]
    for ranks in islice(permutations(range(len(kinds))), MAX_KIND_ORDERS):
        rank = dict(zip(kinds, ranks, strict=True))
        orders.append(tuple(sorted(cluster_order, key=lambda d: rank[kind[d]])))
    islands = _islands(cluster)
    if 1 < len(islands) < cluster.n:
        orders.append(tuple(d for island in islands for d in island))
        longest = max(map(len, islands))
        orders.append(tuple(island[k] for k in range(longest) for island in islands if k < len(island)))
    return list(dict.fromkeys(orders))


def _islands(cluster: Cluster) -> list[list[int]]:
    """Groups of devices that the cheapest links (per byte) join, such as those of one machine."""
    from scipy.sparse.csgraph import connected_components

    if cluster.n < 2:
        return [list(range(cluster.n))]
    off = ~np.eye(cluster.n, dtype=bool)
    near = cluster.us_per_byte <= cluster.us_per_byte[off].min() * (1 + 1e-9)
    if near[off].all():
        return [list(range(cluster.n))]
    count, island = connected_components(near & off, directed=False)
    return [np.flatnonzero(island == k).tolist() for k in range(count)]
