"""Forward-only placement (Jeon et al. 2020, section 3.3): only forward ops are placed, and backward ops follow them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph
from ..graph.kernels.csr import Ints, distinct, grouped_sum
from ..graph.tensors import tensor_columns
from .allowed_lists import with_common_lists
from .base import Pass
from .contraction import coarse_graph, group_edges, member_peak, number_groups
from .joined_ops import JoinedOps


@dataclass(frozen=True)
class ForwardOnly(Pass):
    """Keep only the forward ops; each includes its backward ops and their costs.

    Backward ops are the ops with a `forward_of`, all their descendants, and the helpers that only those read (constants of
    the optimizer, slot variables). A backward op joins its forward op if both are in one colocation group, or else the
    first forward op of its group. A group without forward ops (or a single op) joins as a whole the forward op of its
    first member that has one, or else the producer of its largest input (ties: lowest tensor); a helper joins its first
    reader. This is repeated until a forward op is reached. An op that reaches none, may not run on the same devices,
    or runs on another lane (collectives) stays a separate op.

    The edges of the new graph are the tensors that forward ops read, and one more per pair of ops between which backward
    tensors are sent (unless a colocation group holds both), with the sum of their bytes, from the earlier op to the later
    one. So it is a DAG, and the placer sees what a cut costs in the backward pass. Jeon et al. 2020 do not say whether they did
    this; without it a plan for GNMT is a third too short. Memory is estimated from above, since the rule is meant for
    models that fit into one device. Durations and persistent bytes are sums. A tensor of a forward op that backward ops
    read is held throughout the step (persistent bytes of its producer's group; copies on other devices are not counted).
    Gradients count as temporary bytes of the group that produces them, until the group's last member has run.

    O((ops + edges) log).
    """

    name: ClassVar[str] = "forward-only"

    def apply(self, graph: OpGraph) -> OpGraph:
        descends = backward_ops(graph)
        if not descends.any():
            return graph
        graph = with_common_lists(graph) if graph.allowed_sets else graph
        backward = descends | helper_ops(graph, descends)
        target = _forward_targets(graph, backward, descends)
        if np.array_equal(target, np.arange(graph.n)):
            return graph
        return _forward_graph(graph, target, backward)


def backward_ops(graph: OpGraph) -> NDArray[np.bool_]:
    """Returns bool[n]: ops with a `forward_of`, and their descendants."""
    pointer, successor = (a.tolist() for a in graph.successors)
    paired_ops = graph.forward_of >= 0
    stack = np.flatnonzero(paired_ops).tolist()
    is_backward = paired_ops.tolist()
    while stack:
        op = stack.pop()
        for child in successor[pointer[op] : pointer[op + 1]]:
            if not is_backward[child]:
                is_backward[child] = True
                stack.append(child)
    return np.array(is_backward, dtype=np.bool_)


def helper_ops(graph: OpGraph, backward: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns bool[n]: forward ops that only backward ops or helpers read, and that are no backward op's forward op."""
    pointer, predecessor = (a.tolist() for a in graph.predecessors)
    open_readers = np.diff(graph.successors[0]).tolist()
    excluded_ops = backward.copy()
    excluded_ops[graph.forward_of[graph.forward_of >= 0]] = True
    is_excluded, is_helper = excluded_ops.tolist(), np.zeros(graph.n, dtype=np.bool_)
    stack = np.flatnonzero(backward).tolist()
    while stack:
        op = stack.pop()
        for producer in predecessor[pointer[op] : pointer[op + 1]]:
            open_readers[producer] -= 1
            if open_readers[producer] == 0 and not is_excluded[producer]:
                is_helper[producer] = True
                stack.append(producer)
    return is_helper


def _forward_targets(graph: OpGraph, backward: NDArray[np.bool_], descends: NDArray[np.bool_]) -> Ints:
    """Returns int64[n]: the op that each op joins; forward ops, and ops that reach none, join themselves.

    `descends` are the ops of `backward_ops`; `backward` are these and their helpers.
    """
    # Ops of a colocation group join as one unit, so that joining a producer never connects two groups.
    groups = len(graph.colocation_names)
    unit = np.where(graph.colocation >= 0, graph.colocation, groups + np.arange(graph.n)).astype(np.int64)
    leader = np.full(groups + graph.n, -1, dtype=np.int64)
    forward_ops = np.flatnonzero(~backward)[::-1]
    leader[unit[forward_ops]] = forward_ops
    names_own_unit = (graph.forward_of >= 0) & (unit[graph.forward_of] == unit)
    target = np.where(leader >= 0, leader, _unit_targets(graph, unit, descends, backward))
    joined_op = np.where(names_own_unit, graph.forward_of, target[unit])
    joined_op = np.where(backward & (joined_op >= 0), joined_op, np.arange(graph.n))
    for _ in range(max(graph.n, 1).bit_length()):
        joined_op = joined_op[joined_op]
    # Cycles of forward_of that reach no forward op end on backward ops, which stay separate, as do ops of another lane.
    lane = graph.on_communication_lane
    joined_op = np.where(backward[joined_op] | (lane[joined_op] != lane), np.arange(graph.n), joined_op)
    if not graph.allowed_sets:
        return joined_op
    joined_ops, code, target = JoinedOps(graph), graph.allowed.tolist(), joined_op.copy()
    for op in np.flatnonzero(joined_op != np.arange(graph.n)).tolist():
        forward_op = int(joined_op[op])
        meet_code = joined_ops.meets.meet_if_nested(code[forward_op], code[op])
        if meet_code is None or not joined_ops.join(forward_op, op):
            target[op] = op
        else:
            code[forward_op] = meet_code
    return target


def _unit_targets(graph: OpGraph, unit: Ints, descends: NDArray[np.bool_], backward: NDArray[np.bool_]) -> Ints:
    """Returns the op that a unit without forward ops joins: a member's forward op, its largest input, or its reader."""
    target = np.full(len(graph.colocation_names) + graph.n, -1, dtype=np.int64)
    source, reader, tensor = graph.edge_source, graph.consumers, graph.edge_tensor
    outside = unit[source] != unit[reader]
    helper_edges = np.flatnonzero(outside & backward[source] & ~descends[source])
    helper_edges = helper_edges[np.lexsort((reader[helper_edges],))[::-1]]  # the lowest reader is written last
    target[unit[source[helper_edges]]] = reader[helper_edges]
    input_edges = np.flatnonzero(outside & descends[reader])
    input_edges = input_edges[
        np.lexsort((-tensor[input_edges], graph.tensor_bytes[tensor[input_edges]]))
    ]  # the largest, lowest tensor last
    target[unit[reader[input_edges]]] = source[input_edges]
    paired_ops = np.flatnonzero(graph.forward_of >= 0)[::-1]
    paired_ops = paired_ops[unit[graph.forward_of[paired_ops]] != unit[paired_ops]]
    target[unit[paired_ops]] = graph.forward_of[paired_ops]
    return target


def _forward_graph(graph: OpGraph, target: Ints, backward: NDArray[np.bool_]) -> OpGraph:
    """Builds the graph with one op per `target`; its tensors are those of forward ops that ops of other targets read."""
    label = number_groups(graph, target)
    count = int(label.max()) + 1
    is_folded = target != np.arange(graph.n)
    source, reader, tensor = graph.edge_source, graph.consumers, graph.edge_tensor
    # A separate backward op reads tensors of forward ops; no op reads its outputs.
    readable = ~backward[source] & ~is_folded[reader]
    pairs = group_edges(label, tensor[readable], label[source[readable]], label[reader[readable]])
    is_outer = np.zeros(graph.tensor_count, dtype=np.bool_)
    is_outer[pairs.tensor] = True
    activation = np.zeros(graph.tensor_count, dtype=np.bool_)
    activation[tensor[~backward[source] & is_folded[reader]]] = True
    producer = label[graph.tensor_producer]
    persistent = grouped_sum(graph.persistent_bytes, label, count)
    persistent += grouped_sum(graph.tensor_bytes[activation], producer[activation], count)
    # Persistent bytes include activations, so the members' temporary bytes do not.
    sizes = np.where(activation & ~is_outer, 0, graph.tensor_bytes)
    temp = member_peak(graph, label, count, is_outer, sizes)
    leader = np.flatnonzero(~is_folded)
    leader = leader[np.argsort(label[leader])]
    coarse = coarse_graph(graph, label, count, is_outer, pairs, leader, temp_bytes=temp, persistent_bytes=persistent)
    return _with_traffic(coarse, *_backward_traffic(graph, coarse, label, backward))


def _backward_traffic(
    graph: OpGraph, coarse: OpGraph, label: Ints, backward: NDArray[np.bool_]
) -> tuple[Ints, Ints, Ints]:
    """Returns the pairs of ops of `coarse`, the earlier first, and the bytes of backward tensors between them."""
    tensor = graph.edge_tensor.astype(np.int64)
    source, reader = label[graph.edge_source], label[graph.consumers]
    unit = coarse.device_unit
    edges = np.flatnonzero(backward[graph.edge_source] & (unit[source] != unit[reader]))
    # One op may read a tensor through several members: that is one transfer.
    key = distinct(tensor[edges] * coarse.n + reader[edges])
    tensor, reader = key // coarse.n, key % coarse.n
    source = label[graph.tensor_producer[tensor]]
    source_is_first = coarse.position[source] < coarse.position[reader]
    first, second = np.where(source_is_first, source, reader), np.where(source_is_first, reader, source)
    pair, inverse = np.unique(first * coarse.n + second, return_inverse=True)
    size = grouped_sum(graph.tensor_bytes[tensor], inverse.reshape(-1), len(pair))
    return pair // coarse.n, pair % coarse.n, size


def _with_traffic(coarse: OpGraph, first: Ints, second: Ints, size: Ints) -> OpGraph:
    """Adds one tensor per pair, along a topological order of the graph, so that no cycle appears."""
    if not len(first):
        return coarse
    producer = np.concatenate([coarse.tensor_producer, first])
    row = np.concatenate([coarse.edge_tensor, coarse.tensor_count + np.arange(len(first))])
    reader = np.concatenate([coarse.consumers, second])
    labels = [*coarse.tensor_names, *(f"backward/{coarse.names[k]}" for k in second.tolist())]
    size_bytes = np.concatenate([coarse.tensor_bytes, size])
    return coarse.replace(**tensor_columns(producer, size_bytes, labels, row, reader, coarse.n))
