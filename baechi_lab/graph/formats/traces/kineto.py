"""Kineto traces: the Chrome traces that `torch.profiler` exports, with or without an execution trace.

    cpu_op              the outermost ATen (or other library's) op on a thread is one op; wrappers of autograd and optimizers
                        are looked into
    kernel, gpu_memcpy, one op each, on the lane of device and stream, after the part of the op on the host that launched
    gpu_memset          it (`correlation`); its op on the host is cut there, and where it waits for the device
    ProfilerStep#       where the profiler marked several steps, one of them is read (see `kineto_rows`)
    earlier steps       a device that still works on them when a step is launched keeps that step waiting; this time is left
                        out (see `backlog`)
    dependencies        from the execution trace (see `execution_trace`): an op reads the storages that others wrote;
                        without it from the order on threads and streams (see `inference`)

A host's ops stay on devices of kind "cpu" where the trace has kernels, and kernels on those of kind "gpu".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from ....errors import FormatError, in_short
from .backlog import blocked_until, leave_out_backlog
from .execution_trace import Access, join, storage_dependencies, with_inner_accesses
from .inference import infer_dependencies
from .kineto_rows import KERNELS, RUNTIME, Row, one_step, repetitions, rows_of
from .recording import CLOCK_US, Event, Recording, recording

_WIDTH = {
    "float": 4,
    "double": 8,
    "int": 4,
    "unsigned int": 4,
    "long": 8,
    "long int": 8,
    "long long": 8,
    "long unsigned int": 8,
    "unsigned long": 8,
    "unsigned long long": 8,
    "short": 2,
    "short int": 2,
    "short unsigned int": 2,
    "unsigned short": 2,
    "bool": 1,
    "signed char": 1,
    "unsigned char": 1,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "c10::Float4_e2m1fn_x2": 1,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e4m3fnuz": 1,
    "c10::Float8_e5m2": 1,
    "c10::Float8_e5m2fnuz": 1,
    "c10::Float8_e8m0fnu": 1,
    "c10::complex<c10::Half>": 4,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
    "c10::bits1x8": 1,
    "c10::bits2x4": 1,
    "c10::bits4x2": 1,
    "c10::bits8": 1,
    "c10::bits16": 2,
    "c10::qint8": 1,
    "c10::quint8": 1,
    "c10::quint2x4": 1,
    "c10::quint4x2": 1,
    "c10::qint32": 4,
}
"""Bytes of an element by the name of its type, as the compilers of PyTorch's builds write it."""
_UNKNOWN_WIDTH = 4
"""Bytes of an element whose type the trace does not say, such as those of a list of tensors."""
_ROUNDING = 0.2
"""Kernels of one stream that overlap by up to this share of the shorter one ran one after the other."""


@dataclass(eq=False)
class _Op:
    """An op on the host, or a call of the runtime outside of all ops; `row` is the row of an op."""

    name: str
    thread: str
    start_us: float
    end_us: float
    row: Row | None = None
    input_bytes: int = 0
    has_untyped_input: bool = False
    cuts: list[_Cut] = field(default_factory=list)


@dataclass
class _Cut:
    """A time at which the host launches a kernel (`correlation`), waits for the device from `start` to `end`, or both."""

    start_us: float
    end_us: float
    correlation: int | str | None
    launches: bool
    waits: bool


def looks_like_kineto(document: object) -> bool:
    """Whether this parsed JSON is a Chrome trace."""
    return isinstance(document, Mapping) and "traceEvents" in document


