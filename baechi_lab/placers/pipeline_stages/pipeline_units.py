"""A training graph as units of pipeline stages: colocation groups in the order in which a micro-batch passes them.

A pipeline stage is *convex*: no path leaves it and comes back. If forward and backward ops of a layer share a colocation
group, a path always comes back through the backward ops. Then only the forward order counts: an edge between backward ops
says the same in reverse, and an edge from a forward to a backward op says nothing. (Tarnawski et al., NeurIPS 2020, "Efficient
Algorithms for Device Placement", appendix B, contract such pairs likewise.) If the groups have no cycle anyway, every edge
counts as it is.

In such a graph, backward ops of other groups are in the unit of their forward ops, or no schedule could pipeline the stages.

Ops that run once per step, such as parameter updates, belong to no stage. Their edges do not order the groups that run for each
micro-batch. A group of only such ops (a variable with its update, the norm of all gradients) comes right before the
first of its neighbours. Groups of such ops that are next to none of the others (moments of Adam) are in the unit of one that is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import CycleError
from ...graph import Cluster, OpGraph, durations
from ...graph.kernels.csr import Floats, Integers, distinct, grouped_sum, inverse, offsets, topological_order
from ...passes.all_reduce import gradient_bytes
from ...passes.roles import BACKWARD, FORWARD, SETUP, UPDATE
from ...simulator.pipeline_stages import roles_in_stages
from ..problem import allowed_group_devices, groups_of


class PipelineUnits(NamedTuple):
    """Units numbered along their order, and the tensors that pass between them.

    Args:
        unit: int32[n], the unit of every op.
        source, target: int32[edges], a unit, and one that comes after it.
        work, communication: float64[units, devices], microseconds of computing and of collectives.
        persistent_bytes: int64[units].
        gradient: int64[units], bytes of the gradients that replicas would add up.
        allowed: bool[units, devices].
        producer: int32[T], ascending, the unit that makes a tensor.
        size: int64[T], bytes.
        reader_ptr, reader: `reader[reader_ptr[t]:reader_ptr[t + 1]]` are the units that read tensor t, without its producer.
    """

    unit: NDArray[np.int32]
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    work: NDArray[np.float64]
    communication: NDArray[np.float64]
    persistent_bytes: NDArray[np.int64]
    gradient: NDArray[np.int64]
    allowed: NDArray[np.bool_]
    producer: NDArray[np.int32]
    size: NDArray[np.int64]
    reader_ptr: NDArray[np.int64]
    reader: NDArray[np.int32]

    @property
    def n(self) -> int:
        return len(self.persistent_bytes)

    @property
    def reader_tensor(self) -> NDArray[np.int64]:
        """int64[readers]: the tensor that each entry of `reader` reads."""
        return np.repeat(np.arange(len(self.producer)), np.diff(self.reader_ptr))


def make_pipeline_units(
    graph: OpGraph, cluster: Cluster, line: NDArray[np.float64] | None = None, micro_batches: int = 1
) -> PipelineUnits:
    """Returns the units of `graph`.

    Args:
        graph, cluster: as in `bl.place`.
        line: float64[n] positions of ops, along which units are numbered (default: any order).
        micro_batches: number per step. Each carries an equal share of the work of ops that run once per step.
    """
    group = groups_of(graph)
    count = int(group.max(initial=-1)) + 1
    place = np.arange(graph.n, dtype=np.float64) if line is None else np.asarray(line, dtype=np.float64)
    once, tied = np.zeros(graph.n, dtype=np.bool_), False
    source, target = group[graph.edge_source], group[graph.consumers]
    source, target = source[source != target], target[source != target]
    if graph.forward_of.max(initial=-1) >= 0:
        role = roles_in_stages(graph)
        once, tied = (role == SETUP) | (role == UPDATE), _strong_components(source, target, count)[0] < count
        if tied:
            # Backward ops join their forward ops where a device may run both.
            paired_ops = np.flatnonzero((role == BACKWARD) & (graph.forward_of >= 0))
            paired_ops = paired_ops[role[graph.forward_of[paired_ops]] == FORWARD]
            backward, forward = group[paired_ops], group[graph.forward_of[paired_ops]]
            _, component = _strong_components(np.r_[backward, forward], np.r_[forward, backward], count)
            group, count = _merge_where_allowed(graph, cluster, group, component)
            group, count = _tie_update_chains(graph, cluster, group, count, role, place)
            source, target = _pipeline_order_edges(graph, group, count, role)
    # Merges the groups of a cycle into one unit, since they must share a stage. Every edge occurs once.
    components, of = _strong_components(source, target, count)
    source, target = of[source], of[target]
    pair = distinct(source[source != target].astype(np.int64) * components + target[source != target])
    unit, source, target, count = of[group], pair // max(components, 1), pair % max(components, 1), components
    position = _mean_position(place, unit, count, ~once if tied else np.ones(graph.n, dtype=np.bool_))
    if tied:
        # Units that run once get the lowest position of their successors.
        runs_once = np.bincount(unit[~once], minlength=count) == 0
        edges = np.flatnonzero(runs_once[source])
        position[distinct(source[edges])] = np.inf
        for _ in range(len(position)):
            before = position.copy()
            np.minimum.at(position, source[edges], position[target[edges]])
            if np.array_equal(before, position):
                break
        position[np.isinf(position)] = 0.0
    # Renumbers units so that edges run forward; among the ready units the lowest position comes first.
    rank = inverse(np.argsort(position, kind="stable"))
    order = topological_order(len(position), rank[source], rank[target])
    if order is None:
        raise CycleError("the units that stages are made of have a cycle")
    number = inverse(order)[rank].astype(np.int32)
    unit, source, target = number[unit], number[source], number[target]
    return unit_columns(graph, cluster, unit, source, target, count, np.where(once, 1.0 / micro_batches, 1.0))


def _tie_update_chains(
    graph: OpGraph, cluster: Cluster, group: Integers, count: int, role: NDArray[np.int8], place: NDArray[np.float64]
) -> tuple[Integers, int]:
    """Returns groups, and their number, in which the ops of an update that read no gradient are with one that does.

    An update may have many ops (the moments of Adam). Those that are not next to a repeated group join the nearest group
    that is, of several the one whose neighbour comes first. Two groups next to repeated ones are never merged.
    """
    is_repeated = np.bincount(group[(role == FORWARD) | (role == BACKWARD)], minlength=count) > 0
    source, target = group[graph.edge_source], group[graph.consumers]
    source, target = np.r_[source, target], np.r_[target, source]
    position = _mean_position(place, group, count, (role == FORWARD) | (role == BACKWARD))
    owner, first = np.arange(count), np.full(count, np.inf)
    border = is_repeated[source] & ~is_repeated[target]
    np.minimum.at(first, target[border], position[source[border]])
    alone = ~is_repeated[source] & ~is_repeated[target]
    source, target = source[alone], target[alone]
    while True:
        edges = np.flatnonzero(np.isfinite(first[source]) & np.isinf(first[target]))
        if not len(edges):
            return _merge_where_allowed(graph, cluster, group, owner)
        edges = edges[np.lexsort((first[source[edges]], target[edges]))]
        edges = edges[np.unique(target[edges], return_index=True)[1]]
        owner[target[edges]], first[target[edges]] = owner[source[edges]], first[source[edges]]


def _merge_where_allowed(graph: OpGraph, cluster: Cluster, group: Integers, label: Integers) -> tuple[Integers, int]:
    """Returns groups merged by `label` int[groups], and their number; groups without a common device stay as they are."""
    merged_label = np.unique(label, return_inverse=True)[1].reshape(-1)
    may_run: NDArray[np.bool_] = np.asarray(allowed_group_devices(graph, cluster, merged_label[group]).any(axis=1))
    merged_label = np.where(may_run[merged_label], merged_label, len(merged_label) + np.arange(len(merged_label)))
    merged_label = np.unique(merged_label, return_inverse=True)[1].reshape(-1)
    return merged_label[group], int(merged_label.max(initial=-1)) + 1


def _pipeline_order_edges(
    graph: OpGraph, group: Integers, count: int, role: NDArray[np.int8]
) -> tuple[Integers, Integers]:
    """Edges between groups in the order of the forward ops. Groups that run once come before the others."""
    source, target = graph.edge_source, graph.consumers
    a, b = group[source], group[target]
    forward, backward = role == FORWARD, role == BACKWARD
    has_passes = np.bincount(group[forward | backward], minlength=count) > 0
    within_forward, within_backward = forward[source] & forward[target], backward[source] & backward[target]
    after, before = ~has_passes[a] & has_passes[b], has_passes[a] & ~has_passes[b]
    alone = np.flatnonzero(~has_passes[a] & ~has_passes[b])
    _, component = _strong_components(a[alone], b[alone], count)
    # No order where these have a cycle: they need not share a stage.
    alone = alone[component[a[alone]] != component[b[alone]]]
    first = np.concatenate([a[within_forward], b[within_backward], a[after], b[before], a[alone]])
    second = np.concatenate([b[within_forward], a[within_backward], b[after], a[before], b[alone]])
    return first[first != second], second[first != second]


def _strong_components(source: Integers, target: Integers, count: int) -> tuple[int, NDArray[np.int32]]:
    """Returns the number of strongly connected components, and the component of each group."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    matrix = csr_matrix((np.ones(len(source), dtype=np.int8), (source, target)), shape=(count, count))
    components: tuple[int, NDArray[np.int32]] = connected_components(matrix, connection="strong")
    return components


