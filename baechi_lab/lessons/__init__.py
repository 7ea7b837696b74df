"""The exercises of the notebooks, checked by code: `check = lesson("optimum")`, then `check(1, answer)`."""

from __future__ import annotations

from importlib import import_module

from ..errors import UnknownNameError
from .exercise import Lesson, Verdict

__all__ = ["LESSONS", "Lesson", "Verdict", "lesson"]

LESSONS = {
    "placement": "00_quickstart",
    "critical-paths": "07_critical_path",
    "worst-cases": "08_attack",
    "list-scheduling": "30_list_scheduling",
    "optimum": "31_exact",
    "learning": "40_hierarchical_planner",
    "workbench": "10_workbench",
    "batch-size": "11_batch_size",
    "memory-budgets": "34_it_does_not_fit",
    "pipelines": "32_pipelines",
    "micro-batches": "33_micro_batches",
    "your-model": "60_your_model",
    "collectives": "35_collectives",
}
"""Lesson -> its notebook."""


def lesson(name: str) -> Lesson:
    """Returns the exercises of one notebook.

    Raises:
        UnknownNameError: there is no such lesson.

    >>> lesson("optimum")(1, ...)
    Exercise 1: not answered yet
    """
    if not isinstance(name, str) or name not in LESSONS:
        raise UnknownNameError.of("lesson", name, sorted(LESSONS))
    module = import_module(f".{name.replace('-', '_')}", __name__)
    return Lesson(name, module.CHECKS)