def graph_from_kineto(document: Mapping[str, object], tensors: Mapping[int, Access] | None, name: str) -> Recording:
    """Makes the recording of a parsed trace; `tensors` are the accesses of its execution trace, if there is one.

    Raises:
        FormatError: the trace has another version, fields of the wrong type, no ops, or an execution trace of another run.
    """
    if document.get("schemaVersion", 1) != 1:
        raise FormatError(f"field schemaVersion is {in_short(document['schemaVersion'])}; version 1 is read")
    rows = rows_of(document)
    step = one_step(rows)
    ops = _outermost([_op(row) for row in step.host if row.category == "cpu_op"])
    if not ops and not step.kernels:
        outside = sum(row.category == "cpu_op" for row in rows)
        if outside:
            raise FormatError(
                f"the step that prof.step() marks has no op of PyTorch: all {outside} of the trace lie outside; trace a "
                "whole step"
            )
        raise FormatError(
            "the trace has no op of PyTorch (category cpu_op): record it with torch.profiler; of a step of TensorFlow, give "
            "the RunMetadata and not the timeline that was made from it"
        )
    # A kernel of a stream ends before the next begins: coarse clocks make them overlap. Kernels that lie within another
    # one, or overlap by more, ran in parallel (branches of a CUDA graph).
    last: dict[str, Row] = {}
    for row in sorted(step.kernels, key=lambda row: (row.start_us, row.end_us)):
        lane = _lane(row)
        before = last.get(lane)
        if before is not None and row.start_us < before.end_us <= row.end_us:
            overlap = before.end_us - row.start_us
            if overlap <= max(CLOCK_US, _ROUNDING * min(before.end_us - before.start_us, row.end_us - row.start_us)):
                before.end_us = max(before.start_us, row.start_us)
        if before is None or row.end_us >= before.end_us:
            last[lane] = row
    if step.kernels:
        copies = [row for row in step.kernels if row.category != "kernel" and row.correlation is not None]
        copy_ends = {row.correlation: row.end_us for row in copies}
        _assign_runtime_calls(ops, [row for row in step.host if row.category in RUNTIME], copy_ends)
    builder = _EventBuilder(bool(step.kernels))
    for op in ops:
        builder.host(op)
    for row in step.kernels:
        builder.kernel(row)
    builder.wait_for_device()
    calls = {row.correlation: row.end_us for row in rows if row.category in RUNTIME and row.correlation is not None}
    latencies = [
        row.start_us - calls[row.correlation] for row in rows if row.category in KERNELS and row.correlation in calls
    ]
    other_kernels = [(_lane(row), row.end_us) for row in step.other_kernels]
    block_end_us = blocked_until(builder.events, builder.waits, other_kernels)
    if tensors is not None:
        notes = builder.by_tensors(ops, rows, tensors)
    else:
        sizes = [builder.input_bytes.get(k, 0) for k in range(len(builder.events))]
        notes = [infer_dependencies(builder.events, sizes, block_end_us)]
        if untyped_count := sum(op.has_untyped_input for op in ops):
            notes.append(
                f"the trace does not say the type of the largest input of {untyped_count} of {len(ops)} ops, such as lists of "
                f"tensors: {_UNKNOWN_WIDTH} bytes are counted for each of its elements"
            )
    backlog = leave_out_backlog(
        builder.events, builder.launch_of, block_end_us, other_kernels, max(min(latencies, default=0.0), 0.0)
    )
    unlaunched_count = len(step.kernels) - len(builder.launch_of)
    if ops and unlaunched_count:
        notes.append(
            f"{unlaunched_count} of {len(step.kernels)} ops on devices have no launch in the trace (a call of the runtime with "
            "their correlation): they do not wait for the op that launched them"
        )
    notes = [*step.notes, *([] if step.is_marked else _repeated_steps(ops, rows)), *backlog, *notes]
    return recording(builder.events, name, notes)


