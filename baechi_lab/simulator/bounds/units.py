"""Compiled helpers of the bounds: sets of ops that share a device (*units*, a union-find), jobs one after the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.csr import Floats, Ints
from ...graph.kernels.heaps import pop, push
from ...graph.kernels.jit import has_few_entries, njit


@njit(cache=True)
def root(unit: NDArray[np.int32], i: int) -> int:
    """The op that represents the unit of `i`. Paths to it are shortened."""
    while unit[i] != i:
        unit[i] = unit[unit[i]]
        i = unit[i]
    return i


@njit(cache=True)
def join(unit: NDArray[np.int32], i: int, k: int) -> bool:
    """Joins the units of `i` and `k`; returns False if they are one unit already."""
    a, b = root(unit, i), root(unit, k)
    if a == b:
        return False
    if a < b:
        unit[b] = a
    else:
        unit[a] = b
    return True


@njit(cache=True, interpreted_if=has_few_entries)
def group_units(unit: NDArray[np.int32]) -> tuple[Ints, Ints]:
    """Flattens `unit` to roots; returns the members by root in CSR form."""
    n = len(unit)
    pointer = np.zeros(n + 1, np.int64)
    for i in range(n):
        unit[i] = root(unit, i)
    for i in range(n):
        pointer[unit[i] + 1] += 1
    for i in range(n):
        pointer[i + 1] += pointer[i]
    fill = pointer[:-1].copy()
    members = np.empty(n, np.int64)
    for i in range(n):
        members[fill[unit[i]]] = i
        fill[unit[i]] += 1
    return pointer, members


@njit(cache=True)
def serial_end(release: Floats, length: Floats, count: int) -> float:
    """Earliest end of `count` jobs on one machine (first come, first served; few are sorted in place)."""
    end = 0.0
    if count > 64:
        key, job, size = np.empty(count), np.empty(count, np.int64), 0
        for a in range(count):  # the shared heap compiles in a fraction of the time of NumPy's sort
            size = push(key, job, 0, size, release[a], a)
        while size > 0:
            a = job[0]
            size = pop(key, job, 0, size)
            end = max(end, release[a]) + length[a]
        return end
    for a in range(1, count):
        r, p = release[a], length[a]
        b = a - 1
        while b >= 0 and release[b] > r:
            release[b + 1], length[b + 1] = release[b], length[b]
            b -= 1
        release[b + 1], length[b + 1] = r, p
    for a in range(count):
        end = max(end, release[a]) + length[a]
    return end
