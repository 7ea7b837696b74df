"""The layers of a graph along which a search moves ops: ops that share a weight.

Good moves change whole layers, forward and backward ops together; merging neighbours at random (`search.coarsen`) hardly ever
builds a layer. The units of the search are the ops of one layer on one device. O(ops + edges), apart from sorting.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import OpGraph
from ...graph.kernels.csr import Integers
from ...graph.kernels.jit import njit
from .parameters import SEARCH


def layer_labels(
    graph: OpGraph, group: Integers, limit_share: float = SEARCH.structure_share
) -> NDArray[np.int64] | None:
    """Returns the layer int64[n] of every op, the same for ops of one `group` int[n].

    None for a single layer, or for more than `limit_share` layers per group.

    >>> graph = OpGraph.from_edges([1.0] * 4, [(0, 1, 4), (2, 3, 4)], persistent_bytes=[9, 0, 9, 0])
    >>> layer_labels(graph, np.arange(4), limit_share=1.0).tolist()
    [0, 0, 1, 1]
    """
    _, first = np.unique(group, return_index=True)
    labels = np.unique(weights(graph, group)[first][group], return_inverse=True)[1].reshape(-1).astype(np.int64)
    return labels if 0 < labels.max(initial=0) < limit_share * len(first) else None


def weights(graph: OpGraph, group: Integers) -> NDArray[np.int64]:
    """Returns int64[n]: for each op the nearest group before it with persistent bytes.

    A backward op has the label of its forward op; an op without such a group has that of its first reader."""
    group_bytes = np.bincount(group, graph.persistent_bytes)
    label = np.where(group_bytes[group] > 0, group, -1).astype(np.int64)
    pointer, producer = graph.predecessors
    after, reader = graph.successors
    ints = lambda a: np.array(a, dtype=np.int64)  # noqa: E731  (one compiled signature for all callers)
    columns = (graph.order, graph.forward_of, pointer, producer, after, reader)
    _spread(label, _Neighbours(*map(ints, columns)))
    alone = label < 0
    label[alone] = int(group.max(initial=-1)) + 1 + np.flatnonzero(alone)
    return label


class _Neighbours(NamedTuple):
    """Ops in topological order, the forward op of each, and producers and readers in CSR form, all int64."""

    order: NDArray[np.int64]
    forward_of: NDArray[np.int64]
    pointer: NDArray[np.int64]
    producer: NDArray[np.int64]
    after: NDArray[np.int64]
    reader: NDArray[np.int64]


@njit(cache=True)
def _spread(label: NDArray[np.int64], neighbours: _Neighbours) -> None:
    order, forward_of, pointer, producer, after, reader = neighbours
    far = np.where(label >= 0, 0, len(label))  # edges to the group that the label names; no path is that long
    for v in order:
        if label[v] >= 0:
            continue
        f = forward_of[v]
        if f >= 0 and label[f] >= 0:
            label[v], far[v] = label[f], far[f]
            continue
        for e in range(pointer[v], pointer[v + 1]):
            u = producer[e]
            if label[u] >= 0 and far[u] + 1 < far[v]:
                label[v], far[v] = label[u], far[u] + 1
    for k in range(len(order) - 1, -1, -1):
        v = order[k]
        for e in range(after[v], after[v + 1]):
            if label[v] < 0:
                label[v] = label[reader[e]]