def _repeated_steps(ops: Sequence[_Op], rows: Sequence[Row]) -> list[str]:
    """Returns a sentence if the ops of the busiest thread, the kernels or an optimizer's calls repeat as in several steps."""
    names_of_thread: dict[str, list[str]] = {}
    for op in sorted(ops, key=lambda op: op.start_us):
        names_of_thread.setdefault(op.thread, []).append(op.name)
    busiest = max(names_of_thread.values(), key=len, default=[])
    kernels = [row.name for row in sorted(rows, key=lambda row: row.start_us) if row.category in KERNELS]
    updates = Counter(row.name for row in rows if row.name.startswith("Optimizer.step#"))
    count = max(repetitions(busiest), repetitions(kernels), *updates.values())
    if count == 1:
        return []
    return [
        f"no steps are marked, and ops repeat {count} times: if these are several steps, all of them are read as one; "
        "torch.profiler.profile(schedule=...) and its step() after each step mark them"
    ]


def _lane(row: Row) -> str:
    return f"gpu:{row.args.get('device')}/stream {row.args.get('stream')}"


class _EventBuilder:
    """Makes the events, and records the op and the launch of each."""

    def __init__(self, on_device: bool):
        self.events: list[Event] = []
        self.on_device = on_device
        self.first: dict[int, int] = {}  # op (by id) -> its first event on the host
        self.launches: dict[object, tuple[int, _Op]] = {}
        self.launch_of: dict[int, int] = {}  # event on a device -> the event on the host that launched it
        self.of_op: dict[int, list[int]] = {}
        self.waits: list[tuple[float, int]] = []
        self.input_bytes: dict[int, int] = {}

    def host(self, op: _Op) -> None:
        """Adds the parts of an op on the host, one after the other."""
        start, before, pending = op.start_us, -1, False
        self.of_op[id(op)] = []
        for cut in [*sorted(op.cuts, key=lambda c: c.start_us), None]:
            end = op.end_us if cut is None else min(max(start, cut.start_us if cut.waits else cut.end_us), op.end_us)
            # A call that launches and waits, such as a blocking copy, has launched as soon as it begins.
            if cut is None and before >= 0 and end - start < CLOCK_US / 10 and not pending:
                break
            k = self._add(Event(op.name, op.name, op.thread, start, end, "cpu", keeps_device=self.on_device))
            self.input_bytes[k] = op.input_bytes
            if before >= 0:
                self.events[k].after.add(before)
            if pending:
                self.waits.append((start, k))
            if cut is not None and cut.launches:
                self.launches[cut.correlation] = (k, op)
            start = end if cut is None or not cut.waits else min(max(end, cut.end_us), op.end_us)
            before, pending = k, cut is not None and cut.waits
            self.first.setdefault(id(op), k)

    def _add(self, event: Event) -> int:
        self.events.append(event)
        return len(self.events) - 1

    def kernel(self, row: Row) -> None:
        """Adds an event on a stream, after the part of the op that launched it."""
        k = self._add(Event(row.name, row.category, _lane(row), row.start_us, row.end_us, "gpu", keeps_device=True))
        if row.correlation is None or row.correlation not in self.launches:
            return
        launch, op = self.launches[row.correlation]
        event = self.events[launch]
        if event.end_us > row.start_us:  # the device began before the call returned
            event.end_us = max(event.start_us, row.start_us)
        self.events[k].after.add(launch)
        self.launch_of[k] = launch
        self.of_op[id(op)].append(k)
        self.input_bytes[k] = op.input_bytes

    def wait_for_device(self) -> None:
        """Makes events of the host that waited for a device depend on the last kernels of each stream before their end."""
        kernels = sorted((e.end_us, k) for k, e in enumerate(self.events) if e.kind == "gpu")
        for start, k in self.waits:
            last = {self.events[j].lane: j for end, j in kernels if end <= start + CLOCK_US}
            self.events[k].after |= set(last.values())

    def by_tensors(self, ops: Sequence[_Op], rows: Sequence[Row], of: Mapping[int, Access]) -> list[str]:
        """Sets dependencies by the storages that ops read and wrote; returns sentences on omissions."""
        op_rows = [op.row for op in ops if op.row is not None]
        host_rows = [row for row in rows if row.category == "cpu_op"]
        access, notes = join(host_rows, op_rows, of)
        access = with_inner_accesses(op_rows, host_rows, access)
        with_access = [op for op in ops if op.row is not None and id(op.row) in access]
        notes.append(
            "what depends on what comes from the tensors of the execution trace; the order in which a host submits is not kept"
        )
        if len(with_access) < len(ops):
            notes.append(
                f"{len(ops) - len(with_access)} of {len(ops)} ops are not in the execution trace, and wait only for launches"
            )
        does = {k: access[id(op.row)] for op in with_access for k in (self.of_op[id(op)] or [self.first[id(op)]])}
        return notes + storage_dependencies(self.events, does)


