"""Checks of the answers to exercises. A check says what is wrong with an answer, never what the right answer is.

A check takes an answer and returns a complaint, or an empty text if the answer is right. An answer may be a number, names of
ops, a placement, or a function that is called with small cases.
"""

from __future__ import annotations

import copy
import inspect
import math
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

import numpy as np

from ..errors import BaechiLabError, InvalidInput, describe_error, in_short
from ..graph import Cluster, OpGraph, Placement
from ..graph.units import plural
from ..simulator import simulate

Check = Callable[[object], str]
EMPTY = "the function returns nothing yet"


SECONDS = 5
"""Most seconds of processor time of a learner's function for one case; the right functions take milliseconds."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on an answer: `right` is None without an answer. It counts as true only if the answer is right."""

    exercise: int
    right: bool | None
    message: str
    complaint: str = ""

    def __bool__(self) -> bool:
        return self.right is True

    def __repr__(self) -> str:
        return f"Exercise {self.exercise}: {self.message}"


@dataclass(frozen=True)
class Lesson:
    """The checks of one notebook, by the number of the exercise."""

    name: str
    checks: Mapping[int, Check]

    def __call__(self, exercise: int, answer: object) -> Verdict:
        """Checks an answer; `...` means that there is none yet.

        Raises:
            InvalidInput: the lesson has no exercise of this number.
        """
        if not isinstance(exercise, int) or exercise not in self.checks:
            raise InvalidInput(f"exercise is {exercise!r}; the lesson {self.name!r} has {sorted(self.checks)}")
        if answer is None or answer is ...:
            return Verdict(exercise, None, "not answered yet")
        try:
            complaint = self.checks[exercise](answer)
        except (BaechiLabError, ArithmeticError, LookupError, AttributeError, TypeError, ValueError) as error:
            complaint = f"the answer cannot be used: {' '.join(str(error).split()):.300}"
        if complaint == EMPTY:
            return Verdict(exercise, None, "not answered yet")
        return Verdict(exercise, not complaint, f"not yet: {complaint}" if complaint else "right", complaint or "")

    def solution(self, exercise: int, answer: object) -> Verdict:
        """Checks an answer that must be right, and raises `InvalidInput` where it is wrong."""
        verdict = self(exercise, answer)
        if not verdict:
            raise InvalidInput(f"the solution of exercise {exercise} of {self.name!r} does not hold: {verdict.message}")
        return verdict


def number(right: float, unit: str, mistakes: Mapping[float, str] | None = None, within: float = 0.005) -> Check:
    """Makes the check of a number, with the relative tolerance `within`; `mistakes` has complaints for likely wrong numbers.

    >>> check = number(14.0, "us", {13.0: "is the device free then?"})
    >>> check(13), check(20), check(14), check("14")
    ('is the device free then?', 'that is too large', '', 'give a number (us), not str')
    """

    def check(answer: object) -> str:
        if isinstance(answer, bool) or not isinstance(answer, (int, float, np.integer, np.floating)):
            return f"give a number ({unit}), not {type(answer).__name__}"
        try:
            finite = math.isfinite(answer)
        except OverflowError:  # a whole number that no float64 holds
            finite = False
        if not finite:
            return "that is no finite number"
        if _near(float(answer), right, within):
            return ""
        hint_text = next((hint for wrong, hint in (mistakes or {}).items() if _near(float(answer), wrong, within)), "")
        return hint_text or f"that is too {'small' if answer < right else 'large'}"

    return check


def _near(answer: float, right: float, within: float) -> bool:
    return abs(answer - right) <= within * abs(right) + 1e-12


def names(right: Collection[str], op_names: Sequence[str]) -> Check:
    """Makes the check of names of ops, in any order.

    >>> check = names({"a", "c"}, ["a", "b", "c"])
    >>> check(["a", "b"]), check("a"), check(["a", "x"]), check(["c", "a"])
    ("'b' is not one of them", 'right so far, but not all', "there is no op 'x'", '')
    """

    def check(answer: object) -> str:
        if not isinstance(answer, (str, list, tuple, set, frozenset)):
            return f"give a list of names, not {type(answer).__name__}"
        answer_names = [answer] if answer in op_names else list(answer)
        for name in answer_names:
            if name not in op_names:
                return f"there is no op {name!r}"
        wrong = [name for name in answer_names if name not in right]
        if wrong:
            return f"{wrong[0]!r} is not one of them"
        return "" if set(answer_names) == set(right) else "right so far, but not all"

    return check


def placement(graph: OpGraph, cluster: Cluster, at_most_us: float | None = None, scheduler: str | None = None) -> Check:
    """Makes the check of a placement, with a step of at most `at_most_us` (None: the optimum)."""

    def check(answer: object) -> str:
        devices = devices_of(answer, graph, cluster)
        if isinstance(devices, str):
            return devices
        timeline = simulate(graph, cluster, Placement(device=np.array(devices)), scheduler)
        if timeline.violations:
            return str(timeline.violations[0].message)
        limit = best_us(graph, cluster, scheduler) if at_most_us is None else at_most_us
        if timeline.makespan_us <= limit * (1 + 1e-9):
            return ""
        request = "there is a shorter one" if at_most_us is None else f"at most {limit:g} us are asked for"
        return f"the step takes {timeline.makespan_us:g} us; {request}"

    return check


