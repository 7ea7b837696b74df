"""Exercises: right answers are right, wrong ones are told what is wrong with them, and nothing gives an answer away."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import baechi_lab as bl
from baechi_lab.lessons import LESSONS, exercise, lesson
from baechi_lab.lessons.exercise import Lesson, best_us, function, names, number, placement
from baechi_lab.lessons.learning import reinforce
from baechi_lab.lessons.list_scheduling import earliest_start
from studies.attack import Instance

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
EXERCISES = [(name, k) for name in LESSONS for k in lesson(name).checks]


def sources(name, tagged):
    cells = json.loads((FOLDER / f"{LESSONS[name]}.ipynb").read_text(encoding="utf-8"))["cells"]
    code = [c for c in cells if c["cell_type"] == "code"]
    return "\n".join("".join(c["source"]) for c in code if ("solution" in c["metadata"].get("tags", [])) == tagged)


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_has_three_to_five_exercises_each_with_a_solution_that_is_checked(name):
    numbers = list(lesson(name).checks)
    assert 3 <= len(numbers) <= 5
    for code, call in ((sources(name, False), r"\bcheck\((\d)"), (sources(name, True), r"\bcheck\.solution\((\d)")):
        assert [int(k) for k in re.findall(call, code)] == numbers


@pytest.mark.parametrize("name", LESSONS)
def test_solutions_are_folded(name):
    cells = json.loads((FOLDER / f"{LESSONS[name]}.ipynb").read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        if "check.solution" in "".join(cell["source"]):
            assert cell["metadata"]["jupyter"]["source_hidden"] is True
            # JupyterLab shows the first line of a folded cell.
            assert cell["source"][0] == "# Solution\n"


@pytest.mark.parametrize(("name", "exercise"), EXERCISES)
def test_unanswered_exercises_say_so(name, exercise):
    verdict = lesson(name)(exercise, ...)
    assert verdict.right is None
    assert not verdict
    assert repr(verdict) == f"Exercise {exercise}: not answered yet"


@pytest.mark.parametrize(("name", "exercise"), EXERCISES)
@pytest.mark.parametrize(
    "nonsense", ["x", -1, [], [9.5], {}, float("nan"), True, object()], ids=lambda x: type(x).__name__
)
def test_nonsense_is_no_answer_and_gets_a_sentence(name, exercise, nonsense):
    verdict = lesson(name)(exercise, nonsense)
    assert verdict.right is False
    assert len(verdict.message) > len("not yet: ")


RIGHT = {
    ("placement", 1): 9,
    ("placement", 2): 2.5,
    ("placement", 4): 32,
    ("list-scheduling", 1): 14,
    ("list-scheduling", 2): 5,
    ("list-scheduling", 3): 17,
    ("critical-paths", 3): 26,
    ("optimum", 1): 25,
    ("optimum", 3): 10.34,
    ("worst-cases", 1): 2,
    ("learning", 1): 244_140_625,
    ("learning", 2): 0.731,
    ("learning", 3): 0.1,
    ("workbench", 1): 182.2 / 98.1,
    ("batch-size", 1): 807.57,
    ("batch-size", 2): 128,
    ("pipelines", 1): 0.2,
    ("pipelines", 2): 5,
    ("micro-batches", 1): 506,
    ("micro-batches", 2): 32,
    ("micro-batches", 3): 16,
    ("memory-budgets", 1): 0.6,
    ("memory-budgets", 2): 8.416,
    ("your-model", 1): 32,
}


@pytest.mark.parametrize(("name", "exercise"), RIGHT)
def test_numbers_are_right_and_no_message_tells_them(name, exercise):
    check, right = lesson(name), RIGHT[name, exercise]
    assert check(exercise, right).right
    for wrong in [right * share for share in (-1, 0.5, 0.75, 1.05, 2.0)] + list(range(50)):
        verdict = check(exercise, wrong)
        if abs(wrong - right) > 0.006 * right:
            assert verdict.right is False
            numbers_in_message = {float(x) for x in re.findall(r"-?\d+(?:\.\d+)?", verdict.message)}
            # Sums in a message lead to the answer; the answer itself stands in none.
            assert right not in numbers_in_message, verdict


def test_a_number_near_enough_is_right():
    check = number(2.5, "us", {5.0: "twice as much"})
    assert [check(x) for x in (2.5, 2.51, 2.0, 5.0)] == ["", "", "that is too small", "twice as much"]


def test_names_are_told_one_at_a_time():
    check = names({"a", "c"}, ["a", "b", "c"])
    assert check(["a", "c", "c"]) == ""
    assert check(["a"]) == "right so far, but not all"
    assert check(["b", "z"]) == "there is no op 'z'"


@pytest.fixture
def fork():
    """Source 1, branches of 4 and 5, on two devices with transfers of 1: 7 at best (the 4 goes: 1 + 1 + 4 + 1 = 7 > 6)."""
    graph = bl.OpGraph.from_edges([1, 4, 5], [(0, 1, 1), (0, 2, 1)], names=["in", "left", "right"])
    return graph, bl.Cluster.uniform(2, memory_bytes=100, link=bl.Link(1.0, 0.0), comm="parallel")


def test_placements_are_simulated(fork):
    check = placement(*fork)
    assert best_us(*fork) == 6.0  # in 0 to 1, right 1 to 6; left on the other device 2 to 6
    assert check([0, 1, 0]) == ""
    assert check({"in": 1, "left": 0, "right": 1}) == ""
    assert check(bl.Placement(device=[0, 1, 0])) == ""
    assert check([0, 0, 1]) == "the step takes 7 us; there is a shorter one"
    assert check([0, 0]) == "give a device for each of the 3 ops"
    assert check([0, 0, 2]) == "op 'right' is on 2; devices are 0 to 1"
    assert check({"in": 0}) == "op 'left' has no device"
    assert placement(*fork, at_most_us=7.0)([0, 0, 1]) == ""


def test_placements_that_break_a_rule_are_told_which(fork):
    graph, cluster = fork
    heavy = graph.replace(persistent_bytes=[60, 60, 60])
    assert "exceeds" in placement(heavy, cluster, at_most_us=1e9)([0, 0, 1])


def test_functions_are_tried_on_cases():
    check = function(lambda xs: [x * 2 for x in xs], lambda: [([1, 2],), ([3],)])
    assert check(lambda xs: [2 * x for x in xs]) == ""
    assert check(lambda xs: [2, 5]) == "for [1, 2] yours returns 5 at position 1, which is too large"
    assert check(lambda xs: 2) == "for [1, 2] yours returns one number; what is asked for is 2 numbers"
    assert Lesson("x", {1: check})(1, lambda xs: None).right is None


def test_rules_with_a_term_forgotten_are_found():
    check = lesson("list-scheduling")
    assert check(5, earliest_start)
    assert not check(5, lambda device, free, inputs: max([end + t for _, end, t in inputs], default=free))
    assert not check(5, lambda device, free, inputs: max([free, *(end + t for _, end, t in inputs)]))
    assert not check(5, lambda device, free, inputs: max([free, *(end for _, end, _ in inputs)]))
    assert not lesson("learning")(4, lambda logits, actions, advantage, rate: logits)
    assert lesson("learning")(4, reinforce)


def test_orders_splits_and_choices_of_the_further_lessons():
    """Wrong rules that are easily written are found by the cases."""
    assert not lesson("pipelines")(
        3, lambda stage, stages, batches: [*range(1, batches + 1), *range(-1, -batches - 1, -1)]
    )
    assert not lesson("batch-size")(
        3, lambda rows, memory: max([b for b, _, peak in rows if peak <= memory], default=0)
    )
    assert not lesson("micro-batches")(4, lambda n, stages, m, fixed, each: m * (fixed + each * n / m))
    assert not lesson("memory-budgets")(3, lambda forward, is_kept: 3.0 * sum(forward))
    assert not lesson("your-model")(3, lambda layers, stages: sum(layers) / stages)
    assert not lesson("workbench")(3, lambda intervals, step: sum(b - a for a, b in intervals) / step)
    assert lesson("your-model")(2, ["trace", "measured"])
    assert lesson("workbench")(2, [0, 1, 0, 1, 0, 0, 1, 0])
    assert "there is a shorter one" in lesson("workbench")(2, [0, 0, 1, 1, 0, 1, 1, 0]).message


def test_attacks_are_measured():
    check = lesson("worst-cases")
    assert "2.00 times" in check(2, Instance((20,), (), (1.0, 2.0), 1.0)).message
    assert "2 ops; 1 to 1 are allowed" in check(2, Instance((20, 20), (), (1.0, 4.0), 1.0)).message
    # Three ones fill three devices twice, then a three: 2 + 3 against 3.
    assert check(4, [1] * 6 + [3])
    assert "1.00 times the optimum" in check(4, [3] + [1] * 6).message


def test_unknown_lessons_and_exercises_are_refused():
    with pytest.raises(bl.InvalidInput, match="has \\[1, 2, 3, 4\\]"):
        lesson("optimum")(9, 1)
    with pytest.raises(bl.errors.UnknownNameError, match="lesson"):
        lesson("cooking")
    with pytest.raises(bl.InvalidInput, match="does not hold"):
        lesson("optimum").solution(1, 3)


def endless(*arguments):
    while True:
        pass


def exits(*arguments):
    raise SystemExit(3)


def sum_in_place(values):
    values.append(sum(values))
    return values[-1]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda a: a, "the function cannot be called with 2 arguments: (a, b)"),
        (lambda a, b, c: a, "the function cannot be called with 2 arguments: (a, b)"),
        (lambda a, b, *, c: a, "the function cannot be called with 2 arguments: (a, b)"),
        (lambda a, b: 1 / 0, "for (1, 2) yours raises ZeroDivisionError: division by zero"),
        (lambda a, b: a.missing, "for (1, 2) yours raises AttributeError: 'int' object has no attribute 'missing'"),
        (exits, "for (1, 2) yours raises SystemExit: 3"),
        (endless, "for (1, 2) yours has not ended after 0.05 seconds"),
        (lambda a, b: "3", "for (1, 2) yours returns a str; what is asked for is one number"),
        (lambda a, b: 3j, "for (1, 2) yours returns a complex; what is asked for is one number"),
        (lambda a, b: {"a": 3}, "for (1, 2) yours returns a dict; what is asked for is one number"),
        (
            lambda a, b: [1, "x"],
            "for (1, 2) yours returns a list that holds other things than numbers; what is asked for",
        ),
        (lambda a, b: [[1], [2, 3]], "for (1, 2) yours returns a list that holds other things than numbers; what is"),
        (lambda a, b: [3], "for (1, 2) yours returns 1 numbers; what is asked for is one number"),
        (lambda a, b: 10**400, "for (1, 2) yours returns a int; what is asked for is one number"),
        (lambda a, b: float("nan"), "for (1, 2) yours returns nan, which is no finite number"),
        (max, "for (1, 2) yours returns 2, which is too small"),
    ],
)
def test_functions_of_learners_that_fail_get_one_sentence(answer, message, monkeypatch):
    monkeypatch.setattr(exercise, "SECONDS", 0.05)

    def right(a, b):
        return a + b

    verdict = Lesson("sums", {1: function(right, lambda: [(1, 2)])})(1, answer)
    assert verdict.right is False and "\n" not in verdict.message
    assert verdict.message.startswith(f"not yet: {message}")


def test_a_function_that_changes_its_arguments_is_judged_by_what_it_was_given():
    assert function(sum, lambda: [([1, 2],), ([4],)])(sum_in_place) == ""


@pytest.mark.parametrize(("name", "number_of"), EXERCISES)
@pytest.mark.parametrize(
    "answer",
    [10**400, [[1], [2, 3]], b"x", {"read": "x"}, ["\0"], [float("inf")] * 3, lambda: 1, int],
    ids=lambda x: type(x).__name__,
)
def test_odd_answers_get_a_verdict(name, number_of, answer):
    verdict = lesson(name)(number_of, answer)
    assert verdict.right is False and "\n" not in verdict.message


@pytest.mark.parametrize(
    "instance", [Instance(5, (), (1.0,), 1.0), Instance((1,), 3, (1.0,), 1.0), Instance((1,), (), "x", 1.0)]
)
def test_an_instance_of_wrong_fields_gets_a_sentence(instance):
    assert lesson("worst-cases")(2, instance).message.startswith("not yet: ")


def test_odd_names_of_lessons_and_exercises():
    with pytest.raises(bl.UnknownNameError, match="unknown lesson"):
        lesson([])
    with pytest.raises(bl.InvalidInput, match="exercise is"):
        lesson("optimum")([], 3)
