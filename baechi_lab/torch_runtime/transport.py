"""Transport: brings a layer's inputs to its device and sends its outputs on (Shetty 2022, section 1.3.3, Algorithm 1).

On CUDA, each logical device has one compute stream, and each pair (layer, target device) has one send and one receive stream.
The compute stream of a layer waits for the events of the copies that it reads. The send streams wait for the event that the
layer records after its kernels. So transfers overlap with whatever the compute stream runs next. A tensor is sent to a device
once per forward. `record_stream` tells the allocator about every use on another stream. Without it, a freed block could be
reused while a copy still reads it (Shetty 2022, section 1.2.3).

Several logical devices on one GPU ("stream groups") have a compute stream each. A transfer between them is a copy on the send
stream. On CPU devices nothing is copied and there are no streams.

Deviation: the compute stream of the first logical device of a GPU is the caller's current stream. So the loss, the optimizer
and other code of the user need no synchronisation with it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence

import torch

from .forward_state import ForwardState
from .plan import Send
from .storage import storage_key, tensor_bytes, version
from .tree import T, map_tensors, tensors

EventMark = tuple[torch.cuda.Event, int]
"""A timing event, and the index of its GPU."""


class Tag:
    """Where a tensor of this forward is: its logical device, the event after which it is complete, its copies.

    `op` is the planned call that made the tensor, or -1: an input, a constant, or the output of a function that is not planned.
    `pending_reads` counts per device the planned calls that have yet to read the tensor there.
    """

    __slots__ = ("__weakref__", "copies", "device", "event", "forward_state", "op", "pending_reads", "version")

    def __init__(self, state: ForwardState, op: int, device: int, event: torch.cuda.Event | None, version: int):
        self.forward_state: ForwardState | None = state  # None once the forward pass has ended
        self.op, self.device, self.event, self.version = op, device, event, version
        self.copies: dict[int, tuple[int, torch.Tensor, torch.cuda.Event | None]] = {}
        self.pending_reads: dict[int, int] = {}


class HostTransport:
    """Transport between devices that are all the CPU, or one other device: nothing moves, nothing is synchronised."""

    def __init__(self, devices: Sequence[str]):
        self.devices = [torch.device(d) for d in devices]

    def begin(self, state: ForwardState) -> None:
        """Starts a forward pass. Here there is nothing to prepare."""

    def on(self, state: ForwardState, device: int) -> contextlib.AbstractContextManager[object]:
        """Returns the context in which a call on `device` runs. Here there is no stream to enter."""
        return contextlib.nullcontext()

    def arrive(self, state: ForwardState, value: T, device: int) -> T:
        """Returns the tensors of `value` on `device`."""
        target = self.devices[device]
        return map_tensors(value, lambda t: t if t.device == target else t.to(target))

    def depart(
        self, state: ForwardState, outputs: object, op: int, device: int, sends: Sequence[Send], remote: bool = True
    ) -> None:
        """Sends outputs on; here they are on every device already. `remote`: whether another device will read any of them."""

    def wait_for_sends(self, state: ForwardState, value: object, device: int) -> None:
        """Called before a call on `device` writes in place into a tensor of `value`. Here no copy is under way."""

    def note_writes(self, state: ForwardState, written_tensors: Iterable[torch.Tensor]) -> None:
        """Called with the tensors that a call has written in place. Here there are no copies that are outdated by it."""

    def write_back(self, state: ForwardState, original: torch.Tensor, copy: torch.Tensor, device: int) -> None:
        """Writes into `original` what a call on `device` has written in place into the `copy` that it received."""
        if original.shape != copy.shape:  # an `out` argument
            original.resize_(copy.shape)
        original.copy_(copy)

    def release_copies(self, state: ForwardState, value: object, device: int) -> None:
        """Called after a planned call on `device` has run with `value`. Here there are no copies to free."""

    def inherit(self, state: ForwardState, outputs: object, inputs: object, device: int) -> None:
        """Called for the outputs of a function that is not planned. Here views are where their base is."""

    def device_of_value(self, state: ForwardState, value: object) -> int | None:
        """Returns the device for a function that was not planned; None because every device is equally good."""
        return None

    def end(self, state: ForwardState, outputs: T) -> T:
        """Ends a forward pass and returns its outputs. Here there is nothing to wait for."""
        return outputs


class TaggedTransport(HostTransport):
    """Keeps copies of a tensor in the tensor's tag until the last planned call on their device has read them."""

    def arrive(self, state: ForwardState, value: T, device: int) -> T:
        return map_tensors(value, lambda t: self._local(state, t, device))

    def _local(self, state: ForwardState, tensor: torch.Tensor, device: int) -> torch.Tensor:
        raise NotImplementedError

    def _set_tag(self, state: ForwardState, tensor: torch.Tensor, tag: Tag) -> None:
        tensor._baechi_tag = tag  # type: ignore[attr-defined]
        state.tags.append(weakref.ref(tag))

    def _expect_reads(self, state: ForwardState, output_tensors: Sequence[torch.Tensor], sends: Sequence[Send]) -> None:
        """Counts the planned calls that will read each output on another device."""
        for position, device, calls in sends:
            tag = tag_of(state, output_tensors[position]) if position < len(output_tensors) else None
            if tag is not None:
                tag.pending_reads[device] = tag.pending_reads.get(device, 0) + calls

    def release_copies(self, state: ForwardState, value: object, device: int) -> None:
        """Frees copies on `device` that no other planned call will read."""
        for tag in {tag for tensor in tensors(value) if (tag := tag_of(state, tensor)) is not None}:
            if tag.pending_reads.get(device, 0) > 0:
                tag.pending_reads[device] -= 1
                if tag.pending_reads[device] == 0:
                    tag.copies.pop(device, None)

    def end(self, state: ForwardState, outputs: T) -> T:
        """Drops all copies: autograd may keep a tensor and its tag for long, and the copies must not live as long."""
        for reference in state.tags:
            if (tag := reference()) is not None:
                tag.copies.clear()
                tag.forward_state = None
        state.tags.clear()
        return outputs


