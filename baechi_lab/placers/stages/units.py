"""A training graph as units that stages are made of: colocation groups in the order in which a micro-batch passes them.

A stage of a pipeline is *convex*: no path leaves it and comes back. Where forward and backward ops of a layer share a
colocation group, a path always comes back (through the backward ops), so what counts is the way of the forward ops: an
edge between backward ops says the same the other way round, and one from a forward to a backward op says nothing.
(Tarnawski et al., NeurIPS 2020, "Efficient Algorithms for Device Placement", appendix B, contract such pairs likewise.)
Where the groups without this reading have no cycle, every edge counts as it is.

Ops that run once per step, such as updates of parameters, belong to no stage: their edges do not order the groups of ops that
run for each micro-batch. A group of only such ops, such as a variable with its update, or the norm of all gradients, comes
right before the first of the groups beside it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import CycleError
from ...graph import Cluster, OpGraph, allowed_devices, durations
from ...graph.kernels.csr import distinct, offsets, topological_order
from ...passes.gradients import gradient_bytes
from ...passes.roles import BACKWARD, FORWARD, SETUP, UPDATE
from ...simulator.pipeline_stages import roles_in_stages
from ..problem import groups_of


class Units(NamedTuple):
    """Units numbered along their order: `unit` int32[n] of every op, and per unit columns.

    `source`, `target` int32[edges]: a unit that comes before another. `work` float64[units, devices] microseconds,
    `held` int64[units] persistent bytes, `gradient` int64[units] bytes of gradients that replicas would add up, `able`
    bool[units, devices]. Of the tensors that pass between units: `producer` int32[T] ascending, `size` int64[T] bytes, and
    readers `reader[reader_ptr[t]:reader_ptr[t + 1]]`, the producer's own unit left out.
    """

    unit: NDArray[Any]
    source: NDArray[Any]
    target: NDArray[Any]
    work: NDArray[Any]
    held: NDArray[Any]
    gradient: NDArray[Any]
    able: NDArray[Any]
    producer: NDArray[Any]
    size: NDArray[Any]
    reader_ptr: NDArray[Any]
    reader: NDArray[Any]

    @property
    def n(self) -> int:
        return len(self.held)


def make_units(graph: OpGraph, cluster: Cluster, line: NDArray[Any] | None = None, micro_batches: int = 1) -> Units:
    """The units of `graph`.

    Args:
        graph, cluster: as in `bl.place`.
        line: float64[n] positions of ops, along which units are numbered (default: any order).
        micro_batches: of a step, each of which has so large a share of the work of ops that run once.

    >>> graph = OpGraph.from_edges([1.0, 2.0, 4.0], [(0, 1, 8), (1, 2, 8)])
    >>> units = make_units(graph, Cluster.uniform(2))
    >>> units.n, units.work[:, 0].tolist(), units.producer.tolist(), units.reader.tolist()
    (3, [1.0, 2.0, 4.0], [0, 1], [1, 2])
    """
    group = groups_of(graph)
    count = int(group.max(initial=-1)) + 1
    place = np.arange(graph.n, dtype=np.float64) if line is None else np.asarray(line, dtype=np.float64)
    once, tied = np.zeros(graph.n, dtype=np.bool_), False
    source, target = group[graph.edge_source], group[graph.consumers]
    source, target = source[source != target], target[source != target]
    if graph.forward_of.max(initial=-1) >= 0:
        role = roles_in_stages(graph)
        once, tied = (role == SETUP) | (role == UPDATE), _strong(source, target, count)[0] < count
        if tied:
            source, target = _stage_edges(graph, group, count, role)
    unit, source, target, count = _condensed(group, source, target, count)
    position = _mean(place, unit, count, ~once if tied else np.ones(graph.n, dtype=np.bool_))
    if tied:
        _precede(position, source, target, np.bincount(unit[~once], minlength=count) == 0)
    unit, source, target = _numbered(unit, source, target, position)
    return unit_columns(graph, cluster, unit, source, target, count, np.where(once, 1.0 / micro_batches, 1.0))


def _stage_edges(
    graph: OpGraph, group: NDArray[Any], count: int, role: NDArray[np.int8]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Edges between groups as the forward ops have them; groups of ops that run once before the others."""
    source, target = graph.edge_source, graph.consumers
    a, b = group[source], group[target]
    forward, backward = role == FORWARD, role == BACKWARD
    repeated = np.bincount(group[forward | backward], minlength=count) > 0
    ahead, mirrored = forward[source] & forward[target], backward[source] & backward[target]
    after, before = ~repeated[a] & repeated[b], repeated[a] & ~repeated[b]
    alone = np.flatnonzero(~repeated[a] & ~repeated[b])
    _, part = _strong(a[alone], b[alone], count)
    alone = alone[part[a[alone]] != part[b[alone]]]  # no order where these have a cycle: they need not share a stage
    first = np.concatenate([a[ahead], b[mirrored], a[after], b[before], a[alone]])
    second = np.concatenate([b[ahead], a[mirrored], b[after], a[before], b[alone]])
    return first[first != second], second[first != second]