def _op(row: Row) -> _Op:
    """Returns the op of a row, with the bytes of its largest input."""
    dims, types = row.args.get("Input Dims"), row.args.get("Input type")
    largest, is_untyped = 0, False
    if isinstance(dims, list) and isinstance(types, list):
        for shape, kind in zip(dims, types, strict=False):
            width = _WIDTH.get(kind) if isinstance(kind, str) else None
            size = _elements(shape) * (width or _UNKNOWN_WIDTH)
            if size > largest:
                largest, is_untyped = size, width is None
    return _Op(row.name, row.thread, row.start_us, row.end_us, row, min(largest, 2**50), is_untyped)


def _elements(shape: object) -> int:
    """Returns the number of elements of a tensor, or of the largest tensor of a list; 0 for a scalar or anything else.

    >>> _elements([8, 4]), _elements([[8, 4], [2]]), _elements([])
    (32, 32, 0)
    """
    if not isinstance(shape, list):
        return 0
    shapes = shape if all(isinstance(entry, list) for entry in shape) else [shape]
    sizes = [prod(one) for one in shapes if 0 < len(one) < 10 and all(type(x) is int and 0 <= x < 2**40 for x in one)]
    return max(sizes, default=0)


def _outermost(ops: list[_Op]) -> list[_Op]:
    """Returns the ops of each thread that lie in no other op, apart from wrappers (names without `::`, or autograd's)."""
    real = [
        op for op in ops if "::" in op.name and not op.name.startswith(("autograd::", "torch::autograd", "profiler::"))
    ]
    real.sort(key=lambda op: (op.start_us, -op.end_us))
    end_of: dict[str, float] = {}
    outermost = []
    for op in real:
        if op.end_us > end_of.get(op.thread, float("-inf")):
            outermost.append(op)
            end_of[op.thread] = op.end_us
    return outermost


def _assign_runtime_calls(ops: list[_Op], runtime: Sequence[Row], copy_ends: Mapping[int | str | None, float]) -> None:
    """Assigns calls of the runtime to the ops around them; calls outside of all ops become ops.

    `copy_ends`: when each copy ended on its device. The host waited for a copy that ended within its call.
    """
    by_thread: dict[str, list[_Op]] = {}
    for op in ops:
        by_thread.setdefault(op.thread, []).append(op)
    alone = []
    for row in sorted(runtime, key=lambda row: row.start_us):
        synchronizes = "Synchronize" in row.name
        blocks = "Memcpy" in row.name and copy_ends.get(row.correlation, float("inf")) <= row.end_us + CLOCK_US
        cut = _Cut(row.start_us, row.end_us, row.correlation, not synchronizes, synchronizes or blocks)
        enclosing_op = _holding(by_thread.get(row.thread, []), row.start_us)
        if enclosing_op is None:
            enclosing_op = _Op(row.name, row.thread, row.start_us, row.end_us)
            alone.append(enclosing_op)
        enclosing_op.cuts.append(cut)
    ops += alone


def _holding(ops: list[_Op], start: float) -> _Op | None:
    """Returns the op, of a list sorted by start, that contains the time `start`; None if there is none."""
    from bisect import bisect_right

    k = bisect_right(ops, start, key=lambda op: op.start_us) - 1
    return ops[k] if k >= 0 and ops[k].end_us >= start else None
