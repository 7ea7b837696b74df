"""Grades notebooks. Each runs in a process of its own, with a time limit and without network; this process checks its answers.

The grade of exercises is the number of right answers. The grade of homework is the gap between its simulated step and the bound
of its instance, which some placement reaches (`bl.generators.homework`). A notebook that cannot be graded gets one sentence.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError, InvalidInput
from ..graph import Placement
from ..graph.generators import homework
from ..graph.units import plural
from ..simulator import simulate
from ..simulator.bounds.bounds import bounds
from . import LESSONS, lesson
from .exercise import devices_of
from .notebook_run import NotebookRun, answer_from
from .submission import read_submission

LAST_STUDENT = 10**12
"""Largest number of a student."""


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
        FormatError: `folder` does not exist, is a file, or has no notebook.
        InvalidInput: `seconds` is not above 0.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        raise InvalidInput(f"seconds is {seconds!r}; it must be a finite number above 0")
    root = Path(folder)
    if not root.is_dir():
        reason = "is a file, not a folder" if root.exists() else "does not exist"
        raise FormatError(f"{folder} {reason}; give the folder of the submitted notebooks (*.ipynb)")
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
            grading = grade
            values = run.values(submission)
            if submission.lesson is not None:
                checks = lesson(submission.lesson)
                asked_exercises = {exercise for cell in submission.cells for exercise in cell.answers}
                verdicts = {
                    k: checks(k, answer_from(values.get(str(k), {"missing": True}), run)) for k in checks.checks
                }
                unanswered_exercises = [
                    k for k, verdict in verdicts.items() if verdict.right is None and k in asked_exercises
                ]
                remarks = [
                    f"exercise {k}: {verdict.complaint}" for k, verdict in verdicts.items() if verdict.right is False
                ]
                for word, numbers in (
                    ("not answered", unanswered_exercises),
                    ("missing", [k for k in verdicts if k not in asked_exercises]),
                ):
                    if numbers:
                        exercises = plural("exercise", len(numbers))
                        remarks.append(f"{exercises} {', '.join(map(str, numbers))}: {word}")
                right = sum(verdict.right is True for verdict in verdicts.values())
                grading = replace(grading, lesson=checks.name, right=right, exercises=len(verdicts)).remark(*remarks)
            if submission.is_homework:
                grading = _with_homework(grading, values.get("student", {}), values.get("placement", {}))
        except (AttributeError, LookupError, TypeError, ValueError):
            # A notebook wrote into the pipe.
            return grade.remark("what its process sent is no answer")
        return replace(grading, remarks=(*grade.remarks, *run.remarks, *grading.remarks[len(grade.remarks) :]))


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
    device_of_op = devices_of(devices, graph, cluster)
    if isinstance(device_of_op, str):
        return grade.remark(f"`placement` cannot be used: {device_of_op}")
    try:
        timeline = simulate(graph, cluster, Placement(device=np.array(device_of_op), order=order))
    except (InvalidInput, TypeError, ValueError) as error:
        return grade.remark(f"`placement` cannot be used: {error}")
    if timeline.violations:
        return grade.remark(f"the placement is not allowed: {timeline.violations[0].message}")
    gap = timeline.makespan_us / (grade.bound_us or timeline.makespan_us) - 1
    # A bound may be rounded up in its last digit.
    return replace(grade, step_us=timeline.makespan_us, gap=max(gap, 0.0))
