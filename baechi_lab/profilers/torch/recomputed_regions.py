"""Checkpointed regions in the graph of a profile: what their calls save is dropped, and made again for the backward pass.

A profile runs regions without checkpointing, so its graph keeps what they save until the backward pass. Here every op of a
region gets a companion, `name/recomputed`, on the same device. Companions read each other's outputs as the ops of the region do,
and the region's inputs, which therefore live until then. The backward ops of the region read what companions make. All
companions wait for the gradients of the region's outputs, so the region holds all that it saves from then on, as
`torch.utils.checkpoint` does. Companions take no time: the backward op of a call has the time of its recomputation. A reentrant
region also holds its outputs and their gradients until its backward pass ends: temporary bytes of its backward ops.

Nested regions count as their outermost one. Non-reentrant regions stop early, so that they may hold less than is said here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from ...graph import CONTROL_BYTES, OpGraph
from ...graph.groups import add_single_groups
from ...graph.tensors import PARTS_TYPE, RECOMPUTED, TensorTable
from ...torch_steps.records import Trace
from .tensor_parts import ValueTensors

RegionOf = dict[int, int]
"""Op of a checkpointed region -> the region."""


def recomputed_ops(trace: Trace, values: ValueTensors, backward: Mapping[int, int]) -> RegionOf:
    """Returns the ops of the regions that have a backward pass: their calls, and the ops of parts of what these make."""
    trained_regions = {trace.calls[i].region for i in backward} - {-1}
    calls = {i: call.region for i, call in enumerate(trace.calls) if call.region in trained_regions}
    return calls | {op: calls[producer] for (producer, _), op in values.op.items() if producer in calls}


def with_recomputed_regions(graph: OpGraph, region_of: RegionOf, reentrant: Collection[int] = ()) -> OpGraph:
    """Returns the graph with a companion for each op of `region_of`, in this order, after all other ops.

    `reentrant` are the regions of reentrant checkpointing.
    """
    if not region_of:
        return graph
    companion = {op: graph.n + k for k, op in enumerate(region_of)}
    region_of_backward = {op: region_of[call] for op, call in enumerate(graph.forward_of.tolist()) if call in region_of}
    members = [*region_of]
    lone = [op for op in members if graph.colocation[op] < 0]
    colocation, group_names = add_single_groups(graph, lone, "region of")
    table = TensorTable()
    outputs: dict[
        int | None, list[tuple[int, set[int]]]
    ] = {}  # region -> its outputs and their gradients: bytes, readers
    triggers: dict[int, set[int]] = {}  # region -> ops outside it that its backward ops wait for
    for tensor, producer in enumerate(graph.tensor_producer.tolist()):
        label, size = graph.tensor_names[tensor], int(graph.tensor_bytes[tensor])
        readers = set(graph.tensor_consumers(tensor).tolist())
        own_region = region_of.get(producer)
        rerun_readers: set[int] = set()
        if label != "control":
            for op in readers & region_of.keys():  # the region computes from it once more
                (rerun_readers if region_of[op] == own_region else readers).add(companion[op])
            if own_region is not None:
                rerun_readers |= {op for op in readers if region_of_backward.get(op) == own_region}
            if label != "saved" and any(region_of.get(op, region_of_backward.get(op)) != own_region for op in readers):
                outputs.setdefault(own_region, []).append((size, rerun_readers))
        for op in readers & region_of_backward.keys():
            region = region_of_backward[op]
            if producer not in region_of and region_of_backward.get(producer) != region:
                triggers.setdefault(region, set()).add(producer)
                if label.startswith("gradient:"):
                    outputs.setdefault(region, []).append((size, readers))
        table.add(producer, label, size, readers - rerun_readers)
        if rerun_readers:
            table.add(companion[producer], label, size, rerun_readers)
    for region, producers in triggers.items():
        for producer in producers:
            table.add(
                producer, "recomputation", CONTROL_BYTES, (companion[op] for op in members if region_of[op] == region)
            )
    temporary = graph.temp_bytes.copy()
    for op, region in region_of_backward.items():
        if region in reentrant:
            temporary[op] += sum(size for size, readers in outputs.get(region, ()) if op not in readers)
    zeros = np.zeros(len(members), dtype=np.int64)
    forward_of = [op if graph.op_types[op] != PARTS_TYPE else -1 for op in members]
    return graph.replace(
        names=(*graph.names, *(f"{graph.names[op]}/recomputed" for op in members)),
        op_types=(*graph.op_types, *[RECOMPUTED] * len(members)),
        duration_us=np.r_[graph.duration_us, zeros],
        temp_bytes=np.r_[temporary, graph.temp_bytes[members]],
        persistent_bytes=np.r_[graph.persistent_bytes, zeros],
        allowed=None,
        reuse=None if graph.reuse is None else np.r_[graph.reuse, graph.reuse[members]],
        output_shapes=(*graph.output_shapes, *[""] * len(members)) if graph.output_shapes else (),
        colocation=np.r_[colocation, colocation[members]],
        colocation_names=group_names,
        forward_of=np.r_[graph.forward_of, forward_of],
        **table.columns(),
    )
