"""Memory that attributes of a model hold from one step to the next.

Examples are the weight that `torch.nn.utils.prune` or the older `weight_norm` computes in a hook, and attention weights that a
layer stores for later. The attribute has the tensor of the previous step until the forward pass computes the next one. So these
bytes are persistent, and the backward pass of the call that made the tensor retains no others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ...torch_steps.records import Trace
from .memory import CallMemory


@dataclass(frozen=True)
class AttributeOutput:
    """A storage that an attribute holds: the call that makes it, its bytes, and backward ops that retain nothing for it."""

    call: int
    size_bytes: int
    backward_ops: frozenset[int]


def attribute_outputs(
    trace: Trace, memory: Sequence[CallMemory], readers: Mapping[int, Collection[int]], backward: Mapping[int, int]
) -> dict[int, AttributeOutput]:
    """Returns the storages that attributes hold.

    Left out are storages that the backward op of a call on another device may retain: its device has a copy, or the storage is
    in use for most of the step anyway.

    Args:
        trace, memory: the calls, and what was measured of each.
        readers: value -> ops that read it, as they are without this function.
        backward: call -> its backward op.
    """
    calls_beside = {i: group for group in trace.groups for i in group}
    size_bytes: dict[int, int] = {}
    backward_readers: dict[int, set[int]] = {}
    for k, value in enumerate(trace.values):
        size_bytes[value.storage] = max(size_bytes.get(value.storage, 0), value.size_bytes)
        of_storage = backward_readers.setdefault(value.storage, set())
        of_storage.update(op for op in readers.get(k, ()) if op >= len(trace.calls))
    outputs: dict[int, AttributeOutput] = {}
    for value in trace.values:
        i = value.producer
        if i < 0 or value.position not in memory[i].attribute_outputs:
            continue
        own_backward = {backward[j] for j in calls_beside.get(i, (i,)) if j in backward}
        if backward_readers[value.storage] <= own_backward:
            outputs[value.storage] = AttributeOutput(i, size_bytes[value.storage], frozenset(own_backward))
    return outputs
