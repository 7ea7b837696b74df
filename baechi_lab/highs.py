"""The linear solver HiGHS, silent: since 1.16 it prints who it is before anyone can tell it not to."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def silent_highs(**options: Any) -> Any:
    """A `highspy.Highs` with these options that writes nothing.

    >>> silent_highs(threads=1).getOptionValue("threads")[1]
    1
    """
    import highspy

    with nothing_printed():
        solver = highspy.Highs()
    for name, value in {"output_flag": False, **options}.items():
        solver.setOptionValue(name, value)
    return solver


@contextmanager
def nothing_printed() -> Iterator[None]:
    """Inside, what C code writes to standard output is lost; what Python has written so far is not.

    >>> with nothing_printed():
    ...     _ = os.write(1, b"lost")
    """
    if sys.stdout is not None:
        sys.stdout.flush()
    library = ctypes.CDLL(None) if os.name == "posix" else None
    try:
        before = os.dup(1)
    except OSError:  # a process without one
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        _flush(library)
        os.dup2(nowhere, 1)
        yield
    finally:
        _flush(library)  # C's buffer is written when it is full or the process ends: now, or it would come later
        os.dup2(before, 1)
        os.close(before)
        os.close(nowhere)


def _flush(library: Any) -> None:
    if library is not None:
        library.fflush(None)
