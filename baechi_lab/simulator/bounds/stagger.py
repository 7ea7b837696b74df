"""`staggered-work`: devices cannot all start at 0 and stop at the end.

What a device runs first had to be sent to it, what it runs last is still needed elsewhere. The first op with a positive
duration on a device has all its producers with a positive duration elsewhere, so it starts no earlier than their ends plus
transfers (a producer of duration 0 may be local, then the same holds for its producers), and never where one of them must
share its device. The first ops of different devices are of different *units* (sets of ops that share a device). With A(m)
and B(m) the sums of the m smallest such starts over units and (for the last ops, backwards) tails, a schedule that uses m
devices has m * makespan >= work + A(m) + B(m), so the makespan is at least the minimum of (work + A(m) + B(m)) / m over
m = 1 .. D (fewer where there are fewer units with work).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.csr import Floats
from ...graph.kernels.heaps import pop, push
from ...graph.kernels.jit import has_few_entries, njit
from .problem import MergeProblem


@njit(cache=True, interpreted_if=has_few_entries)
def staggered_work_us(x: MergeProblem, unit: NDArray[np.int32], head: Floats, tail: Floats) -> float:
    """The bound in microseconds; `unit` holds the smallest index of each op's unit."""
    release = _smallest_of_units(first_starts(x, False, unit, head), x.p, unit, x.devices)
    finish = _smallest_of_units(first_starts(x, True, unit, tail), x.p, unit, x.devices)
    total, least = 0.0, np.inf
    for i in range(len(x.p)):
        total += x.p[i]
    for m in range(len(release)):
        total += release[m] + finish[m]
        least = min(least, total / (m + 1))
    return least if len(release) > 0 else 0.0


@njit(cache=True)
def _smallest_of_units(starts: Floats, p: Floats, unit: NDArray[np.int32], count: int) -> Floats:
    """The smallest value of each unit with work: the first `count` of these, ascending."""
    n = len(p)
    least, busy = np.empty(n), np.zeros(n, np.bool_)
    for i in range(n):
        if p[i] > 0.0:
            least[unit[i]] = min(least[unit[i]], starts[i]) if busy[unit[i]] else starts[i]
            busy[unit[i]] = True
    # The shared heap compiles in a fraction of the time of NumPy's sort.
    key, number, size = np.empty(n), np.empty(n, np.int64), 0
    for u in range(n):
        if busy[u]:
            size = push(key, number, 0, size, least[u], u)
    smallest = np.empty(min(count, size))
    for k in range(len(smallest)):
        smallest[k] = key[0]
        size = pop(key, number, 0, size)
    return smallest


@njit(cache=True)
def first_starts(x: MergeProblem, backwards: bool, unit: NDArray[np.int32], head: Floats) -> Floats:
    """Returns float64[n]: the earliest start of each op as the first one of positive duration on its device (infinite: never)."""
    order, p, n = x.order, x.p, len(x.p)
    pointer, near, cost, _ = x.after if backwards else x.before
    starts = head.copy()
    for k in range(n):
        v = order[n - 1 - k] if backwards else order[k]
        for e in range(pointer[v], pointer[v + 1]):
            u = near[e]
            remote = head[u] + p[u] + cost[e] if unit[u] != unit[v] else np.inf
            starts[v] = max(starts[v], remote if p[u] > 0.0 else min(remote, starts[u]))
    return starts
