"""Packages that others import wherever they find them, kept out of an import that does not need them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def absent(*names: str) -> Iterator[None]:
    """Inside, modules of these names that nobody has imported yet cannot be; afterwards they can.

    >>> with absent("antigravity"):
    ...     import antigravity
    Traceback (most recent call last):
    ModuleNotFoundError: import of antigravity halted; None in sys.modules
    """
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # what Python documents as "not importable"
    try:
        yield
    finally:
        for name in hidden:
            if sys.modules[name] is None:
                del sys.modules[name]
