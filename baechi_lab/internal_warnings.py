"""Warnings that one part of this package takes from another.

`warnings.catch_warnings` replaces the filters of the whole process. In a thread, such as a workbench's, it silences or takes what
other threads warn of meanwhile; where two such contexts overlap, the filters of one stay for good.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_collected: ContextVar[list[str] | None] = ContextVar("_collected", default=None)


def warn(message: str, stacklevel: int) -> None:
    """Warns as `warnings.warn` does, unless a caller in this thread collects the messages."""
    messages = _collected.get()
    if messages is None:
        warnings.warn(message, stacklevel=stacklevel + 1)
    else:
        messages.append(message)


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Within this context, `warn` in this thread appends its message to the list.

    >>> with collected_warnings() as messages:
    ...     warn("recomputing saves nothing here", stacklevel=1)
    >>> messages
    ['recomputing saves nothing here']
    """
    messages: list[str] = []
    token = _collected.set(messages)
    try:
        yield messages
    finally:
        _collected.reset(token)
