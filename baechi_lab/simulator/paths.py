"""Longest paths: how long before an op can start at the earliest, and how long after it has ended the step goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph
from ..graph.kernels.jit import njit


@njit(cache=True)
def _heads(order: Any, weight: Any, edge_weight: Any, input_ptr: Any, input_edge: Any, source: Any) -> Any:
    head = np.zeros(len(order))
    for k in range(len(order)):
        i = order[k]
        for e in range(input_ptr[i], input_ptr[i + 1]):
            edge = input_edge[e]
            u = source[edge]
            head[i] = max(head[i], head[u] + weight[u] + edge_weight[edge])
    return head


@njit(cache=True, nogil=True)
def tails(order: Any, weight: Any, edge_weight: Any, output_ptr: Any, consumer_ptr: Any, consumers: Any) -> Any:
    """float64[n]: the longest path after each op, from arrays as `OpGraph` has them."""
    tail = np.zeros(len(order))
    for k in range(len(order) - 1, -1, -1):
        i = order[k]
        for t in range(output_ptr[i], output_ptr[i + 1]):
            for e in range(consumer_ptr[t], consumer_ptr[t + 1]):
                v = consumers[e]
                tail[i] = max(tail[i], edge_weight[e] + weight[v] + tail[v])
    return tail


def heads_and_tails(
    graph: OpGraph, weight: NDArray[Any], edge_weight: NDArray[Any] | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Longest path before each op and after each op, the op itself not counted (float64[n] each).

    `weight` float64[n] per op, `edge_weight` float64[E] per (tensor, consumer) pair (default 0). O(ops + edges).
    """
    cost = np.zeros(graph.edge_count) if edge_weight is None else np.asarray(edge_weight, dtype=np.float64)
    node = np.ascontiguousarray(weight, dtype=np.float64)
    input_edge = np.argsort(graph.consumers, kind="stable")
    head = _heads(graph.order, node, cost, graph.inputs[0], input_edge, graph.edge_source)
    tail = tails(graph.order, node, cost, graph.output_ptr, graph.consumer_ptr, graph.consumers)
    return head, tail
