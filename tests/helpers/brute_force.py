"""The optimum of a tiny case by trying everything, with the simulator's compiled evaluation: no timeline is built."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

import numpy as np

import baechi_lab as bl
from baechi_lab.graph import allowed_devices
from baechi_lab.simulator import makespan_and_peak


def topological_orders(graph: bl.OpGraph) -> Iterator[np.ndarray]:
    """Every order of the ops that the edges allow, as the position of each op."""
    edges = list(zip(graph.edge_source.tolist(), graph.consumers.tolist(), strict=True))
    for order in permutations(range(graph.n)):
        position = np.argsort(order)
        if all(position[u] < position[v] for u, v in edges):
            yield position


def lawful_placements(graph: bl.OpGraph, cluster: bl.Cluster) -> Iterator[np.ndarray]:
    """Every choice of allowed devices that keeps groups together."""
    allowed, groups = allowed_devices(graph, cluster), graph.colocation.tolist()
    for device in product(*(np.flatnonzero(row).tolist() for row in allowed)):
        homes: dict[int, int] = {}
        if all(homes.setdefault(g, d) == d for g, d in zip(groups, device, strict=True) if g >= 0):
            yield np.array(device, dtype=np.int32)


def optimum(graph: bl.OpGraph, cluster: bl.Cluster, orders: bool = True) -> float:
    """The least makespan that keeps to the memory, over all placements and, where `orders`, all priority orders.

    Infinite where nothing fits; without `orders` what is ready first runs first.
    """
    best, tried = np.inf, list(topological_orders(graph)) if orders else [None]
    for device in lawful_placements(graph, cluster):
        for order in tried:
            makespan, peak = makespan_and_peak(graph, cluster, bl.Placement(device=device, order=order))
            if makespan < best and np.all(peak <= cluster.memory_bytes):
                best = makespan
    return float(best)
