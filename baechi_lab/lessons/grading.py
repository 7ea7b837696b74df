"""Grades notebooks. Each runs in a process of its own, with a time limit and without network; this process checks its answers.

The grade of exercises is the number of right answers. The grade of homework is the gap between its simulated step and the bound
of its instance, which some placement reaches (`bl.generators.homework`). A notebook that cannot be graded gets one sentence.
"""

from __future__ import annotations

import base64
import inspect
import json
import math
import os
import pickle
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError, InvalidInput
from ..graph import Cluster, OpGraph, Placement
from ..graph.generators import homework
from ..simulator import simulate
from ..simulator.bounds.bounds import bounds
from ..workers.isolated import isolated_command
from ..workers.network import CREATE_NETWORK
from . import LESSONS, lesson
from .exercise import SECONDS, TooLong, devices_of
from .submission import Submission, read_submission
from .worst_cases import Instance

MODULE = "baechi_lab.lessons.notebook_process"
START_SECONDS = 60.0  # within which a process for a notebook must have started
LAST_STUDENT = 10**12  # largest number of a student
MOST_REPLY_BYTES = 1 << 24
"""Most bytes that a notebook's process may answer."""
PARAMETER_KINDS = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY,
    inspect.Parameter.VAR_KEYWORD,
)


@dataclass(frozen=True)
class Grade:
    """The grade of one notebook.

    - `right`, `exercises`: the number of right answers and of exercises of a lesson; 0 and 0 for homework.
    - `student`, `step_us`, `bound_us`, `gap` (a share, 0 at the optimum): of homework, else None.
    - `remarks`: sentences on missing or wrong answers, and on tampering.
    """

    file: str
    lesson: str | None = None
    right: int = 0
    exercises: int = 0
    student: int | None = None
    step_us: float | None = None
    bound_us: float | None = None
    gap: float | None = None
    remarks: tuple[str, ...] = ()

    def remark(self, *sentences: str) -> Grade:
        """Returns the grade with further remarks."""
        return replace(self, remarks=(*self.remarks, *sentences))


