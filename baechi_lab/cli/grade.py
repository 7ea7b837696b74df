"""Grade a folder of notebooks: exercises of the course by right answers, homework by its gap to a bound that can be reached.

Each notebook runs in a process of its own with a time limit, without a network where the system allows that (Linux), and is
judged outside of it: a notebook that replaces the checker changes nothing but its remark. Such a process runs as you, so grade
the notebooks of people whom you would let run programs here, or in a container.
"""

from __future__ import annotations

import argparse
import csv
import io
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..graph.units import format_us
from ..step_summary import gap_in_words
from . import options, output

if TYPE_CHECKING:
    from ..lessons.grading import Grade


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "folder", metavar="FOLDER", help="folder of the notebooks (*.ipynb), which may be in folders of their own"
    )
    parser.add_argument("--seconds", default="300", metavar="S", help="seconds for which each notebook may run (300)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the table (.csv)")


def run(arguments: argparse.Namespace) -> int:
    """Grades, prints, writes."""
    from ..graph.formats.files import write_atomically
    from ..lessons.grading import grade_folder

    options.check_output(arguments.output, (".csv",))
    grades = grade_folder(arguments.folder, options.seconds(arguments.seconds, "--seconds", above_zero=True))
    if arguments.output:
        text = io.StringIO()
        rows = [{**asdict(grade), "remarks": "; ".join(grade.remarks)} for grade in grades]
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(arguments.output, text.getvalue().encode())
    if arguments.json:
        output.print_json([asdict(grade) for grade in grades])
    else:
        output.print_rows(
            ["notebook", "lesson", "right", "student", "step", "bound", "gap"], [_row(grade) for grade in grades]
        )
        for grade in grades:
            for remark in grade.remarks:
                print(f"  {grade.file}: {remark}")
    return 0


def _row(grade: Grade) -> list[str]:
    right = f"{grade.right} of {grade.exercises}" if grade.lesson else "-"
    student = "-" if grade.student is None else str(grade.student)
    step, bound = ("-" if us is None else format_us(us) for us in (grade.step_us, grade.bound_us))
    return [
        grade.file,
        grade.lesson or "-",
        right,
        student,
        step,
        bound,
        "-" if grade.gap is None else gap_in_words(grade.gap),
    ]
