"""Reduced models that a search simulates while units move: of ops or of runs of ops, without implied edges.

Ops that share a device wherever the units are have the same *location*. Implied edges (`implied_edges`) are left out.
O(ops + edges), apart from sorting and from finding implied edges.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...graph.kernels.csr import Ints, frozen_array, grouped_sum, offsets
from ...passes.contraction import group_edges, member_peak
from ...simulator.paths import tails
from ..evaluation.cost import Objective
from ..evaluation.model import SURELY, Model
from ..evaluation.moves import State, Units
from .implied_edges import mark_needed_edges
from .instance import Instance


@dataclass(frozen=True)
class Subproblem:
    """A part of a search: the `units` that move, their `state`, and the `objective` that simulates it.

    `member` int64[n] is the run of each op where runs of ops are simulated as one; None where ops are.
    """

    objective: Objective
    state: State
    units: Units
    member: Ints | None = None

    @property
    def model(self) -> Model:
        """The model that is simulated."""
        return self.objective.model


def locations(subproblem: Subproblem) -> Ints:
    """Returns int64[n]: the device of each op that stays, the number of devices plus the unit of each op that moves."""
    units = subproblem.units
    location = subproblem.state.device.astype(np.int64)
    location[units.ops] = len(subproblem.model.limit) + units.of[units.ops]
    return location


def without_implied_edges(instance: Instance, subproblem: Subproblem) -> Subproblem:
    """Returns `subproblem` without the edges that others imply while its units move; simulated times are the same."""
    if instance.track:
        return subproblem
    order = instance.graph.order.astype(np.int64)
    model = merged_model(instance, np.arange(instance.graph.n), locations(subproblem), order)
    return replace(
        subproblem, objective=subproblem.objective._replace(model=model._replace(tail=subproblem.model.tail))
    )


def merged_model(instance: Instance, run: Ints, location: Ints, order: Ints) -> Model:
    """Makes the model in which the ops of each `run` int64[n] are one.

    `location` is int64[runs]; `order` has the runs in topological order.

    Costs and bytes are those of the contracted graph (`passes.contraction`). Where memory matters, all its edges stay.
    """
    graph, model, count = instance.graph, instance.model, len(location)
    makers = run[graph.tensor_producer]
    producer, tensor, reader = _edges(instance, run, location, order)
    is_kept = np.zeros(graph.tensor_count, dtype=np.bool_)
    is_kept[tensor] = True
    temp = np.zeros(count, dtype=np.int64)
    if instance.track:
        is_kept |= np.bincount(run, minlength=count)[makers] == 1
        temp = member_peak(graph, run, count, is_kept)
    ids = np.flatnonzero(is_kept)
    ids = ids[np.argsort(makers[ids], kind="stable")]
    number = np.empty(graph.tensor_count, dtype=np.int32)
    number[ids] = np.arange(len(ids), dtype=np.int32)
    size, lonely = model.size_bytes[ids], (np.diff(graph.consumer_ptr) == 0)[ids]
    degree = np.bincount(reader, minlength=count)
    table = grouped_sum(model.table, run, count)
    by_reader = np.argsort(reader, kind="stable")
    lane = np.zeros(count, dtype=np.int32)
    lane[run] = model.lane
    ints = lambda a: a.astype(np.int32)  # noqa: E731
    edge_ptr, read = offsets(producer, count), ints(reader)
    tail = tails(  # the types of arrays that a graph has, for which this kernel is compiled anyway
        frozen_array(order, np.int32),
        table.min(axis=1),
        np.zeros(len(reader)),
        np.arange(count + 1),
        frozen_array(edge_ptr, np.int64),
        frozen_array(read, np.int32),
    )
    return model._replace(
        table=table,
        lane=lane,
        tail=tail * SURELY,
        degree=ints(degree),
        sources=ints(np.flatnonzero(degree == 0)),
        edge_ptr=ints(edge_ptr),
        edge_to=read,
        edge_tensor=number[tensor],
        ready_to=read[np.lexsort((reader, producer))],
        input_ptr=ints(offsets(reader, count)),
        inputs=number[tensor[by_reader]],
        producer=ints(makers[ids]),
        size_bytes=size,
        output_bytes=grouped_sum(size, makers[ids], count),
        unread=grouped_sum(size * lonely, makers[ids], count),
        temp=temp,
        persistent=grouped_sum(model.persistent, run, count),
    )


def _edges(instance: Instance, run: Ints, location: Ints, order: Ints) -> tuple[Ints, Ints, Ints]:
    """Returns producing run, tensor and reading run of every edge that others do not imply, by producing run."""
    graph = instance.graph
    pairs = group_edges(run, graph.edge_tensor, run[graph.edge_source], run[graph.consumers])
    producer_run = run[graph.tensor_producer[pairs.tensor]]
    by_maker = np.argsort(producer_run, kind="stable")
    producer, tensor, reader = producer_run[by_maker], pairs.tensor[by_maker], pairs.reader[by_maker]
    if instance.track:
        return producer, tensor, reader
    needed_edges = mark_needed_edges((producer, tensor, reader), location, order, instance.parameters.way_ops)
    return producer[needed_edges], tensor[needed_edges], reader[needed_edges]
