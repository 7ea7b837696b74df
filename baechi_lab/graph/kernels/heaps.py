"""Binary min-heaps over plain arrays, ordered by (key, code), for compiled kernels.

A heap lives in `keys[base : base + size]` and `codes[base : base + size]`; callers keep `size`. The codes make
the order total, so what comes out does not depend on the order in which things went in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .jit import njit


@njit(cache=True, inline="never", allocates=False)
def push(keys: NDArray[np.float64], codes: NDArray[np.int64], base: int, size: int, key: float, code: int) -> int:
    """Insert (key, code); returns the new size."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        parent_item = keys[base + parent]
        if parent_item < key or (parent_item == key and codes[base + parent] < code):
            break
        keys[base + i] = parent_item
        codes[base + i] = codes[base + parent]
        i = parent
    keys[base + i] = key
    codes[base + i] = code
    return size + 1


@njit(cache=True, inline="never", allocates=False)
def pop(keys: NDArray[np.float64], codes: NDArray[np.int64], base: int, size: int) -> int:
    """Remove the smallest (read it at `base` before); returns the new size."""
    size -= 1
    key, code = keys[base + size], codes[base + size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            keys[base + right] < keys[base + child]
            or (keys[base + right] == keys[base + child] and codes[base + right] < codes[base + child])
        ):
            child = right
        if key < keys[base + child] or (key == keys[base + child] and code < codes[base + child]):
            break
        keys[base + i] = keys[base + child]
        codes[base + i] = codes[base + child]
        i = child
    if size > 0:
        keys[base + i] = key
        codes[base + i] = code
    return size
