"""The graph of a plan of recomputation: every run of an op after its first is a copy of it.

Every reader reads the latest run before it. A copy waits, by a control dependency, for the last input of the op that
follows it in the plan, because a copy that runs earlier saves no memory.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph import CONTROL_BYTES, OpGraph
from ..graph.kernels.csr import offsets
from .op_sequence import Runs

Ints = NDArray[np.int64]


class _Copies:
    """Numbers of the copies, what they read, and what they wait for."""

    def __init__(self, runs: Runs, order: Ints | None = None):
        self.runs, self.graph, self.order = runs, runs.graph, order
        self.origin = runs.ops[runs.copies]
        self.total = self.graph.n + len(self.origin)
        sized = self.graph.tensor_bytes > CONTROL_BYTES
        outputs = np.diff(self.graph.output_ptr)[self.origin]
        made = np.repeat(self.graph.output_ptr[self.origin] - np.cumsum(outputs) + outputs, outputs)
        made += np.arange(len(made))
        maker = np.repeat(np.arange(len(self.origin)), outputs)
        self.tensors, self.maker = (
            made[sized[made]],
            maker[sized[made]],
        )  # of each tensor that copies make: origin, copy

    def data(self) -> tuple[Ints, Ints]:
        """(tensor row, reader) of all reads; the rows of what copies make follow those of the graph."""
        runs, graph = self.runs, self.graph
        tensor, made, reader = runs.reads
        row = tensor.copy()
        by_copy = ~runs.first[made]
        key = self.maker * np.int64(max(graph.tensor_count, 1)) + self.tensors  # ascending
        copy = runs.node[made[by_copy]] - graph.n
        row[by_copy] = graph.tensor_count + np.searchsorted(key, copy * max(graph.tensor_count, 1) + tensor[by_copy])
        return row, runs.node[reader]

    def waits(self) -> list[tuple[int, int]]:
        """(op, op) of the control dependencies: copies after their trigger, updates after copies that read the variable."""
        runs, found = self.runs, set()
        _, made, reader = runs.reads
        reads: dict[int, set[int]] = {}
        for source, position in zip(made.tolist(), reader.tolist(), strict=True):
            reads.setdefault(position, set()).add(source)
        for position in runs.copies.tolist():
            op, node, due = int(runs.ops[position]), int(runs.node[position]), runs.due[position]
            if not any(not runs.first[k] and runs.due[k] == due for k in reads.get(position, ())):
                found.add((runs.trigger(int(due)), node))
            found |= {(node, update) for update in runs.parts.updates_read.get(op, ())}
        if self.order is not None:
            read = {(int(runs.node[k]), int(runs.node[p])) for p, sources in reads.items() for k in sources}
            found |= set(pairwise(self.order.tolist())) - read
        return sorted(found)


def with_copies(runs: Runs, order: Ints | None = None) -> OpGraph:
    """The graph in which the copies of `runs` are ops of their own.

    Control dependencies make one device run them in `order`, int64[runs] as `Runs.node` numbers them, whatever its scheduler.
    """
    graph, at = runs.graph, _Copies(runs, order)
    if not len(at.origin) and order is None:
        return graph
    origin = np.concatenate([np.arange(graph.n), at.origin])
    again = np.arange(len(origin)) >= graph.n
    optional = {k: v[origin] for k in ("copy_of", "micro_batch", "reuse") if (v := getattr(graph, k)) is not None}
    forward = graph.forward_of[origin]
    forward[again] = at.origin
    return OpGraph(
        names=_names(graph, at.origin),
        op_types=tuple(graph.op_types[i] for i in origin.tolist()),
        duration_us=graph.duration_us[origin],
        duration_by_kind={kind: us[origin] for kind, us in graph.duration_by_kind.items()},
        temp_bytes=graph.temp_bytes[origin],
        persistent_bytes=np.where(again, 0, graph.persistent_bytes[origin]),
        allowed=graph.allowed[origin],
        allowed_sets=graph.allowed_sets,
        forward_of=forward,
        copied_key=graph.copied_key,
        name=f"{graph.name}, recomputing",
        **optional,
        **_colocation(graph, at.origin, origin),
        **_tensors(graph, at),
    )


def _names(graph: OpGraph, copied: Ints) -> tuple[str, ...]:
    taken, out = set(graph.names), list(graph.names)
    for op in copied.tolist():
        name = f"{graph.names[op]}/again"
        while name in taken:
            name += "/again"
        taken.add(name)
        out.append(name)
    return tuple(out)


def _colocation(graph: OpGraph, copied: Ints, origin: Ints) -> dict[str, Any]:
    """Copies in the group of their original; those of an op that keeps bytes need one, since the bytes are there once."""
    lone = np.unique(copied[(graph.colocation[copied] < 0) & (graph.persistent_bytes[copied] > 0)])
    group = graph.colocation.copy()
    group[lone] = len(graph.colocation_names) + np.arange(len(lone))
    known = set(graph.colocation_names)
    names = [graph.names[i] for i in lone.tolist()]
    fresh = [f"{name} and its copy" if name in known else name for name in names]
    return {"colocation": group[origin], "colocation_names": (*graph.colocation_names, *fresh)}


def _tensors(graph: OpGraph, at: _Copies) -> dict[str, Any]:
    """Producer, bytes, names and readers of all tensors, ordered by producer; a wait is a tensor without bytes."""
    waits = np.array(at.waits(), dtype=np.int64).reshape(-1, 2)
    before, which = np.unique(waits[:, 0], return_inverse=True)
    rows, readers = at.data()
    rows = np.concatenate([rows, graph.tensor_count + len(at.tensors) + which.reshape(-1)])
    readers = np.concatenate([readers, waits[:, 1]])
    producer = np.concatenate([graph.tensor_producer, graph.n + at.maker, before])
    size = np.concatenate([graph.tensor_bytes, graph.tensor_bytes[at.tensors], np.zeros(len(before), np.int64)])
    origin = np.concatenate([np.arange(graph.n), at.origin])
    labels = [*graph.tensor_names, *(graph.tensor_names[t] for t in at.tensors.tolist())]
    labels += [_free_label(graph, int(origin[op])) for op in before.tolist()]
    order = np.argsort(producer, kind="stable")
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    total = np.int64(at.total)
    key = np.unique(number[rows] * total + readers)
    return {
        "tensor_producer": producer[order].astype(np.int32),
        "tensor_bytes": size[order],
        "tensor_names": tuple(labels[k] for k in order.tolist()),
        "consumer_ptr": offsets(key // total, len(order)),
        "consumers": (key % total).astype(np.int32),
    }


def _free_label(graph: OpGraph, op: int) -> str:
    """A tensor name for a control dependency that no tensor of the op has."""
    label, taken = "control", {graph.tensor_names[t] for t in graph.outputs(op)}
    while label in taken:
        label += "'"
    return label
