"""Coarsening: one op per group of ops, with the costs and the memory of its members.

The costs of a group follow from the rules of docs/simulated-time.md, if its members run one after another in
topological order on one device:

    duration        sum over the members (also per device kind)
    persistent      sum
    tensors         a tensor that another group reads stays a tensor of its own (one entry per reading group); a tensor
                    that only members read becomes part of the group's temporary bytes
    temporary       so that the group's peak is the peak of its members. While a coarse op runs, the simulator counts
                    its outputs, its inputs and its temporary bytes. While the members run one by one, outputs appear
                    one by one, tensors between members live from producer to last reader, and an input that nobody
                    else reads dies early. Hence

                        temp = max(0, max over members i of (temp_i + live_i) - outputs - own inputs)

                    with live_i the bytes of inner tensors, of outputs produced so far and of own inputs still needed
                    while i runs, and own inputs the tensors from outside that only this group reads.

The formula is exact unless it is cut at 0. Then the outputs of the coarse op are more than its members ever hold at once, and
the coarse peak is too high, never too low. Contracting step by step or at once gives valid graphs with equal sums; the peak is
exact for the order in which the members run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ColocationError, InvalidInput
from ..graph import OpGraph
from ..graph.groups import components
from ..graph.kernels.csr import Integers, Ints, distinct, grouped_sum, interval_sum, inverse, offsets
from ..graph.opgraph import default_tensor_names
from ..graph.tensors import lasting_info
from .allowed_lists import UNCLEAR, common_allowed


def contract(graph: OpGraph, group: Integers) -> OpGraph:
    """Returns the coarse graph with one op per distinct value of `group` (int[n]), numbered by their smallest member.

    A group has the name and type of its longest member (ties: smallest index). It belongs to every colocation group of its
    members, which become one group. It has the meet of their allowed lists, and a `forward_of` on which more than half of
    its members agree, or the largest part of them if all are backward ops. The graph itself is returned if every group has
    one member. O((ops + edges) log).

    Raises:
        InvalidInput: `group` has another length or type, or holds a collective and an op that computes, which run on two lanes.
        CycleError: the groups form a cycle.
        ColocationError: the allowed lists of a group conflict.
    """
    label = number_groups(graph, group)
    count = int(label.max()) + 1 if graph.n else 0
    if count == graph.n:
        return graph
    lane = graph.on_communication_lane
    size, collectives = np.bincount(label, minlength=count), np.bincount(label, lane, count)
    if mixed_groups := np.flatnonzero(lane & (collectives < size)[label]).tolist():
        raise InvalidInput(
            f"group holds {graph.names[mixed_groups[0]]!r}, which is a collective, and ops that compute; a group is of one kind"
        )
    pairs = group_edges(label, graph.edge_tensor, label[graph.edge_source], label[graph.consumers])
    inner_only = np.ones(graph.tensor_count, dtype=np.bool_)
    inner_only[pairs.tensor] = False
    # The outputs of a group of one stay as they are, those that nobody reads included.
    is_outer = ~inner_only | (size[label[graph.tensor_producer]] == 1)
    temp = member_peak(graph, label, count, is_outer)
    return coarse_graph(
        graph,
        label,
        count,
        is_outer,
        pairs,
        temp_bytes=temp,
        persistent_bytes=grouped_sum(graph.persistent_bytes, label, count),
    )


@dataclass(frozen=True)
class GroupEdges:
    """Edges between groups: distinct pairs of a tensor and another group that reads it, ordered by tensor, then group."""

    tensor: Ints
    reader: Ints


def number_groups(graph: OpGraph, group: Integers) -> Ints:
    """Returns int64[n]: the groups, numbered 0, 1, ... by their smallest member."""
    group_array = np.asarray(group)
    if group_array.shape != (graph.n,) or (group_array.size and group_array.dtype.kind not in "iu"):
        raise InvalidInput(
            f"group has shape {group_array.shape} of {group_array.dtype}; it must hold one whole number per op, ({graph.n},)"
        )
    _, first, number = np.unique(group_array, return_index=True, return_inverse=True)
    return inverse(np.argsort(first))[number.reshape(-1)]


def group_edges(label: Ints, tensor: Ints | NDArray[np.int32], source: Ints, reader: Ints) -> GroupEdges:
    """Returns the distinct (tensor, reading group) pairs of edges whose producer is in another group."""
    outside = source != reader
    width = len(label) + 1
    key = distinct(tensor[outside].astype(np.int64) * width + reader[outside])
    return GroupEdges(key // width, key % width)


def member_peak(
    graph: OpGraph, label: Ints, count: int, is_outer: NDArray[np.bool_], size: Ints | None = None
) -> NDArray[np.int64]:
    """Returns int64[count]: temporary bytes per group by the module's formula; `is_outer` marks tensors that stay tensors.

    `size`: bytes per tensor, if they differ from the graph's. A tensor that leaves its group and is no tensor of the coarse
    graph (a gradient of forward-only placement) lives until its group has ended.
    """
    n, producer = graph.n, graph.tensor_producer
    size = graph.tensor_bytes if size is None else size
    position = graph.position
    # Every member gets a slot: groups one after another, members in topological order.
    by_group = np.lexsort((position, label))
    slot = inverse(by_group)
    bounds = offsets(label[by_group], count)
    producer_group = label[producer]
    reader, tensor = graph.consumers, graph.edge_tensor
    inside = label[reader] == producer_group[tensor]
    last_slot = slot[producer].copy()
    np.maximum.at(last_slot, tensor[inside], slot[reader[inside]])
    leaves = is_outer.copy()
    leaves[tensor[~inside]] = True
    last_slot[leaves] = bounds[producer_group[leaves] + 1] - 1
    live_bytes = interval_sum(size, slot[producer], last_slot + 1, n) + graph.temp_bytes[by_group]
    output_bytes = grouped_sum(size[is_outer], producer_group[is_outer], count)
    own_input, reading_group = _own_inputs(graph, label, is_outer)
    last_read = np.zeros(graph.tensor_count, dtype=np.int64)
    np.maximum.at(last_read, tensor, slot[reader])
    live_bytes += interval_sum(size[own_input], bounds[reading_group], last_read[own_input] + 1, n)
    output_bytes += grouped_sum(size[own_input], reading_group, count)
    return np.maximum(np.maximum.reduceat(live_bytes, bounds[:-1]) - output_bytes, 0)


def _own_inputs(graph: OpGraph, label: Ints, is_outer: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Returns the tensors whose readers are all in one group other than the producer's, and that group."""
    first_consumer, last_consumer = graph.consumer_ptr[:-1], graph.consumer_ptr[1:]
    read = np.flatnonzero(last_consumer > first_consumer)
    if not len(read):
        return read, read
    readers = label[graph.consumers]
    low, high = np.minimum.reduceat(readers, first_consumer[read]), np.maximum.reduceat(readers, first_consumer[read])
    is_own = (low == high) & (low != label[graph.tensor_producer[read]]) & is_outer[read]
    return read[is_own], low[is_own]


