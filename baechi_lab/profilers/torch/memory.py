"""Measures the memory of a PyTorch model's calls: the tensors that each saves for its backward pass, and its temporaries.

Source: Shetty 2022, section 1.3.1, class e. On the CPU, the events of the allocator are read, which include scratch memory of
kernels. The temporary peak of a call is the most bytes that it holds at once beyond those that it holds at its end. On CUDA
it is read from the allocator's peak counter, call by call.
"""

from __future__ import annotations

import gc
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import ProfilerActivity, record_function

from ...torch_runtime.context import in_backward, kept_activations
from ...torch_runtime.intercept import Frame, Handler, Interceptor
from ...torch_runtime.sequence import inputs_of, nodes_between
from ...torch_runtime.storage import storage_bytes, storage_key, tensor_bytes
from ...torch_runtime.tree import Args, Function, Kwargs, attribute_tensors, tensors
from ...torch_steps.pinned_calls import plainly, recomputes
from ...torch_steps.records import Trace
from ...torch_steps.tracing import tensors_with_new_memory

if TYPE_CHECKING:
    from torch.autograd.graph import Node

_LABEL = "baechi call "

_OWNER = "baechi owner"
"""Key of an autograd node's metadata: the call that made the output, or a view of the output, of this node.

The handler lists no nodes, since a list would keep them and their saved tensors alive after the model has dropped them.
"""

LOSS_KEY = "\0loss"
"""Key of the call that computes the loss; no call of a model has this key. Its keyword arguments are targets."""


@dataclass
class CallMemory:
    """Bytes of one call: its temporaries in the forward and backward pass, and the tensors that it saves.

    Args:
        forward_temp, backward_temp: the most temporary bytes.
        saves_inputs: positions, among the tensors passed in, of those that it saves.
        saves_outputs: whether it saves its own outputs.
        saved_bytes: bytes of the other tensors that it saves, such as dropout masks and statistics, without parameters.
        saved_batch_bytes: bytes of the inputs that it saves and that are part of the batch.
        backward_peak: the most bytes that its backward pass adds, including the gradients that it makes.
        level, backward_level: the most bytes in use during the call, and during its backward pass, beyond those in use at the
            start of the step; 0 if unknown.
        saves: whether it saves anything, parameters included.
        attribute_outputs: positions of the outputs that an attribute of the model holds when the step has ended.
    """

    forward_temp: int = 0
    backward_temp: int = 0
    saves_inputs: tuple[int, ...] = ()
    saves_outputs: bool = False
    saved_bytes: int = 0
    saved_batch_bytes: int = 0
    backward_peak: int = 0
    level: int = 0
    backward_level: int = 0
    saves: bool = False
    attribute_outputs: tuple[int, ...] = ()

    @property
    def saves_only_inputs(self) -> bool:
        """Whether it saves only tensors that exist before it computes."""
        return not self.saves_outputs and not self.saved_bytes


def recomputations(trace: Trace, memory: Sequence[CallMemory]) -> NDArray[np.int64]:
    """Returns how often each call runs again in the backward pass, int64[calls].

    Non-reentrant checkpointing stops once all tensors that its region saved exist again: at the last call that saves one, and
    before that call computes if it saves only inputs.
    """
    last_saving = {call.region: i for i, call in enumerate(trace.calls) if memory[i].saves}
    counts = np.array([call.recomputed for call in trace.calls], dtype=np.int64)
    for i, call in enumerate(trace.calls):
        last_call = last_saving.get(call.region, -1)
        if not call.reentrant and (i > last_call or (i == last_call and memory[i].saves_only_inputs)):
            counts[i] = 0
    return counts


def measure_memory(
    trace: Trace, interceptor: Interceptor, run: Callable[[], object], training: bool
) -> tuple[CallMemory, ...]:
    """Runs the model once more under `MemoryWatch`."""
    cuda = any(p.is_cuda for p in interceptor.model.parameters())
    previous_handler, watch = interceptor.handler, MemoryWatch(interceptor.model, trace, training, cuda)
    interceptor.handler = watch
    try:
        if watch.cuda:
            run()
            watch.record_peak_between_windows()
        else:
            with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
                run()
        watch.find_attribute_outputs()
        if not watch.cuda:
            watch.read_events(profiler)
    finally:
        interceptor.handler = previous_handler
    return watch.result()


