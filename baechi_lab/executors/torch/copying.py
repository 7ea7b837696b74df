"""Transport that treats CPU devices as if each had its own memory: it copies tensors that another device reads.

CPU devices of one machine share its memory, so that a run copies nothing. A step that is observed for its memory uses this
transport instead, and its copies count as received. Gradients are copied on their way back too. What a device takes that no
call computed (the batch) is there already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ...profilers.torch.storages import StorageTracker
from ...torch_runtime.forward_state import ForwardState
from ...torch_runtime.plan import Send
from ...torch_runtime.rerun import HostCopier
from ...torch_runtime.storage import storage_key, version
from ...torch_runtime.transport import Tag, TaggedTransport, in_modes_of, tag_of
from ...torch_runtime.tree import tensors


class CopyingTransport(TaggedTransport):
    """Copies a tensor to a device once per forward. The copy lives until the last call has read it there."""

    def __init__(self, devices: Sequence[str], storages: StorageTracker):
        super().__init__(devices)
        self.storages = storages

    def _local(self, state: ForwardState, tensor: torch.Tensor, device: int) -> torch.Tensor:
        tag = tag_of(state, tensor)
        if tag is None or tag.device == device:
            return tensor
        copied_version, copy, _ = tag.copies.get(device, (-1, tensor, None))
        if copied_version != version(tensor):
            with in_modes_of(tensor):
                copy = _CopyToDevice.apply(tensor, self.storages, tag.device, device)  # type: ignore[no-untyped-call]
            tag.copies[device] = (version(tensor), copy, None)
        return copy

    def depart(
        self, state: ForwardState, outputs: object, op: int, device: int, sends: Sequence[Send], remote: bool = True
    ) -> None:
        output_tensors = list(tensors(outputs))
        for tensor in output_tensors:
            tag = tag_of(state, tensor)
            if tag is None or tag.device != device or tag.version != version(tensor):
                self._set_tag(state, tensor, Tag(state, op, device, None, version(tensor)))
        self._expect_reads(state, output_tensors, sends)

    def inherit(self, state: ForwardState, outputs: object, inputs: object, device: int) -> None:
        bases = {storage_key(t): tag for t in tensors(inputs) if (tag := tag_of(state, t)) is not None}
        for tensor in tensors(outputs):
            base = bases.get(storage_key(tensor))
            if tag_of(state, tensor) is None:
                self._set_tag(
                    state, tensor, Tag(state, -1, device if base is None else base.device, None, version(tensor))
                )

    def device_of_value(self, state: ForwardState, value: object) -> int | None:
        return next((tag.device for t in tensors(value) if (tag := tag_of(state, t)) is not None), None)


class _CopyToDevice(torch.autograd.Function):
    """Copies a tensor to the target. Its gradient is copied back."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, storages: StorageTracker, source: int, target: int) -> torch.Tensor:
        ctx.storages, ctx.source, ctx.target = storages, source, target
        return receive_copy(tensor, storages, target)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:  # type: ignore[override]
        return receive_copy(gradient, ctx.storages, ctx.source), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *other_tangents: None) -> torch.Tensor:  # type: ignore[override]
        """Copies the tangent of forward-mode differentiation, too."""
        return receive_copy(tangent, ctx.storages, ctx.target)


class SeparateMemoryCopier(HostCopier):
    """Copies to the host as if CPU devices did not share its memory. `device` has the device of every call."""

    def __init__(self, storages: StorageTracker, host: int, device: Sequence[int]):
        self.storages, self.host, self.device = storages, host, device

    def to_host(self, flat: torch.Tensor, op: int) -> torch.Tensor:
        return receive_copy(flat, self.storages, self.host)

    def to_device(self, host_copy: torch.Tensor, device: torch.device, op: int) -> torch.Tensor:
        return receive_copy(host_copy, self.storages, self.device[op])


def receive_copy(tensor: torch.Tensor, storages: StorageTracker, device: int) -> torch.Tensor:
    """Returns a copy that counts as received by a device."""
    with _disable_current_modes():
        copy = tensor.clone()
    storages.add([copy], device, is_received=True)
    return copy
