"""Warnings that one part of this package takes from another, or shows in its own way.

`warnings.catch_warnings` replaces the filters of the whole process. In a thread, such as a workbench's, it silences or takes what
other threads warn of meanwhile; where two such contexts overlap, the filters of one stay for good.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from .errors import StepWarning

PACKAGE = Path(__file__).parent
"""The folder of this package. Calls in it warn of a user's step, not of a mistake in the calling code."""

_collected_messages: ContextVar[list[str] | None] = ContextVar("_collected", default=None)
_notes: ContextVar[list[str] | None] = ContextVar("_notes", default=None)


def outer_stacklevel() -> int:
    """Returns the `stacklevel` with which a `warnings.warn` of the calling function names the line that called this package.

    The number of calls in between depends on which of several public functions was called. A model's code may be among them,
    and PyTorch's, where a model is called that this package has wrapped.
    """
    torch = sys.modules.get("torch")
    inner = [PACKAGE, *([] if torch is None or torch.__file__ is None else [Path(torch.__file__).parent])]
    frame, level, level_of_user = sys._getframe(1), 1, 1
    in_package = True
    while frame.f_back is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            in_package = True
        elif in_package and not any(path.is_relative_to(folder) for folder in inner):
            level_of_user, in_package = level, False
        frame, level = frame.f_back, level + 1
    return level if in_package else level_of_user


def warn(message: str) -> None:
    """Warns with the line that called this package, unless a caller in this thread collects the messages."""
    messages = _collected_messages.get()
    if messages is None:
        warnings.warn(message, StepWarning, stacklevel=outer_stacklevel())
    else:
        messages.append(message)


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Appends the messages of `warn` in this thread, within this context, to the list.

    >>> with collected_warnings() as messages:
    ...     warn("recomputing saves nothing here")
    >>> messages
    ['recomputing saves nothing here']
    """
    messages: list[str] = []
    token = _collected_messages.set(messages)
    try:
        yield messages
    finally:
        _collected_messages.reset(token)


def is_note(category: type[Warning], filename: str) -> bool:
    """Whether a warning is this package's about a graph, step or setting, which the command line prints as a note."""
    warns_of_step = category is UserWarning and Path(filename).is_relative_to(PACKAGE)
    return warns_of_step or category.__module__.startswith("baechi_lab")


@contextmanager
def collected_notes() -> Iterator[list[str]]:
    """Within this context, notes (see `is_note`) in this thread are appended to the list; other warnings are shown.

    It changes no filters, so several threads can collect at the same time.

    >>> from baechi_lab.graph.formats.traces.loading import InferredDependencies
    >>> with warnings.catch_warnings(action="always"), collected_notes() as notes:
    ...     warnings.warn("the trace has no tensors", InferredDependencies)
    >>> notes
    ['the trace has no tensors']
    """
    if not getattr(warnings.showwarning, "collects_notes", False):
        warnings.showwarning = _collecting(warnings.showwarning)
    notes: list[str] = []
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


def _collecting(show: Any) -> Any:
    """Returns a `warnings.showwarning` that keeps notes for the thread that collects them, and calls `show` for the others.

    It stays when the context ends: other threads may still collect, and without a context it does what `show` does.
    """

    def collect(message: Any, category: type[Warning], filename: str, *positional: Any, **keywords: Any) -> None:
        notes = _notes.get()
        if notes is not None and is_note(category, filename):
            notes.append(str(message))
        else:
            show(message, category, filename, *positional, **keywords)

    collect.collects_notes = True  # type: ignore[attr-defined]
    return collect