def grade_folder(folder: str | os.PathLike[str], seconds: float = 300.0) -> list[Grade]:
    """Grades all notebooks of a folder, in the order of their names.

    Args:
        folder: the folder of the submitted notebooks (`*.ipynb`), which may be in subfolders.
        seconds: the time limit of each notebook, which counts from the start of its process.

    Raises:
        FormatError: the folder does not exist, or has no notebook.
        InvalidInput: `seconds` is not above 0.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        raise InvalidInput(f"seconds is {seconds!r}; it must be a finite number above 0")
    root = Path(folder)
    if not root.is_dir():
        raise FormatError(f"{folder}: no such folder")
    paths = sorted(path for path in root.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
    if not paths:
        raise FormatError(f"{folder} has no notebook (*.ipynb)")
    return with_duplicates([grade_notebook(path, seconds, path.relative_to(root).as_posix()) for path in paths])


def with_duplicates(grades: list[Grade]) -> list[Grade]:
    """Adds a remark if several notebooks name the same student."""
    files: dict[int, list[str]] = {}
    for grade in grades:
        if grade.student is not None:
            files.setdefault(grade.student, []).append(grade.file)
    return [
        grade.remark(f"student {grade.student} is also in {same_student_files[0]}")
        if grade.student is not None
        and (same_student_files := [file for file in files[grade.student] if file != grade.file])
        else grade
        for grade in grades
    ]


def grade_notebook(path: Path, seconds: float = 300.0, name: str | None = None) -> Grade:
    """Grades one notebook."""
    grade = Grade(name or path.name)
    try:
        submission = read_submission(path)
    except FormatError as error:
        return grade.remark(str(error))
    if submission.lesson is not None and submission.lesson not in LESSONS:
        return grade.remark(f"it asks for the lesson {submission.lesson!r}, which there is not")
    if submission.lesson is None and not submission.is_homework:
        return grade.remark("it has neither exercises of a lesson nor homework")
    grade = grade.remark(*(f"{text}; the answers were judged without it" for text in submission.tampering))
    with tempfile.TemporaryDirectory() as folder, NotebookRun(folder, seconds) as run:
        try:
            judged = grade
            values = run.values(submission)
            if submission.lesson is not None:
                checks = lesson(submission.lesson)
                asked_exercises = {exercise for cell in submission.cells for exercise in cell.answers}
                verdicts = {k: checks(k, _answer(values.get(str(k), {"missing": True}), run)) for k in checks.checks}
                unanswered = [k for k, verdict in verdicts.items() if verdict.right is None and k in asked_exercises]
                remarks = [
                    f"exercise {k}: {verdict.message.removeprefix('not yet: ')}"
                    for k, verdict in verdicts.items()
                    if verdict.right is False
                ]
                for word, numbers in (
                    ("not answered", unanswered),
                    ("missing", [k for k in verdicts if k not in asked_exercises]),
                ):
                    if numbers:
                        plural = "s" if len(numbers) > 1 else ""
                        remarks.append(f"exercise{plural} {', '.join(map(str, numbers))}: {word}")
                right = sum(verdict.right is True for verdict in verdicts.values())
                judged = replace(judged, lesson=checks.name, right=right, exercises=len(verdicts)).remark(*remarks)
            if submission.is_homework:
                judged = _with_homework(judged, values.get("student", {}), values.get("placement", {}))
        except (AttributeError, LookupError, TypeError, ValueError):
            # A notebook wrote into the pipe.
            return grade.remark("what its process sent is no answer")
        return replace(judged, remarks=(*grade.remarks, *run.remarks, *judged.remarks[len(grade.remarks) :]))


def _with_homework(grade: Grade, student: Mapping[str, object], answer: Mapping[str, Any]) -> Grade:
    number = student.get("value")
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= LAST_STUDENT:
        return grade.remark("`student` is no student number, a whole number of at least 0")
    graph, cluster = homework(number)
    bound = bounds(graph, cluster).best
    grade = replace(grade, student=number, bound_us=bound)
    devices, order = answer.get("placement", (answer.get("value"), None))
    if devices is None:
        return grade.remark(
            "`placement` is not answered" if answer.get("missing", True) else "`placement` is no placement"
        )
    return _with_simulation(grade, graph, cluster, devices_of(devices, graph, cluster), order)


def _with_simulation(grade: Grade, graph: OpGraph, cluster: Cluster, devices: list[int] | str, order: Any) -> Grade:
    if isinstance(devices, str):
        return grade.remark(f"`placement` cannot be used: {devices}")
    try:
        timeline = simulate(graph, cluster, Placement(device=np.array(devices), order=order))
    except (InvalidInput, TypeError, ValueError) as error:
        return grade.remark(f"`placement` cannot be used: {error}")
    if timeline.violations:
        return grade.remark(f"the placement is not allowed: {timeline.violations[0].message}")
    gap = timeline.makespan_us / (grade.bound_us or timeline.makespan_us) - 1
    # A bound may be rounded up in its last digit.
    return replace(grade, step_us=timeline.makespan_us, gap=max(gap, 0.0))


def _answer(value: Mapping[str, Any], run: NotebookRun) -> object:
    """Returns the answer in the form that a check takes."""
    if value.get("missing"):
        return ...
    if "placement" in value:
        return value["placement"][0]
    if "instance" in value:
        return Instance(**value["instance"])
    if "function" in value:
        return run.function(value["function"], value["parameters"])
    return value["value"] if "value" in value else type(str(value.get("kind")), (), {})()


class NotebookRun:
    """The process of a notebook; it is killed `seconds` after its start, and at the end of the context."""

    def __init__(self, folder: str, seconds: float) -> None:
        self.remarks: list[str] = []
        checkout = Path(__file__).resolve().parents[2]
        for name in ("data", "studies"):
            if (checkout / name).is_dir():
                os.symlink(checkout / name, Path(folder, name))
        notebooks = Path(folder, "notebooks")
        notebooks.mkdir()
        self._folder = str(notebooks)
        self._process = self._start(CREATE_NETWORK)
        if self._next_reply(START_SECONDS) is None:  # the system cannot start a process without network
            self.close()
            self._process = self._start(None)
            self._next_reply(START_SECONDS)
        self.deadline = time.monotonic() + seconds

    def _start(self, network: int | None) -> subprocess.Popen[bytes]:
        self._buffer = b""
        variables = {"PLOTLY_RENDERER": "plotly_mimetype", "MPLBACKEND": "agg", "TF_CPP_MIN_LOG_LEVEL": "2"}
        return subprocess.Popen(
            isolated_command(MODULE, network=network),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
            env={**os.environ, **variables},
            start_new_session=True,
        )

    def values(self, submission: Submission) -> dict[str, Any]:
        """Runs all cells; returns the answers by exercise, and `student` and `placement` of homework."""
        values: dict[str, object] = {}
        errors = []
        homework_names = {"student": "student", "placement": "placement"} if submission.is_homework else {}
        for cell in submission.cells:
            expressions = {str(k): text for k, text in cell.answers.items()} | homework_names
            reply = self.ask({"source": cell.source, "expressions": expressions})
            if reply is None:
                self.remarks.append(f"{self._why_ended(cell.number)}; what follows was not run")
                break
            values.update(reply.get("values", {}))
            if reply.get("error"):
                errors.append(f"cell {cell.number} raises {reply['error']}")
        self.remarks += errors[:1]
        return values

    def _why_ended(self, number: int) -> str:
        return (
            f"cell {number} ended the process"
            if self._remaining() > 0
            else f"cell {number} was running at the time limit"
        )

    def function(self, number: int, parameters: list[tuple[str, int, bool]] | None) -> Callable[..., object]:
        """Returns a function that calls a function of the notebook in the notebook's process."""

        def call(*arguments: object) -> object:
            encoded_arguments = base64.b64encode(pickle.dumps(arguments)).decode()
            reply = self.ask({"call": number, "arguments": encoded_arguments}, 10 * SECONDS)
            if reply is None or reply.get("too_long"):
                raise TooLong
            if "error" in reply:
                raise NotebookError(reply["error"])
            return _answer(reply, self)

        if parameters is not None:
            described = [
                inspect.Parameter(name, PARAMETER_KINDS[kind], default=None if has_default else inspect.Parameter.empty)
                for name, kind, has_default in parameters
            ]
            call.__signature__ = inspect.Signature(described)  # type: ignore[attr-defined]
        return call

    def ask(self, request: Mapping[str, object], seconds: float = math.inf) -> dict[str, Any] | None:
        """Returns the reply to a request; None if the process has ended, or takes too long and is killed."""
        if self._process.stdin is None or self._process.poll() is not None:
            return None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return None
        reply = self._next_reply(min(seconds, self._remaining()))
        if reply is None:
            self._kill()
        return reply

    def _remaining(self) -> float:
        return self.deadline - time.monotonic()

    def _next_reply(self, seconds: float) -> dict[str, object] | None:
        """Returns the next reply of the process; None if none comes in time, or the line is no reply."""
        end = time.monotonic() + seconds
        stream: Any = self._process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if time.monotonic() >= end or not selector.select(max(0.0, end - time.monotonic())):
                    return None
                chunk = os.read(stream.fileno(), 1 << 16)
                if not chunk or len(self._buffer) > MOST_REPLY_BYTES:
                    return None
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        with suppress(ValueError, RecursionError):
            reply = json.loads(line)
            return reply if isinstance(reply, dict) else None
        return None

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Ends the process and all processes that it started."""
        self._kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def __enter__(self) -> NotebookRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NotebookError(Exception):
    """Raised for an error in a student's function."""
