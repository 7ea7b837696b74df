"""Calls that can be made again, and tensors that are had from them, or from the host; `again` says which and when."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from ...errors import ExecutionError
from .context import Context, Settings
from .random import States, generator_states
from .storage import is_plain, version, whole_storage
from .tree import map_tensors, tensors

EMPTY = torch.empty(0)
"""In the place of a tensor among the arguments of a `Record`."""


class Held:
    """An argument of a record that nothing drops."""

    __slots__ = ("requires_grad", "tensor", "version")

    def __init__(self, tensor: torch.Tensor):
        self.requires_grad, self.version = tensor.requires_grad, version(tensor)
        self.tensor = tensor if isinstance(tensor, nn.Parameter) else tensor.detach()

    def take(self, op: str) -> torch.Tensor:
        """The argument as the first run had it."""
        if version(self.tensor) != self.version:
            raise _written_after(op, self.tensor)
        if isinstance(self.tensor, nn.Parameter):
            return self.tensor
        return self.tensor.detach().requires_grad_(self.requires_grad)


def _written_after(op: str, tensor: torch.Tensor) -> ExecutionError:
    return ExecutionError(
        f"{op} cannot run again: a tensor of shape {list(tensor.shape)} that it reads was written in place after it ran; "
        "keep its output"
    )


class Part:
    """A tensor in the storage of a result that is had from a record, or from the host."""

    __slots__ = ("layout", "position", "record", "requires_grad")

    def __init__(self, record: Record | Hosted, position: int, tensor: torch.Tensor):
        self.record: Any = record
        self.position, self.requires_grad = position, tensor.requires_grad
        self.layout = (tensor.dtype, tuple(tensor.size()), tensor.stride(), tensor.storage_offset())

    def get(self, reader: tuple[int, int]) -> torch.Tensor:
        """The tensor, for a reader that wants it once."""
        whole: torch.Tensor = self.record.value(self.position, reader)
        return self.of(whole)

    def take(self, op: str) -> torch.Tensor:
        """The tensor as an argument."""
        return self.of(self.record.look(self.position)).detach().requires_grad_(self.requires_grad)

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """The same part of a storage."""
        dtype, size, stride, offset = self.layout
        if whole.dtype != dtype:  # a view of another type, or a result that has changed, which `Record` refuses
            whole = torch.empty(0, dtype=dtype, device=whole.device).set_(whole.untyped_storage())
        return whole.as_strided(size, stride, offset)


class Record:
    """A call as it can be made again: up to `runs` times by the plan."""

    def __init__(
        self, number: int, op: int, run: Callable[..., Any], module: nn.Module | None, states: States | None, runs: int,
        lock: Any, observer: Any,
    ):  # fmt: skip
        self.number, self.op, self.function, self.module = number, op, run, module
        self.states, self.runs, self.lock, self.observer = states, runs, lock, observer
        self.context, self.settings, self.stream = Context(), Settings(), _stream()
        self.modes = [] if module is None else [(part, part.training) for part in module.modules()]
        self.weights = [] if module is None else [(p, version(p)) for p in module.parameters()]
        self.buffers: dict[int, torch.Tensor] = {}  # id of a buffer that the call changes -> its values before
        self.taken: list[Held | Part] = []
        self.order: list[int] = []  # which of `taken` each tensor among the arguments is
        self.arguments: Any = ()
        self.readers: dict[int, set[tuple[int, int]]] = {}  # run -> who reads what it makes
        self.wanted: set[int] = set()  # positions of outputs, ~index of what else is saved
        self.waiting: set[tuple[int, int]] = set()  # those that have not had the results of the last run
        self.values: dict[int, torch.Tensor] = {}  # by position or ~index
        self.made = self.packs = 0

    def wanted_by(self, reader: tuple[int, int], position: int, run: int) -> None:
        """`reader` will ask for a result, after so many runs."""
        self.wanted.add(position)
        self.readers.setdefault(run, set()).add(reader)

    def value(self, position: int, reader: tuple[int, int]) -> torch.Tensor:
        """A result, for a reader that is done with it then."""
        with self.lock:
            found = self.look(position)
            self.had(reader)
            return found

    def look(self, position: int) -> torch.Tensor:
        """A result; where it is not there, this call runs again, and before it those whose results it reads."""
        if position not in self.values:
            for record in self._missing():
                record.again()
        return self.values[position]

    def had(self, reader: tuple[int, int]) -> None:
        """A reader is done; results go with the last."""
        self.waiting.discard(reader)
        if not self.waiting:
            self.values = {}

    def _missing(self) -> list[Record]:
        found, stack = {self.number: self}, [self]
        while stack:
            for part in stack.pop().taken:
                if isinstance(part, Part) and part.position not in part.record.values:
                    if part.record.number not in found:
                        found[part.record.number] = part.record
                        stack.append(part.record)
        return [found[number] for number in sorted(found)]

    def again(self) -> None:
        """Run once more and hold the results."""
        self.made = self.made % self.runs + 1
        count, saved = itertools.count(), {}

        def pack(tensor: torch.Tensor) -> None:
            if ~(index := next(count)) in self.wanted:
                saved[~index] = tensor.detach()

        for weight, before in self.weights:
            if version(weight) != before:
                raise _written_after(self.name, weight)
        seen = contextlib.nullcontext() if self.observer is None else self.observer(self.op, self.made)
        with seen, self._as_before():
            taken = [part.take(self.name) for part in self.taken]
            given = iter([taken[k] for k in self.order])
            args, kwargs = map_tensors(self.arguments, lambda _: next(given))
            with saved_tensors_hooks(pack, _never):
                outputs = self.function(*args, **kwargs)
        if (packs := next(count)) != self.packs:
            raise ExecutionError(
                f"{self.name} saved {packs} tensors when it ran again and {self.packs} before; what it does must depend on its "
                "inputs alone to be computed again: keep its output"
            )
        made = enumerate(t for t in tensors(outputs) if is_plain(t))
        self.values = {k: t.detach() for k, t in made if k in self.wanted} | saved
        self.waiting = set(self.readers.get(self.made, ())) or {(-1, -1)}
        for part in self.taken:
            if isinstance(part, Part):
                part.record.had((self.number, self.made))

    @property
    def name(self) -> str:
        """What to call it in a message."""
        own = getattr(self.function, "__name__", "function") if self.module is None else type(self.module).__name__
        return f"call {self.op} ({own})"

    @contextlib.contextmanager
    def _as_before(self) -> Iterator[None]:
        """Settings, random numbers, buffers and stream of the first run; what it does to them now is undone."""
        with contextlib.ExitStack() as stack:
            if self.stream is not None:
                stack.enter_context(_on(self.stream))
            if self.module is not None:
                stack.enter_context(_own_buffers(self.module, self.buffers))
                stack.enter_context(_training(self.modes))
            if self.states is not None:
                stack.callback(generator_states().restore)
                self.states.restore()
            stack.enter_context(self.settings.entered())
            stack.enter_context(torch._C.DisableTorchFunction())  # as where the interception called it
            stack.enter_context(self.context.entered(again=True))
            yield


class Carrier:
    """Brings storages to the host and back; on CPU devices, which have the host's memory, they stay where they are."""

    def away(self, flat: torch.Tensor, op: int) -> torch.Tensor:
        """What call `op` has taken, made or saved, on the host."""
        return flat if flat.device.type == "cpu" else _to_host(flat)

    def back(self, away: torch.Tensor, device: torch.device, op: int) -> torch.Tensor:
        """The same on the device of the call."""
        return away if device.type == "cpu" else away.to(device, non_blocking=True)


