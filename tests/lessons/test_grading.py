"""Notebooks are graded: solved ones, unsolved ones, broken ones, and those that replace the checker."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

import baechi_lab as bl
from baechi_lab.cli import main
from baechi_lab.graph.generators.homework import planted_instance
from baechi_lab.lessons import exercise
from baechi_lab.lessons.grading import Grade, grade_folder, grade_notebook, with_duplicates
from baechi_lab.lessons.notebook_process import plain_value
from baechi_lab.lessons.submission import read_submission

COURSE = Path(__file__).resolve().parents[2] / "notebooks"
ANSWERS = {
    1: "bound_us = 25",
    2: "devices = {'v': 0, 'w': 0, 'x': 0, 'y': 1, 'z': 1}",
    3: "percent = 100 * (32 / 29 - 1)",
    4: "def shortest_us(graph, cluster):\n"
    "    from itertools import product\n"
    "    every = product(range(cluster.n), repeat=graph.n)\n"
    "    return min(bl.simulate(graph, cluster, bl.Placement(device=list(d))).makespan_us for d in every)",
}
HEAD = "import baechi_lab as bl\nfrom baechi_lab.lessons import lesson\ncheck = lesson('optimum')"


def write(path, *cells, tags=()):
    each = [
        {"cell_type": "code", "source": source, "metadata": {"tags": list(tags)}, "outputs": []} for source in cells
    ]
    path.write_text(json.dumps({"cells": each, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), encoding="utf-8")
    return path


def exercises(answers=ANSWERS):
    """Cells as those of the course, with answers in place of `...`."""
    names = {1: "bound_us", 2: "devices", 3: "percent", 4: "shortest_us"}
    return [HEAD, *(f"{answers[k]}\ncheck({k}, {names[k]})" for k in answers)]


@pytest.fixture(scope="module")
def solved_course_notebook(tmp_path_factory):
    """`31_exact.ipynb` as a student hands it in: answers stand before the checks, the solutions are still there."""
    notebook = json.loads((COURSE / "31_exact.ipynb").read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if match := re.search(r"^check\((\d), .*$", source, re.MULTILINE):
            cell["source"] = f"{ANSWERS[int(match[1])]}\n\n{match[0]}"
    path = tmp_path_factory.mktemp("course") / "solved.ipynb"
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


@pytest.mark.subprocess
@pytest.mark.slow
def test_a_course_notebook_solved_and_as_it_came(solved_course_notebook):
    grade = grade_notebook(solved_course_notebook)
    assert (grade.lesson, grade.right, grade.exercises, grade.remarks) == ("optimum", 4, 4, ())
    untouched = grade_notebook(COURSE / "31_exact.ipynb")
    assert (untouched.right, untouched.remarks) == (0, ("exercises 1, 2, 3, 4: not answered",))


@pytest.mark.subprocess
@pytest.mark.slow
@pytest.mark.parametrize(
    ("cells", "right", "remarks"),
    [
        (
            exercises({1: "bound_us = 24", 2: ANSWERS[2], 3: "percent = 1 / 0"}),
            1,
            (
                "cell 4 raises ZeroDivisionError: division by zero",
                "exercise 1: that is too small",
                "exercise 3: not answered",
                "exercise 4: missing",
            ),
        ),
        (
            [*exercises()[:2], "import os\nos._exit(0)", *exercises()[2:]],
            1,
            ("cell 3 ended the process; what follows was not run", "exercises 2, 3, 4: not answered"),
        ),
        (
            [HEAD, "class Any:\n    __eq__ = __le__ = lambda *a: True\ncheck(1, Any())"],
            0,
            ("exercise 1: give a number (microseconds), not Any", "exercises 2, 3, 4: missing"),
        ),
    ],
    ids=["wrong", "exit", "always equal"],
)
def test_answers_are_judged_one_by_one(tmp_path, cells, right, remarks):
    grade = grade_notebook(write(tmp_path / "student.ipynb", *cells), seconds=100)
    assert (grade.right, grade.exercises, grade.remarks) == (right, 4, remarks)


@pytest.mark.subprocess
@pytest.mark.slow
def test_a_function_that_does_not_end_costs_its_exercise_only(tmp_path, monkeypatch):
    monkeypatch.setattr(exercise, "SECONDS", 0.25)
    function = "def shortest_us(graph, cluster):\n    while True:\n        pass"
    endless = f"{function}\nif 'graded' in []:\n    check(4, shortest_us)"  # the notebook itself does not wait for it
    grade = grade_notebook(write(tmp_path / "student.ipynb", HEAD, endless, *exercises({3: ANSWERS[3]})[1:]))
    assert grade.right == 1
    assert "has not ended after 0.25 seconds" in " ".join(grade.remarks)


CHEATS = {
    "check = lambda *answer: True": "replaces check",
    "def check(*answer):\n    return True": "replaces check",
    "check.checks = {}": "replaces check.checks",
    "setattr(bl, 'bounds', None)": "replaces a part of bl",
    "from baechi_lab.lessons import exercise\nexercise.number = None": "imports exercise from the checks",
}


@pytest.mark.subprocess
@pytest.mark.slow
def test_whoever_replaces_the_checker_gains_nothing_and_is_told(tmp_path):
    cells = [HEAD, *CHEATS, "check(1, 3)", "check(3, 100 * (32 / 29 - 1))"]
    grade = grade_notebook(write(tmp_path / "student.ipynb", *cells))
    assert grade.right == 1
    for number, remark in enumerate(CHEATS.values(), 2):
        assert f"cell {number} {remark}; the answers were judged without it" in grade.remarks
    assert "exercise 1: that is too small" in grade.remarks


@pytest.mark.subprocess
@pytest.mark.slow
def test_what_is_written_into_the_answers_of_the_process_is_no_answer(tmp_path):
    forged = json.dumps({"error": "", "values": {"1": {"instance": 3}}}).encode() + b"\n"
    lines = ["import os", "for file in range(3, 12):", "    try:", f"        os.write(file, {forged!r})"]
    cell = "\n".join([*lines, "    except OSError:", "        pass"])
    grade = grade_notebook(write(tmp_path / "student.ipynb", *exercises(), cell))
    assert (grade.right, grade.remarks) == (0, ("what its process sent is no answer",))


def homework_cells(student, answer):
    return f"import baechi_lab as bl\nstudent = {student}\ngraph, cluster = bl.generators.homework(student)", answer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("homework")
    _, _, device, start = planted_instance(17)
    optimum = f"placement = bl.Placement(device={device.tolist()}, order={start.tolist()})"
    write(folder / "a.ipynb", *homework_cells(17, optimum))
    write(folder / "b.ipynb", *homework_cells(17, f"placement = {device.tolist()}"))
    write(folder / "c.ipynb", *homework_cells(3, "placement = ..."))
    write(folder / "d.ipynb", *homework_cells(4, "placement = [0] * graph.n"))
    write(folder / "f.ipynb", *homework_cells("'me'", "placement = [0] * 40"))
    (folder / "g.ipynb").write_text("{", encoding="utf-8")
    write(folder / "h.ipynb", "print(1)")
    return folder


@pytest.fixture(scope="module")
def grades(folder):
    return {grade.file: grade for grade in grade_folder(folder)}


@pytest.mark.subprocess
@pytest.mark.slow
def test_homework_is_worth_its_gap_to_a_bound_that_can_be_reached(grades):
    assert (grades["a.ipynb"].student, grades["a.ipynb"].step_us, grades["a.ipynb"].gap) == (17, 60.0, 0.0)
    assert grades["b.ipynb"].gap >= 0
    assert grades["b.ipynb"].remarks == ("student 17 is also in a.ipynb",)


@pytest.mark.subprocess
@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("c.ipynb", "`placement` is not answered"),
        ("d.ipynb", "the placement is not allowed: device gpu:0 exceeds"),
        ("f.ipynb", "`student` is no student number, a whole number of at least 0"),
        ("g.ipynb", "is no notebook that can be read"),
        ("h.ipynb", "it has neither exercises of a lesson nor homework"),
    ],
)
def test_what_cannot_be_graded_gets_a_sentence(grades, file, sentence):
    assert grades[file].gap is None
    assert any(remark.startswith(sentence) for remark in grades[file].remarks)


@pytest.mark.subprocess
@pytest.mark.slow
def test_the_time_limit_counts_from_the_start_of_the_process(tmp_path):
    """It had counted from before: on a busy machine a short limit ended the process before the first cell."""
    path = write(tmp_path / "a.ipynb", "while True:\n    pass", *homework_cells(5, "placement = [0] * graph.n"))
    grade = grade_notebook(path, seconds=0.5)
    assert grade.remarks[0] == "cell 1 was running at the time limit; what follows was not run"
    assert grade.gap is None


@pytest.mark.subprocess
@pytest.mark.slow
def test_a_notebook_reaches_no_network(tmp_path):
    from other_users import networks_can_be_made

    if not networks_can_be_made():
        pytest.skip("the system makes no networks")
    cell = "import socket\nplacement = [len(socket.if_nameindex())] * graph.n"
    write(tmp_path / "a.ipynb", *homework_cells(3, cell))
    assert "on 1" not in str(grade_notebook(tmp_path / "a.ipynb").remarks)  # the loopback device alone: device 1


@pytest.mark.subprocess
@pytest.mark.slow
def test_the_command_prints_and_writes_the_table(tmp_path, capsys):
    write(tmp_path / "a.ipynb", *homework_cells(3, "placement = ..."))
    (tmp_path / "b.ipynb").write_text("[]", encoding="utf-8")
    assert main(["grade", str(tmp_path), "-o", str(tmp_path / "grades.csv")]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^a\.ipynb +- +- +3 +- +60\.00 us +-$", text, re.MULTILINE)
    assert "a.ipynb: `placement` is not answered" in text and "b.ipynb: is no notebook" in text
    rows = list(csv.DictReader((tmp_path / "grades.csv").open(encoding="utf-8")))
    assert [row["student"] for row in rows] == ["3", ""]


def test_folders_without_notebooks_are_refused(tmp_path, capsys):
    assert main(["grade", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"baechi-lab grade: {tmp_path} has no notebook (*.ipynb)\n"
    with pytest.raises(bl.FormatError, match="none does not exist; give the folder of the submitted notebooks"):
        grade_folder(tmp_path / "none")
    (tmp_path / "a.csv").touch()
    with pytest.raises(bl.FormatError, match="is a file, not a folder; give the folder of the submitted"):
        grade_folder(tmp_path / "a.csv")
    with pytest.raises(bl.InvalidInput, match="seconds is 0"):
        grade_folder(tmp_path, seconds=0)


@pytest.mark.parametrize(
    "text", ["[]", '{"cells": [1]}', '{"cells": [{"cell_type": "code"}]}', "\x00", '{"cells": 3}', "[" * 100_000]
)
def test_what_is_no_notebook_is_refused(tmp_path, text):
    (tmp_path / "a.ipynb").write_text(text, encoding="utf-8")
    assert "is no notebook that can be read" in grade_notebook(tmp_path / "a.ipynb").remarks[0]


def test_answers_are_read_where_they_are_checked(tmp_path):
    cells = ["%pip install x\n" + HEAD, "if True:\n    !ls\nx = 2\ncheck(2, x + 1)", "not python at all", "check(3)"]
    submission = read_submission(write(tmp_path / "a.ipynb", *cells))
    assert submission.lesson == "optimum" and not submission.is_homework and submission.tampering == ()
    assert [cell.answers for cell in submission.cells] == [{}, {2: "x + 1"}, {}, {}]
    solution = write(tmp_path / "b.ipynb", "check(1, 3)", tags=["solution"])
    assert read_submission(solution).cells == ()


@pytest.mark.parametrize("path", sorted(COURSE.glob("*.ipynb")), ids=lambda p: p.stem)
def test_no_notebook_of_the_course_is_taken_for_a_cheat(path):
    assert read_submission(path).tampering == ()


def test_students_are_named_where_two_notebooks_are_theirs():
    grades = with_duplicates([Grade("a", student=1), Grade("b", student=1), Grade("c", student=2), Grade("d")])
    assert [grade.remarks for grade in grades] == [("student 1 is also in b",), ("student 1 is also in a",), (), ()]


def test_values_leave_the_process_as_plain_data():
    class Seven(int):
        def __int__(self):
            return 3

    assert plain_value([Seven(7), (1, {"a": {2.5}})]) in ([7, [1, {"a": [2.5]}]], [3, [1, {"a": [2.5]}]])
    with pytest.raises(TypeError, match="object"):
        plain_value({"a": object()})
