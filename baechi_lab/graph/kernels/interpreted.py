"""Kernels run as plain Python: for small graphs, while their kernels are not compiled yet.

Python reads an attribute of an object many times faster than a field of a structured array. So where a kernel takes
structured arrays, these become lists of objects, and other arrays lists; what the kernel has changed goes back into the
arrays afterwards. Such a kernel may use an array only by its elements, rows and length, and returns new arrays whole.
The Python functions of all kernels that a kernel calls are used too.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...importing import without_garbage_collection


class Column(list[Any]):
    """One-dimensional array: numbers, or one object per entry where `dtype` has fields."""

    def __init__(self, values: Iterable[object], dtype: np.dtype):
        super().__init__(values)
        self.dtype = dtype

    def array(self) -> NDArray[np.generic]:
        names = self.dtype.names
        return np.array(list(map(attrgetter(*names), self)) if names else list(self), dtype=self.dtype)


class Grid:
    """Two-dimensional array: a `Column` per row, read at `[row, column]` or `[row]`."""

    def __init__(self, values: NDArray[np.generic]):
        self.rows: Sequence[Column] = [to_lists(row) for row in values]
        self.without_rows = values[:0]

    def __getitem__(self, at: Any) -> Any:
        return self.rows[at[0]][at[1]] if type(at) is tuple else self.rows[at]

    def __setitem__(self, at: tuple[int, int], value: object) -> None:
        self.rows[at[0]][at[1]] = value

    def __len__(self) -> int:
        return len(self.rows)

    def array(self) -> NDArray[np.generic]:
        return np.stack([row.array() for row in self.rows]) if self.rows else self.without_rows


@functools.cache
def _entry_class(dtype: np.dtype) -> type[Any]:
    names = dtype.names or ()
    return dataclasses.make_dataclass("Entry", [(name, Any) for name in names], slots=True, eq=False)


def to_lists(array: object) -> Any:
    """Returns the `Column` or `Grid` of an array of one or two dimensions; anything else as it is."""
    if not isinstance(array, np.ndarray) or array.ndim not in (1, 2) or array.dtype.kind == "O":
        return array
    if array.ndim == 2:
        return Grid(array)
    values = array.tolist()
    return Column((_entry_class(array.dtype)(*value) for value in values) if array.dtype.names else values, array.dtype)


class _ArrayMaker:
    """Stands for NumPy within kernels: new arrays are lists."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike = float) -> Any:
        return to_lists(np.zeros(shape, dtype))

    empty = zeros

    def full(self, shape: int | tuple[int, ...], value: object, dtype: DTypeLike | None = None) -> Any:
        return to_lists(np.full(shape, value, dtype))


def _identity(column: object) -> Any:
    return column


@functools.cache
def _interpreted_function(function: FunctionType, records: Callable[..., object], on_lists: bool) -> FunctionType:
    """Returns the Python function of a kernel, which calls Python functions only.

    `records` is what kernels name structured arrays by.
    """
    names: dict[str, Any] = {}
    function_copy = FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    for name, value in function.__globals__.items():
        if value is np and on_lists:
            value = _ArrayMaker()
        elif value is records and on_lists:
            value = _identity
        elif name in function.__code__.co_names and isinstance(getattr(value, "py_func", None), FunctionType):
            value = (
                function_copy if value.py_func is function else _interpreted_function(value.py_func, records, on_lists)
            )
        names[name] = value
    return function_copy


def run_interpreted(function: FunctionType, records: Callable[..., object], arguments: Sequence[object]) -> Any:
    """Runs a kernel's Python function on `arguments`; arrays that may be written are changed as the kernel changes them."""
    if not _has_structured_array(arguments):
        with np.errstate(all="ignore"):  # as compiled code
            return _interpreted_function(function, records, on_lists=False)(*arguments)
    lists_of_array: dict[int, tuple[NDArray[Any], Any]] = {}

    def convert(value: object) -> Any:
        if isinstance(value, tuple):
            values = map(convert, value)
            return type(value)._make(values) if hasattr(value, "_make") else tuple(values)
        if isinstance(value, np.ndarray):
            return lists_of_array.setdefault(id(value), (value, to_lists(value)))[1]
        return value.item() if isinstance(value, np.generic) else value

    # Entries never form cycles, and the collector would visit all of them again and again.
    with without_garbage_collection():
        outputs = _interpreted_function(function, records, on_lists=True)(*map(convert, arguments))
        for array, lists in lists_of_array.values():
            if array.flags.writeable and lists is not array:
                array[...] = lists.array()
        return _to_arrays(outputs)


def _has_structured_array(value: object) -> bool:
    if isinstance(value, tuple):
        return any(map(_has_structured_array, value))
    return isinstance(value, np.ndarray) and value.dtype.names is not None


def _to_arrays(value: object) -> Any:
    if isinstance(value, tuple):
        values = map(_to_arrays, value)
        return type(value)._make(values) if hasattr(value, "_make") else tuple(values)  # type: ignore[attr-defined]
    return value.array() if isinstance(value, (Column, Grid)) else value
