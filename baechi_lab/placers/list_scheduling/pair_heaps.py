"""The ready ops of each device, in four heaps per device.

- *Arrived*: ops whose inputs are there before the device is free, by op (their key is 0).
- *Following*: ops whose one transfer begins when the device's queue of transfers is done, by (transfer time, op). They arrive
  exactly that time after the queue, so they keep their order while it grows, and only the first is looked at.
- *Behind*: ops with a lower bound that follows from the queue, by (time of all their transfers, op). They arrive no earlier
  than that time after the queue.
- *Pending*: all others, by (lower bound of the arrival, op).

`pairs` are the (device, op) records of `earliest_start.py`; each knows its heap and its place there. Keys lie beside the
ops, so that a comparison reads no record of a pair.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.jit import njit
from .records import Records

ARRIVED, FOLLOWING, BEHIND, PENDING, REMOVED, NOT_READY = range(6)
"""State of a pair: the heap that it is in, or taken out because the op is placed or the device out of question."""
HEAPS = 4
"""Heaps of each device: one for each of the first four states."""


class Heaps(NamedTuple):
    """`waiting` WAITING[4 x devices, n], and how many ops each heap holds: `size` int64[4 x devices].

    Row `HEAPS * p + FOLLOWING` is the heap of that kind of device `p`.
    """

    waiting: Records
    size: NDArray[np.int64]


@njit(cache=True, allocates=False)
def _sift_up(pairs: Records, heap: Records, at: int) -> None:
    """Move the op at place `at` up to where its key belongs."""
    key, op = heap[at].key, heap[at].op
    while at > 0:
        above = (at - 1) >> 1
        parent_op = heap[above].op
        if heap[above].key < key or (heap[above].key == key and parent_op < op):
            break
        heap[at].key, heap[at].op = heap[above].key, parent_op
        pairs[parent_op].heap_position = at
        at = above
    heap[at].key, heap[at].op = key, op
    pairs[op].heap_position = at


@njit(cache=True, allocates=False)
def _sift_down(pairs: Records, heap: Records, size: int, at: int) -> None:
    """Move the op at place `at` of `size` down to where its key belongs."""
    key, op = heap[at].key, heap[at].op
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        least, child_op = heap[below].key, heap[below].op
        if below + 1 < size:
            right = heap[below + 1].key
            if right < least or (right == least and heap[below + 1].op < child_op):
                below += 1
                least, child_op = right, heap[below].op
        if key < least or (key == least and op < child_op):
            break
        heap[at].key, heap[at].op = least, child_op
        pairs[child_op].heap_position = at
        at = below
    heap[at].key, heap[at].op = key, op
    pairs[op].heap_position = at


@njit(cache=True, allocates=False)
def rekey(p: int, op: int, pairs: Records, heaps: Heaps) -> None:
    """The bound of the pending `op` has changed, in either direction."""
    row, at = HEAPS * p + PENDING, pairs[p, op].heap_position
    heap = heaps.waiting[row]
    heap[at].key = pairs[p, op].bound
    _sift_up(pairs[p], heap, at)
    _sift_down(pairs[p], heap, heaps.size[row], pairs[p, op].heap_position)


@njit(cache=True, allocates=False)
def insert(p: int, op: int, state: int, key: float, pairs: Records, heaps: Heaps) -> None:
    """Put `op` into the heap `state` of device `p`."""
    row = HEAPS * p + state
    heap, size = heaps.waiting[row], heaps.size[row]
    pairs[p, op].state = state
    heaps.size[row] = size + 1
    heap[size].key, heap[size].op = key, op
    _sift_up(pairs[p], heap, size)


@njit(cache=True, allocates=False)
def remove(p: int, op: int, pairs: Records, heaps: Heaps) -> None:
    """Take `op` out of its heap of device `p`."""
    row, at = HEAPS * p + pairs[p, op].state, pairs[p, op].heap_position
    heap, last = heaps.waiting[row], heaps.size[row] - 1
    pairs[p, op].state = REMOVED
    heaps.size[row] = last
    if at < last:
        last_op = heap[last].op
        heap[at].key, heap[at].op = heap[last].key, last_op
        _sift_up(pairs[p], heap, at)
        _sift_down(pairs[p], heap, last, pairs[p, last_op].heap_position)
