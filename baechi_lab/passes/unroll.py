"""From one micro-batch to a whole step: forward and backward ops once per micro-batch, parameters and updates once.

What runs once and what runs for each micro-batch is said by `roles`. A tensor that an update reads is a gradient: it is
accumulated, one addition per micro-batch after the first, on the device that produces it, and the update reads the
last sum. (Scalars, control dependencies among them, are not worth an op: the update reads them all.) An addition reads
two tensors and writes one, so it takes three times the tensor's bytes over the bandwidth that additions have in the
profile itself: those of the graph's own `AddN` and `Add` ops, weighted by what they move. A graph without such ops is
asked for its updates, which are bound by memory in the same way, and then for its fastest ops by bytes moved; a graph
in which nothing moves bytes adds for nothing. A graph that shows no updates, as PyTorch's layer graphs do, has its
backward ops add into the gradients that it keeps; its `persistent_bytes` count them, and no op is added.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..checks import check_whole
from ..errors import InvalidInput
from ..graph import CONTROL_BYTES, OpGraph
from ..graph.kernels.csr import offsets
from .base import Pass
from .roles import BACKWARD, SETUP, UPDATE, roles

Ints = NDArray[np.int64]

ACCUMULATE = "Accumulate"
"""Type of the ops that add a micro-batch's gradient to the sum of those before it."""

_STATISTICS = re.compile(r"batch_?norm", re.IGNORECASE)
_ADDITIONS = frozenset({"AddN", "Add", "AddV2"})
_LARGE = 1 << 12
"""Bytes that an addition moves at least to say something about bandwidth; below, it costs what launching an op costs."""


def unroll(graph: OpGraph, micro_batches: int) -> OpGraph:
    """The graph of a step of `micro_batches` micro-batches, each of which is one run of `graph`.

    Copies are named `name/mb0`, `name/mb1`, ...; what is done once keeps its name. A placement of `graph` is a placement
    of the result: every copy goes where its original goes (`copy_of`), the accumulation of a gradient where it is
    made. Copies share their original's colocation group. `micro_batch` says which micro-batch an op belongs to. Ops are
    numbered in topological order, micro-batch by micro-batch; one micro-batch is the graph itself. A coarse graph
    is unrolled as it is, its groups judged by their longest members.
    O(micro_batches x (ops + edges)), by array operations.

    Warns of a model that normalises by the statistics of its batch: micro-batches see their own.

    Args:
        graph: the profile of one micro-batch.
        micro_batches: how many of them make a step.

    Raises:
        InvalidInput: `micro_batches` is not a whole number of at least 1, or the graph is unrolled already.

    >>> graph = OpGraph.from_edges([0, 5, 9, 1], [(0, 1, 4), (1, 2, 8), (2, 3, 8)], forward_of=[-1, -1, 1, -1],
    ...     op_types=["Variable", "MatMul", "MatMulGrad", "Update"], names=["w", "matmul", "gradient", "update"])
    >>> unroll(graph, 2).names
    ('w', 'matmul/mb0', 'gradient/mb0', 'matmul/mb1', 'gradient/mb1', 'gradient/accumulate0/mb1', 'update')
    """
    return Unroll(micro_batches).checked().apply(graph)


@dataclass(frozen=True)
class Unroll(Pass):
    """Several micro-batches per step: forward and backward ops copied, parameters and updates once, gradients added up."""

    name: ClassVar[str] = "unroll"
    micro_batches: int = 1

    def validate(self) -> None:
        check_micro_batches(self.micro_batches)

    def checked(self) -> Unroll:
        """The pass itself, validated."""
        self.validate()
        return self

    def apply(self, graph: OpGraph) -> OpGraph:
        if not isinstance(graph, OpGraph):
            raise InvalidInput(f"graph is a {type(graph).__name__}; it must be an OpGraph")
        if graph.copy_of is not None:
            raise InvalidInput(f"graph {graph.name!r} is unrolled already; unroll the graph of one micro-batch")
        role = roles(graph)
        once = (role == SETUP) | (role == UPDATE)
        if self.micro_batches > 1:
            _warn_of_batch_statistics(graph, role)
        else:
            return graph.replace(copy_of=np.arange(graph.n), copied_key=graph.key, micro_batch=np.where(once, -1, 0))
        return _unrolled(graph, _Layout(graph, role, int(self.micro_batches)))


