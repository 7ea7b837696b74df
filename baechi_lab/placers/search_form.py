"""What a search simulates while units move: the ops, or runs of them, with the edges that matter there.

What lies on one device wherever the units go has the same *home*; edges that others imply are left out (`search_edges`).
O(ops + edges), apart from sorting and from `search_edges`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..graph.csr import offsets
from ..graph.jit import njit
from ..passes.contraction import grouped_sum, member_peak
from .search_anneal import Samples, State, Units
from .search_edges import needed
from .search_model import Model, Work

if TYPE_CHECKING:
    from .search_engine import Space

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
    size, lonely = np.bincount(run, minlength=count), np.diff(graph.consumer_ptr) == 0
    line = np.argsort(run, kind="stable")
    pointer, tensor, reader = joined(run, line, offsets(run, count), model.edge_ptr, model.edge_to, model.edge_tensor)
    maker = np.repeat(np.arange(count, dtype=np.int32), np.diff(pointer))
    kept = np.zeros(graph.tensor_count, dtype=np.bool_)
    if space.track:
        kept[tensor] = True
        kept |= size[run[graph.tensor_producer]] == 1
        temp = member_peak(graph, run, count, kept)
    else:
        left = needed(maker, tensor, reader, home, order)
        maker, tensor, reader = maker[left], tensor[left], reader[left]
        kept[tensor] = True
        temp = np.zeros(count, dtype=np.int64)
    makers = run[graph.tensor_producer]
    ids = np.flatnonzero(kept)
    ids = ids[np.argsort(makers[ids], kind="stable")]
    number = np.empty(graph.tensor_count, dtype=np.int32)
    number[ids] = np.arange(len(ids), dtype=np.int32)
    bytes_, degree = model.size_bytes[ids], np.bincount(reader, minlength=count).astype(np.int32)
    table = np.stack([np.bincount(run, column, count) for column in model.table.T], axis=1)
    by_reader = np.argsort(reader, kind="stable")
    ints = lambda a: a.astype(np.int32)  # noqa: E731
    edge_ptr = ints(offsets(maker, count))
    return model._replace(
        table=table, tail=tails(table.min(axis=1), edge_ptr, reader, order), degree=degree,
        sources=ints(np.flatnonzero(degree == 0)), edge_ptr=edge_ptr, edge_to=reader, edge_tensor=number[tensor],
        ready_to=reader[np.lexsort((reader, maker))], input_ptr=ints(offsets(reader, count)),
        inputs=number[tensor[by_reader]], producer=ints(makers[ids]), size_bytes=bytes_,
        made=grouped_sum(bytes_, makers[ids], count), unread=grouped_sum(bytes_ * lonely[ids], makers[ids], count), temp=temp,
        persistent=grouped_sum(model.persistent, run, count),
    )  # fmt: skip


@njit(cache=True, nogil=True)
def joined(run: Any, line: Any, ptr: Any, edge_ptr: Any, edge_to: Any, edge_tensor: Any) -> Any:
    """The edges between runs, distinct per tensor: row pointers by producing run, tensor and reading run int32[edges].

    `line[ptr[r]:ptr[r+1]]` are the ops of run `r`.
    """
    count = len(ptr) - 1
    pointer, met = np.zeros(count + 1, np.int64), np.full(count, -1, np.int64)
    tensor, reader = np.empty(len(edge_to), np.int32), np.empty(len(edge_to), np.int32)
    k = 0
    for r in range(count):
        for x in range(ptr[r], ptr[r + 1]):
            for e in range(edge_ptr[line[x]], edge_ptr[line[x] + 1]):
                q, t = run[edge_to[e]], edge_tensor[e]
                if q != r and met[q] != t:
                    met[q] = t
                    tensor[k], reader[k] = t, q
                    k += 1
        pointer[r + 1] = k
    return pointer, tensor[:k], reader[:k]


@njit(cache=True, nogil=True)
def tails(work: Any, edge_ptr: Any, edge_to: Any, order: Any) -> Any:
    """float64[n]: the least time from the end of each op to the end of the step, transfers free; a little less than
    computed, so that rounding never drops a candidate that meets a threshold exactly."""
    tail = np.zeros(len(work))
    for k in range(len(order) - 1, -1, -1):
        v = order[k]
        for e in range(edge_ptr[v], edge_ptr[v + 1]):
            tail[v] = max(tail[v], work[edge_to[e]] + tail[edge_to[e]])
    return tail * (1.0 - 1e-12)
