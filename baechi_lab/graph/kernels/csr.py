"""Compressed sparse rows (CSR) and other array helpers of records and kernels."""

from __future__ import annotations

from typing import TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

Scalar = TypeVar("Scalar", bound=np.generic)
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Integers = NDArray[np.signedinteger]
"""Whole numbers of any width; records store the indices of ops, tensors and devices as int32."""


def frozen_array(values: ArrayLike, dtype: type[Scalar]) -> NDArray[Scalar]:
    """Returns a read-only contiguous array of `dtype`; copies only if necessary."""
    source_array = np.asarray(values)
    array = np.ascontiguousarray(source_array, dtype=dtype)
    if array is values or array.base is not None:
        array = array.copy() if array.flags.writeable else array
    array.flags.writeable = False
    return array


def offsets(row: Integers, rows: int) -> Ints:
    """Returns row pointers (length `rows` + 1) of entries sorted by `row`."""
    pointer = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum(np.bincount(row, minlength=rows), out=pointer[1:])
    return pointer


@overload
def grouped_sum(values: Integers, label: Integers, count: int) -> Ints: ...
@overload
def grouped_sum(values: Floats, label: Integers, count: int) -> Floats: ...
def grouped_sum(values: Integers | Floats, label: Integers, count: int) -> Ints | Floats:
    """Returns [count]: the sum of the values with each label; of float64[n, columns] the sum of the rows with each label.

    Sums of whole numbers are exact int64; as float64 they would lose bytes beyond 2^53.

    >>> grouped_sum(np.array([5, 7, 9]), np.array([2, 0, 2]), 3).tolist()
    [7, 0, 14]
    >>> grouped_sum(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([0, 0]), 1).tolist()
    [[4.0, 6.0]]
    """
    if values.dtype.kind == "f":
        if values.ndim == 2:
            return np.stack([grouped_sum(column, label, count) for column in values.T], axis=1)
        return np.bincount(label, values, count).astype(np.float64)
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, label, values)
    return total


def interval_sum(values: NDArray[Scalar], first: Integers, end: Integers, count: int) -> NDArray[Scalar]:
    """Returns [count]: for each position, the sum of the values whose interval from `first` to before `end` contains it.

    An interval may end at `count`. For example, bytes of tensors, each held from its producer to its last reader.

    >>> interval_sum(np.array([5, 7]), np.array([0, 1]), np.array([2, 3]), 3).tolist()
    [5, 12, 7]
    """
    change = np.zeros(count + 1, dtype=values.dtype)
    np.add.at(change, first, values)
    np.subtract.at(change, end, values)
    return np.cumsum(change)[:count]


def distinct(values: NDArray[Scalar]) -> NDArray[Scalar]:
    """Returns the distinct values, ascending. It sorts, because `np.unique` hashes integers, which is several times slower."""
    ascending = np.sort(values)
    return ascending[np.append(True, ascending[1:] != ascending[:-1])] if len(ascending) else ascending


def inverse(order: Integers) -> Ints:
    """Returns int64[n]: the position of each index in `order`, a permutation."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place


def transpose(pointer: Integers, column: Integers, columns: int) -> tuple[Ints, NDArray[np.int32]]:
    """Turns row -> columns into column -> rows (rows ascending within a column)."""
    row = np.repeat(np.arange(len(pointer) - 1, dtype=np.int32), np.diff(pointer))
    order = np.argsort(column, kind="stable")
    return offsets(column, columns), row[order]


def gather(pointer: Integers, data: NDArray[Scalar], rows: Integers) -> tuple[Ints, NDArray[Scalar]]:
    """Returns the CSR of `rows` only, in that order."""
    length = np.diff(pointer)[rows]
    out = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(length, out=out[1:])
    take = np.arange(out[-1]) - np.repeat(out[:-1] - pointer[rows], length)
    return out, data[take]


def topological_order(n: int, source: Integers, target: Integers) -> NDArray[np.int32] | None:
    """Order of `n` nodes along the edges, smallest index first among the ready; None when there is a cycle.

    O((n + e) log n); an order that is already topological costs one comparison per edge.
    """
    if bool(np.all(source < target)):
        return np.arange(n, dtype=np.int32)
    from .readiness import order_of_readiness  # loads the compiler, which most graphs do without

    successors = target[np.argsort(source, kind="stable")].astype(np.int64)
    missing = np.bincount(target, minlength=n).astype(np.int64)
    order = order_of_readiness(offsets(source, n), successors, missing, np.zeros(n))
    return order if len(order) == n else None