def _warn_of_batch_statistics(graph: OpGraph, role: NDArray[np.int8]) -> None:
    if not np.any(role == BACKWARD):
        return  # inference uses stored statistics
    for name, op_type in zip(graph.names, graph.op_types, strict=True):
        if _STATISTICS.search(op_type) or _STATISTICS.search(name):
            warnings.warn(
                f"op {name!r} normalises by the statistics of its batch: every micro-batch sees its own, so the step is not "
                "that of the undivided batch",
                stacklevel=5,
            )
            return


def micro_batch_size(batch_size: int, micro_batches: int) -> int:
    """Samples per micro-batch.

    Raises `InvalidInput` for a batch that does not divide.

    >>> micro_batch_size(32, 8)
    4
    """
    check_micro_batches(micro_batches)
    check_whole("batch_size", batch_size)
    if batch_size % micro_batches:
        raise InvalidInput(
            f"batch_size is {batch_size}; it must be a multiple of micro_batches, which is {micro_batches}"
        )
    return int(batch_size) // int(micro_batches)


def check_micro_batches(count: Any) -> None:
    """Refuse what is not a whole number of at least 1."""
    check_whole("micro_batches", count)


class _Layout:
    """Where every op goes: setup, then per micro-batch its copies and additions, then updates."""

    def __init__(self, graph: OpGraph, role: NDArray[np.int8], count: int):
        ordered = role[graph.order]
        self.count = count
        self.setup, self.update = (graph.order[ordered == k].astype(np.int64) for k in (SETUP, UPDATE))
        self.each = graph.order[(ordered != SETUP) & (ordered != UPDATE)].astype(np.int64)
        self.repeats = np.zeros(graph.n, dtype=np.bool_)
        self.repeats[self.each] = True
        self.updates = role == UPDATE
        read = np.zeros(graph.tensor_count, dtype=np.bool_)
        read[graph.edge_tensor[self.updates[graph.consumers] & self.repeats[graph.edge_source]]] = True
        self.summed = np.flatnonzero(read & (graph.tensor_bytes > CONTROL_BYTES))  # tensors to accumulate
        block = len(self.each) + len(self.summed)
        self.start = len(self.setup) + np.arange(count) * block
        self.start[1:] -= len(self.summed)  # the first micro-batch has nothing to add to
        self.total = len(self.setup) + count * block - len(self.summed) + len(self.update)
        self.first = np.empty(graph.n, dtype=np.int64)  # number of an op's only or first copy
        self.first[self.setup] = np.arange(len(self.setup))
        self.first[self.each] = len(self.setup) + np.arange(len(self.each))
        self.first[self.update] = self.total - len(self.update) + np.arange(len(self.update))
        self.shift = self.start - self.start[0]
        self.copies = self.start[:, None] + np.arange(len(self.each))[None, :]  # [micro-batch, op of `each`]
        # [micro-batch - 1, summed tensor]: the op that adds the gradient of that micro-batch
        self.additions = self.start[1:, None] + len(self.each) + np.arange(len(self.summed))[None, :]