def coarse_graph(
    graph: OpGraph,
    label: Ints,
    count: int,
    is_outer: NDArray[np.bool_],
    pairs: GroupEdges,
    leader: Ints | None = None,
    **bytes_columns: Any,
) -> OpGraph:
    """Returns the coarse graph of the tensors `is_outer` and the edges `pairs` from them to groups.

    A group has the name and type of its op in `leader` int64[count], by default its longest member. `bytes_columns` are the
    fields `temp_bytes` and `persistent_bytes`.
    """
    tensors = np.flatnonzero(is_outer)
    producer_group = label[graph.tensor_producer[tensors]]
    order = np.argsort(producer_group, kind="stable")
    tensors, producer_group = tensors[order], producer_group[order]
    row_of = np.full(graph.tensor_count, -1, dtype=np.int64)
    row_of[tensors] = np.arange(len(tensors))
    row = row_of[pairs.tensor]
    by_tensor = np.lexsort((pairs.reader, row))
    leader_op = _longest(graph, label, count) if leader is None else leader
    common, meets = common_allowed(graph, label, count)
    if np.any(common == UNCLEAR):
        at = int(np.flatnonzero(common == UNCLEAR)[0])
        raise ColocationError(
            f"the ops merged into {graph.names[leader_op[at]]!r} name devices and kinds in ways that no list combines"
        )
    colocation, colocation_names = _colocation(graph, label, count)
    return OpGraph(
        # Members may share memory, groups do not.
        reuse=None if graph.reuse is None else np.zeros(count, dtype=np.int8),
        names=tuple([graph.names[i] for i in leader_op.tolist()]),
        op_types=tuple([graph.op_types[i] for i in leader_op.tolist()]),
        duration_us=grouped_sum(graph.duration_us, label, count),
        duration_by_kind={kind: grouped_sum(us, label, count) for kind, us in graph.duration_by_kind.items()},
        tensor_producer=producer_group.astype(np.int32),
        tensor_bytes=graph.tensor_bytes[tensors],
        tensor_names=_tensor_names(graph, tensors, producer_group, label, count),
        consumer_ptr=offsets(row, len(tensors)),
        consumers=pairs.reader[by_tensor].astype(np.int32),
        colocation=colocation,
        colocation_names=colocation_names,
        allowed=common,
        allowed_sets=tuple(meets.table),
        forward_of=_forward_of(graph, label, count),
        group_of=(label if graph.group_of is None else label[graph.group_of]).astype(np.int32),
        source_key=graph.key if graph.group_of is None else graph.source_key,
        copied_key=None,
        info=lasting_info(graph.info, graph.index, lambda op: [graph.names[leader_op[label[op]]]]),
        name=graph.name,
        **bytes_columns,
    )


