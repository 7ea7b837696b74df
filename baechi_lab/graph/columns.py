"""Columns of records: arguments become arrays of one type exactly, or raise an error that names field and place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import is_list
from ..errors import CostError, InvalidInput, in_short
from .kernels.csr import frozen_array

T = TypeVar("T")


def whole_numbers(field: str, values: object, dtype: type[np.signedinteger[Any]] = np.int64) -> NDArray[Any]:
    """Returns a read-only array of whole numbers of `dtype`.

    Raises `CostError` for a fraction, NaN, or a number that the type cannot hold; `InvalidInput` for anything else.

    >>> whole_numbers("size_bytes", [2**53 + 1, 4.0]).tolist()
    [9007199254740993, 4]
    """
    array = _array(field, values)
    kind = array.dtype.kind
    if kind not in "iubfO":
        raise InvalidInput(f"{field} must hold whole numbers, not {array.dtype}")
    if kind == "f":
        bad = np.flatnonzero(~np.isfinite(array) | (array != np.floor(array)))
        if len(bad):
            value = array.reshape(-1)[bad[0]]
            requirement = "whole number" if np.isfinite(value) else "finite whole number"
            raise CostError(f"{field}[{bad[0]}] is {value}; it must be a {requirement}")
        if not isinstance(values, np.ndarray) and np.any(np.abs(array) >= 2**53):
            array = _array(field, np.array(values, dtype=object))  # integers beside floats were rounded
    if array.dtype.kind == "O":
        for k, value in enumerate(array.reshape(-1).tolist()):
            if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
                raise InvalidInput(f"{field}[{k}] is {in_short(value)}; it must be a whole number")
            if value != value or value in (float("inf"), float("-inf")) or value != int(value):
                raise CostError(f"{field}[{k}] is {value}; it must be a finite whole number")
        integers = np.array([int(x) for x in array.reshape(-1).tolist()], dtype=object)
        if len(integers) and not np.iinfo(dtype).min <= min(integers) <= max(integers) <= np.iinfo(dtype).max:
            _out_of_range(field, integers, dtype)
        return frozen_array(integers.astype(dtype).reshape(array.shape), dtype)
    if array.size and array.dtype != dtype and kind != "b":
        info = np.iinfo(dtype)
        # As float64, the largest int64 is rounded up to 2^63.
        if array.min() < info.min or array.max() > info.max or (kind == "f" and array.max() >= 2.0**63):
            _out_of_range(field, array, dtype)
    return frozen_array(array.astype(dtype) if kind == "f" else array, dtype)


def _out_of_range(field: str, array: NDArray[np.generic], dtype: type[np.signedinteger]) -> None:
    """Raises `CostError` for the first number that `dtype` cannot hold."""
    integers = [int(x) for x in array.reshape(-1).tolist()]
    info = np.iinfo(dtype)
    k = next((k for k, x in enumerate(integers) if not info.min <= x <= info.max), 0)
    raise CostError(f"{field}[{k}] is {in_short(integers[k])}; it must fit into {info.bits} bits")


def numbers(field: str, values: ArrayLike) -> NDArray[np.float64]:
    """Returns a read-only float64 array. Raises `CostError` for a number beyond float64, `InvalidInput` for anything else."""
    array = _array(field, values)
    if array.dtype.kind == "O":
        bad = [
            x for x in array.reshape(-1).tolist() if isinstance(x, bool) or not isinstance(x, (int, float, np.number))
        ]
        if bad:
            raise InvalidInput(f"{field} holds {in_short(bad[0])}; each must be a number")
    elif array.dtype.kind not in "iubf":
        raise InvalidInput(f"{field} must hold numbers, not {array.dtype}")
    try:
        return frozen_array(array, np.float64)
    except OverflowError:
        raise CostError(f"{field} holds a number that is too large for a float64") from None


def _array(field: str, values: object) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{field} must be one list of numbers: {error}") from None


def require_entries(field: str, values: NDArray[np.generic], valid: NDArray[np.bool_], rule: str) -> None:
    """Raises `InvalidInput` for the first entry that is not `valid`: it names the entry and says the rule.

    >>> require_entries("us", np.array([1.0, -2.0]), np.array([True, False]), "not negative")
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: us[1] is -2.0; it must be not negative
    """
    if not valid.all():
        wrong = int(valid.argmin())
        raise InvalidInput(f"{field}[{wrong}] is {values[wrong]}; it must be {rule}")


def texts(field: str, values: Iterable[Any]) -> tuple[str, ...]:
    """Returns a tuple of texts that a file can hold. Raises `InvalidInput` for anything else."""
    if isinstance(values, (str, bytes)) or not is_list(values):
        raise InvalidInput(f"{field} is {in_short(values)}; it must be a list of texts")
    items = tuple(values)
    if not set(map(type, items)) <= {str} and (bad := [x for x in items if not isinstance(x, str)]):
        raise InvalidInput(f"{field} holds {in_short(bad[0])}; each must be a text")
    text(field, "".join(items))
    return items


def text(field: str, value: object) -> str:
    """Returns a text that a file can hold."""
    if not isinstance(value, str):
        raise InvalidInput(f"{field} is {in_short(value)}; it must be a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{field} holds {value[error.start]!a}, half of a character, which no file can hold"
        ) from None
    return value


def check_record(name: str, value: object, *classes: type) -> None:
    """Raises `InvalidInput` unless `value` is a record of these classes."""
    if not isinstance(value, classes):
        class_names = " or ".join(cls.__name__ for cls in classes)
        type_text = "None" if value is None else f"of type {type(value).__name__}"
        article = "an" if class_names[0] in "AEIO" else "a"
        raise InvalidInput(f"{name} is {type_text}; it must be {article} {class_names}")


def check_record_list(name: str, values: object, cls: type[T]) -> list[T]:
    """Returns the records of a list. Raises `InvalidInput` unless `values` is a list of records of that class.

    >>> check_record_list("names", ("a", 1), str)
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: names[1] is of type int; it must be a str
    """
    if not is_list(values) or isinstance(values, (str, bytes, memoryview)):
        raise InvalidInput(f"{name} is {in_short(values)}; it must be a list of {cls.__name__} records")
    records: list[T] = list(values)  # type: ignore[call-overload]
    for k, value in enumerate(records):
        check_record(f"{name}[{k}]", value, cls)
    return records
