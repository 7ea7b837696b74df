"""The rows of a Kineto trace: complete events by category, on one clock, and those of one step of the training loop.

PyTorch up to 2.3 counts microseconds since 1970, later versions since `baseTimeNanoseconds`; here the first row of the trace
is at 0. Versions before 1.10 name categories "Operator" (also of marks of steps), "Runtime", "Kernel", "Memcpy" and "Memset".
A pair of a "B" and an "E" event is one row. `EventList.export_chrome_trace` (of `torch.autograd.profiler`, or of `events()` of a
profiler) writes no categories: there, all rows of the process "CPU functions" are ops, if nothing ran on another device.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ....errors import FormatError, in_short

KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
RUNTIME = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "privateuse1_runtime", "runtime")
_OLD_NAMES = {
    "Operator": "cpu_op",
    "Runtime": "cuda_runtime",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
}
_ANNOTATION = "user_annotation"
_EVENT_LIST_PROCESS = "CPU functions"
_READ_CATEGORIES = ("cpu_op", _ANNOTATION, *KERNELS, *RUNTIME)
LATEST_US = 1e16
"""Largest time in microseconds since 1970: the year 2286. Times in nanoseconds are larger."""
_SIMILAR = 0.1
"""Largest relative difference in the number of ops between steps of one kind."""


@dataclass(eq=False)
class Row:
    """A complete event; times are since the first row."""

    name: str
    category: str
    thread: str
    start_us: float
    end_us: float
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def correlation(self) -> int | str | None:
        """The number that a launch and its kernels have in common; None also for 0, by which profilers say that there is none."""
        value = self.args.get("correlation")
        if isinstance(value, str):
            value = int(value) if value.isdecimal() and len(value) < 20 else value
        elif isinstance(value, float):
            value = int(value) if value.is_integer() else None
        return (value or None) if isinstance(value, (int, str)) else None


@dataclass(frozen=True)
class Step:
    """The rows of one step: those of the host, those of devices, and those of other steps on devices.

    `is_marked` is False if the profiler marked no steps, so that these are all rows.
    """

    host: list[Row]
    kernels: list[Row]
    other_kernels: list[Row]
    notes: list[str]
    is_marked: bool = True


def rows_of(document: Mapping[str, object]) -> list[Row]:
    """Returns the rows of the categories that are read, in the order of the file.

    Raises:
        FormatError: `traceEvents` is no list, a time is no number of microseconds, or ops cannot be told from kernels.
    """
    entries = document.get("traceEvents")
    if not isinstance(entries, list):
        raise FormatError(f"field traceEvents is {type(entries).__name__}; it must be a list")
    if any(isinstance(entry, Mapping) and str(entry.get("cat")).startswith("cpu_to_") for entry in entries):
        raise FormatError(
            "the list of a profiler's events does not tell ops from kernels of devices: export the trace by "
            "torch.profiler.profile and its export_chrome_trace"
        )
    rows = [_row(entry) for entry in _complete_events(entry for entry in entries if isinstance(entry, Mapping))]
    first = min((row.start_us for row in rows), default=0.0)
    for row in rows:
        row.start_us, row.end_us = float(row.start_us - first), float(row.end_us - first)
    return rows


def _complete_events(entries: Iterator[Mapping[str, object]]) -> Iterator[Mapping[str, object]]:
    """Yields the entries of the categories that are read, each with a duration; entries without an end are left out."""
    open_entries: dict[tuple[object, object], list[Mapping[str, object]]] = {}
    for entry in entries:
        phase, lane = entry.get("ph"), (str(entry.get("pid")), str(entry.get("tid")))
        if phase == "X" and _category(entry) in _READ_CATEGORIES:
            yield entry
        elif phase == "B":
            open_entries.setdefault(lane, []).append(entry)
        elif phase == "E" and open_entries.get(lane):
            start_entry = open_entries[lane].pop()
            if _category(start_entry) in _READ_CATEGORIES:
                arguments = {**_args(start_entry), **_args(entry)}
                duration = _time(entry, "ts") - _time(start_entry, "ts")
                yield {**start_entry, "ph": "X", "dur": duration, "args": arguments}


def _category(entry: Mapping[str, object]) -> str:
    if "cat" not in entry and entry.get("pid") == _EVENT_LIST_PROCESS:
        return _ANNOTATION if str(entry.get("name")).startswith("ProfilerStep") else "cpu_op"
    category = str(entry.get("cat"))
    if category == "Operator" and str(entry.get("name")).startswith("ProfilerStep#"):
        return _ANNOTATION
    return _OLD_NAMES.get(category, category)


def _args(entry: Mapping[str, object]) -> Mapping[str, object]:
    args = entry.get("args")
    return args if isinstance(args, Mapping) else {}


def _row(entry: Mapping[str, object]) -> Row:
    start, duration = _time(entry, "ts"), _time(entry, "dur") if "dur" in entry else 0
    return Row(
        name=str(entry.get("name")),
        category=_category(entry),
        thread=f"cpu/thread {entry.get('tid')!s:.40}",
        start_us=start,
        end_us=start + duration,
        args=_args(entry),
    )


def _time(entry: Mapping[str, object], key: str) -> float:
    """Reads a number of microseconds, which some writers store as text."""
    value = entry.get(key)
    number = value
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            number = None
    in_range = isinstance(number, (int, float)) and not isinstance(number, bool) and -LATEST_US < number < LATEST_US
    if not in_range or (key == "dur" and number < 0):  # type: ignore[operator]
        raise FormatError(
            f"event {in_short(entry.get('name'))}: {key} is {in_short(value)}; it must be a number of microseconds"
            f"{', 0 or more' if key == 'dur' else ''}, below {LATEST_US:g}"
        )
    return number  # type: ignore[return-value]


# -- steps ---------------------------------------------------------------------------------------------


def one_step(rows: Sequence[Row]) -> Step:
    """Returns the rows of one step, if the profiler marked steps: the last one with a usual number of ops and kernels.

    The first step may have ops that run once, and the last step may be cut off.
    """
    marks = [r for r in rows if r.category == _ANNOTATION and r.name.startswith("ProfilerStep#")]
    marks.sort(key=lambda row: (row.start_us, row.end_us))
    every_host = [row for row in rows if row.category in ("cpu_op", *RUNTIME)]
    every_kernel = [row for row in rows if row.category in KERNELS]
    if not marks:
        return Step(every_host, every_kernel, [], [], is_marked=False)
    host: list[list[Row]] = [[] for _ in marks]
    for row in every_host:
        k = bisect_right(marks, row.start_us, key=lambda mark: mark.start_us) - 1
        if k >= 0 and row.start_us < marks[k].end_us:
            host[k].append(row)
    kernels = _kernels_of(host, every_host, every_kernel, marks)
    step_index = _usual_step(
        [sum(r.category == "cpu_op" for r in step) for step in host], [len(step) for step in kernels]
    )
    kernel_ids = set(map(id, kernels[step_index]))
    other_kernels = [row for row in every_kernel if id(row) not in kernel_ids]
    notes = [f"the trace holds {len(marks)} steps, of which {marks[step_index].name} is read"] if len(marks) > 1 else []
    return Step(host[step_index], kernels[step_index], other_kernels, notes)


def repetitions(names: Sequence[str]) -> int:
    """Returns how often a sequence repeats, apart from a beginning of at most 40 %; 1 if it does not.

    >>> repetitions(["init", *"abc", *"abc", *"abc"]), repetitions("abcabcde"), repetitions("ab")
    (3, 1, 1)
    """
    backwards = list(reversed(names))
    border = [0] * (len(names) + 1)  # of the first k names: length of the longest proper prefix that is a suffix
    result = 1
    for k in range(1, len(names)):
        shorter = border[k]
        while shorter and backwards[shorter] != backwards[k]:
            shorter = border[shorter]
        border[k + 1] = shorter + (backwards[shorter] == backwards[k])
        period = k + 1 - border[k + 1]
        if 2 * period <= k + 1 and k + 1 >= 0.6 * len(names):
            result = max(round(len(names) / period), 2)
    return result


def _kernels_of(host: list[list[Row]], every_host: list[Row], kernels: list[Row], marks: list[Row]) -> list[list[Row]]:
    """Returns the kernels that each step launched; one without a launch is assigned by its op (`External id`) or its time."""
    step_of_launch = {row.correlation: k for k, step in enumerate(host) for row in step if row.category in RUNTIME}
    launches = {row.correlation for row in every_host if row.category in RUNTIME} - {None}
    step_of_op = {
        row.args["External id"]: k
        for k, step in enumerate(host)
        for row in step
        if row.category == "cpu_op" and isinstance(row.args.get("External id"), (int, str))
    }
    kernels_by_step: list[list[Row]] = [[] for _ in marks]
    for row in kernels:
        k = step_of_launch.get(row.correlation) if row.correlation in launches else None
        external = row.args.get("External id")
        if row.correlation not in launches:
            k = step_of_op.get(external) if isinstance(external, (int, str)) else None
            if k is None:
                k = bisect_right(marks, row.start_us, key=lambda mark: mark.start_us) - 1
                k = k if k >= 0 and row.start_us < marks[k].end_us and not launches else None
        if k is not None:
            kernels_by_step[k].append(row)
    return kernels_by_step


def _usual_step(ops: list[int], kernels: list[int]) -> int:
    """Returns the last step with about the median number of ops and no fewer kernels; else the last with most ops.

    >>> _usual_step([900, 500, 500, 500], [800, 400, 400, 100])
    2
    """
    steps_with_ops = [k for k, count in enumerate(ops) if count] or list(range(len(ops)))
    usual_ops, usual_kernels = (median(counts[k] for k in steps_with_ops) for counts in (ops, kernels))
    similar = [
        k
        for k in steps_with_ops
        if abs(ops[k] - usual_ops) <= _SIMILAR * usual_ops and kernels[k] >= (1 - _SIMILAR) * usual_kernels
    ]
    return max(similar) if similar else max(steps_with_ops, key=lambda k: (ops[k], kernels[k], k))
