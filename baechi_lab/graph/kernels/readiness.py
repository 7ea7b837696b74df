"""The order in which one device runs ops that become ready one after the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .csr import Ints
from .heaps import pop, push
from .jit import has_few_entries, njit


@njit(cache=True, nogil=True, interpreted_if=has_few_entries)
def order_of_readiness(
    pointer: Ints, successors: Ints, missing: Ints, duration: NDArray[np.float64]
) -> NDArray[np.int32]:
    """Returns int32[k]: the nodes in the order in which they become ready, ties by index; `k` is below `n` if there is a cycle.

    `successors[pointer[i] : pointer[i + 1]]` wait for node `i`; `missing` int64[n], which this changes, counts what each node
    waits for. Without durations it is the topological order with the smallest index first among the ready.
    """
    n = len(duration)
    order, ready_us, ready = np.empty(n, np.int32), np.empty(n), np.empty(n, np.int64)
    size, count, now_us = 0, 0, 0.0
    for i in range(n):
        if missing[i] == 0:
            size = push(ready_us, ready, 0, size, 0.0, i)
    while size > 0:
        node = ready[0]
        size = pop(ready_us, ready, 0, size)
        order[count] = node
        count += 1
        now_us += duration[node]
        for k in range(pointer[node], pointer[node + 1]):
            child = successors[k]
            missing[child] -= 1
            if missing[child] == 0:
                size = push(ready_us, ready, 0, size, now_us, child)
    return order[:count]