def _unrolled(graph: OpGraph, at: _Layout) -> OpGraph:
    origin = np.empty(at.total, dtype=np.int64)  # an addition stands for the op whose gradient it adds
    origin[at.first[at.setup]], origin[at.first[at.update]] = at.setup, at.update
    origin[at.copies] = at.each[None, :]
    adder = graph.tensor_producer[at.summed].astype(np.int64)
    origin[at.additions] = adder[None, :]
    batch = np.full(at.total, -1, dtype=np.int32)
    batch[at.copies] = np.arange(at.count, dtype=np.int32)[:, None]
    batch[at.additions] = np.arange(1, at.count, dtype=np.int32)[:, None]
    added = np.zeros(at.total, dtype=np.bool_)
    added[at.additions] = True
    again = added | (batch > 0)
    return OpGraph(
        names=_names(graph, at),
        op_types=_op_types(graph, at),
        duration_us=_durations(graph, at, graph.duration_us, origin),
        duration_by_kind={kind: _durations(graph, at, us, origin) for kind, us in graph.duration_by_kind.items()},
        temp_bytes=np.where(added, 0, graph.temp_bytes[origin]),
        persistent_bytes=np.where(again, 0, graph.persistent_bytes[origin]),
        allowed=graph.allowed[origin],
        allowed_sets=graph.allowed_sets,
        forward_of=_forward_of(graph, at, origin, batch),
        copy_of=origin,
        copied_key=graph.key,
        micro_batch=batch,
        name=f"{graph.name} x {at.count}",
        **_colocation(graph, at, origin),
        **_tensors(graph, at),
    )


def _names(graph: OpGraph, at: _Layout) -> tuple[str, ...]:
    out = [graph.names[i] for i in at.setup.tolist()]
    each = [graph.names[i] for i in at.each.tolist()]
    first = graph.output_ptr[graph.tensor_producer]
    added = [
        f"{graph.names[graph.tensor_producer[t]]}/accumulate{t - first[t]}" for t in at.summed.tolist()
    ]  # the position, since a tensor's name need not be fit for an op's
    for k in range(at.count):
        out += [f"{name}/mb{k}" for name in each]
        if k:
            out += [f"{name}/mb{k}" for name in added]
    return (*out, *(graph.names[i] for i in at.update.tolist()))


def _op_types(graph: OpGraph, at: _Layout) -> tuple[str, ...]:
    each = [graph.op_types[i] for i in at.each.tolist()]
    block = [*each, *[ACCUMULATE] * len(at.summed)]
    out = [graph.op_types[i] for i in at.setup.tolist()] + each + block * (at.count - 1)
    return (*out, *(graph.op_types[i] for i in at.update.tolist()))


def _durations(graph: OpGraph, at: _Layout, us: NDArray[np.float64], origin: Ints) -> NDArray[np.float64]:
    out = us[origin]
    out[at.additions] = (3 * graph.tensor_bytes[at.summed] * us_per_byte_moved(graph, us, at.updates))[None, :]
    return out


def us_per_byte_moved(graph: OpGraph, us: NDArray[np.float64], update: NDArray[np.bool_]) -> float:
    """Microseconds per byte read or written by an op that does nothing but move bytes; see the module's text.

    `us` float64[n] and `update` bool[n]: how long each op takes, and whether it is an update.

    >>> graph = OpGraph.from_edges([1.0, 6.0, 0.0], [(0, 1, 8000), (1, 2, 16000)], op_types=["x", "AddN", "y"])
    >>> us_per_byte_moved(graph, graph.duration_us, np.zeros(3, dtype=bool))   # 24000 bytes in 6 us
    0.00025
    """
    moved = np.bincount(graph.tensor_producer, graph.tensor_bytes, graph.n)
    moved = moved + np.bincount(graph.consumers, graph.tensor_bytes[graph.edge_tensor], graph.n)
    additions = np.array([t in _ADDITIONS for t in graph.op_types], dtype=np.bool_)
    usable = (moved >= _LARGE) & (us > 0)
    for chosen in (usable & additions, usable & update):
        if chosen.any():
            return float(us[chosen].sum() / moved[chosen].sum())
    return float((us[usable] / moved[usable]).min(initial=np.inf)) if usable.any() else 0.0


def _forward_of(graph: OpGraph, at: _Layout, origin: Ints, batch: NDArray[np.int32]) -> NDArray[np.int32]:
    """Within the same micro-batch; what is done once names the first copy."""
    old = graph.forward_of[origin].astype(np.int64)
    moved = np.where(at.repeats[old], at.shift[np.maximum(batch, 0)], 0)
    return np.where(old >= 0, at.first[old] + moved, -1).astype(np.int32)


