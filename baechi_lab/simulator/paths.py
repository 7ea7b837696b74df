"""Longest paths before and after each op: its earliest start, and the least time from its end to the end of the step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph
from ..graph.kernels.csr import Floats, Ints
from ..graph.kernels.jit import has_few_entries, njit


@njit(cache=True, interpreted_if=has_few_entries)
def _heads(
    order: NDArray[np.int32],
    weight: Floats,
    edge_weight: Floats,
    input_ptr: Ints,
    input_edge: Ints,
    source: NDArray[np.int32],
) -> Floats:
    head = np.zeros(len(order))
    for k in range(len(order)):
        i = order[k]
        for e in range(input_ptr[i], input_ptr[i + 1]):
            edge = input_edge[e]
            u = source[edge]
            head[i] = max(head[i], head[u] + weight[u] + edge_weight[edge])
    return head


@njit(cache=True, nogil=True, interpreted_if=has_few_entries)
def tails(
    order: NDArray[np.signedinteger],
    weight: Floats,
    edge_weight: Floats,
    output_ptr: Ints,
    consumer_ptr: Ints,
    consumers: NDArray[np.int32],
) -> Floats:
    """Returns float64[n]: the longest path after each op, from arrays as `OpGraph` has them."""
    tail = np.zeros(len(order))
    for k in range(len(order) - 1, -1, -1):
        i = order[k]
        for t in range(output_ptr[i], output_ptr[i + 1]):
            for e in range(consumer_ptr[t], consumer_ptr[t + 1]):
                v = consumers[e]
                tail[i] = max(tail[i], edge_weight[e] + weight[v] + tail[v])
    return tail


def heads_and_tails(
    graph: OpGraph, weight: Floats, edge_weight: Floats | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Longest path before each op and after each op, the op itself not counted (float64[n] each).

    `weight` float64[n] per op, `edge_weight` float64[E] per (tensor, consumer) pair (default 0). O(ops + edges).
    """
    # Copies: arrays that cannot be written are another signature, for which the kernels would be compiled again.
    cost = np.zeros(graph.edge_count) if edge_weight is None else np.array(edge_weight, dtype=np.float64)
    node = np.array(weight, dtype=np.float64)
    input_edge = np.argsort(graph.consumers, kind="stable")
    head = _heads(graph.order, node, cost, graph.inputs[0], input_edge, graph.edge_source)
    tail = tails(graph.order, node, cost, graph.output_ptr, graph.consumer_ptr, graph.consumers)
    return head, tail


def computing_us(graph: OpGraph, table: Floats) -> Floats:
    """Returns float64[n, devices]: the time that ops take of the computing lane, 0 for collectives; infinite if not allowed."""
    return np.where(graph.on_communication_lane[:, None] & np.isfinite(table), 0.0, table)