class Hosted:
    """The storage of a tensor that waits on the host, where it may be already, and was where call `op` runs."""

    def __init__(self, tensor: torch.Tensor, op: int, lock: Any, carrier: Carrier, there: Hosted | None = None):
        self.device, self.dtype, self.op, self.lock, self.carrier = tensor.device, tensor.dtype, op, lock, carrier
        if there is None:
            self.away, self.sent = carrier.away(whole_storage(tensor), op), _submitted(tensor.device)
        else:
            self.away, self.sent = there.away, there.sent

    def value(self, position: int, reader: tuple[int, int]) -> torch.Tensor:
        """The storage, back on its device."""
        with self.lock:
            if self.sent is not None and self.device.type == "cuda":
                torch.cuda.current_stream(self.device).wait_event(self.sent)
            elif self.sent is not None:  # what another device sent, and the host reads now
                self.sent.synchronize()
            return self.carrier.back(self.away, self.device, self.op)


def _never(packed: Any) -> torch.Tensor:
    raise ExecutionError("a run that only computes activations again has no backward pass")


def _to_host(flat: torch.Tensor) -> torch.Tensor:
    away = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
    away.copy_(flat, non_blocking=True)
    return away


def _submitted(device: torch.device) -> Any:
    """An event after what a GPU was given to do so far: another may read what this one sends."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


def _stream() -> Any:
    return torch.cuda.current_stream() if torch.cuda.is_available() and torch.cuda.is_initialized() else None


@contextlib.contextmanager
def _on(stream: Any) -> Iterator[None]:
    """Run on a stream that waits for the present one, which then waits for it."""
    present = torch.cuda.current_stream(stream.device)
    stream.wait_stream(present)
    with torch.cuda.stream(stream):
        yield
    present.wait_stream(stream)


@contextlib.contextmanager
def _training(modes: list[tuple[nn.Module, bool]]) -> Iterator[None]:
    """Modules in the mode, `train()` or `eval()`, in which they ran."""
    now = [(module, module.training) for module, _ in modes]
    try:
        for module, training in modes:
            module.training = training
        yield
    finally:
        for module, training in now:
            module.training = training


@contextlib.contextmanager
def _own_buffers(module: nn.Module, values: dict[int, torch.Tensor]) -> Iterator[None]:
    """Copies in the place of a module's buffers, with the `values` of the first run: statistics are not updated twice."""
    before = [
        (part, name, buffer)
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
    try:
        for part, name, buffer in before:
            part._buffers[name] = values.get(id(buffer), buffer).clone()
        yield
    finally:
        for part, name, buffer in before:
            part._buffers[name] = buffer
