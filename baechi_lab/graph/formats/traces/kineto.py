"""Kineto traces: what `torch.profiler` exports as a Chrome trace, with or without its execution trace.

    cpu_op              the outermost ATen (or other library's) op on a thread is one op; wrappers of autograd and optimizers
                        are looked into
    kernel, gpu_memcpy, one op each, on the lane of device and stream, after the part of the op on the host that launched
    gpu_memset          it (`correlation`); its op on the host is cut there, and where it waits for the device
    ProfilerStep#       where the profiler marked several steps, one of them is read
    dependencies        from the execution trace (see `execution_trace`): an op reads the storages that others wrote;
                        without it from the order on threads and streams (see `inference`)

A host's ops stay on devices of kind "cpu" where the trace has kernels, and kernels on those of kind "gpu".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ....errors import FormatError
from .execution_trace import Access, storage_dependencies
from .inference import chain
from .recording import CLOCK_US, Event, Recording, recording

_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_RUNTIME = ("cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "runtime")
_WIDTH = {"float": 4, "double": 8, "int": 4, "long": 8, "long int": 8, "c10::Half": 2, "c10::BFloat16": 2, "bool": 1,
          "unsigned char": 1, "signed char": 1, "short": 2, "c10::complex<float>": 8, "c10::complex<double>": 16}  # fmt: skip


@dataclass
class _Op:
    """An entry of the trace: `key` is what the execution trace knows it by."""

    name: str
    thread: str
    start: float
    end: float
    key: Any
    input_bytes: int = 0
    cuts: list[_Cut] = field(default_factory=list)


@dataclass
class _Cut:
    """Where the host launches something (`correlation`), or waits for the device from `start` to `end`."""

    start: float
    end: float
    correlation: Any
    waits: bool


def looks_like_kineto(document: Any) -> bool:
    """Is this parsed JSON a Chrome trace?"""
    return isinstance(document, Mapping) and "traceEvents" in document


def graph_from_kineto(document: Mapping[str, Any], tensors: Mapping[int, Access] | None, name: str) -> Recording:
    """The step of a parsed trace; `tensors` is what its execution trace says, where there is one.

    Raises:
        FormatError: another version, fields of the wrong type, no ops, or an execution trace of another run.
    """
    if document.get("schemaVersion", 1) != 1:
        raise FormatError(f"field schemaVersion is {document['schemaVersion']!r:.60}; version 1 is read")
    rows = document.get("traceEvents")
    if not isinstance(rows, list):
        raise FormatError(f"field traceEvents is {type(rows).__name__}; it must be a list")
    found, notes = _one_step([row for row in rows if isinstance(row, Mapping) and row.get("ph") == "X"])
    ops = _outermost([_op(row) for row in found if row.get("cat") == "cpu_op"])
    kernels = [(row, *_times(row)) for row in found if row.get("cat") in _KERNELS]
    if not ops and not kernels:
        raise FormatError("the trace has no op of PyTorch (category cpu_op): record it with torch.profiler")
    _cut(ops, [row for row in found if row.get("cat") in _RUNTIME], bool(kernels))
    made = _Made(bool(kernels))
    for op in ops:
        made.host(op)
    for row, start, end in kernels:
        made.kernel(row, start, end)
    made.wait_for_device()
    if tensors is not None:
        notes += made.by_tensors(ops, tensors)
    else:
        sizes = [made.input_bytes.get(k, 0) for k in range(len(made.events))]
        notes.append(chain(made.events, sizes))
    return recording(made.events, name, notes)


def _one_step(rows: list[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[str]]:
    """The rows of one step where the profiler marked several: the one with most ops, the last of equals."""
    marks = [
        row for row in rows if row.get("cat") == "user_annotation" and str(row.get("name")).startswith("ProfilerStep#")
    ]
    if len(marks) < 2:
        return rows, []
    steps = []
    for mark in sorted(marks, key=_times):
        start, end = _times(mark)
        host = [row for row in rows if row.get("cat") in ("cpu_op", *_RUNTIME) and start <= _times(row)[0] < end]
        steps.append((len(host), start, str(mark["name"]), host))
    _, _, name, host = max(steps, key=lambda step: step[:2])
    launched = {_correlation(row) for row in host if row.get("cat") in _RUNTIME} - {None}
    kernels = [row for row in rows if row.get("cat") in _KERNELS and _correlation(row) in launched]
    return host + kernels, [f"the trace holds {len(marks)} steps, of which {name} is read"]


def _correlation(row: Mapping[str, Any]) -> int | str | None:
    """What a launch and its kernel have in common."""
    said = row.get("args")
    found = said.get("correlation") if isinstance(said, Mapping) else None
    return found if isinstance(found, (int, str)) else None


class _Made:
    """Events while they are made, and which belong to which op and launch."""

    def __init__(self, on_device: bool):
        self.events: list[Event] = []
        self.on_device = on_device
        self.first: dict[int, int] = {}  # op (by id) -> its first event on the host
        self.launched: dict[Any, tuple[int, _Op]] = {}
        self.of_op: dict[int, list[int]] = {}
        self.waits: list[tuple[float, int]] = []
        self.input_bytes: dict[int, int] = {}

    def host(self, op: _Op) -> None:
        """The parts of an op on the host, one behind the other."""
        start, before, pending = op.start, -1, False
        self.of_op[id(op)] = []
        for cut in [*sorted(op.cuts, key=lambda c: c.start), None]:
            end = op.end if cut is None else min(max(start, cut.start if cut.waits else cut.end), op.end)
            if cut is None and before >= 0 and end - start < CLOCK_US / 10 and not pending:
                break
            k = self._add(Event(op.name, op.name, op.thread, start, end, "cpu", fixed=self.on_device))
            self.input_bytes[k] = op.input_bytes
            if before >= 0:
                self.events[k].after.add(before)
            if pending:
                self.waits.append((start, k))
            if cut is not None and not cut.waits:
                self.launched[cut.correlation] = (k, op)
            start = end if cut is None or not cut.waits else min(max(end, cut.end), op.end)
            before, pending = k, cut is not None and cut.waits
            self.first.setdefault(id(op), k)

    def _add(self, event: Event) -> int:
        self.events.append(event)
        return len(self.events) - 1

    def kernel(self, row: Mapping[str, Any], start: float, end: float) -> None:
        """An event on a stream, after the part of the op that launched it."""
        said = row.get("args") if isinstance(row.get("args"), Mapping) else {}
        device, stream, correlation = said.get("device"), said.get("stream"), _correlation(row)  # type: ignore[union-attr]
        k = self._add(
            Event(
                str(row.get("name")),
                str(row.get("cat")),
                f"gpu:{device}/stream {stream}",
                start,
                end,
                "gpu",
                fixed=True,
            )
        )
        if correlation is None or correlation not in self.launched:
            return
        launch, op = self.launched[correlation]
        event = self.events[launch]
        if event.end_us > start:  # the device began before the call returned
            event.end_us = max(event.start_us, start)
        self.events[k].after.add(launch)
        self.of_op[id(op)].append(k)
        self.input_bytes[k] = op.input_bytes

    def wait_for_device(self) -> None:
        """What waited on the host goes on after the kernels that had ended last on each stream."""
        kernels = sorted((e.end_us, k) for k, e in enumerate(self.events) if e.kind == "gpu")
        for start, k in self.waits:
            last = {self.events[j].lane: j for end, j in kernels if end <= start + CLOCK_US}
            self.events[k].after |= set(last.values())

    def by_tensors(self, ops: Sequence[_Op], of: Mapping[Any, Access]) -> list[str]:
        """Dependencies by the storages that ops read and wrote; a sentence on what is left out."""
        times = Counter(op.key for op in ops)  # a profiler without an observer numbers all of them 0
        known = [op for op in ops if times[op.key] == 1 and op.key in of and of[op.key].is_of(op.name)]
        if not known:
            raise FormatError(
                "the execution trace has none of the trace's ops (by record function id and name): it is of another run; "
                "give the profiler execution_trace_observer="
            )
        notes = [
            "what depends on what comes from the tensors of the execution trace; the order in which a host submits is not kept"
        ]
        if len(known) < len(ops):
            notes.append(
                f"{len(ops) - len(known)} of {len(ops)} ops are not in the execution trace, and wait only for launches"
            )
        does = {k: of[op.key] for op in known for k in self.doers(op)}
        notes += storage_dependencies(self.events, does)
        return notes

    def doers(self, op: _Op) -> list[int]:
        """The events that touch an op's tensors: its kernels, or its only part on the host."""
        return self.of_op[id(op)] or [self.first[id(op)]]


