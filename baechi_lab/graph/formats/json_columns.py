"""Checked columns of a JSON document: lists of numbers or texts, read at array speed, refused with field and place."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import FormatError

_NUMBERS = {"null": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def list_field(document: Mapping[str, object], field: str, path: str) -> list[Any]:
    """Returns the list under `field`; `path` is the path that leads to it, for messages."""
    if field not in document:
        raise FormatError(f"{place(path, field)} is missing; it must be a list")
    value = document[field]
    if not isinstance(value, list):
        raise FormatError(f"{place(path, field)} is {_short(value)}; it must be a list")
    return value


def place(path: str, field: str) -> str:
    """Returns the place of a column, such as `ops.duration_us` from `ops` and `duration_us`."""
    return f"{path}.{field}" if path else field


def integers(document: Mapping[str, object], field: str, path: str = "") -> NDArray[np.int64]:
    """Returns a list of whole numbers as int64."""
    return whole_numbers(list_field(document, field, path), place(path, field))


def whole_numbers(values: list[Any], label: str) -> NDArray[np.int64]:
    """Checks a list as `integers` checks a column."""
    if not set(map(type, values)) <= {int}:
        bad = [k for k, x in enumerate(values) if type(x) is not int and not (type(x) is float and x.is_integer())]
        if bad:
            raise FormatError(f"{label}[{bad[0]}] is {_short(values[bad[0]])}; it must be a whole number")
    try:
        return np.array(values, dtype=np.int64).reshape(-1)
    except OverflowError:
        large = next(k for k, x in enumerate(values) if not -(2**63) <= x < 2**63)
        raise FormatError(f"{label}[{large}] is {_short(values[large])}; it must fit into 64 bits") from None


def floats(document: Mapping[str, object], field: str, path: str = "") -> NDArray[np.float64]:
    """Returns a list of numbers as float64; `null` is NaN, "Infinity" and "-Infinity" are themselves."""
    values, label = list_field(document, field, path), place(path, field)
    if not set(map(type, values)) <= {int, float}:
        values = [_number(x, label, k) for k, x in enumerate(values)]
    try:
        return np.array(values, dtype=np.float64).reshape(-1)
    except OverflowError:
        bad = next(k for k, x in enumerate(values) if isinstance(x, int) and abs(x) > 10**308)
        raise FormatError(f"{label}[{bad}] is too large for a float64") from None


def texts(document: Mapping[str, object], field: str, path: str = "") -> tuple[str, ...]:
    """Returns a list of texts."""
    values = list_field(document, field, path)
    if not set(map(type, values)) <= {str}:
        bad = next(k for k, x in enumerate(values) if type(x) is not str)
        raise FormatError(f"{place(path, field)}[{bad}] is {_short(values[bad])}; it must be a text")
    return tuple(values)


def rows(document: Mapping[str, object], field: str, path: str = "") -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns a list of lists of whole numbers as row pointers and their flat content."""
    values, label = list_field(document, field, path), place(path, field)
    if not set(map(type, values)) <= {list}:
        bad = next(k for k, x in enumerate(values) if type(x) is not list)
        raise FormatError(f"{label}[{bad}] is {_short(values[bad])}; it must be a list of whole numbers")
    flat = list(chain.from_iterable(values))
    if not set(map(type, flat)) <= {int}:
        bad = next(k for k, row in enumerate(values) if any(type(x) is not int for x in row))
        whole_numbers(values[bad], f"{label}[{bad}]")
    pointer = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=pointer[1:])
    return pointer, whole_numbers(flat, label)


def text_rows(document: Mapping[str, object], field: str) -> tuple[tuple[str, ...], ...]:
    """Returns a list of lists of texts."""
    values = list_field(document, field, "")
    if not all(isinstance(x, list) for x in values):
        bad = next(k for k, x in enumerate(values) if not isinstance(x, list))
        raise FormatError(f"{field}[{bad}] is {_short(values[bad])}; it must be a list of texts")
    return tuple(texts({field: row}, field, f"{field}[{k}]") for k, row in enumerate(values))


def codes(document: Mapping[str, object], field: str, table: int, path: str = "", lowest: int = 0) -> NDArray[np.int64]:
    """Returns whole numbers from `lowest` to `table - 1`."""
    values = integers(document, field, path)
    bad = np.flatnonzero((values < lowest) | (values >= table))
    if len(bad):
        label = place(path, field)
        raise FormatError(f"{label}[{bad[0]}] is {values[bad[0]]}; it must be between {lowest} and {table - 1}")
    return values


def plain(value: object) -> Any:
    """Returns a value that JSON can hold: arrays become lists, NaN null, infinities texts, unknown objects their repr."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(v) for v in value), key=repr)
    return repr(value)


def column(values: NDArray[np.generic]) -> list[object]:
    """Returns an array as a list for `json.dumps`, infinities and NaN as `floats` reads them."""
    if values.dtype.kind == "f" and not np.all(np.isfinite(values)):
        return [plain(x) for x in values.tolist()]
    return list(values.tolist())


def _number(value: Any, label: str, k: int) -> float:
    if type(value) in (int, float):
        return value  # type: ignore[no-any-return]
    key = "null" if value is None else value
    if not isinstance(key, str) or key not in _NUMBERS:
        raise FormatError(f"{label}[{k}] is {_short(value)}; it must be a number")
    return _NUMBERS[key]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
