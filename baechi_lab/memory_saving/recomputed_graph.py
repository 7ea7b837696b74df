"""The graph of a plan of recomputation: every run of an op after its first is a copy of it.

Every reader reads the latest run before it. A copy waits, by a control dependency, for the last input of the op that
follows it in the plan, because a copy that runs earlier saves no memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph import CONTROL_BYTES, OpGraph
from ..graph.groups import add_single_groups
from ..graph.kernels.csr import Ints, distinct
from ..graph.tensors import lasting_info, tensor_columns, text_column
from .op_sequence import OpSequence


class _CopyLayout:
    """Numbers of the copies, their reads, and their control dependencies."""

    def __init__(self, plan: OpSequence, order: Ints | None = None):
        self.plan, self.graph, self.order = plan, plan.graph, order
        self.origin = plan.ops[plan.copies]
        has_bytes = self.graph.tensor_bytes > CONTROL_BYTES
        outputs = np.diff(self.graph.output_ptr)[self.origin]
        copied_tensors = np.repeat(self.graph.output_ptr[self.origin] - np.cumsum(outputs) + outputs, outputs)
        copied_tensors += np.arange(len(copied_tensors))
        producer = np.repeat(np.arange(len(self.origin)), outputs)
        # The origin of each tensor that copies make, and its copy.
        self.tensors, self.maker = copied_tensors[has_bytes[copied_tensors]], producer[has_bytes[copied_tensors]]

    def data(self) -> tuple[Ints, Ints]:
        """Returns (tensor row, reader) of all reads; rows of tensors that copies make follow those of the graph."""
        plan, graph = self.plan, self.graph
        tensor, source_run, reader = plan.reads
        row = tensor.copy()
        by_copy = ~plan.first[source_run]
        key = self.maker * np.int64(max(graph.tensor_count, 1)) + self.tensors  # ascending
        copy = plan.node[source_run[by_copy]] - graph.n
        row[by_copy] = graph.tensor_count + np.searchsorted(key, copy * max(graph.tensor_count, 1) + tensor[by_copy])
        return row, plan.node[reader]

    def waits(self) -> Ints:
        """Returns int64[k, 2], (op, op) per control dependency, ascending.

        Copies come after their trigger, updates after copies that read the variable.
        """
        plan, nodes = self.plan, np.int64(self.graph.n + len(self.origin))
        _, source_run, reader = plan.reads
        follows_copy = np.zeros(len(plan.ops), dtype=np.bool_)  # reads a copy for the same op, which waits already
        follows_copy[reader[~plan.first[source_run] & (plan.due[source_run] == plan.due[reader])]] = True
        waiting = plan.copies[~follows_copy[plan.copies]]
        due, number = np.unique(plan.due[waiting], return_inverse=True)
        triggers = np.array([plan.trigger(op) for op in due.tolist()], dtype=np.int64)[number]
        updates = [
            (node, update)
            for node, op in enumerate(self.origin.tolist(), self.graph.n)
            for update in plan.training.updates_read.get(op, ())
        ]
        before_update, update = np.array(updates, dtype=np.int64).reshape(-1, 2).T
        dependencies = [triggers * nodes + plan.node[waiting], before_update * nodes + update]
        if self.order is not None:
            consecutive = self.order[:-1] * nodes + self.order[1:]
            dependencies.append(np.setdiff1d(consecutive, plan.node[source_run] * nodes + plan.node[reader]))
        return np.stack(np.divmod(distinct(np.concatenate(dependencies)), nodes), axis=1)


def graph_with_copies(plan: OpSequence, order: Ints | None = None) -> OpGraph:
    """Returns the graph in which the copies of `plan` are ops of their own.

    Control dependencies make one device run them in `order`, whatever its scheduler: int64[runs], as `OpSequence.node`
    numbers them.
    """
    graph, at = plan.graph, _CopyLayout(plan, order)
    if not len(at.origin) and order is None:
        return graph
    origin = np.concatenate([np.arange(graph.n), at.origin])
    is_copy = np.arange(len(origin)) >= graph.n
    optional = {k: v[origin] for k in ("copy_of", "micro_batch", "reuse") if (v := getattr(graph, k)) is not None}
    forward = graph.forward_of[origin]
    forward[is_copy] = at.origin
    used_names, names = set(graph.names), list(graph.names)
    for op in at.origin.tolist():
        name = f"{graph.names[op]}/again"
        while name in used_names:
            name += "/again"
        used_names.add(name)
        names.append(name)
    # Copies are in the group of their original. Originals with persistent bytes need a group: the bytes exist once.
    lone = np.unique(at.origin[(graph.colocation[at.origin] < 0) & (graph.persistent_bytes[at.origin] > 0)])
    group, group_names = add_single_groups(graph, lone, "copies of")
    return OpGraph(
        names=tuple(names),
        op_types=tuple(graph.op_types[i] for i in origin.tolist()),
        duration_us=graph.duration_us[origin],
        duration_by_kind={kind: us[origin] for kind, us in graph.duration_by_kind.items()},
        temp_bytes=graph.temp_bytes[origin],
        persistent_bytes=np.where(is_copy, 0, graph.persistent_bytes[origin]),
        allowed=graph.allowed[origin],
        allowed_sets=graph.allowed_sets,
        forward_of=forward,
        output_shapes=text_column(graph.output_shapes, origin.tolist()),
        copied_key=graph.copied_key,
        batch_readers=graph.batch_readers,
        info=lasting_info(graph.info, graph.index, lambda op: [graph.names[op]]),
        name=f"{graph.name}, recomputing",
        **optional,
        colocation=group[origin],
        colocation_names=group_names,
        **_tensors(graph, at),
    )


def _tensors(graph: OpGraph, at: _CopyLayout) -> dict[str, Any]:
    """Returns producer, bytes, names and readers of all tensors, by producer; a control dependency has no bytes."""
    waits = at.waits()
    waited_op, wait_number = np.unique(waits[:, 0], return_inverse=True)
    rows, readers = at.data()
    rows = np.concatenate([rows, graph.tensor_count + len(at.tensors) + wait_number.reshape(-1)])
    readers = np.concatenate([readers, waits[:, 1]])
    producer = np.concatenate([graph.tensor_producer, graph.n + at.maker, waited_op])
    size = np.concatenate([graph.tensor_bytes, graph.tensor_bytes[at.tensors], np.zeros(len(waited_op), np.int64)])
    origin = np.concatenate([np.arange(graph.n), at.origin])
    labels = [*graph.tensor_names, *(graph.tensor_names[t] for t in at.tensors.tolist())]
    for op in origin[waited_op].tolist():  # a control dependency gets a name that no other tensor of the op has
        label, used_names = "control", {graph.tensor_names[t] for t in graph.outputs(op)}
        while label in used_names:
            label += "'"
        labels.append(label)
    return tensor_columns(producer, size, labels, rows, readers, graph.n + len(at.origin))
