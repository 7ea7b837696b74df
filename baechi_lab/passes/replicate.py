"""Copies cheap sources to every device that reads them, so that they are not sent.

A constant takes almost no time to produce, and a whole latency to send. TensorFlow also copies constants when it divides a
graph among devices. Every source that may be copied gets one copy per reading group (a colocation group, or a single op),
colocated with it, so that a simulation never sends it. Copies have TensorFlow's names, `name/replicate/_1`. Executors and
exporters run the original op, to which the first copy is mapped (`group_of`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..graph import OpGraph
from ..graph.kernels.csr import Ints, offsets
from ..graph.tensors import text_column
from .base import Pass

TYPES = ("Const", "HostConst")


@dataclass(frozen=True)
class Replicate(Pass):
    """Copy constants and other cheap sources to every device that reads them, instead of sending them.

    A source is copied if it has no inputs, no persistent bytes and no colocation group, may run anywhere,
    is of one of `types`, takes at most `max_duration_us` and produces at most `max_bytes`. O(ops + edges). In a coarse graph
    only sources that are groups of one op are copied.
    """

    name: ClassVar[str] = "replicate"
    types: tuple[str, ...] = TYPES
    max_duration_us: float = 20.0
    max_bytes: int = 1 << 16

    def validate(self) -> None:
        if isinstance(self.types, str) or not all(isinstance(t, str) for t in self.types):
            raise InvalidInput(f"types is {self.types!r}; it must be a list of op types, for example ('Const',)")
        for key in ("max_duration_us", "max_bytes"):
            if not getattr(self, key) >= 0:
                raise InvalidInput(f"{key} is {getattr(self, key)!r}; it must be at least 0")

    def apply(self, graph: OpGraph) -> OpGraph:
        # Sources may be copied if they are of these types, quick, small, unbound, and hold nothing between steps.
        has_type = np.array([t in self.types for t in graph.op_types], dtype=np.bool_)
        is_quick = graph.duration_us <= self.max_duration_us
        for column in graph.duration_by_kind.values():
            is_quick &= column <= self.max_duration_us
        is_unbound = (graph.persistent_bytes == 0) & (graph.colocation < 0) & (graph.allowed < 0)
        is_source = (
            has_type & is_quick & is_unbound & (graph.output_bytes <= self.max_bytes) & (np.diff(graph.inputs[0]) == 0)
        )
        reader = graph.device_unit
        pairs = np.unique(
            np.stack([graph.edge_source, reader[graph.consumers]], axis=1)[is_source[graph.edge_source]], axis=0
        )
        if len(pairs) == 0:
            return graph
        return _copy_sources(graph, is_source, reader, pairs)


def _copy_sources(graph: OpGraph, is_source: NDArray[np.bool_], reader: NDArray[np.int64], pairs: Ints) -> OpGraph:
    """Makes one op per (source, reading group) in `pairs`: the first is the source itself, the others are new."""
    n = graph.n
    first = np.r_[True, pairs[1:, 0] != pairs[:-1, 0]]
    copy_op = pairs[:, 0].copy()
    copy_op[~first] = n + np.arange(int((~first).sum()))
    origin = np.concatenate([np.arange(n), pairs[~first, 0]])
    group_start = np.flatnonzero(first)
    number = np.arange(len(pairs)) - np.repeat(group_start, np.diff(np.append(group_start, len(pairs))))
    names = [
        *graph.names,
        *(f"{graph.names[s]}/replicate/_{k}" for s, k in zip(pairs[~first, 0], number[~first], strict=True)),
    ]
    # Puts every copy into the group of its reader; readers without a group get one.
    group_count = len(graph.colocation_names)
    # Reading ops that have no group yet.
    ungrouped_readers = np.unique(pairs[pairs[:, 1] >= group_count, 1]) - group_count
    new_group = np.full(graph.n, -1, dtype=np.int64)
    new_group[ungrouped_readers] = group_count + np.arange(len(ungrouped_readers))
    column = np.concatenate([graph.colocation, np.full(len(origin) - graph.n, -1)]).astype(np.int32)
    column[ungrouped_readers] = new_group[ungrouped_readers]
    column[copy_op] = np.where(
        pairs[:, 1] < group_count, pairs[:, 1], new_group[np.maximum(pairs[:, 1] - group_count, 0)]
    )
    labels = (*graph.colocation_names, *(f"reads constants: {graph.names[i]}" for i in ungrouped_readers.tolist()))
    group_of = np.arange(n) if graph.group_of is None else graph.group_of
    copied_columns = {
        key: getattr(graph, key)[origin]
        for key in ("duration_us", "temp_bytes", "persistent_bytes", "allowed", "forward_of")
    }
    return OpGraph(
        names=tuple(names),
        op_types=tuple(graph.op_types[i] for i in origin.tolist()),
        duration_by_kind={k: v[origin] for k, v in graph.duration_by_kind.items()},
        colocation=column,
        colocation_names=labels,
        allowed_sets=graph.allowed_sets,
        output_shapes=text_column(graph.output_shapes, origin.tolist()),
        group_of=group_of,
        source_key=graph.source_key or graph.key,
        name=graph.name,
        **copied_columns,
        **_tensors(graph, is_source, reader, pairs, copy_op),
    )


def _tensors(
    graph: OpGraph, is_source: NDArray[np.bool_], reader: NDArray[np.int64], pairs: Ints, op: Ints
) -> dict[str, Any]:
    """Returns the tensors: each copy produces its source's tensors for the readers of its group."""
    width = int(reader.max(initial=0)) + 1
    producer = graph.edge_source.astype(np.int64)
    is_copied = is_source[producer]
    key = producer[is_copied] * width + reader[graph.consumers[is_copied]]
    pair_of_edge = np.searchsorted(pairs[:, 0].astype(np.int64) * width + pairs[:, 1], key)
    copy_producer = producer.copy()
    copy_producer[is_copied] = op[pair_of_edge]
    # A tensor of the new graph is (producer, old tensor); tensors that nobody reads stay with their producer.
    edges = np.stack([copy_producer, graph.edge_tensor, graph.consumers], axis=1)
    unread = np.flatnonzero(np.diff(graph.consumer_ptr) == 0)
    unread_tensors = np.stack([graph.tensor_producer[unread], unread], axis=1)
    tensors = np.unique(np.concatenate([edges[:, :2], unread_tensors]), axis=0)
    edges = edges[np.lexsort((edges[:, 2], edges[:, 1], edges[:, 0]))]
    scale = graph.tensor_count + 1
    row = np.searchsorted(tensors[:, 0] * scale + tensors[:, 1], edges[:, 0] * scale + edges[:, 1])
    return {
        "tensor_producer": tensors[:, 0].astype(np.int32),
        "tensor_bytes": graph.tensor_bytes[tensors[:, 1]],
        "tensor_names": tuple(graph.tensor_names[t] for t in tensors[:, 1].tolist()),
        "consumer_ptr": offsets(row, len(tensors)),
        "consumers": edges[:, 2].astype(np.int32),
    }
