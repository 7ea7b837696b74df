"""Checks of arguments that many functions share."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from math import inf, isfinite
from numbers import Integral

import numpy as np

from .errors import InvalidInput, in_short

MOST_TOKENS = 2**28
"""Largest number of tokens of a step; bytes and operations of larger steps need more than 64 bits."""


def check_whole(field: str, value: object, low: int = 1, also: str = "") -> int:
    """Returns `value` as an int; raises `InvalidInput` unless it is a whole number (not a bool) of at least `low`.

    `also` ends the sentence where the caller takes something else as well, for example ", or None".

    >>> check_whole("runs", 3)
    3
    >>> check_whole("runs", 0)
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: runs is 0; it must be a whole number of at least 1
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise InvalidInput(f"{field} is {in_short(value)}; it must be a whole number of at least {low}{also}")
    return int(value)


def check_batch_size(batch_size: object) -> int:
    """Returns `batch_size` as an int; raises `InvalidInput` unless it is a whole number of at least 1 that fits into 64 bits."""
    size = check_whole("batch_size", batch_size)
    if size >= 2**63:
        raise InvalidInput(f"batch_size is {in_short(size)}; it must fit into 64 bits")
    return size


def check_tokens(field: str, batch_size: object, sequence_length: object) -> tuple[int, int]:
    """Returns both sizes as ints; raises `InvalidInput` unless they are whole numbers above 0, with `MOST_TOKENS` tokens at most.

    >>> check_tokens("batch_size", 2**20, 2**10)
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: batch_size is 1048576 and sequence_length 1024; a step may have at most 268435456 tokens
    """
    sequences, length = check_whole(field, batch_size), check_whole("sequence_length", sequence_length)
    if sequences * length > MOST_TOKENS:
        raise InvalidInput(
            f"{field} is {in_short(sequences)} and sequence_length {in_short(length)}; "
            f"a step may have at most {MOST_TOKENS} tokens"
        )
    return sequences, length


def check_position(
    field: str, value: object, count: int, noun: str = "positions", error: type[InvalidInput] = InvalidInput
) -> int:
    """Returns `value` as an int; raises `error` unless it is a whole number from 0 to `count - 1`.

    >>> check_position("device", 2, 2, "devices")
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: device is 2; it must be one of the 2 devices, counted from 0
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) < count:
        raise error(f"{field} is {in_short(value)}; it must be one of the {count} {noun}, counted from 0")
    return int(value)


def check_flag(field: str, value: object) -> bool:
    """Returns `value` as a bool; raises `InvalidInput` unless it is True or False.

    >>> check_flag("moved", 2)
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: moved is 2; it must be True or False
    """
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidInput(f"{field} is {in_short(value)}; it must be True or False")
    return bool(value)


def check_text(field: str, value: object, choices: Iterable[str] | None = None) -> None:
    """Raises `InvalidInput` unless `value` is a text, and one of `choices` if these are given.

    >>> check_text("effort", "higher", ("normal", "high"))
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: effort is 'higher'; it must be one of normal, high
    """
    if not isinstance(value, str) or (choices is not None and value not in choices):
        allowed = "a text" if choices is None else f"one of {', '.join(choices)}"
        raise InvalidInput(f"{field} is {in_short(value)}; it must be {allowed}")


def is_list(value: object) -> bool:
    """Whether `value` can be iterated; an array without dimensions cannot.

    >>> import numpy as np
    >>> is_list((1, 2)), is_list(np.arange(2)), is_list(np.array(2)), is_list(2)
    (True, True, False, False)
    """
    return isinstance(value, Iterable) and getattr(value, "ndim", 1) != 0


def finite(value: object) -> float | None:
    """Returns a number as float; None for what is none, infinite, or beyond float64."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) else None


def check_number(field: str, value: object, low: float = 0.0, high: float = inf) -> float:
    """Returns `value` as a float; raises `InvalidInput` unless it is a finite number (not a bool) from `low` to `high`.

    >>> check_number("share", 2, high=1)
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: share is 2; it must be a number from 0 to 1
    """
    number = finite(value)
    if number is None or not low <= number <= high:
        allowed = f"of at least {low:g}" if high == inf else f"from {low:g} to {high:g}"
        raise InvalidInput(f"{field} is {in_short(value)}; it must be a number {allowed}")
    return number


def check_timeout(timeout: object) -> None:
    """Raises `InvalidInput` unless `timeout` is None or seconds above 0, which may be infinite.

    >>> check_timeout(0)
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: timeout is 0; it must be above 0 seconds, or None
    """
    if not (timeout is None or (isinstance(timeout, float) and timeout > 0) or (finite(timeout) or 0) > 0):
        raise InvalidInput(f"timeout is {in_short(timeout)}; it must be above 0 seconds, or None")


def check_callback(field: str, function: object, arguments: str) -> None:
    """Raises `InvalidInput` unless `function` is None or can be called with the named positional arguments.

    >>> check_callback("callback", lambda: None, "name")
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: callback is called with (name), which it does not take; it must be a function of name
    """
    if function is None:
        return
    if not callable(function):
        raise InvalidInput(f"{field} is {in_short(function)}; it must be a function of {arguments}")
    try:
        inspect.signature(function).bind(*arguments.split(", "))
    except TypeError:
        raise InvalidInput(
            f"{field} is called with ({arguments}), which it does not take; it must be a function of {arguments}"
        ) from None
    except ValueError:  # built-in functions without a signature
        return
