"""Task graphs of the Standard Task Graph Set (Tobita and Kasahara, 2002, DOI 10.1002/jos.116).

First line: the number of tasks (and, in graphs with communication costs, the number of processors aimed at); then one
line per task: its number, processing time, number of predecessors, and the predecessors. Communication costs follow
their predecessor, on the same line (`p c p c ...`) or on a line of their own (`p c`). `#` begins a comment. The entry
and exit dummies are tasks like any other.

One unit of processing time becomes 1 us. A communication cost becomes that many bytes, so that the link
`Link(0, 1)` charges one microsecond per unit; without costs an edge is a control dependency of 4 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...errors import DuplicateNameError, FormatError, UnknownOpError, in_short
from ..opgraph import CONTROL_BYTES, OpGraph

_Number = int | float
_Line = tuple[int, list[_Number]]
"""A line's number in the file, from 1, and the numbers on it."""


@dataclass
class _Task:
    line: int
    number: int
    time: _Number
    inputs: list[tuple[int, int]] = field(default_factory=list)


def graph_from_stg(text: str, name: str) -> OpGraph:
    """Returns the graph of a file's text; ops are named `task<number>`.

    Raises `FormatError` naming the line, `DuplicateNameError`, `UnknownOpError`, `CycleError`.

    >>> graph_from_stg("1\\n0 0 0\\n1 7 1 0\\n2 0 1 1\\n", "tiny").duration_us.tolist()
    [0.0, 7.0, 0.0]
    """
    lines = _numbered_lines(text)
    first_line = next(lines, None)
    if first_line is None:
        raise FormatError("the file is empty; its first line must hold the number of tasks")
    header_line, header = first_line
    if len(header) not in (1, 2):
        raise FormatError(f"line {header_line} has {len(header)} numbers; the first line must hold the number of tasks")
    tasks = []
    for number, values in lines:
        if len(values) < 3:
            raise FormatError(f"line {number} has {len(values)} numbers; a task has number, time, predecessors, ...")
        count = _whole_number(values[2], number, "number of predecessors")
        task = _Task(number, _whole_number(values[0], number, "task number"), values[1])
        predecessor_values = values[3:]
        if not predecessor_values and count:
            # `count` lines of predecessor and cost.
            numbers: list[_Number] = []
            for _ in range(count):
                line = next(lines, None)
                if line is None or len(line[1]) != 2:
                    place = "at the end of the file" if line is None else f"on line {line[0]}"
                    raise FormatError(
                        f"task {task.number} (line {task.line}): a predecessor and its cost are expected {place}"
                    )
                numbers += line[1]
            predecessor_values = numbers
        if len(predecessor_values) == count:
            task.inputs = [(_whole_number(p, number, "predecessor"), CONTROL_BYTES) for p in predecessor_values]
        elif len(predecessor_values) == 2 * count:
            task.inputs = [
                (_whole_number(p, number, "predecessor"), _whole_number(c, number, "communication cost"))
                for p, c in zip(predecessor_values[::2], predecessor_values[1::2], strict=True)
            ]
        else:
            raise FormatError(
                f"line {number}: task {task.number} announces {count} predecessors and lists {len(predecessor_values)} numbers; "
                f"it must list {count}, or {2 * count} with communication costs"
            )
        tasks.append(task)
    task_count = _whole_number(header[0], header_line, "number of tasks")
    has_dummies = bool(tasks) and tasks[0].time == 0 and len(header) != 2
    expected = [task_count + 2] if has_dummies else [task_count, task_count + 2]
    if len(tasks) not in expected:
        raise FormatError(
            f"the first line announces {task_count} tasks (and two dummies); "
            f"the file has {len(tasks)} task lines: is it truncated?"
        )
    index = {task.number: k for k, task in enumerate(tasks)}
    if len(index) != len(tasks):
        twice = next(t for k, t in enumerate(tasks) if index[t.number] != k)
        raise DuplicateNameError(f"task {twice.number} (line {twice.line}) appears more than once")
    edges = []
    for k, task in enumerate(tasks):
        for predecessor, size in task.inputs:
            if predecessor not in index:
                raise UnknownOpError(
                    f"line {task.line}: task {task.number} names predecessor {predecessor}, which is no task"
                )
            edges.append((index[predecessor], k, size))
    return OpGraph.from_edges([t.time for t in tasks], edges, names=[f"task{t.number}" for t in tasks], name=name)


def _numbered_lines(text: str) -> Iterator[_Line]:
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#", 1)[0].split()
        if words:
            try:
                yield number, [_number(w) for w in words]
            except (ValueError, OverflowError):
                raise FormatError(f"line {number}: {line.strip()[:60]!r} must hold numbers only") from None


def _number(word: str) -> _Number:
    """Returns an integer as it stands, however large; everything else as float64."""
    if "_" in word:  # Python reads 1_0 as 10
        raise ValueError(word)
    try:
        value = int(word)
    except ValueError:
        return float(word)
    float(value)  # what float64 cannot hold is refused here
    return value


def _whole_number(value: _Number, line: int, meaning: str) -> int:
    if not float(value).is_integer() or value < 0:
        raise FormatError(f"line {line}: {meaning} is {in_short(value)}; it must be a whole number of at least 0")
    return int(value)
