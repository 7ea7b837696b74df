"""Memory of the calls of a PyTorch model: what each saves for its backward pass, and its temporaries.

Source: paper P, section 1.3.1, class e. On the CPU the allocator's own events are read (kernel scratch included): a
call's temporary peak is the most it held at once beyond what it still held at its end. On CUDA the same is read from
the allocator's peak counter, call by call.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, record_function

from ...torch.pinned_calls import plainly, recomputes
from ...torch.records import Trace
from ...torch.runtime.context import in_backward, kept_activations
from ...torch.runtime.intercept import Frame, Handler, Interceptor
from ...torch.runtime.sequence import inputs_of, nodes_between
from ...torch.runtime.storage import storage_bytes, storage_key
from ...torch.runtime.tree import tensors

_LABEL = "baechi call "

LOSS_KEY = "\0loss"
"""Key of the call that computes the loss; no call of a model has it."""


@dataclass(frozen=True)
class CallMemory:
    """Bytes of one call: temporaries forward and backward, and what it saves.

    `saves_inputs` are positions among the tensors passed in, `saves_outputs` says whether it saves its own outputs,
    `saved_bytes` is what else it saves (dropout masks, statistics; parameters excluded). `backward_peak` is the most that
    its backward pass holds beyond what is there when it begins, the gradients that it makes included. `level` and
    `backward_level` are the most that the whole step holds while the call runs, and while its backward pass does, beyond what
    is there when the step begins; 0 where that is not known.
    """

    forward_temp: int = 0
    backward_temp: int = 0
    saves_inputs: tuple[int, ...] = ()
    saves_outputs: bool = False
    saved_bytes: int = 0
    backward_peak: int = 0
    level: int = 0
    backward_level: int = 0


def measure_memory(
    found: Trace, interceptor: Interceptor, run: Callable[[], None], training: bool
) -> tuple[CallMemory, ...]:
    """One more run of the model under the handler below."""
    cuda = any(p.is_cuda for p in interceptor.model.parameters())
    kept, watch = interceptor.handler, MemoryWatch(interceptor.model, found, training, cuda)
    interceptor.handler = watch
    try:
        if watch.cuda:
            run()
            watch.between()
        else:
            # acc_events avoids a warning of recent versions about dropping events between cycles
            with torch.profiler.profile(
                activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True
            ) as profiler:
                run()
            watch.read_events(profiler)
    finally:
        interceptor.handler = kept
    return watch.result()


class MemoryWatch(Handler):
    """The handler that watches allocations."""

    def __init__(self, model: nn.Module, found: Trace, training: bool, cuda: bool):
        self.model = model
        self.index, self.training = {**found.index, LOSS_KEY: len(found.calls)}, training
        self.again = [*(call.recomputed for call in found.calls), 0]
        n = len(found.calls) + 1  # the loss comes last
        self.forward, self.backward, self.saved_bytes = [0] * n, [0] * n, [0] * n
        self.inputs: list[tuple[int, ...]] = [()] * n
        self.own = [False] * n
        self.peaks = [0] * n
        self.levels, self.backward_levels = [0] * n, [0] * n
        self.spans: dict[
            int, tuple[int, int]
        ] = {}  # backward pass of a call -> begin of its first window, end of its last
        self.begins: list[tuple[int, int, bool]] = []  # of all windows of the backward pass; their ops; of views
        self.forward_begins: list[tuple[int, int]] = []  # of all windows of the forward pass, their ops
        self.held_before = 0  # gradients that are there before the step begins, which it adds to
        self.owner: dict[Any, int] = {}  # node behind an output of a call, or behind a view of one -> the call
        self.cuda = cuda
        self.last: tuple[int, int] | None = (
            None  # CUDA: op of the last window of the backward pass, bytes when it began
        )
        # what calls take that other calls made, by position; the batch; what no call made and an earlier one has saved
        self.read_at = [*({*call.read_at.values()} for call in found.calls), None]
        self.batch: set[int] = set()
        self.constants: set[int] = set()
        # calls of the Function that is running: call, storages that it took with their positions, and that it made
        self.called: list[tuple[int, dict[int, int], set[int]]] = []

    def begin(self, frame: Frame, args: Any, kwargs: Any) -> tuple[Any, Any]:
        self.held_before = sum(storage_bytes(p.grad) for p in self.model.parameters() if p.grad is not None)
        self.called, self.constants, self.owner = [], set(), {}
        self.batch = {storage_key(t) for t in tensors((args, kwargs))}
        return args, kwargs

    def call(
        self, frame: Frame, key: str, run: Callable[..., Any], args: Any, kwargs: Any, module: nn.Module | None
    ) -> Any:
        op = self.index.get(key, -1)
        if op < 0 or in_backward():
            with kept_activations():
                return run(*args, **kwargs)
        stop = inputs_of((args, kwargs))
        taken = list(tensors((args, kwargs)))
        saved: list[torch.Tensor] = []
        keep = lambda t: saved.append(t.detach()) or t.detach()  # type: ignore[func-returns-value]  # noqa: E731
        with saved_tensors_hooks(keep, lambda t: t), self.window("f", op):
            outputs = run(*args, **kwargs)
        self._classify(op, taken, list(tensors(outputs)), saved, module)
        if self.training:
            for tensor in taken if not self.cuda else ():
                self._hook_views(tensor)
            for node in nodes_between(outputs, stop):
                self._hook(node, op)
            self.owner.update((t.grad_fn, op) for t in tensors(outputs) if t.grad_fn is not None)
        return outputs

    def region(self, frame: Frame, what: str | type, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A checkpointed region runs plainly; what another Function saves belongs to the calls in it."""
        if recomputes(what, args):
            return plainly(run, args, kwargs)
        if isinstance(what, str) or in_backward():
            with kept_activations():
                return run(*args, **kwargs)
        outer, self.called = self.called, []
        stop = inputs_of((args, kwargs))
        saved: list[torch.Tensor] = []
        try:
            with saved_tensors_hooks(lambda t: saved.append(t.detach()) or t.detach(), lambda t: t):  # type: ignore[func-returns-value]
                outputs = run(*args, **kwargs)
        finally:
            calls, self.called = self.called, outer + self.called
        if calls:
            self._share(calls, saved, {storage_key(t) for t in tensors((args, kwargs)) if isinstance(t, nn.Parameter)})
            for node in nodes_between(outputs, stop) if self.training else ():
                self._hook(node, calls[-1][0])
        return outputs

    def _share(
        self, calls: list[tuple[int, dict[int, int], set[int]]], saved: list[torch.Tensor], fixed: set[int]
    ) -> None:
        """What a Function saves: for the last of its calls that took or made it, else for its last call."""
        other: dict[int, int] = {}
        for tensor in saved:
            storage = storage_key(tensor)
            if storage in fixed:
                continue
            op, given, made = next((c for c in reversed(calls) if storage in c[1] or storage in c[2]), (-1, {}, set()))
            if storage in made:
                self.own[op] = True
            elif storage in given:
                self.inputs[op] = tuple(sorted({*self.inputs[op], given[storage]}))
            else:
                other[storage] = storage_bytes(tensor)
        self.saved_bytes[calls[-1][0]] += sum(other.values())

    def _classify(self, op: int, taken: Any, made: Any, saved: Any, module: nn.Module | None) -> None:
        given = {storage_key(t): k for k, t in reversed(list(enumerate(taken))) if not isinstance(t, nn.Parameter)}
        results = {storage_key(t) for t in made}
        fixed = {storage_key(t) for t in taken if isinstance(t, nn.Parameter)}
        if module is not None:
            fixed |= {storage_key(t) for t in (*module.parameters(), *module.buffers())}
        read, inputs = self.read_at[op], set()
        other: dict[int, int] = {}
        for tensor in saved:
            storage = storage_key(tensor)
            if storage in results:
                self.own[op] = True
            elif storage in given and (read is None or given[storage] in read or storage in self.batch):
                inputs.add(given[storage])
            elif storage in given:  # code between the calls made it: a mask, positions
                if storage not in {*fixed, *self.constants}:
                    other[storage] = storage_bytes(tensor)
                    self.constants.add(storage)
            elif storage not in fixed:
                other[storage] = storage_bytes(tensor)
        self.inputs[op], self.saved_bytes[op] = tuple(sorted(inputs)), sum(other.values())
        self.called.append((op, given, results))

    def _hook_views(self, tensor: torch.Tensor) -> None:
        """A view that no call made has its gradient made where its base is."""
        views, node = [], tensor.grad_fn
        while node is not None and node not in self.owner:
            views.append(node)
            behind = [into for into, _ in node.next_functions if into is not None]
            node = behind[0] if len(behind) == 1 else None
        for view in views if node is not None else ():
            self.owner[view] = self.owner[node]
            self._hook(view, self.owner[node], "v")

    def _hook(self, node: Any, op: int, phase: str = "b") -> None:
        """Backward temporaries: the node's execution is a window of the allocator's events, or of its peak counter."""
        windows: list[Any] = []

        def before(gradients: Any) -> None:
            windows.append(self.window(phase, op))
            windows[-1].__enter__()

        def after(into: Any, outof: Any) -> None:
            windows.pop().__exit__(None, None, None)

        node.register_prehook(before)
        node.register_hook(after)

    @contextmanager
    def window(self, phase: str, op: int) -> Iterator[None]:
        """The length of time in which what is allocated belongs to an op, forward ("f"), backward ("b") or in the backward
        pass of views of its outputs ("v")."""
        self.between()
        before = self._before()
        with record_function(f"{_LABEL}{phase}{op}"):
            yield
        column = self.forward if phase == "f" else self.backward
        column[op] = max(column[op], self._after(before))
        if phase == "b" and self.cuda:
            first = self.spans.setdefault(op, (before, 0))[0]
            self.last = op, first
            self.between()

    def between(self) -> None:
        """CUDA: what was held since the last window of the backward pass began belongs to its op."""
        if self.last is not None:
            torch.cuda.synchronize()
            op, first = self.last
            self.peaks[op] = max(self.peaks[op], int(torch.cuda.max_memory_allocated()) - first)

    def spanned(self, phase: str, op: int, start: int, end: int) -> None:
        """The next window of a call, in places of the list of changes: forward, of its backward pass, or of that of a view.

        What views of an output make just before counts: the gradient of the whole from those of its parts.
        """
        if phase == "f":
            self.forward_begins.append((start, op))
            return
        view = phase == "v"
        earlier = takewhile(lambda window: window[1:] == (op, True), reversed(self.begins))
        known = self.spans.get(op, (min((begin for begin, *_ in earlier), default=start), end))
        self.begins.append((start, op, view))
        if view:
            return
        self.spans[op] = min(known[0], start), max(known[1], end)

    def read_spans(self, changes: list[int]) -> None:
        """The peaks of backward passes: what lies between their first node and the next one after their last.

        So the release of gradients counts, and adding up those of a parameter or a value that is used several times.
        """
        begins = sorted(self.begins)
        for op, (start, end) in self.spans.items():
            later = (begin for begin, of, _ in begins[bisect_left(begins, (end, -1, False)) :] if of != op)
            self.peaks[op] = max(0, *accumulate(changes[start : next(later, len(changes))], initial=0))
        self._read_levels(changes)

    def _read_levels(self, changes: list[int]) -> None:
        """What the step holds from the beginning of a window to that of the next one, at most."""
        held = list(accumulate(changes, initial=self.held_before))
        rows = [(begin, op, self.levels) for begin, op in self.forward_begins]
        rows += [(begin, op, self.backward_levels) for begin, op, _ in self.begins]
        rows.sort(key=lambda row: row[0])
        ends = [*(begin for begin, *_ in rows[1:]), len(changes)]
        for (begin, op, column), end in zip(rows, ends, strict=True):
            column[op] = max(column[op], *held[begin : end + 1])

    def _before(self) -> int:
        if not self.cuda:
            return 0
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())

    def _after(self, before: int) -> int:
        if not self.cuda:
            return 0
        torch.cuda.synchronize()
        return max(0, int(torch.cuda.max_memory_allocated()) - max(before, int(torch.cuda.memory_allocated())))

    def read_events(self, profiler: Any) -> None:
        """CPU: the peak of every window, from the allocator's events."""
        changes, marked = marks(profiler, _LABEL)
        for label, start, end in marked:
            kind, op = label[0], int(label[1:])
            column = self.forward if kind == "f" else self.backward
            column[op] = max(column[op], temporary_peak(changes[start:end]))
            self.spanned(kind, op, start, end)
        self.read_spans(changes)

    def result(self) -> tuple[CallMemory, ...]:
        """One record per call; the backward op of one that is recomputed has its forward temporaries too."""
        self.owner = {}  # nodes have hooks that have this: they would keep each other, and the hooks of parameters
        backward = [
            max(b, f) if twice else b for f, b, twice in zip(self.forward, self.backward, self.again, strict=True)
        ]
        rows = zip(
            self.forward, backward, self.inputs, self.own, self.saved_bytes, self.peaks, self.levels, self.backward_levels,
            strict=True,
        )  # fmt: skip
        return tuple(CallMemory(*row) for row in rows)


def marks(profiler: Any, label: str) -> tuple[list[int], list[tuple[str, int, int]]]:
    """The CPU allocator's changes in bytes, and for each record under `label`, in time, the rest of its name and its part of
    them."""
    events = profiler.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    times = [t for t, _ in changes]
    marked = [
        (
            event.name()[len(label) :],
            bisect_left(times, event.start_ns()),
            bisect_right(times, event.start_ns() + event.duration_ns()),
        )
        for event in sorted(events, key=lambda event: int(event.start_ns()))
        if event.name().startswith(label)
    ]
    return [size for _, size in changes], marked


def temporary_peak(changes: list[int]) -> int:
    """The most that was held at once beyond what is held at the end (and at least what was held at the start).

    >>> temporary_peak([100, 40, -40])   # 100 is kept, 40 was temporary
    40
    """
    level = peak = 0
    for size in changes:
        level += size
        peak = max(peak, level)
    return peak - max(level, 0)
