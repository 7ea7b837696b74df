"""Structures of a graph along which a search moves ops: ops that share a weight, and ops that share a name scope.

Good moves change whole layers, forward and backward ops together; merging neighbours at random (`search.coarsen`) hardly ever
builds a layer. A *structure* labels the ops; the units of the search are the ops with one label on one device.

Complexity: O(ops + edges) per structure, apart from sorting.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import OpGraph
from ...graph.kernels.csr import Integers
from ...graph.kernels.jit import njit
from ..scopes import scope_labels, scope_of
from .parameters import SEARCH


def structures(
    graph: OpGraph, group: Integers, limit_share: float = SEARCH.structure_share, depths: int = SEARCH.scope_depths
) -> list[NDArray[np.int64]]:
    """Returns the labels int64[n] of every useful structure, the coarsest first; ops of a `group` int[n] share a label.

    A structure with more than `limit_share` labels per group is left out; name scopes are tried to `depths` levels.

    >>> graph = OpGraph.from_edges([1.0] * 4, [(0, 1, 4), (2, 3, 4)], names=["a/x", "a/y", "b/x", "b/y"])
    >>> [labels.tolist() for labels in structures(graph, np.arange(4))]
    [[0, 0, 1, 1]]
    """
    candidates = [weights(graph, group), *scopes(graph, depths)]
    groups = int(group.max(initial=-1)) + 1
    _, first = np.unique(group, return_index=True)
    labels_seen: set[bytes] = set()
    distinct_labels = []
    for labels in candidates:
        group_labels = np.unique(labels[first][group], return_inverse=True)[1].reshape(-1).astype(np.int64)
        if 0 < group_labels.max() < limit_share * groups and group_labels.tobytes() not in labels_seen:
            labels_seen.add(group_labels.tobytes())
            distinct_labels.append(group_labels)
    return sorted(distinct_labels, key=lambda labels: int(labels.max()))


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


def scopes(graph: OpGraph, depths: int = SEARCH.scope_depths) -> list[NDArray[np.int64]]:
    """Returns int64[n] per depth: ops labelled by their outer name scopes.

    A backward op has the label of its forward op, an op without a scope that of its first producer with one."""
    source = np.where(graph.forward_of >= 0, graph.forward_of, np.arange(graph.n))
    scope_paths = [scope_of(graph.names[i]) if "/" in graph.names[i] else () for i in source.tolist()]
    if not any(scope_paths):
        return []
    pointer, producer = (a.tolist() for a in graph.predecessors)
    for v in graph.order.tolist():
        if not scope_paths[v]:
            scope_paths[v] = next((scope_paths[u] for u in producer[pointer[v] : pointer[v + 1]] if scope_paths[u]), ())
    return [scope_labels(scope_paths, depth) for depth in range(1, min(depths, max(map(len, scope_paths))) + 1)]