def _op(row: Mapping[str, Any]) -> _Op:
    start, end = _times(row)
    said = row.get("args") if isinstance(row.get("args"), Mapping) else {}
    key = said.get("Record function id")  # type: ignore[union-attr]
    dims, types = said.get("Input Dims"), said.get("Input type")  # type: ignore[union-attr]
    thread = f"cpu/thread {row.get('tid')!s:.40}"
    return _Op(
        str(row.get("name")), thread, start, end, key if isinstance(key, (int, str)) else None, _largest(dims, types)
    )


def _largest(dims: Any, types: Any) -> int:
    """Bytes of the largest input."""
    if not isinstance(dims, list) or not isinstance(types, list):
        return 0
    sizes = [0]
    for shape, kind in zip(dims, types, strict=False):
        if (
            isinstance(shape, list)
            and shape
            and all(type(x) is int and 0 <= x < 2**40 for x in shape)
            and len(shape) < 10
        ):
            sizes.append(prod(shape) * _WIDTH.get(kind, 0) if isinstance(kind, str) else 0)
    return min(max(sizes), 2**50)


def _times(row: Mapping[str, Any]) -> tuple[float, float]:
    start, length = row.get("ts"), row.get("dur", 0)
    for key, value in (("ts", start), ("dur", length)):
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not -1e15 < value < 1e15
            or (value < 0 and key == "dur")
        ):
            raise FormatError(
                f"event {row.get('name')!r:.60}: {key} is {value!r:.60}; it must be a number of microseconds"
            )
    return float(start), float(start) + float(length)  # type: ignore[arg-type]


