"""The arrays that the bounds work on: distinct edges in both directions with their costs, and forced colocation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph
from ...graph.costs import allowed_durations
from ...graph.kernels.csr import Floats, Ints, offsets

REACH_OPS = 6000
"""Most ops for which the ancestors of every op are stored."""


class Edges(NamedTuple):
    """Rows of distinct edges: those of op v are `pointer[v]:pointer[v + 1]`.

    `pointer` int64[n + 1]; `near` int32[E], the op at the other end; `cost` float64[E] microseconds; `edge` int32[E], the
    number that an edge has in both directions.
    """

    pointer: Ints
    near: NDArray[np.int32]
    cost: Floats
    edge: NDArray[np.int32]


class MergeProblem(NamedTuple):
    """Distinct edges in both directions with their costs, and the units that colocation forces.

    Args:
        order: int32[n], topological.
        p: float64[n], microseconds on the fastest device.
        persistent_bytes: float64[n].
        before, after: the edges into and out of each op.
        unit: int32[n], the smallest index of an op's unit.
        ancestors, descendants: uint8[n, n], or empty for large graphs.
        devices: their number.
        memory: bytes of the largest device.
        has_queues: whether transfers wait for each other.
    """

    order: NDArray[np.int32]
    p: Floats
    persistent_bytes: Floats
    before: Edges
    after: Edges
    unit: NDArray[np.int32]
    ancestors: NDArray[np.uint8]
    descendants: NDArray[np.uint8]
    devices: int
    memory: float
    has_queues: bool

    def reversed(self) -> MergeProblem:
        """Returns the graph with every edge turned round: its heads are the tails of this one."""
        return self._replace(order=self.order[::-1].copy(), before=self.after, after=self.before)


def cheapest_transfer_us(graph: OpGraph, cluster: Cluster) -> Floats:
    """Returns float64[tensors]: a lower bound of the time that a tensor takes over any link of two or more devices."""
    pairs = ~np.eye(cluster.n, dtype=bool)
    return np.asarray(cluster.latency_us[pairs].min() + cluster.us_per_byte[pairs].min() * graph.tensor_bytes)


def work_bound(table: Floats, speed: Floats) -> float:
    """Returns the work bound. For weights w >= 0 that sum to 1: makespan >= sum_d w_d load_d >= sum_i min_d w_d p_id.

    Weights by speed give total work over total speed on devices of one kind; equal weights may win where kinds differ.
    """
    devices = len(speed)
    weights = (speed / speed.sum(), np.full(devices, 1.0 / devices))
    return max(float(np.min(table * w, axis=1).sum()) for w in weights)


def transfers_between_ops(
    graph: OpGraph, cluster: Cluster, tensor_us: Floats
) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats]:
    """Returns each pair of ops with a tensor between them, by the first: source, target and microseconds of the transfer.

    Several tensors between two ops are sent one after the other, unless the cluster's transfers are `parallel`.
    """
    n = max(graph.n, 1)
    pair, pair_of_edge = np.unique(graph.edge_source.astype(np.int64) * n + graph.consumers, return_inverse=True)
    us = np.zeros(len(pair))
    (np.maximum if cluster.comm == "parallel" else np.add).at(
        us, pair_of_edge.reshape(-1), tensor_us[graph.edge_tensor]
    )
    return (pair // n).astype(np.int32), (pair % n).astype(np.int32), us


def merge_problem(graph: OpGraph, cluster: Cluster, reach: bool = True) -> MergeProblem:
    """Returns the arrays of `graph` on `cluster`. `reach=False` leaves out ancestors, which take longest."""
    n = graph.n
    p = allowed_durations(graph, cluster).min(axis=1)
    source, target, transfer_us = transfers_between_ops(graph, cluster, cheapest_transfer_us(graph, cluster))
    first = np.full(len(graph.colocation_names) + 1, -1, dtype=np.int64)
    unit = np.arange(n, dtype=np.int32)
    for i in np.flatnonzero(graph.colocation >= 0).tolist():
        g = graph.colocation[i]
        if first[g] < 0:
            first[g] = i
        unit[i] = first[g]
    before = np.lexsort((source, target))
    edge = np.arange(len(source), dtype=np.int32)
    ancestors = _reach(graph, source, target) if reach else np.zeros((0, 0), dtype=np.uint8)
    return MergeProblem(
        order=graph.order.copy(),
        p=p,
        persistent_bytes=graph.persistent_bytes.astype(np.float64),
        before=Edges(offsets(target, n), source[before], transfer_us[before], edge[before]),
        after=Edges(offsets(source, n), target, transfer_us, edge),
        unit=unit,
        ancestors=ancestors,
        descendants=np.ascontiguousarray(ancestors.T),
        devices=cluster.n,
        memory=float(cluster.memory_bytes.max()),
        has_queues=cluster.comm != "parallel",
    )


def _reach(graph: OpGraph, source: NDArray[np.int32], target: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Returns uint8[n, n]: 1 if the column's op is an ancestor of the row's op; empty for large graphs."""
    n = graph.n
    if n > REACH_OPS:
        return np.zeros((0, 0), dtype=np.uint8)
    is_ancestor = np.zeros((n, n), dtype=np.uint8)
    pointer, by_target = offsets(target, n), np.argsort(target, kind="stable")
    for v in graph.order.tolist():
        for u in source[by_target[pointer[v] : pointer[v + 1]]].tolist():
            is_ancestor[v] |= is_ancestor[u]
            is_ancestor[v, u] = 1
    return is_ancestor
