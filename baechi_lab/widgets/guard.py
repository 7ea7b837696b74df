"""Errors of callbacks: shown in one sentence with details to unfold, never swallowed."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import ContextDecorator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from ..errors import BaechiLabError


@dataclass(frozen=True)
class Problem:
    """What went wrong: one sentence, the traceback for whoever wants it, and a change that mends it, where one is known."""

    sentence: str
    details: str
    remedy: Any = None

    @classmethod
    def of(cls, error: BaseException) -> Problem:
        """Our own errors speak for themselves; others are introduced by their kind."""
        text = " ".join(str(error).split())
        if not isinstance(error, BaechiLabError):
            text = f"{type(error).__name__}: {text}" if text else type(error).__name__
        return cls(text, "".join(traceback.format_exception(error)), getattr(error, "remedy", None))


def refused(show: Callable[[Problem], None]) -> Guard:
    """A guard around a change of the setting, which an error leaves as it was: that is said with it.

    >>> seen = []
    >>> with refused(seen.append):
    ...     raise ValueError("no")
    >>> seen[0].sentence
    'ValueError: no; the setting stays as it was'
    """
    return Guard(lambda problem: show(replace(problem, sentence=f"{problem.sentence}; the setting stays as it was")))


class Guard(ContextDecorator):
    """Run a block or a function; any error inside becomes a `Problem` handed to `show`.

    Interrupts and exits pass through. `failed` says whether the last use ended in an error.

    >>> seen = []
    >>> with Guard(seen.append):
    ...     raise ValueError("no")
    >>> seen[0].sentence
    'ValueError: no'
    """

    def __init__(self, show: Callable[[Problem], None]):
        self.show, self.failed = show, False

    def __enter__(self) -> Guard:
        self.failed = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.failed = True
        self.show(Problem.of(error))
        return True
