"""Ranks: how far an op is from the end and from the start of the step, along the longest path.

Computation only (Mayer et al. 2017, equations 5 and 6), or with mean communication as in HEFT (Topcuoglu, Hariri, Wu 2002,
doi:10.1109/71.993206). With `w` the duration of an op and `c` the cost of an edge:

    upward_rank(i)   = w_i + max over successors j   of (c_ij + upward_rank(j))      the op itself counted
    downward_rank(i) =       max over predecessors j of (downward_rank(j) + w_j + c_ji)      not counted
    total_rank(i)    = upward_rank(i) + downward_rank(i)         length of the longest path through the op

Without a cluster `w` is the duration on the reference device; with one it is the mean over the devices that the op may
use, and `c` the mean over all ordered pairs of different devices.

Deviation: equation 6 as printed adds the op's own cost, while the paper's text (and HEFT) sum its predecessors only.
The text is the default, as only then the total rank is the length of a path; `own=True` gives the printed form.

All are longest paths, O(ops + edges).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..graph import Cluster, OpGraph, allowed_devices, durations
from ..graph.arguments import check_records
from ..graph.kernels.csr import Bools, Floats, Ints
from ..graph.kernels.jit import has_few_entries, njit
from .paths import heads_and_tails


def upward_rank(
    graph: OpGraph, cluster: Cluster | None = None, *, communication: bool | None = None
) -> NDArray[np.float64]:
    """Returns float64[n] microseconds from the start of each op to the end of the step along the longest path.

    Args:
        graph: the ops.
        cluster: with one, durations are means over the devices that may run the op; without, those of the graph.
        communication: count mean transfer costs (default: where a cluster is given).

    Raises:
        InvalidInput: communication is asked for without a cluster.

    >>> upward_rank(OpGraph.from_edges([1, 2, 3], [(0, 1, 8), (1, 2, 8)])).tolist()
    [6.0, 5.0, 3.0]
    """
    weight, edge = rank_costs(graph, cluster, communication)
    return heads_and_tails(graph, weight, edge)[1] + weight


def downward_rank(
    graph: OpGraph, cluster: Cluster | None = None, *, communication: bool | None = None, own: bool = False
) -> NDArray[np.float64]:
    """Returns float64[n] microseconds from the start of the step to the start of each op along the longest path.

    Args:
        graph: the ops.
        cluster: with one, durations are means over the devices that may run the op; without, those of the graph.
        communication: count mean transfer costs (default: where a cluster is given).
        own: add the op's own duration, as equation 6 of Mayer et al. 2017 is printed.

    Raises:
        InvalidInput: communication is asked for without a cluster.

    >>> downward_rank(OpGraph.from_edges([1, 2, 3], [(0, 1, 8), (1, 2, 8)])).tolist()
    [0.0, 1.0, 3.0]
    """
    weight, edge = rank_costs(graph, cluster, communication)
    head = heads_and_tails(graph, weight, edge)[0]
    return head + weight if own else head


def total_rank(
    graph: OpGraph, cluster: Cluster | None = None, *, communication: bool | None = None
) -> NDArray[np.float64]:
    """Returns float64[n] microseconds: the longest path through each op; the largest is the critical path's length.

    Arguments and errors as in `bl.upward_rank`.

    >>> total_rank(OpGraph.from_edges([1, 2, 3], [(0, 2, 8), (1, 2, 8)])).tolist()
    [4.0, 5.0, 5.0]
    """
    weight, edge = rank_costs(graph, cluster, communication)
    head, tail = heads_and_tails(graph, weight, edge)
    return head + weight + tail


def critical_path(
    graph: OpGraph, cluster: Cluster | None = None, *, communication: bool | None = None
) -> NDArray[np.int64]:
    """Returns int64[k]: the ops of a longest path from a source to a sink, in order; ties by op index.

    Arguments and errors as in `bl.upward_rank`.

    >>> critical_path(OpGraph.from_edges([1, 2, 3], [(0, 2, 8), (1, 2, 8)])).tolist()
    [1, 2]
    """
    weight, edge = rank_costs(graph, cluster, communication)
    return longest_path(graph, weight, edge, np.ones(graph.n, dtype=np.bool_))


def longest_path(graph: OpGraph, weight: Floats, edge_weight: Floats | None, free: Bools) -> NDArray[np.int64]:
    """Returns int64[k]: a longest path through the ops where `free` bool[n] is set, by `weight` float64[n] and `edge_weight`."""
    cost = np.zeros(graph.edge_count) if edge_weight is None else np.asarray(edge_weight, dtype=np.float64)
    node_weight = np.ascontiguousarray(weight, dtype=np.float64)
    last, before = _longest_path_tree(
        graph.order, node_weight, cost, graph.output_ptr, graph.consumer_ptr, graph.consumers, free
    )
    path = []
    while last >= 0:
        path.append(last)
        last = int(before[last])
    return np.array(path[::-1], dtype=np.int64)


@njit(cache=True, interpreted_if=has_few_entries)
def _longest_path_tree(
    order: NDArray[np.int32],
    weight: Floats,
    edge_weight: Floats,
    output_ptr: Ints,
    consumer_ptr: Ints,
    consumers: NDArray[np.int32],
    free: Bools,
) -> tuple[int, Ints]:
    """Returns the op in which the longest path of `free` ops ends, and each op's predecessor on the longest path to it.

    The op is -1 if no op is free.
    """
    head, before = np.zeros(len(order)), np.full(len(order), -1, np.int64)
    last, longest = -1, -1.0
    for k in range(len(order)):
        i = order[k]
        if not free[i]:
            continue
        reach = head[i] + weight[i]
        if reach > longest or (reach == longest and i < last):
            last, longest = i, reach
        for t in range(output_ptr[i], output_ptr[i + 1]):
            for e in range(consumer_ptr[t], consumer_ptr[t + 1]):
                v = consumers[e]
                if not free[v]:
                    continue
                length = reach + edge_weight[e]
                if before[v] < 0 or length > head[v] or (length == head[v] and i < before[v]):
                    head[v], before[v] = length, i
    return last, before


def rank_costs(
    graph: OpGraph, cluster: Cluster | None = None, communication: bool | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Durations float64[n] and edge costs float64[E] that the ranks count."""
    check_records(graph=graph)
    if cluster is None:
        if communication:
            raise InvalidInput(
                "communication is True without a cluster; give the cluster whose links are to be counted"
            )
        return graph.duration_us, np.zeros(graph.edge_count)
    check_records(cluster=cluster)
    if communication is False:
        return mean_durations(graph, cluster), np.zeros(graph.edge_count)
    pairs = max(cluster.n * (cluster.n - 1), 1)
    latency, per_byte = float(cluster.latency_us.sum()) / pairs, float(cluster.us_per_byte.sum()) / pairs
    return mean_durations(graph, cluster), latency + per_byte * graph.tensor_bytes[graph.edge_tensor].astype(np.float64)


def mean_durations(graph: OpGraph, cluster: Cluster) -> NDArray[np.float64]:
    """Returns float64[n]: mean duration over the devices that each op may use."""
    is_allowed = allowed_devices(graph, cluster)
    return np.where(is_allowed, durations(graph, cluster), 0.0).sum(axis=1) / is_allowed.sum(axis=1)
