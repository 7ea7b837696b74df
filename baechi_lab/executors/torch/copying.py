"""CPU devices as if each had memory of its own: what another device reads is copied, and gradients on their way back.

Devices of one host share its memory, so that a run in it copies nothing; a step that is observed for what it holds in
memory runs with this transport instead, and its copies are followed as received ones. What a device takes in that no call
made (the batch) is there already.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ...profilers.torch.storages import Storages
from ...torch.runtime.rerun import Carrier
from ...torch.runtime.storage import storage_key, version
from ...torch.runtime.transport import Tag, TaggedTransport, tag_of
from ...torch.runtime.tree import map_tensors, tensors


class CopyingTransport(TaggedTransport):
    """A tensor is copied to a device once per forward; the copy lives until the last call has taken it there."""

    def __init__(self, devices: Sequence[str], storages: Storages):
        super().__init__(devices)
        self.storages = storages

    def arrive(self, flight: Any, value: Any, device: int) -> Any:
        return map_tensors(value, lambda t: self._local(flight, t, device))

    def _local(self, flight: Any, tensor: torch.Tensor, device: int) -> torch.Tensor:
        tag = tag_of(flight, tensor)
        if tag is None or tag.device == device:
            return tensor
        copied, copy, _ = tag.copies.get(device, (-1, tensor, None))
        if copied != version(tensor):
            copy = _Sent.apply(tensor, self.storages, tag.device, device)  # type: ignore[no-untyped-call]
            tag.copies[device] = (version(tensor), copy, None)
        return copy

    def depart(
        self,
        flight: Any,
        outputs: Any,
        op: int,
        device: int,
        sends: Sequence[tuple[int, int, int]],
        remote: bool = True,
    ) -> None:
        made = list(tensors(outputs))
        for tensor in made:
            old = tag_of(flight, tensor)
            if old is None or old.device != device or old.version != version(tensor):
                _put(flight, tensor, Tag(flight, op, device, None, version(tensor)))
        self._expect(flight, made, sends)

    def inherit(self, flight: Any, outputs: Any, taken: Any, device: int) -> None:
        bases = {storage_key(t): tag for t in tensors(taken) if (tag := tag_of(flight, t)) is not None}
        for tensor in tensors(outputs):
            base = bases.get(storage_key(tensor))
            if tag_of(flight, tensor) is None:
                _put(flight, tensor, Tag(flight, -1, device if base is None else base.device, None, version(tensor)))

    def home(self, flight: Any, value: Any) -> int | None:
        return next((tag.device for t in tensors(value) if (tag := tag_of(flight, t)) is not None), None)

    def end(self, flight: Any, outputs: Any) -> Any:
        for reference in flight.tags:
            if (tag := reference()) is not None:
                tag.copies.clear()
                tag.flight = None
        flight.tags.clear()
        return outputs


class _Sent(torch.autograd.Function):
    """A copy on the target; its gradient is copied back."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, storages: Storages, source: int, target: int) -> torch.Tensor:
        ctx.storages, ctx.source = storages, source
        return copied(tensor, storages, target)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:  # type: ignore[override]
        return copied(gradient, ctx.storages, ctx.source), None, None, None


class CopyingCarrier(Carrier):
    """The host as if CPU devices did not have its memory; `device` says where the calls are."""

    def __init__(self, storages: Storages, host: int, device: Sequence[int]):
        self.storages, self.host, self.device = storages, host, device

    def away(self, flat: torch.Tensor, op: int) -> torch.Tensor:
        return copied(flat, self.storages, self.host)

    def back(self, away: torch.Tensor, device: torch.device, op: int) -> torch.Tensor:
        return copied(away, self.storages, self.device[op])


def copied(tensor: torch.Tensor, storages: Storages, device: int) -> torch.Tensor:
    """A copy that a device has received."""
    with _disable_current_modes():
        copy = tensor.clone()
    storages.add([copy], device, received=True)
    return copy


def _put(flight: Any, tensor: torch.Tensor, tag: Tag) -> None:
    tensor._baechi_tag = tag  # type: ignore[attr-defined]
    flight.tags.append(weakref.ref(tag))
