"""A training graph as units that stages are made of: colocation groups in the order in which a micro-batch passes them.

A stage of a pipeline is *convex*: no path leaves it and comes back. Where forward and backward ops of a layer share a
colocation group, a path always comes back (through the backward ops), so what counts is the way of the forward ops: an
edge between backward ops says the same the other way round, and one from a forward to a backward op says nothing.
(Tarnawski et al., NeurIPS 2020, "Efficient Algorithms for Device Placement", appendix B, contract such pairs likewise.)
Where the groups without this reading have no cycle, every edge counts as it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import CycleError
from ...graph import Cluster, OpGraph, allowed_devices, durations
from ...graph.kernels.csr import distinct, offsets, topological_order
from ...passes.forward_only import backward_ops
from ...passes.gradients import gradient_bytes
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


def make_units(graph: OpGraph, cluster: Cluster, line: NDArray[Any] | None = None) -> Units:
    """The units of `graph`; `line` float64[n] positions of ops, along which they are numbered (default: any order).

    >>> graph = OpGraph.from_edges([1.0, 2.0, 4.0], [(0, 1, 8), (1, 2, 8)])
    >>> units = make_units(graph, Cluster.uniform(2))
    >>> units.n, units.work[:, 0].tolist(), units.producer.tolist(), units.reader.tolist()
    (3, [1.0, 2.0, 4.0], [0, 1], [1, 2])
    """
    group = groups_of(graph)
    count = int(group.max(initial=-1)) + 1
    source, target = _order_edges(graph, group, count)
    unit, source, target, count = _condensed(group, source, target, count)
    position = _mean(np.arange(graph.n) if line is None else line, unit, count)
    unit, source, target = _numbered(unit, source, target, position)
    return unit_columns(graph, cluster, unit, source, target, count)


def _order_edges(graph: OpGraph, group: NDArray[Any], count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Edges between groups: as they are if they have no cycle, else as the forward ops have them."""
    source, target = graph.edge_source, graph.consumers
    between = group[source] != group[target]
    if (
        not graph.forward_of.max(initial=-1) >= 0
        or _strong(group[source[between]], group[target[between]], count)[0] == count
    ):
        return group[source[between]], group[target[between]]
    back = backward_ops(graph)
    ahead, mirrored = between & ~back[target], between & back[source]
    return (
        np.concatenate([group[source[ahead]], group[target[mirrored]]]),
        np.concatenate([group[target[ahead]], group[source[mirrored]]]),
    )


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


def _mean(position: NDArray[Any], unit: NDArray[Any], count: int) -> NDArray[np.float64]:
    mean: NDArray[np.float64] = np.bincount(unit, position, count) / np.maximum(np.bincount(unit, minlength=count), 1)
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
    graph: OpGraph, cluster: Cluster, unit: NDArray[Any], source: NDArray[Any], target: NDArray[Any], count: int
) -> Units:
    """Units as they are numbered, with what they take, hold and send."""
    table = durations(graph, cluster)
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
