"""Checks of arguments that many functions make."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from .errors import InvalidInput


def check_whole(field: str, value: Any, low: int = 1, also: str = "") -> int:
    """`value` as an int; `InvalidInput` unless it is a whole number (NumPy's included, no bool) of at least `low`.

    `also` ends the sentence where the caller takes something else as well, for example ", or None".

    >>> check_whole("runs", 3)
    3
    >>> check_whole("runs", 0)
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: runs is 0; it must be a whole number of at least 1
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise InvalidInput(f"{field} is {value!r:.60}; it must be a whole number of at least {low}{also}")
    return int(value)