class _BackwardWindow(NamedTuple):
    """A window of the backward pass: its start in the list of changes, its call, and whether it is that of an output's view."""

    start: int
    op: int
    is_view: bool


class _CallStorages(NamedTuple):
    """A call with the storages of its arguments, mapped to their positions, and the storages of its results."""

    op: int
    positions: dict[int, int]
    results: set[int]


class CallOutput(NamedTuple):
    """An output of a call in memory of its own."""

    op: int
    position: int
    size_bytes: int
    storage: StorageWeakRef


class MemoryWatch(Handler):
    """The handler that measures allocations."""

    def __init__(self, model: nn.Module, trace: Trace, training: bool, cuda: bool):
        self.model = model
        self.index, self.training = {**trace.index, LOSS_KEY: len(trace.calls)}, training
        self.recomputed = [*(call.recomputed for call in trace.calls), 0]
        self.memory = [CallMemory() for _ in range(len(trace.calls) + 1)]  # the loss comes last
        self.backward_windows: list[_BackwardWindow] = []
        self.forward_windows: list[tuple[int, int]] = []  # start of each window in the list of changes, and its call
        # CUDA: backward pass of a call -> bytes at the start of its first window
        self.bytes_at_start: dict[int, int] = {}
        self.earlier_gradient_bytes = 0  # gradients from before the step, to which it adds
        self.cuda = cuda
        # CUDA: op of the last window of the backward pass, and the bytes at its start
        self.last_window: tuple[int, int] | None = None
        # positions of arguments that other calls made; the batch; saved tensors that no call made
        self.read_positions = [*({*call.read_at.values()} for call in trace.calls), None]
        self.batch: set[int] = set()
        self.constants: set[int] = set()
        self.parameter_storages: set[int] = set()  # parameters and buffers of the model
        self.outputs: list[CallOutput] = []  # at the end of the step those that attributes hold
        self.change_end: dict[int, int] = {}  # call -> its end in the list of changes
        # calls of the running Function
        self.function_calls: list[_CallStorages] = []

    def begin(self, frame: Frame, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        if in_backward():  # a Function runs modules again
            return args, kwargs
        self.earlier_gradient_bytes = sum(storage_bytes(p.grad) for p in self.model.parameters() if p.grad is not None)
        self.function_calls, self.constants, self.outputs = [], set(), []
        self.parameter_storages = {storage_key(t) for t in (*self.model.parameters(), *self.model.buffers())}
        self.batch = {storage_key(t) for t in tensors((args, kwargs))}
        return args, kwargs

    def call(
        self, frame: Frame, key: str, run: Function, args: Args, kwargs: Kwargs, module: nn.Module | None
    ) -> object:
        op = self.index.get(key, -1)
        if op < 0 or in_backward():
            with kept_activations():
                return run(*args, **kwargs)
        stop = inputs_of((args, kwargs))
        arguments = list(tensors((args, kwargs)))
        if module is not None:
            arguments += attribute_tensors(module)
        if key == LOSS_KEY:
            self.batch |= {storage_key(t) for t in tensors(kwargs)}
        saved_tensors: list[torch.Tensor] = []
        with saved_tensors_hooks(partial(self.record_saved, op, saved_tensors), lambda t: t), self.window("f", op):
            outputs = run(*args, **kwargs)
        if key != LOSS_KEY:
            for position, tensor in tensors_with_new_memory(outputs, arguments):
                storage = StorageWeakRef(tensor.untyped_storage())
                self.outputs.append(CallOutput(op, position, storage_bytes(tensor), storage))
        self._classify(op, arguments, list(tensors(outputs)), saved_tensors)
        saved_tensors.clear()  # autograd holds the hooks, and with them this list, until the last node of the call has run
        if self.training:
            for tensor in arguments if not self.cuda else ():
                # The gradient of a view that no call made belongs to the call of its base.
                views, node = [], tensor.grad_fn
                while node is not None and _OWNER not in node.metadata:
                    views.append(node)
                    parents = [parent for parent, _ in node.next_functions if parent is not None]
                    node = parents[0] if len(parents) == 1 else None
                for view in views if node is not None else ():
                    view.metadata[_OWNER] = node.metadata[_OWNER]
                    self._hook(view, node.metadata[_OWNER], "v")
            written_tensors = [t for t in arguments if t.grad_fn is not None and t.grad_fn not in stop]
            for node in nodes_between((outputs, written_tensors), stop):
                self._hook(node, op)
            _set_owner((outputs, written_tensors), op)
        return outputs

    def find_attribute_outputs(self) -> None:
        """Finds what attributes of the model hold after the step, besides parameters, gradients and buffers."""
        if any(not output.storage.expired() for output in self.outputs):
            gc.collect()  # cycles of objects hold tensors for some time
        persistent_tensors = [*self.model.parameters(), *self.model.buffers()]
        persistent_tensors += [p.grad for p in self.model.parameters() if p.grad is not None]
        persistent_storages = {storage_key(t) for t in persistent_tensors if not nn.parameter.is_lazy(t)}
        self.outputs = [
            o for o in self.outputs if not o.storage.expired() and o.storage.cdata not in persistent_storages
        ]
        for output in self.outputs:
            self.memory[output.op].attribute_outputs += (output.position,)

    def record_saved(self, op: int, saved_tensors: list[torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
        """Adds a tensor that call `op` saves to `saved_tensors`; -1 stands for no call. Returns it without its graph."""
        if op >= 0:
            self.memory[op].saves = True
        saved_tensors.append(tensor.detach())
        return tensor.detach()

    def region(self, frame: Frame, region_kind: str | type, run: Function, args: Args, kwargs: Kwargs) -> object:
        """Runs a checkpointed region without checkpointing, and another Function so that its calls own what it saves."""
        if recomputes(region_kind, args):
            return plainly(run, args, kwargs)
        if isinstance(region_kind, str) or in_backward():
            with kept_activations():
                return run(*args, **kwargs)
        outer, self.function_calls = self.function_calls, []
        stop = inputs_of((args, kwargs))
        saved_tensors: list[torch.Tensor] = []
        try:

            def keep(tensor: torch.Tensor) -> torch.Tensor:
                op = self.function_calls[-1].op if self.function_calls else -1
                return self.record_saved(op, saved_tensors, tensor)

            with saved_tensors_hooks(keep, lambda t: t):
                outputs = run(*args, **kwargs)
        finally:
            calls, self.function_calls = self.function_calls, outer + self.function_calls
        if calls:
            # A tensor that a Function saves belongs to the last of its calls that took or made it, else to its last call.
            self.parameter_storages |= {storage_key(t) for t in tensors((args, kwargs)) if isinstance(t, nn.Parameter)}
            other_bytes: dict[int, int] = {}
            for tensor in saved_tensors:
                storage = storage_key(tensor)
                if storage in self.parameter_storages:
                    continue
                owner = next((c for c in reversed(calls) if storage in c.positions or storage in c.results), None)
                if owner is None:
                    other_bytes[storage] = storage_bytes(tensor)
                elif storage in owner.results:
                    self.memory[owner.op].saves_outputs = True
                else:
                    memory = self.memory[owner.op]
                    memory.saves_inputs = tuple(sorted({*memory.saves_inputs, owner.positions[storage]}))
            last_op = calls[-1].op
            self.memory[last_op].saved_bytes += sum(other_bytes.values())
            for node in nodes_between(outputs, stop) if self.training else ():
                self._hook(node, last_op)
            _set_owner(outputs, last_op)
        saved_tensors.clear()  # as in `call`
        return outputs

    def _classify(
        self, op: int, arguments: list[torch.Tensor], outputs: list[torch.Tensor], saved_tensors: list[torch.Tensor]
    ) -> None:
        """Records which inputs and outputs call `op` saves, and the bytes of the other tensors in `saved_tensors`."""
        activations = [(k, t) for k, t in enumerate(arguments) if not isinstance(t, nn.Parameter)]
        positions = {storage_key(t): k for k, t in reversed(activations)}
        results = {storage_key(t) for t in outputs}
        self.parameter_storages |= {storage_key(t) for t in arguments if isinstance(t, nn.Parameter)}
        read_positions, saved_inputs = self.read_positions[op], set()
        other_bytes: dict[int, int] = {}
        for tensor in saved_tensors:
            storage = storage_key(tensor)
            if storage in results:
                self.memory[op].saves_outputs = True
            elif storage in positions and (
                read_positions is None or positions[storage] in read_positions or storage in self.batch
            ):
                saved_inputs.add(positions[storage])
            elif storage in positions:  # code between the calls made it: a mask, positions
                if storage not in {*self.parameter_storages, *self.constants}:
                    other_bytes[storage] = storage_bytes(tensor)
                    self.constants.add(storage)
            elif storage not in self.parameter_storages:
                other_bytes[storage] = storage_bytes(tensor)
        memory = self.memory[op]
        memory.saves_inputs, memory.saved_bytes = tuple(sorted(saved_inputs)), sum(other_bytes.values())
        batch_inputs = (t for t in map(arguments.__getitem__, memory.saves_inputs) if storage_key(t) in self.batch)
        memory.saved_batch_bytes = sum(map(tensor_bytes, batch_inputs))
        self.function_calls.append(_CallStorages(op, positions, results))

    def _hook(self, node: Node, op: int, phase: str = "b") -> None:
        """Measures backward temporaries: the node's execution is a window of the allocator's events or peak counter."""
        windows: list[Any] = []

        def before(gradients: object) -> None:
            windows.append(self.window(phase, op))
            windows[-1].__enter__()

        def after(input_gradients: object, output_gradients: object) -> None:
            windows.pop().__exit__(None, None, None)

        node.register_prehook(before)
        node.register_hook(after)

    @contextmanager
    def window(self, phase: str, op: int) -> Iterator[None]:
        """Assigns allocations within the context to an op.

        `phase` is forward ("f"), backward ("b"), or the backward pass of views of its outputs ("v").
        """
        self.record_peak_between_windows()
        bytes_before = 0
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            bytes_before = int(torch.cuda.memory_allocated())
        with record_function(f"{_LABEL}{phase}{op}"):
            yield
        if self.cuda:
            torch.cuda.synchronize()
            remaining_bytes = max(bytes_before, int(torch.cuda.memory_allocated()))
            self.add_temporary(phase, op, int(torch.cuda.max_memory_allocated()) - remaining_bytes)
        if phase == "b" and self.cuda:
            self.last_window = op, self.bytes_at_start.setdefault(op, bytes_before)
            self.record_peak_between_windows()

    def add_temporary(self, phase: str, op: int, size: int) -> None:
        """Records temporaries of one window of a call; the largest of all windows count."""
        memory = self.memory[op]
        if phase == "f":
            memory.forward_temp = max(memory.forward_temp, size)
        else:
            memory.backward_temp = max(memory.backward_temp, size)

    def record_peak_between_windows(self) -> None:
        """CUDA: assigns the peak since the last window of the backward pass began to that window's op."""
        if self.last_window is not None:
            torch.cuda.synchronize()
            op, bytes_at_start = self.last_window
            memory = self.memory[op]
            memory.backward_peak = max(memory.backward_peak, int(torch.cuda.max_memory_allocated()) - bytes_at_start)

    def add_window(self, phase: str, op: int, start: int) -> None:
        """Adds the next window of a call, by its start in the list of changes; `phase` as in `window`."""
        if phase == "f":
            self.forward_windows.append((start, op))
        else:
            self.backward_windows.append(_BackwardWindow(start, op, is_view=phase == "v"))

    def read_windows(self, changes: list[int]) -> None:
        """Reads the peaks of backward passes, and the most that the step holds during each call and backward pass.

        A backward pass takes until the next one begins. So it includes the release of gradients, and the sums of gradients of
        a parameter or value with several uses.
        """
        # An attribute releases the tensor of the previous step, which is persistent, when the call ends. No event shows it.
        changes = [*changes, 0]
        for output in self.outputs:
            changes[self.change_end[output.op]] -= output.size_bytes
        # The most that the step holds from the start of each window to the start of the next.
        live_bytes = list(accumulate(changes, initial=self.earlier_gradient_bytes))
        windows = [(start, op, False) for start, op in self.forward_windows]
        windows += [(start, op, True) for start, op in self._backward_blocks()]
        windows.sort(key=lambda window: window[0])  # a model may differentiate in its forward pass
        next_starts = [*(start for start, *_ in windows[1:]), len(changes) - 1]
        for (start, op, is_backward), end in zip(windows, next_starts, strict=True):
            memory, level = self.memory[op], max(live_bytes[start : end + 1])
            if is_backward:
                memory.backward_peak = max(memory.backward_peak, level - live_bytes[start])
                memory.backward_level = max(memory.backward_level, level)
            else:
                memory.level = max(memory.level, level)

    def _backward_blocks(self) -> list[tuple[int, int]]:
        """Returns the starts of backward passes with their calls, in order. A call with several nodes may have several.

        Windows of views just before those of their call are included: they make the whole gradient from those of its parts.
        Other windows of views belong to the previous call: the call of the view is not ready yet, and runs when fewer bytes
        are live.
        """
        windows = self.backward_windows
        may_begin_pass = [not window.is_view for window in windows]
        for k in reversed(range(len(windows) - 1)):
            may_begin_pass[k] |= may_begin_pass[k + 1] and windows[k].op == windows[k + 1].op
        blocks: list[tuple[int, int]] = []
        for (start, op, _), may_begin in zip(windows, may_begin_pass, strict=True):
            if not blocks or (may_begin and op != blocks[-1][1]):
                blocks.append((start, op))
        return blocks

    def read_events(self, profiler: torch.profiler.profile) -> None:
        """CPU: reads the peak of every window from the allocator's events."""
        changes, marks = read_marked_changes(profiler, _LABEL)
        for label, start, end in marks:
            kind, op = label[0], int(label[1:])
            self.add_temporary(kind, op, temporary_peak(changes[start:end]))
            self.add_window(kind, op, start)
            if kind == "f":
                self.change_end[op] = end
        self.read_windows(changes)

    def result(self) -> tuple[CallMemory, ...]:
        """Returns one record per call; the backward op of a recomputed call has its forward temporaries too."""
        for memory, is_recomputed in zip(self.memory, self.recomputed, strict=True):
            if is_recomputed:
                memory.backward_temp = max(memory.backward_temp, memory.forward_temp)
        return tuple(self.memory)


def _set_owner(outputs: object, call: int) -> None:
    """Marks the autograd nodes of `outputs` as those of a call."""
    for tensor in tensors(outputs):
        if tensor.grad_fn is not None:
            tensor.grad_fn.metadata[_OWNER] = call


def read_marked_changes(profiler: torch.profiler.profile, label: str) -> tuple[list[int], list[tuple[str, int, int]]]:
    """Returns the CPU allocator's changes in bytes, and the records under `label` in time.

    A record is the rest of its name and its start and end in the list of changes.
    """
    events = profiler.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    times = [t for t, _ in changes]
    marks = []
    for event in sorted(events, key=lambda event: int(event.start_ns())):
        if event.name().startswith(label):
            start, end = event.start_ns(), event.start_ns() + event.duration_ns()
            marks.append((event.name()[len(label) :], bisect_left(times, start), bisect_right(times, end)))
    return [size for _, size in changes], marks


def temporary_peak(changes: list[int]) -> int:
    """Returns the most bytes beyond those at the end, or beyond those at the start if these are more.

    >>> temporary_peak([100, 40, -40])   # 100 bytes remain, 40 are temporary
    40
    """
    level = peak = 0
    for size in changes:
        level += size
        peak = max(peak, level)
    return peak - max(level, 0)