def _colocation(graph: OpGraph, at: _Layout, origin: Ints) -> dict[str, Any]:
    """Copies in the group of their original; copies of an op that keeps bytes need one, since the bytes are there once."""
    lone = np.flatnonzero(at.repeats & (graph.colocation < 0) & (graph.persistent_bytes > 0))
    group = graph.colocation.copy()
    group[lone] = len(graph.colocation_names) + np.arange(len(lone))
    known = set(graph.colocation_names)
    names = [graph.names[i] for i in lone.tolist()]
    fresh = [f"copies of {name}" if name in known else name for name in names]
    return {"colocation": group[origin], "colocation_names": (*graph.colocation_names, *fresh)}


def _tensors(graph: OpGraph, at: _Layout) -> dict[str, Any]:
    """Producer, bytes, names and readers of all tensors, ordered by producer."""
    tensors, repeats = graph.tensor_count, at.repeats[graph.tensor_producer]
    copies = np.where(repeats, at.count, 1)
    begin = np.concatenate([[0], np.cumsum(copies)])  # copy k of tensor t is row begin[t] + k, in no special order yet
    old = np.repeat(np.arange(tensors), copies)
    which = np.arange(begin[-1]) - begin[old]
    producer = at.first[graph.tensor_producer[old]] + at.shift[which]
    # The additions make one tensor each: rows after all copies.
    row_of_sum = begin[-1] + np.arange(at.additions.size).reshape(at.additions.shape)
    producer = np.concatenate([producer, at.additions.ravel()])
    size = np.concatenate([graph.tensor_bytes[old], np.tile(graph.tensor_bytes[at.summed], at.count - 1)])
    row, reader = _edges(graph, at, begin, row_of_sum)
    order = np.argsort(producer, kind="stable")
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    row = number[row]
    key = np.sort(row * np.int64(at.total) + reader)
    row, reader = key // at.total, key % at.total
    labels = np.concatenate([np.array(graph.tensor_names, dtype=object)[old], np.full(at.additions.size, "0", object)])
    return {
        "tensor_producer": producer[order].astype(np.int32),
        "tensor_bytes": size[order],
        "tensor_names": tuple(labels[order].tolist()),
        "consumer_ptr": offsets(row, len(order)),
        "consumers": reader.astype(np.int32),
    }


def _edges(graph: OpGraph, at: _Layout, begin: Ints, row_of_sum: Ints) -> tuple[Ints, Ints]:
    """(tensor row, reading op) of every edge."""
    tensor, reader = graph.edge_tensor.astype(np.int64), graph.consumers.astype(np.int64)
    made, read = at.repeats[graph.edge_source], at.repeats[reader]
    summed = np.zeros(graph.tensor_count, dtype=np.bool_)
    summed[at.summed] = True
    to_sum = made & at.updates[reader] & summed[tensor]
    once = ~made & ~read
    each = np.flatnonzero(~once & ~to_sum)  # one edge per micro-batch: from a copy, to a copy, or both
    step = np.arange(at.count)[:, None]
    rows = [begin[tensor[once]], (begin[tensor[each]] + np.where(made[each], step, 0)).ravel()]
    readers = [
        at.first[reader[once]],
        (at.first[reader[each]] + np.where(read[each], at.shift[:, None], 0)).ravel(),
    ]
    own = begin[at.summed]
    if len(own):
        rows += [(own + step[1:]).ravel(), own, row_of_sum[:-1].ravel()]
        readers += [at.additions.ravel(), at.additions[0], at.additions[1:].ravel()]
        place = np.empty(graph.tensor_count, dtype=np.int64)
        place[at.summed] = row_of_sum[-1]
        rows.append(place[tensor[to_sum]])
        readers.append(at.first[reader[to_sum]])
    return np.concatenate(rows), np.concatenate(readers)
