"""Heaps and sets of ready ops.

The functions count no references to arrays (`allocates=False`), which would take longer than their work. In a set of bits the
lowest one is found without comparisons, so without branches that a processor cannot predict.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.jit import HAS_NUMBA, njit


@njit(cache=True, allocates=False)
def push_slot(heap: NDArray[np.int32], size: int, key: NDArray[np.number], item: int) -> None:
    """Insert `item` into the heap in `heap[:size]`, ordered by (`key[item]`, item)."""
    i = size
    item_key = key[item]
    while i > 0:
        parent = (i - 1) >> 1
        parent_item = heap[parent]
        if key[parent_item] < item_key or (key[parent_item] == item_key and parent_item < item):
            break
        heap[i] = parent_item
        i = parent
    heap[i] = item


@njit(cache=True, allocates=False)
def pop_slot(heap: NDArray[np.int32], size: int, key: NDArray[np.number]) -> None:
    """Remove the first item of the heap of `size` items; `heap[0]` is that item before the call."""
    last = size - 1
    item = heap[last]
    item_key = key[item]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= last:
            break
        right = child + 1
        a = heap[child]
        if right < last:
            b = heap[right]
            if key[b] < key[a] or (key[b] == key[a] and b < a):
                child, a = right, b
        if item_key < key[a] or (item_key == key[a] and item < a):
            break
        heap[i] = a
        i = child
    heap[i] = item


_ONE, NO_BITS = np.uint64(1), np.uint64(0)

if HAS_NUMBA:
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def lowest_bit(typing: object, word: object) -> Any:
        """Returns the position of the lowest bit that is set in an unsigned word of 64 bits, in one instruction."""

        def build(context: object, builder: Any, signature: object, arguments: Any) -> Any:
            return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

        return types.int64(types.uint64), build

else:

    def lowest_bit(word: np.uint64) -> int:
        """Returns the position of the lowest bit that is set."""
        return (int(word) & -int(word)).bit_length() - 1


@njit(cache=True, allocates=False)
def set_bit(bits: NDArray[np.uint64], base: int, words: int, k: int, value: int) -> None:
    """Add `k` to the set in `bits[base:]` if `value` is 1.

    The set has `words` words of bits, a summary with a bit per word and, for more than 64 words, a summary of the summary.
    """
    one = k >> 6
    two = one >> 6
    bit = np.uint64(value)
    bits[base + one] |= bit << np.uint64(k & 63)
    bits[base + words + two] |= bit << np.uint64(one & 63)
    if words > 64:
        bits[base + words + ((words + 63) >> 6) + (two >> 6)] |= bit << np.uint64(two & 63)


@njit(cache=True, allocates=False)
def take_lowest(bits: NDArray[np.uint64], base: int, words: int) -> int:
    """Remove and return the smallest element of a set that is not empty; words are cleared without branches."""
    two, top = 0, 0
    if words > 64:
        top = base + words + ((words + 63) >> 6)
        while bits[top] == NO_BITS:
            top += 1
            two += 64
        two += lowest_bit(bits[top])
    middle = bits[base + words + two]
    one = (two << 6) + lowest_bit(middle)
    low = bits[base + one]
    k = (one << 6) + lowest_bit(low)
    low &= low - _ONE
    middle &= middle - (_ONE if low == NO_BITS else NO_BITS)
    bits[base + one], bits[base + words + two] = low, middle
    if words > 64 and middle == NO_BITS:
        bits[top] &= bits[top] - _ONE
    return k


def bit_words(n: int) -> tuple[int, int]:
    """Returns the words of bits of a set of 0 .. n - 1, and all its words including the two summaries."""
    words = (n + 63) >> 6
    upper_words = (words + 63) >> 6
    return words, words + upper_words + ((upper_words + 63) >> 6)