def devices_of(answer: object, graph: OpGraph, cluster: Cluster) -> list[int] | str:
    """Returns the device of every op, in the order of the ops; a complaint, as text, if the answer has none.

    >>> devices_of({"a": 1, "b": 0}, OpGraph.from_edges([1, 1], names=["a", "b"]), Cluster.uniform(2))
    [1, 0]
    """
    devices = answer.device.tolist() if isinstance(answer, Placement) else answer
    if isinstance(devices, Mapping):
        missing = [name for name in graph.names if name not in devices]
        if missing:
            return f"op {missing[0]!r} has no device"
        devices = [devices[name] for name in graph.names]
    if not isinstance(devices, (list, tuple, np.ndarray)) or len(devices) != graph.n:
        return f"give a device for each of the {graph.n} ops"
    for name, device in zip(graph.names, devices, strict=True):
        if isinstance(device, bool) or not isinstance(device, (int, np.integer)) or not 0 <= device < cluster.n:
            return f"op {name!r} is on {in_short(device)}; devices are 0 to {cluster.n - 1}"
    return [int(device) for device in devices]


def best_us(graph: OpGraph, cluster: Cluster, scheduler: str | None = None) -> float:
    """Returns the shortest simulated step of all placements, of which there are devices to the power of ops.

    >>> best_us(OpGraph.from_edges([3.0, 2.0, 1.0]), Cluster.uniform(2))
    3.0
    """
    every = product(range(cluster.n), repeat=graph.n)
    return min(simulate(graph, cluster, Placement(device=np.array(d)), scheduler).makespan_us for d in every)


def function(right: Callable[..., object], cases: Callable[[], Sequence[tuple[object, ...]]]) -> Check:
    """Makes the check of a function that must return the same as `right` for `cases`; it names the first case that differs.

    >>> check = function(max, lambda: [(1, 2), (5, 3)])
    >>> check(max), check(lambda a, b: b), check(3)
    ('', 'for (5, 3) yours returns 3, which is too small', 'give a function, not int')
    """

    def check(answer: object) -> str:
        if not callable(answer):
            return f"give a function, not {type(answer).__name__}"
        for case in cases():
            expected = np.asarray(right(*case), dtype=np.float64)
            label = f"for {', '.join(map(repr, case))}" if len(case) == 1 else f"for {case!r}"
            if complaint := _wrong_parameters(answer, right, case):
                return complaint
            try:
                with time_limit(SECONDS):
                    value = answer(*copy.deepcopy(case))
            except TooLong:
                return f"{label:.200} yours has not ended after {SECONDS} seconds"
            except (Exception, SystemExit) as error:  # noqa: BLE001  # a learner's code may raise anything
                return f"{label:.200} yours raises {describe_error(error)}"
            if value is None or value is ...:
                return EMPTY
            numbers = _as_numbers(value)
            if numbers is None:
                kind = type(value).__name__
                if isinstance(value, (list, tuple, np.ndarray)):
                    kind = f"a {kind} that holds other things than numbers"
                else:
                    kind = f"a {kind}"
                return f"{label:.200} yours returns {kind}; what is asked for is {_shape(expected)}"
            if numbers.shape != expected.shape:
                return f"{label:.200} yours returns {_shape(numbers)}; what is asked for is {_shape(expected)}"
            wrong = np.flatnonzero(~np.isclose(numbers, expected, rtol=1e-6, atol=1e-9))
            if len(wrong):
                k = int(wrong[0])
                position = f" at position {k}" if numbers.ndim else ""
                side = "small" if numbers.flat[k] < expected.flat[k] else "large"
                why = f"which is too {side}" if np.isfinite(numbers.flat[k]) else "which is no finite number"
                return f"{label} yours returns {numbers.flat[k]:g}{position}, {why}"
        return ""

    return check


class TooLong(BaseException):
    """Raised in a function that exceeds its time; no `except Exception` in the function catches it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupts code that computes for longer, if the system allows it: in the main thread, not on Windows."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def _wrong_parameters(answer: Callable[..., object], right: Callable[..., object], case: tuple[object, ...]) -> str:
    """Returns the complaint about a function that cannot be called with these arguments; empty if it can."""
    try:
        inspect.signature(answer).bind(*case)
    except ValueError:  # some built-in functions have no signature
        return ""
    except TypeError:
        try:
            names = ", ".join(inspect.signature(right).parameters)
        except ValueError:
            names = ", ".join("?" * len(case))
        return f"the function cannot be called with {len(case)} {plural('argument', len(case))}: ({names})"
    return ""


def _as_numbers(value: object) -> np.ndarray | None:
    """Returns real numbers as an array; None for anything else."""
    try:
        array = np.asarray(value)
        return array.astype(np.float64) if array.dtype.kind in "iufb" else None
    except (TypeError, ValueError, OverflowError):
        return None


def _shape(values: np.ndarray) -> str:
    return f"{values.size} numbers" if values.ndim else "one number"
