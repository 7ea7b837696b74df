"""Inputs of the planner's networks: a vector per operation and a vector per group (Mirhoseini et al. 2018, section 2).

A *unit* is what is grouped: a colocation group, or an op of none (TensorFlow runs colocated ops together whatever a
placement says). A unit looks like its longest op, with the edges of all of its members.

Deviations: graphs keep sizes in bytes, not shapes, so each of the six outputs is one number, log2(1 + bytes) / 32,
in place of four dimensions, and a group counts its outputs in 16 classes of size; BFS indices are divided by the number
of units, because a network cannot read raw indices in the ten thousands. O(ops + edges), plus O(groups^2) per sample.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, allowed_devices, durations
from ...graph.kernels.csr import distinct, inverse
from ..problem import groups_of

SIZE_CLASSES = 16
"""H, section 2: the vector of a group's output shapes is of size 16."""


class Units(NamedTuple):
    """The U units of a graph that are placed on D devices.

    Args:
        of: int32[n], the unit of each op.
        edges: int64[2, E], distinct edges between units.
        type: int32[U], the number of a unit's op type.
        types: the number of op types.
        features: float32[U, F], sizes of outputs, and neighbours.
        sizes: float32[U, 16], the number of outputs in each class of sizes.
        fallback: int32[U], the fastest device that is allowed.
        allowed: bool[U, D].
    """

    of: NDArray[np.int32]
    edges: NDArray[np.int64]
    type: NDArray[np.int32]
    types: int
    features: NDArray[np.float32]
    sizes: NDArray[np.float32]
    fallback: NDArray[np.int32]
    allowed: NDArray[np.bool_]

    @property
    def total(self) -> int:
        """Number of units."""
        return len(self.type)


def make_units(graph: OpGraph, cluster: Cluster, vocabulary: int, outputs: int, neighbours: int) -> Units:
    """Returns the units of a graph of at least one op.

    The `vocabulary` most frequent types are told apart, the rest share one. Per unit, `outputs` sizes and, each way, `neighbours`
    adjacent units are kept.
    """
    of = groups_of(graph)
    count, table = int(of.max()) + 1, durations(graph, cluster)
    allowed, cost = np.ones((count, cluster.n), dtype=np.bool_), np.zeros((count, cluster.n))
    np.logical_and.at(allowed, of, allowed_devices(graph, cluster))
    np.add.at(cost, of, table)
    longest = np.lexsort((np.arange(graph.n), -table.min(axis=1), of))
    _, first = np.unique(of[longest], return_index=True)
    head = longest[first]
    # The index of each op's type by frequency (ties by name), and how many there are.
    names, type_number, times = np.unique(np.array(graph.op_types), return_inverse=True, return_counts=True)
    place, kinds = inverse(np.lexsort((names, -times))).astype(np.int32), min(len(names), vocabulary + 1)
    kind = np.minimum(place[type_number.reshape(-1)], kinds - 1)
    pair = distinct(of[graph.edge_source].astype(np.int64) * count + of[graph.consumers])
    edges = np.stack([pair // count, pair % count])
    edges = edges[:, edges[0] != edges[1]]
    # float64[U, 1 + outputs]: number of outputs, then their sizes; -1 where there are fewer (Mirhoseini et al. 2018,
    # section 2).
    number = np.diff(graph.output_ptr)[head]
    tensor = graph.output_ptr[head][:, None] + np.arange(outputs)
    has_output = np.arange(outputs) < number[:, None]
    size = np.log2(1.0 + graph.tensor_bytes) / 32 if graph.tensor_count else np.zeros(1)
    sizes = np.where(has_output, size[np.where(has_output, tensor, 0)], -1.0)
    # float64[U, 2 * neighbours]: BFS indices of predecessors and successors over `count`; -1 where there are fewer.
    index = _bfs_index(edges, count)
    adjacency = np.full((count, 2 * neighbours), -1.0)
    for column, (source, neighbour) in ((0, edges[::-1]), (neighbours, edges)):
        order = np.lexsort((index[neighbour], source))
        row, value = source[order], index[neighbour][order]
        start = np.r_[True, row[1:] != row[:-1]] if len(row) else np.zeros(0, dtype=bool)
        rank = np.arange(len(row)) - np.maximum.accumulate(np.where(start, np.arange(len(row)), 0))
        within_limit = rank < neighbours
        adjacency[row[within_limit], column + rank[within_limit]] = value[within_limit] / count
    output_count = np.minimum(number, outputs)[:, None] / max(outputs, 1)
    features = np.concatenate([output_count, sizes, adjacency], axis=1)
    # How many outputs each unit has of under 4 bytes, under 16, under 64, ...
    class_counts = np.zeros((count, SIZE_CLASSES), dtype=np.float32)
    size_class = np.minimum(np.log2(1.0 + graph.tensor_bytes) / 2, SIZE_CLASSES - 1).astype(np.int64)
    np.add.at(class_counts, (of[graph.tensor_producer], size_class), 1.0)
    fallback = np.where(allowed, cost, np.inf).argmin(axis=1).astype(np.int32)
    return Units(of, edges, kind[head], kinds, features.astype(np.float32), class_counts, fallback, allowed)


def _bfs_index(edges: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Returns int64[U]: position in a breadth-first traversal from the units that read nothing, level by level."""
    order = np.argsort(edges[0], kind="stable")
    target = edges[1][order].tolist()
    pointer = np.r_[0, np.cumsum(np.bincount(edges[0], minlength=count))].tolist()
    sources = np.flatnonzero(np.bincount(edges[1], minlength=count) == 0).tolist()
    index = np.full(count, -1, dtype=np.int64)
    queue, visited = list(sources), [False] * count
    for u in queue:
        visited[u] = True
    for start in range(count):  # units that only a cycle of colocation groups reaches come last
        if start >= len(queue):
            queue.extend(u for u in range(count) if not visited[u])
        u = queue[start]
        index[u] = start
        for v in target[pointer[u] : pointer[u + 1]]:
            if not visited[v]:
                visited[v] = True
                queue.append(v)
    return index


def group_embeddings(units: Units, group: NDArray[np.int64], groups: int) -> NDArray[np.float32]:
    """Returns float32[groups, types + 16 + groups]: what the placer of H (section 2) sees of each group.

    That is log(1 + count) for each op type and each class of output sizes, and a 1 for each group to which it has an edge.
    `group` int64[U] is the group of every unit.
    """
    kinds = np.zeros((groups, units.types), dtype=np.float32)
    np.add.at(kinds, (group, units.type), 1.0)
    sizes = np.zeros((groups, SIZE_CLASSES), dtype=np.float32)
    np.add.at(sizes, group, units.sizes)
    touches = np.zeros((groups, groups), dtype=np.float32)
    touches[group[units.edges[0]], group[units.edges[1]]] = 1.0
    np.fill_diagonal(touches, 0.0)
    return np.concatenate([np.log1p(kinds), np.log1p(sizes), touches], axis=1)
