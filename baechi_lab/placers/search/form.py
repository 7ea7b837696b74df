"""What a search simulates while units move: the ops, or runs of them, with the edges that matter there.

What lies on one device wherever the units go has the same *home*; edges that others imply are left out (`search.edges`).
O(ops + edges), apart from sorting and from `search.edges`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.csr import offsets
from ...passes.contraction import group_edges, grouped_sum, member_peak
from ...simulator.paths import tails
from ..evaluation.model import Model, Work
from .anneal import Samples, State, Units
from .edges import needed

if TYPE_CHECKING:
    from .engine import Space

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Form:
    """What is simulated while `units` move: the ops themselves, or runs of them (`member` int64[n]: the run of each op)."""

    model: Model
    work: Work
    state: State
    samples: Samples
    units: Units
    member: Any = None


def homes(whole: Form) -> Ints:
    """int64[n]: the device of what stays, the number of devices plus the unit of what moves."""
    units = whole.units
    home = whole.state.device.astype(np.int64)
    home[units.ops] = len(whole.model.limit) + units.of[units.ops]
    return home


def lean(space: Space, whole: Form) -> Form:
    """`whole` with the edges that matter while its units move; its simulations give the same times."""
    if space.track:
        return whole
    model = merged(space, np.arange(space.graph.n), homes(whole), space.graph.order.astype(np.int64))
    return replace(whole, model=model._replace(tail=whole.model.tail))


def merged(space: Space, run: Ints, home: Ints, order: Ints) -> Model:
    """The model of `space` with the ops of each `run` int64[n] as one; `home` int64[runs]; `order`: runs in topological order.

    Costs and bytes are those of the contracted graph (`passes.contraction`). Where memory matters, all its edges stay.
    """
    graph, model, count = space.graph, space.model, len(home)
    makers = run[graph.tensor_producer]
    maker, tensor, reader = _edges(space, run, home, order)
    kept = np.zeros(graph.tensor_count, dtype=np.bool_)
    kept[tensor] = True
    temp = np.zeros(count, dtype=np.int64)
    if space.track:
        kept |= np.bincount(run, minlength=count)[makers] == 1
        temp = member_peak(graph, run, count, kept)
    ids = np.flatnonzero(kept)
    ids = ids[np.argsort(makers[ids], kind="stable")]
    number = np.empty(graph.tensor_count, dtype=np.int32)
    number[ids] = np.arange(len(ids), dtype=np.int32)
    size, lonely = model.size_bytes[ids], (np.diff(graph.consumer_ptr) == 0)[ids]
    degree = np.bincount(reader, minlength=count)
    table = np.stack([np.bincount(run, column, count) for column in model.table.T], axis=1)
    by_reader = np.argsort(reader, kind="stable")
    ints = lambda a: a.astype(np.int32)  # noqa: E731
    edge_ptr, read = offsets(maker, count), ints(reader)
    tail = tails(order, table.min(axis=1), np.zeros(len(reader)), np.arange(count + 1), edge_ptr, read)
    return model._replace(
        table=table, tail=tail * (1.0 - 1e-12), degree=ints(degree), sources=ints(np.flatnonzero(degree == 0)),
        edge_ptr=ints(edge_ptr), edge_to=read, edge_tensor=number[tensor], ready_to=read[np.lexsort((reader, maker))],
        input_ptr=ints(offsets(reader, count)), inputs=number[tensor[by_reader]], producer=ints(makers[ids]),
        size_bytes=size, made=grouped_sum(size, makers[ids], count), unread=grouped_sum(size * lonely, makers[ids], count),
        temp=temp, persistent=grouped_sum(model.persistent, run, count),
    )  # fmt: skip


def _edges(space: Space, run: Ints, home: Ints, order: Ints) -> tuple[Ints, Ints, Ints]:
    """Producing run, tensor and reading run of every edge that matters, by producing run."""
    graph = space.graph
    pairs = group_edges(run, graph.edge_tensor, run[graph.edge_source], run[graph.consumers])
    made = run[graph.tensor_producer[pairs.tensor]]
    by_maker = np.argsort(made, kind="stable")
    maker, tensor, reader = made[by_maker], pairs.tensor[by_maker], pairs.reader[by_maker]
    if space.track:
        return maker, tensor, reader
    left = needed(maker, tensor, reader, home, order)
    return maker[left], tensor[left], reader[left]