def _outermost(ops: list[_Op]) -> list[_Op]:
    """Per thread, the ops that lie in no other one; wrappers (names without `::`, or autograd's) do not count."""
    real = [
        op for op in ops if "::" in op.name and not op.name.startswith(("autograd::", "torch::autograd", "profiler::"))
    ]
    real.sort(key=lambda op: (op.start, -op.end))
    ends: dict[str, float] = {}
    found = []
    for op in real:
        if op.end > ends.get(op.thread, float("-inf")):
            found.append(op)
            ends[op.thread] = op.end
    return found


def _cut(ops: list[_Op], runtime: list[Mapping[str, Any]], on_device: bool) -> None:
    """Give each op the calls of the runtime within it; calls outside of any op become ops of their own."""
    if not on_device:
        return
    by_thread: dict[str, list[_Op]] = {}
    for op in ops:
        by_thread.setdefault(op.thread, []).append(op)
    alone = []
    for row in sorted(runtime, key=lambda r: _times(r)[0]):
        start, end = _times(row)
        waits = "Synchronize" in str(row.get("name"))
        cut = _Cut(start, end, _correlation(row), waits)
        thread = f"cpu/thread {row.get('tid')!s:.40}"
        home = _holding(by_thread.get(thread, []), start)
        if home is None:
            home = _Op(str(row.get("name")), thread, start, end, None)
            alone.append(home)
        home.cuts.append(cut)
    ops += alone


def _holding(ops: list[_Op], start: float) -> _Op | None:
    """The op (of a list by start) within which that moment lies."""
    from bisect import bisect_right

    k = bisect_right(ops, start, key=lambda op: op.start) - 1
    return ops[k] if k >= 0 and ops[k].end >= start else None
