"""A layered drawing: x by depth, y by barycentres.

Idea: the depth of an op is the longest path to it; inside a layer, ops are sorted by the mean position of their
neighbours in the layer before and, on the way back, behind, a few times over (Sugiyama, Tagawa and Toda, "Methods for
visual understanding of hierarchical system structures", 1981, doi:10.1109/TSMC.1981.4308636). Deviation: no dummy
nodes on long edges, which keeps the drawing linear in nodes and edges: O(sweeps * (n + E) + n log n).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph

SWEEPS = 6


class Drawing(NamedTuple):
    """Nodes with place and device (-1: none), the ops they hold, and edges between nodes."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    device: NDArray[np.int32]
    duration_us: NDArray[np.float64]
    members: tuple[NDArray[np.int64], ...]
    source: NDArray[np.int64]
    target: NDArray[np.int64]

    @property
    def widest(self) -> int:
        """Most nodes in one layer."""
        return int(np.unique(self.x, return_counts=True)[1].max(initial=0))


def drawing(graph: OpGraph, device: NDArray[np.int32] | None, max_nodes: int) -> Drawing:
    """Place the ops, or bands of ops where there are more than `max_nodes`."""
    where = np.full(graph.n, -1, dtype=np.int32) if device is None else device
    depth = depths(graph)
    node, layer = _bands(depth, where, max_nodes)
    count = int(node.max(initial=-1)) + 1
    pairs = np.stack([node[graph.edge_source], node[graph.consumers]], axis=1).astype(np.int64)
    pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    order = np.argsort(node, kind="stable")
    members = tuple(np.split(order, np.searchsorted(node[order], np.arange(1, count)))) if count else ()
    node_device = np.full(count, -1, dtype=np.int32)
    node_device[node] = where
    duration = np.bincount(node, graph.duration_us, minlength=count).astype(np.float64)
    y = _positions(layer, pairs)
    return Drawing(layer.astype(np.float64), y, node_device, duration, members, pairs[:, 0], pairs[:, 1])


def depths(graph: OpGraph) -> NDArray[np.int64]:
    """int64[n]: edges on the longest path that ends in each op."""
    depth = np.zeros(graph.n, dtype=np.int64)
    pointer, ahead = graph.successors
    for op in graph.order.tolist():
        after = ahead[pointer[op] : pointer[op + 1]]
        depth[after] = np.maximum(depth[after], depth[op] + 1)
    return depth


def _bands(
    depth: NDArray[np.int64], where: NDArray[np.int32], limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Node of every op, and layer of every node."""
    if len(depth) <= limit:
        return np.arange(len(depth)), depth
    devices = int(where.max()) + 2
    bands = max(1, min(limit // devices, int(depth.max()) + 1))
    band = depth * bands // (int(depth.max()) + 1)
    kept, node = np.unique(band * devices + where + 1, return_inverse=True)
    return node.reshape(-1), kept // devices


def _positions(layer: NDArray[np.int64], pairs: NDArray[np.int64]) -> NDArray[np.float64]:
    y = _spread(layer, np.arange(len(layer), dtype=np.float64))
    for sweep in range(SWEEPS):
        near, far = (pairs[:, 0], pairs[:, 1]) if sweep % 2 == 0 else (pairs[:, 1], pairs[:, 0])
        degree = np.bincount(far, minlength=len(layer))
        mean = np.bincount(far, y[near], minlength=len(layer)) / np.maximum(degree, 1)
        y = _spread(layer, np.where(degree > 0, mean, y))
    return y


def _spread(layer: NDArray[np.int64], wish: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distinct positions one apart, centred on 0, in the order of the wishes; ties by node index."""
    order = np.lexsort((np.arange(len(layer)), wish, layer))
    start = np.searchsorted(layer[order], layer[order], side="left")
    size = np.bincount(layer, minlength=1)[layer[order]]
    y = np.empty(len(layer))
    y[order] = np.arange(len(layer)) - start - (size - 1) / 2
    return y
