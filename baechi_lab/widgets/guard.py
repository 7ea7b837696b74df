"""Shows errors of callbacks as one sentence with details to unfold, so that none is swallowed."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from contextlib import ContextDecorator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from ..errors import BaechiLabError, describe_error

LABELS = {
    "memory_bytes": "memory",
    "micro_batches": "micro-batches",
    "batch_size": "batch size",
    "forward_only": "forward only",
    "time_limit": "time limit",
}
"""Arguments of the library that errors name, and the labels of their controls on the screen."""


def with_labels(sentence: str) -> str:
    """Returns an error's sentence with the labels of controls in place of arguments.

    >>> with_labels("memory_bytes has 2 entries for 4 devices")
    'memory has 2 entries for 4 devices'
    """
    return re.sub(rf"\b({'|'.join(LABELS)})\b", lambda match: LABELS[match[0]], sentence)


@dataclass(frozen=True)
class Problem:
    """An error to show: one sentence, the traceback, and a change of the setting that repairs it, if one is known.

    `asks_fit` says that no placement of the setting fits, so that Fit should be asked what would make it fit.
    """

    sentence: str
    details: str
    remedy: Any = None
    asks_fit: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Problem:
        """Makes the problem of an error; the sentence begins with the error's type unless it is a `BaechiLabError`."""
        is_own = isinstance(error, BaechiLabError)
        text = with_labels(" ".join(str(error).split())) if is_own else describe_error(error)
        details, remedy = "".join(traceback.format_exception(error)), getattr(error, "remedy", None)
        return cls(text, details, remedy, getattr(error, "asks_fit", False))


def guard_change(show: Callable[[Problem], None]) -> Guard:
    """Returns a guard for a change of the setting; the sentence of an error adds that the setting stays as it was.

    >>> messages = []
    >>> with guard_change(messages.append):
    ...     raise ValueError("no")
    >>> messages[0].sentence
    'ValueError: no; the setting stays as it was'
    """
    return Guard(lambda problem: show(replace(problem, sentence=f"{problem.sentence}; the setting stays as it was")))


class Guard(ContextDecorator):
    """Runs a block or a function, and calls `show` with the `Problem` of any error in it.

    Interrupts and exits pass through. `failed` says whether the last use ended in an error.

    >>> messages = []
    >>> with Guard(messages.append):
    ...     raise ValueError("no")
    >>> messages[0].sentence
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