class StreamTransport(TaggedTransport):
    """Transport for CUDA devices, possibly together with CPU devices. Only a test of the race sets `record` to False."""

    def __init__(self, devices: Sequence[str], *, record: bool = True):
        super().__init__([str(_with_index(torch.device(d))) for d in devices])
        self.records_streams = record
        self.on_send: Callable[[int, int, int, EventMark, EventMark], None] | None = (
            None  # op, target, bytes, start, stop
        )
        self.own_streams: dict[int, torch.cuda.Stream] = {}  # logical devices that share a GPU with an earlier one
        self.first_on_gpu: dict[torch.device, int] = {}
        for d, device in enumerate(self.devices):
            if self.first_on_gpu.setdefault(device, d) != d and device.type == "cuda":
                self.own_streams[d] = torch.cuda.Stream(device)
        self.pairs: dict[tuple[int, int, int], tuple[torch.cuda.Stream, torch.cuda.Stream]] = {}

    # -- streams -------------------------------------------------------------------------------------

    def compute(self, state: ForwardState, device: int) -> torch.cuda.Stream:
        """Returns the compute stream of a device."""
        return self.own_streams.get(device) or state.caller_streams[self.devices[device]]

    def on(self, state: ForwardState, device: int) -> contextlib.AbstractContextManager[object]:
        return torch.cuda.stream(self.compute(state, device)) if self._is_cuda(device) else contextlib.nullcontext()

    def _is_cuda(self, device: int) -> bool:
        return self.devices[device].type == "cuda"

    def begin(self, state: ForwardState) -> None:
        """Stores the caller's streams. The own streams start after all that the caller has submitted so far."""
        state.caller_streams = {d: torch.cuda.current_stream(d) for d in set(self.devices) if d.type == "cuda"}
        for d, stream in self.own_streams.items():
            stream.wait_stream(state.caller_streams[self.devices[d]])

    # -- Algorithm 1 ---------------------------------------------------------------------------------

    def _local(self, state: ForwardState, tensor: torch.Tensor, device: int) -> torch.Tensor:
        target = self.devices[device]
        if tensor.device.type != "cuda":
            with self.on(state, device):  # torch waits for copies from the host
                return tensor if tensor.device == target else tensor.to(target)
        tag = tag_of(state, tensor) or self._adopt(state, tensor)
        if target.type != "cuda":
            with self.on(state, tag.device):  # torch waits for copies to the host too
                return tensor.to(target)
        if tag.device == device:
            return tensor
        copy, event = self.send_copy(state, tensor, tag, device)
        self.compute(state, device).wait_event(event)
        return copy

    def depart(
        self, state: ForwardState, outputs: object, op: int, device: int, sends: Sequence[Send], remote: bool = True
    ) -> None:
        if not self._is_cuda(device):
            return
        event = torch.cuda.Event() if remote else None  # most calls are read on their own device only
        if event is not None:
            event.record(self.compute(state, device))
        output_tensors = list(tensors(outputs))
        for tensor in output_tensors:
            tag = tag_of(state, tensor)
            if tensor.device.type == "cuda" and (
                tag is None or tag.device != device or tag.version != self._version(state, tensor)
            ):
                self._set_tag(state, tensor, Tag(state, op, device, event, self._version(state, tensor)))
        for position, target, _ in sends:  # a layer on the host fetches its inputs itself
            on_gpu = position < len(output_tensors) and output_tensors[position].device.type == "cuda"
            if on_gpu and self._is_cuda(target):
                self.send_copy(state, output_tensors[position], output_tensors[position]._baechi_tag, target)  # type: ignore[attr-defined]
        self._expect_reads(state, output_tensors, sends)

    def inherit(self, state: ForwardState, outputs: object, inputs: object, device: int) -> None:
        """Tags the outputs of a function that is not planned. A view is complete when its base is; anything else is new."""
        bases = {storage_key(t): tag_of(state, t) for t in tensors(inputs)}
        for tensor in tensors(outputs):
            base = bases.get(storage_key(tensor))
            if base is None or base.version != self._version(state, tensor):
                self.depart(state, tensor, -1, device, ())
            elif tag_of(state, tensor) is None:
                self._set_tag(state, tensor, Tag(state, base.op, base.device, base.event, base.version))

    def wait_for_sends(self, state: ForwardState, value: object, device: int) -> None:
        """Makes the device wait for copies that are being made of the tensors, on other streams."""
        for tensor in tensors(value):
            for event in state.sends_under_way.pop(storage_key(tensor), ()) if self._is_cuda(device) else ():
                self.compute(state, device).wait_event(event)

    def note_writes(self, state: ForwardState, written_tensors: Iterable[torch.Tensor]) -> None:
        state.storage_writes.update({storage_key(tensor) for tensor in written_tensors})

    def _version(self, state: ForwardState, tensor: torch.Tensor) -> int:
        """Returns a number that grows when a tensor is written in place.

        Tensors of inference mode do not count this, and a tensor does not count what is written through its `.data`. So this
        class counts what calls have written into its storage.
        """
        return version(tensor) + (state.storage_writes[storage_key(tensor)] if state.storage_writes else 0)

    def write_back(self, state: ForwardState, original: torch.Tensor, copy: torch.Tensor, device: int) -> None:
        tag = tag_of(state, original)
        if tag is None or original.device.type != "cuda" or copy.device.type != "cuda":
            with self.on(state, device if tag is None else tag.device):  # torch waits for copies between host and GPU
                super().write_back(state, original, copy, device)
            self.note_writes(state, [original])
            return
        write_event = torch.cuda.Event()
        write_event.record(self.compute(state, device))
        owner = self.compute(state, tag.device)
        owner.wait_event(write_event)
        self.wait_for_sends(state, original, tag.device)
        with self.on(state, device), self.on(state, tag.device):
            super().write_back(state, original, copy, device)
        self.note_writes(state, [original])
        if self.records_streams:
            copy.record_stream(owner)

    def send_copy(
        self, state: ForwardState, tensor: torch.Tensor, tag: Tag, target: int
    ) -> tuple[torch.Tensor, torch.cuda.Event]:
        """Returns the copy of a tensor on a device, made once per version, and the event after which it is complete."""
        copied_version, copy, event = tag.copies.get(target, (-1, tensor, None))
        if copied_version == self._version(state, tensor):
            return copy, event
        if tag.event is None or tag.version != self._version(state, tensor):
            # Complete after all that is submitted so far.
            tag.version, tag.event = self._version(state, tensor), torch.cuda.Event()
            tag.event.record(self.compute(state, tag.device))
        send_stream, receive_stream = self.stream_pair(tag.op, tag.device, target)
        send_stream.wait_event(tag.event)
        start_mark = None if self.on_send is None else self._mark(send_stream)
        if tensor.device == self.devices[target]:
            receive_stream.wait_event(tag.event)
            reader = receive_stream  # on one GPU the receiving stream makes the copy
        else:
            reader = send_stream
        with in_modes_of(tensor):
            copy = self.copy_on_streams(tensor, target, reader, receive_stream)
        event = torch.cuda.Event()
        event.record(receive_stream)
        if self.records_streams:
            tensor.record_stream(reader)
            copy.record_stream(self.compute(state, target))
        tag.copies[target] = (self._version(state, tensor), copy, event)
        state.sends_under_way.setdefault(storage_key(tensor), []).append(event)
        if self.on_send is not None and start_mark is not None:
            self.on_send(tag.op, target, tensor_bytes(tensor), start_mark, self._mark(receive_stream))
        return copy, event

    def copy_on_streams(
        self, tensor: torch.Tensor, target: int, send_stream: torch.cuda.Stream, receive_stream: torch.cuda.Stream
    ) -> torch.Tensor:
        """Copies a tensor. Between GPUs torch copies on the sender's stream, and the two streams wait for each other."""
        with torch.cuda.stream(send_stream), torch.cuda.stream(receive_stream):
            is_same_gpu = tensor.device == self.devices[target]
            return tensor.clone() if is_same_gpu else tensor.to(self.devices[target], non_blocking=True)

    def _mark(self, stream: torch.cuda.Stream) -> EventMark:
        """Returns a timing event that has just been recorded on the stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event, stream.device.index

    def stream_pair(self, op: int, source: int, target: int) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
        """Returns the stream on which `op` sends from `source` to `target`, and the one on which `target` receives."""
        key = (op, source, target)
        if key not in self.pairs:
            self.pairs[key] = (torch.cuda.Stream(self.devices[source]), torch.cuda.Stream(self.devices[target]))
        return self.pairs[key]

    # -- tensors that no layer made ------------------------------------------------------------------

    def _adopt(self, state: ForwardState, tensor: torch.Tensor) -> Tag:
        """Tags an input or constant. It is complete after all that the caller's stream has submitted so far."""
        event = torch.cuda.Event()
        event.record(state.caller_streams[tensor.device])
        tag = Tag(state, -1, self.first_on_gpu[tensor.device], event, self._version(state, tensor))
        self._set_tag(state, tensor, tag)
        state.adopted.append(tensor)
        return tag

    def device_of_value(self, state: ForwardState, value: object) -> int | None:
        """Returns the device of the first tensor of `value`. A function that was not planned runs there."""
        for tensor in tensors(value):
            tag = tag_of(state, tensor)
            if tag is not None or tensor.device in self.first_on_gpu:
                return tag.device if tag is not None else self.first_on_gpu[tensor.device]
        return None

    def end(self, state: ForwardState, outputs: T) -> T:
        """Makes the caller's streams wait for the own streams. The caller may free the outputs."""
        for d, stream in self.own_streams.items():
            state.caller_streams[self.devices[d]].wait_stream(stream)
        for tensor in tensors(outputs):
            if self.own_streams and tensor.device in state.caller_streams and self.records_streams:
                tensor.record_stream(state.caller_streams[tensor.device])
        super().end(state, outputs)
        for tensor in state.adopted:
            del tensor._baechi_tag  # type: ignore[attr-defined]
        state.adopted.clear()
        return outputs


def tag_of(state: ForwardState, tensor: torch.Tensor) -> Tag | None:
    """Returns the tag that a tensor has in this forward."""
    tag: Tag | None = getattr(tensor, "_baechi_tag", None)
    return tag if tag is not None and tag.forward_state is state else None


def in_modes_of(tensor: torch.Tensor) -> contextlib.AbstractContextManager[object]:
    """Returns the context in which a copy of a tensor has gradients where the tensor has them.

    The code that reads it first may be under `no_grad` or `inference_mode`, and later code reads the same copy.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> with torch.no_grad(), in_modes_of(weight):
    ...     copy = weight.clone()
    >>> copy.requires_grad
    True
    """
    if not tensor.requires_grad or tensor.is_inference():
        return contextlib.nullcontext()
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else torch.enable_grad()


def make_transport(devices: Sequence[str]) -> HostTransport:
    """Returns a `StreamTransport` if there is a GPU, else a `HostTransport`."""
    cuda = any(torch.device(d).type == "cuda" for d in devices)
    return StreamTransport(devices) if cuda else HostTransport(devices)


def _with_index(device: torch.device) -> torch.device:
    """Returns the device; for "cuda" without an index, the current GPU."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