def _precede(
    position: NDArray[np.float64], source: NDArray[Any], target: NDArray[Any], once: NDArray[np.bool_]
) -> None:
    """Units that run once take the lowest position of the units behind them, in place; others stay where they are."""
    edges = np.flatnonzero(once[source])
    position[distinct(source[edges])] = np.inf
    for _ in range(len(position)):
        before = position.copy()
        np.minimum.at(position, source[edges], position[target[edges]])
        if np.array_equal(before, position):
            break
    position[np.isinf(position)] = 0.0


def _strong(source: NDArray[Any], target: NDArray[Any], count: int) -> tuple[int, NDArray[np.int32]]:
    """Number of strongly connected components, and the component of each group."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    matrix = csr_matrix((np.ones(len(source), dtype=np.int8), (source, target)), shape=(count, count))
    found: tuple[int, NDArray[np.int32]] = connected_components(matrix, connection="strong")
    return found


def _condensed(
    group: NDArray[Any], source: NDArray[Any], target: NDArray[Any], count: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], int]:
    """Groups on a cycle must share a stage: they become one unit. Edges once each."""
    components, of = _strong(source, target, count)
    source, target = of[source], of[target]
    pair = distinct(source[source != target].astype(np.int64) * components + target[source != target])
    return of[group], pair // max(components, 1), pair % max(components, 1), components


def _mean(
    place: NDArray[np.float64], unit: NDArray[Any], count: int, counted: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Mean place of the ops of each unit; of those that are `counted`, where it has any."""
    has = np.bincount(unit[counted], minlength=count) > 0
    weight = np.where(has[unit], counted, True).astype(np.float64)
    mean: NDArray[np.float64] = np.bincount(unit, place * weight, count) / np.maximum(
        np.bincount(unit, weight, count), 1.0
    )
    return mean


def _numbered(
    unit: NDArray[Any], source: NDArray[Any], target: NDArray[Any], position: NDArray[np.float64]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Units renumbered so that edges run forward; among the ready, the lowest position comes first."""
    place = _inverse(np.argsort(position, kind="stable"))
    along = topological_order(len(position), place[source], place[target])
    if along is None:
        raise CycleError("the units that stages are made of have a cycle")
    place = _inverse(along)[place]
    return place[unit], place[source], place[target]


def _inverse(order: NDArray[Any]) -> NDArray[np.int32]:
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return place


def unit_columns(
    graph: OpGraph, cluster: Cluster, unit: NDArray[Any], source: NDArray[Any], target: NDArray[Any], count: int,
    share: NDArray[np.float64] | None = None,
) -> Units:  # fmt: skip
    """Units as they are numbered, with what they take, hold and send; `share` float64[n] of ops' work that counts."""
    table = durations(graph, cluster) * (1.0 if share is None else share[:, None])
    work = np.stack([np.bincount(unit, table[:, d], count) for d in range(cluster.n)], axis=1)
    held = np.zeros(count, dtype=np.int64)
    np.add.at(held, unit, graph.persistent_bytes)
    gradient = np.zeros(count, dtype=np.int64)
    np.add.at(gradient, unit, gradient_bytes(graph))
    able = np.ones((count, cluster.n), dtype=np.bool_)
    np.logical_and.at(able, unit, allowed_devices(graph, cluster))
    home = unit[graph.edge_source]
    away = home != unit[graph.consumers]
    pair = distinct(graph.edge_tensor[away].astype(np.int64) * max(count, 1) + unit[graph.consumers[away]])
    tensor, reader = pair // max(count, 1), pair % max(count, 1)
    kept = distinct(tensor)
    kept = kept[np.argsort(unit[graph.tensor_producer[kept]], kind="stable")]
    row = np.empty(graph.tensor_count, dtype=np.int64)
    row[kept] = np.arange(len(kept))
    along = np.argsort(row[tensor], kind="stable")
    row, reader = row[tensor[along]], reader[along]
    return Units(
        unit.astype(np.int32), source.astype(np.int32), target.astype(np.int32), work, held, gradient, able,
        unit[graph.tensor_producer[kept]].astype(np.int32), graph.tensor_bytes[kept], offsets(row, len(kept)),
        reader.astype(np.int32),
    )  # fmt: skip
