"""Where the ready ops of each device wait: a heap of pending ops by (arrival, op), a heap of arrived ops by op.

`pairs` are the (device, op) records of `earliest_start.py`; a pending op knows its place, so that it can be re-keyed.
Keys lie beside the ops, so that a comparison reads no record of a pair.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.heaps import pop, push
from ...graph.kernels.jit import njit
from .records import Records

PENDING, ARRIVED, REMOVED = 1, 2, 3
"""Where a ready pair is; REMOVED: taken out because the op is placed or the device out of question (0: not yet ready)."""


@njit(cache=True)
def sift_up(pairs: Records, pending: Records, at: int) -> None:
    """Move the pending op at place `at` up to where its key belongs."""
    key, op = pending[at].key, pending[at].op
    while at > 0:
        above = (at - 1) >> 1
        parent_op = pending[above].op
        if pending[above].key < key or (pending[above].key == key and parent_op < op):
            break
        pending[at].key, pending[at].op = pending[above].key, parent_op
        pairs[parent_op].place = at
        at = above
    pending[at].key, pending[at].op = key, op
    pairs[op].place = at


@njit(cache=True)
def sift_down(pairs: Records, pending: Records, size: int, at: int) -> None:
    """Move the pending op at place `at` of `size` down to where its key belongs."""
    key, op = pending[at].key, pending[at].op
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        least, child_op = pending[below].key, pending[below].op
        if below + 1 < size:
            right = pending[below + 1].key
            if right < least or (right == least and pending[below + 1].op < child_op):
                below += 1
                least, child_op = right, pending[below].op
        if key < least or (key == least and op < child_op):
            break
        pending[at].key, pending[at].op = least, child_op
        pairs[child_op].place = at
        at = below
    pending[at].key, pending[at].op = key, op
    pairs[op].place = at


@njit(cache=True)
def rekey(p: int, at: int, devices: Records, pairs: Records, pending: Records) -> None:
    """The bound of the pending op at place `at` has changed, in either direction."""
    op = pending[p, at].op
    pending[p, at].key = pairs[p, op].bound
    sift_up(pairs[p], pending[p], at)
    sift_down(pairs[p], pending[p], devices[p].pending, pairs[p, op].place)


@njit(cache=True)
def pop_pending(p: int, devices: Records, pairs: Records, pending: Records) -> None:
    """Remove the pending op of device `p` that arrives first."""
    size = devices[p].pending - 1
    devices[p].pending = size
    if size > 0:
        pending[p, 0].key, pending[p, 0].op = pending[p, size].key, pending[p, size].op
        sift_down(pairs[p], pending[p], size, 0)


@njit(cache=True)
def insert(
    p: int,
    op: int,
    devices: Records,
    pairs: Records,
    pending: Records,
    zeros: NDArray[np.float64],
    arrived: NDArray[np.int64],
) -> None:
    """Put `op` into the heap of device `p` that its arrival bound asks for."""
    if pairs[p, op].bound <= devices[p].free:
        pairs[p, op].where = ARRIVED
        devices[p].arrived = push(zeros, arrived[p], 0, devices[p].arrived, 0.0, op)
    else:
        pairs[p, op].where = PENDING
        at = devices[p].pending
        pending[p, at].key, pending[p, at].op = pairs[p, op].bound, op
        devices[p].pending = at + 1
        sift_up(pairs[p], pending[p], at)


@njit(cache=True)
def remove_top(
    p: int, devices: Records, pairs: Records, pending: Records, zeros: NDArray[np.float64], arrived: NDArray[np.int64]
) -> None:
    """Remove the op of device `p` that could start first: an arrived one, or the first pending one."""
    if devices[p].arrived > 0:
        devices[p].arrived = pop(zeros, arrived[p], 0, devices[p].arrived)
    else:
        pop_pending(p, devices, pairs, pending)