def _mean_position(
    place: NDArray[np.float64], unit: Integers, count: int, is_counted: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Mean position of the ops of each unit; only of those that are `is_counted`, if the unit has any."""
    has = np.bincount(unit[is_counted], minlength=count) > 0
    weight = np.where(has[unit], is_counted, True).astype(np.float64)
    mean: NDArray[np.float64] = np.bincount(unit, place * weight, count) / np.maximum(
        np.bincount(unit, weight, count), 1.0
    )
    return mean


def unit_columns(
    graph: OpGraph,
    cluster: Cluster,
    unit: Integers,
    source: Integers,
    target: Integers,
    count: int,
    share: NDArray[np.float64] | None = None,
) -> PipelineUnits:
    """Returns the columns of given units; `share` float64[n] scales the work of each op."""
    table = durations(graph, cluster) * (1.0 if share is None else share[:, None])
    collective = graph.on_communication_lane[:, None]
    computing_us: Floats = np.where(collective, 0.0, table)
    communicating_us: Floats = np.where(collective, table, 0.0)
    work, communication = grouped_sum(computing_us, unit, count), grouped_sum(communicating_us, unit, count)
    persistent_bytes = grouped_sum(graph.persistent_bytes, unit, count)
    gradient = grouped_sum(gradient_bytes(graph), unit, count)
    allowed = allowed_group_devices(graph, cluster, unit)
    producer_unit = unit[graph.edge_source]
    away = producer_unit != unit[graph.consumers]
    pair = distinct(graph.edge_tensor[away].astype(np.int64) * max(count, 1) + unit[graph.consumers[away]])
    tensor, reader = pair // max(count, 1), pair % max(count, 1)
    crossing = distinct(tensor)
    crossing = crossing[np.argsort(unit[graph.tensor_producer[crossing]], kind="stable")]
    row = np.empty(graph.tensor_count, dtype=np.int64)
    row[crossing] = np.arange(len(crossing))
    along = np.argsort(row[tensor], kind="stable")
    row, reader = row[tensor[along]], reader[along]
    return PipelineUnits(
        unit=unit.astype(np.int32),
        source=source.astype(np.int32),
        target=target.astype(np.int32),
        work=work,
        communication=communication,
        persistent_bytes=persistent_bytes,
        gradient=gradient,
        allowed=allowed,
        producer=unit[graph.tensor_producer[crossing]].astype(np.int32),
        size=graph.tensor_bytes[crossing],
        reader_ptr=offsets(row, len(crossing)),
        reader=reader.astype(np.int32),
    )