def _longest(graph: OpGraph, label: Ints, count: int) -> Ints:
    """Returns the longest member of each group, ties by index."""
    order = np.lexsort((-graph.duration_us, label))
    return order[offsets(label[order], count)[:-1]]


def _tensor_names(graph: OpGraph, tensors: Ints, producer_group: Ints, label: Ints, count: int) -> tuple[str, ...]:
    """Returns the names of tensors; in a group of several ops the producer's name comes first, so that they stay distinct."""
    several = np.bincount(label, minlength=count)[producer_group] > 1
    names = [
        graph.tensor_label(t) if long else graph.tensor_names[t]
        for t, long in zip(tensors.tolist(), several.tolist(), strict=True)
    ]
    if len(set(zip(producer_group.tolist(), names, strict=True))) < len(names):  # names that contain colons
        return default_tensor_names(producer_group.astype(np.int32))
    return tuple(names)


def _colocation(graph: OpGraph, label: Ints, count: int) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Returns the columns `colocation` and `colocation_names`: groups with members in one coarse op are joined."""
    member = np.flatnonzero(graph.colocation >= 0)
    code, coarse_op = graph.colocation[member].astype(np.int64), label[member]
    root = np.full(count, len(graph.colocation_names), dtype=np.int64)
    np.minimum.at(root, coarse_op, code)
    component = components(len(graph.colocation_names), code, root[coarse_op])
    used = distinct(component[code])
    column = np.full(count, -1, dtype=np.int32)
    column[coarse_op] = np.searchsorted(used, component[code])
    return column, tuple(graph.colocation_names[k] for k in used.tolist())


def _forward_of(graph: OpGraph, label: Ints, count: int) -> NDArray[np.int32]:
    """Returns the group that holds the forward ops of most members of a group, or -1.

    These are more than half of all members, or all members are backward ops. Of several such groups it is that of more time.
    """
    member = np.flatnonzero(graph.forward_of >= 0)
    size = np.bincount(label, minlength=count)
    backward = np.bincount(label[member], minlength=count) == size
    source, target = label[member], label[graph.forward_of[member]]
    member, code = member[source != target], (source * (count + 1) + target)[source != target]
    pair, pair_of_member, votes = np.unique(code, return_inverse=True, return_counts=True)
    us = np.bincount(pair_of_member, weights=graph.duration_us[member], minlength=len(pair))
    source, target = pair // (count + 1), pair % (count + 1)
    order = np.lexsort((us, votes, source))
    largest = order[np.r_[source[order][1:] != source[order][:-1], np.ones(min(len(order), 1), dtype=np.bool_)]]
    winning_pairs = largest[backward[source[largest]] | (2 * votes[largest] > size[source[largest]])]
    forward_of = np.full(count, -1, dtype=np.int32)
    forward_of[source[winning_pairs]] = target[winning_pairs]
    return forward_of
