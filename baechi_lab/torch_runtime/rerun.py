"""Calls that can run again, and views of their results or of copies on the host. `activation_policy` decides when they run."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from ..errors import ExecutionError
from .context import Context, Settings, in_training_modes
from .random import States, generator_states
from .storage import is_plain, version, whole_storage
from .tree import map_tensors, tensors

ObserveRerun = Callable[[int, int], contextlib.AbstractContextManager[None]]
"""From the op and the number of its run to the context of that run."""

EMPTY = torch.empty(0)
"""Placeholder for a tensor among the arguments of a `CallRecord`."""


class RetainedArgument:
    """An argument of a call record that stays in memory."""

    __slots__ = ("requires_grad", "tensor", "version")

    def __init__(self, tensor: torch.Tensor):
        self.requires_grad, self.version = tensor.requires_grad, version(tensor)
        self.tensor = tensor if isinstance(tensor, nn.Parameter) else tensor.detach()

    def as_argument(self, op: str) -> torch.Tensor:
        """Returns the argument as the first run received it."""
        if version(self.tensor) != self.version:
            raise _written_in_place_error(op, self.tensor)
        if isinstance(self.tensor, nn.Parameter):
            return self.tensor
        return self.tensor.detach().requires_grad_(self.requires_grad)


def _written_in_place_error(op: str, tensor: torch.Tensor) -> ExecutionError:
    return ExecutionError(
        f"{op} cannot run again: a tensor of shape {list(tensor.shape)} that it reads was written in place after it ran; "
        "keep its output"
    )


class StorageView:
    """A tensor described as a view of a storage, which a call record or the host provides."""

    __slots__ = ("layout", "position", "record", "requires_grad")

    def __init__(self, record: CallRecord | HostedStorage, position: int, tensor: torch.Tensor):
        self.record: Any = record
        self.position, self.requires_grad = position, tensor.requires_grad
        self.layout = (tensor.dtype, tuple(tensor.size()), tensor.stride(), tensor.storage_offset())

    def get(self, reader: tuple[int, int]) -> torch.Tensor:
        """Returns the tensor to `reader`, which reads it once."""
        storage: torch.Tensor = self.record.take_result(self.position, reader)
        return self.view_of(storage)

    def as_argument(self, op: str) -> torch.Tensor:
        """Returns the tensor as an argument of a call."""
        return self.view_of(self.record.result(self.position)).detach().requires_grad_(self.requires_grad)

    def view_of(self, storage: torch.Tensor) -> torch.Tensor:
        """Returns the same view of another storage."""
        dtype, size, stride, offset = self.layout
        if storage.dtype != dtype:  # a view as another dtype; `CallRecord` rejects a changed result
            storage = torch.empty(0, dtype=dtype, device=storage.device).set_(storage.untyped_storage())
        return storage.as_strided(size, stride, offset)


class CallRecord:
    """All that is needed to run a call again, at most `last_run` times per backward pass."""

    def __init__(
        self,
        number: int,
        op: int,
        run: Callable[..., object],
        module: nn.Module | None,
        states: States | None,
        last_run: int,
        lock: threading.RLock,
        observer: ObserveRerun | None,
    ):
        self.number, self.op, self.function, self.module = number, op, run, module
        self.states, self.last_run, self.lock, self.observer = states, last_run, lock, observer
        self.context, self.settings = Context(), Settings()
        on_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        self.stream: object = torch.cuda.current_stream() if on_cuda else None
        self.modes = [] if module is None else [(submodule, submodule.training) for submodule in module.modules()]
        self.parameters = [] if module is None else _entries(module, "_parameters")
        self.registered_buffers = [] if module is None else _entries(module, "_buffers")
        self.weights = [(p, version(p)) for _, _, p in self.parameters]
        self.buffers: dict[int, torch.Tensor] = {}  # id of a buffer that the call changes -> its old values
        self.inputs: list[RetainedArgument | StorageView] = []
        self.input_index: list[int] = []  # which of `inputs` each tensor among the arguments is
        self.arguments: Any = ()
        self.readers: dict[int, dict[tuple[int, int], set[int]]] = {}  # run -> readers, and the results that each reads
        self.requested_results: set[int] = set()  # positions of outputs, ~index of other saved tensors
        self.pending_readers: dict[tuple[int, int], set[int]] = {}  # those that have not read the last run's results
        self.results: dict[int, torch.Tensor] = {}  # by position or ~index
        self.runs_done = self.packs = 0
        self.keeps_arguments = False  # after the last run too

    def add_reader(self, reader: tuple[int, int], position: int, run: int) -> None:
        """Registers `reader`, which will read a result after run number `run`."""
        self.requested_results.add(position)
        self.readers.setdefault(run, {}).setdefault(reader, set()).add(position)

    def keep_arguments(self) -> None:
        """Keeps the arguments after the last run, because a reader may read its results several times."""
        self.keeps_arguments = True
        for argument in self.inputs:
            if isinstance(argument, StorageView) and isinstance(argument.record, CallRecord):
                argument.record.keep_arguments()

    def take_result(self, position: int, reader: tuple[int, int]) -> torch.Tensor:
        """Returns a result and notes that `reader` has read it."""
        with self.lock:
            result = self.result(position)
            self.release(reader)
            return result

    def result(self, position: int) -> torch.Tensor:
        """Returns a result. If it is missing, first runs the calls that it is computed from, then this call."""
        if position not in self.results:
            # The records that must run again for this one, in the order of their calls.
            missing, stack = {self.number: self}, [self]
            while stack:
                for argument in stack.pop().inputs:
                    if isinstance(argument, StorageView) and argument.position not in argument.record.results:
                        if argument.record.number not in missing:
                            missing[argument.record.number] = argument.record
                            stack.append(argument.record)
            for record in [missing[number] for number in sorted(missing)]:
                record.rerun()
        return self.results[position]

    def release(self, reader: tuple[int, int]) -> None:
        """Notes that `reader` has read its results. The last reader of a result frees it."""
        self.pending_readers.pop(reader, None)
        unread = set().union(*self.pending_readers.values())
        self.results = {position: result for position, result in self.results.items() if position in unread}

    def rerun(self) -> None:
        """Runs the call again and holds the requested results. After the last run of a step the arguments are freed."""
        if self.runs_done and not self.arguments:
            raise ExecutionError(
                f"{self.name} cannot run once more: a hook read what it saved, beside its backward call; keep its output"
            )
        self.runs_done = self.runs_done % self.last_run + 1
        count, saved_tensors = itertools.count(), {}

        def pack(tensor: torch.Tensor) -> None:
            if ~(index := next(count)) in self.requested_results:
                saved_tensors[~index] = tensor.detach()

        for weight, before in self.weights:
            if version(weight) != before:
                raise _written_in_place_error(self.name, weight)
        observation = contextlib.nullcontext() if self.observer is None else self.observer(self.op, self.runs_done)
        with observation, self._as_before():
            inputs = [argument.as_argument(self.name) for argument in self.inputs]
            next_input = iter([inputs[k] for k in self.input_index])
            args, kwargs = map_tensors(self.arguments, lambda _: next(next_input))
            with saved_tensors_hooks(pack, _refuse_backward):
                outputs = self.function(*args, **kwargs)
        if (packs := next(count)) != self.packs:
            raise ExecutionError(
                f"{self.name} saved {packs} tensors when it ran again and {self.packs} before; what it does must depend on its "
                "inputs alone to be computed again: keep its output"
            )
        output_tensors = enumerate(t for t in tensors(outputs) if is_plain(t))
        self.results = {k: t.detach() for k, t in output_tensors if k in self.requested_results} | saved_tensors
        self.pending_readers = dict(self.readers.get(self.runs_done, {})) or {(-1, -1): self.requested_results}
        for argument in self.inputs:
            if isinstance(argument, StorageView):
                argument.record.release((self.number, self.runs_done))
        if self.runs_done == self.last_run and not self.keeps_arguments and not _graph_is_retained():
            self.arguments, self.inputs = None, []

    @property
    def name(self) -> str:
        """The name of the call in error messages."""
        if self.module is not None:
            return f"call {self.op} ({type(self.module).__name__})"
        return f"call {self.op} ({getattr(self.function, '__name__', 'function')})"

    @contextlib.contextmanager
    def _as_before(self) -> Iterator[None]:
        """Restores the settings, random states, buffers and stream of the first run. Changes made meanwhile are undone."""
        with contextlib.ExitStack() as stack:
            if self.stream is not None:
                stack.enter_context(_on_stream(self.stream))
            if self.module is not None:
                copies = [(m, name, self.buffers.get(id(b), b).clone()) for m, name, b in self.registered_buffers]
                stack.enter_context(_with_entries("_buffers", copies))
                stack.enter_context(_with_entries("_parameters", self.parameters))
                stack.enter_context(in_training_modes(self.modes))
            if self.states is not None:
                stack.callback(generator_states().restore)
                self.states.restore()
            stack.enter_context(self.settings.restore())
            stack.enter_context(torch._C.DisableTorchFunction())  # as in the interception
            stack.enter_context(self.context.restore(rerun=True))
            yield


class HostCopier:
    """Copies storages to the host and back. On CPU devices they stay where they are, because the memory is the same."""

    def to_host(self, flat: torch.Tensor, op: int) -> torch.Tensor:
        """Copies the storage of a tensor of call `op` to the host."""
        if flat.device.type == "cpu":
            return flat
        host_copy = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
        host_copy.copy_(flat, non_blocking=True)
        return host_copy

    def to_device(self, host_copy: torch.Tensor, device: torch.device, op: int) -> torch.Tensor:
        """Copies it back to the device of the call."""
        return host_copy if device.type == "cpu" else host_copy.to(device, non_blocking=True)


class HostedStorage:
    """A storage of call `op` that waits on the host. `shared` has the same data on the host already."""

    def __init__(
        self,
        tensor: torch.Tensor,
        op: int,
        lock: threading.RLock,
        host_copier: HostCopier,
        shared: HostedStorage | None = None,
    ):
        self.device, self.dtype, self.op = tensor.device, tensor.dtype, op
        self.lock, self.host_copier = lock, host_copier
        if shared is None:
            self.host_copy = host_copier.to_host(whole_storage(tensor), op)
            self.sent_event: torch.cuda.Event | None = None
            if self.device.type == "cuda":  # another GPU may read what this one sends
                self.sent_event = torch.cuda.Event()
                self.sent_event.record(torch.cuda.current_stream(self.device))
        else:
            self.host_copy, self.sent_event = shared.host_copy, shared.sent_event

    def take_result(self, position: int, reader: tuple[int, int]) -> torch.Tensor:
        """Returns the storage on its device."""
        with self.lock:
            if self.sent_event is not None and self.device.type == "cuda":
                torch.cuda.current_stream(self.device).wait_event(self.sent_event)
            elif self.sent_event is not None:  # another device sent it, and the host reads it now
                self.sent_event.synchronize()
            return self.host_copier.to_device(self.host_copy, self.device, self.op)


def _graph_is_retained() -> bool:
    """Whether the backward pass may run again, or does not run. Versions of torch that do not tell count as retaining."""
    keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return keeps_graph is None or bool(keeps_graph())


def _refuse_backward(packed: object) -> torch.Tensor:
    raise ExecutionError("a run that only computes activations again has no backward pass")


@contextlib.contextmanager
def _on_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Runs on a stream that waits for the current one. Afterwards the current stream waits for it."""
    present = torch.cuda.current_stream(stream.device)
    stream.wait_stream(present)
    with torch.cuda.stream(stream):
        yield
    present.wait_stream(stream)


_Entry = tuple[nn.Module, str, torch.Tensor]
"""A module, the name of one of its parameters or buffers, and that tensor."""


def _entries(module: nn.Module, kind: str) -> list[_Entry]:
    """Returns what a module and those in it hold in `_parameters` or `_buffers`."""
    return [(m, name, t) for m in module.modules() for name, t in getattr(m, kind).items() if t is not None]


@contextlib.contextmanager
def _with_entries(kind: str, entries: list[_Entry]) -> Iterator[None]:
    """Gives modules the parameters or buffers of the first run, which `torch.func.functional_call` may have replaced.

    Buffers are copies, so that statistics are not updated twice.
    """
    replaced_entries = [
        (m, name, getattr(m, kind).get(name), t) for m, name, t in entries if getattr(m, kind).get(name) is not t
    ]
    try:
        for submodule, name, _, recorded_entry in replaced_entries:
            getattr(submodule, kind)[name] = recorded_entry
        yield
    finally:
        for submodule, name, present, _ in replaced_entries:
            getattr(submodule, kind)[name] = present
