"""Where the ready ops of each device wait: a heap of pending ops by (arrival, op), a heap of arrived ops by op.

`pairs` are the (device, op) records of `earliest_start.py`; a pending op knows its place, so that it can be re-keyed.
"""

from __future__ import annotations

from typing import Any

from ..graph.heaps import pop, push
from ..graph.jit import njit

PENDING, ARRIVED, GONE = 1, 2, 3
"""Where a ready pair is; GONE: taken out because the op is placed or the device out of question (0: not yet ready)."""


@njit(cache=True)
def sift_up(pairs: Any, pending: Any, at: int) -> None:
    op = pending[at]
    bound = pairs[op].bound
    while at > 0:
        other = pending[(at - 1) >> 1]
        if pairs[other].bound < bound or (pairs[other].bound == bound and other < op):
            break
        pending[at] = other
        pairs[other].place = at
        at = (at - 1) >> 1
    pending[at] = op
    pairs[op].place = at


@njit(cache=True)
def sift_down(pairs: Any, pending: Any, size: int, at: int) -> None:
    op = pending[at]
    bound = pairs[op].bound
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size:
            a, b = pending[below], pending[below + 1]
            if pairs[b].bound < pairs[a].bound or (pairs[b].bound == pairs[a].bound and b < a):
                below += 1
        other = pending[below]
        if bound < pairs[other].bound or (bound == pairs[other].bound and op < other):
            break
        pending[at] = other
        pairs[other].place = at
        at = below
    pending[at] = op
    pairs[op].place = at


@njit(cache=True)
def pop_pending(p: int, devices: Any, pairs: Any, pending: Any) -> None:
    size = devices[p].pending - 1
    devices[p].pending = size
    if size > 0:
        pending[p, 0] = pending[p, size]
        sift_down(pairs[p], pending[p], size, 0)


@njit(cache=True)
def insert(p: int, op: int, devices: Any, pairs: Any, pending: Any, zeros: Any, arrived: Any) -> None:
    """Put `op` into the heap of device `p` that its arrival bound asks for."""
    if pairs[p, op].bound <= devices[p].free:
        pairs[p, op].where = ARRIVED
        devices[p].arrived = push(zeros, arrived[p], 0, devices[p].arrived, 0.0, op)
    else:
        pairs[p, op].where = PENDING
        at = devices[p].pending
        pending[p, at] = op
        devices[p].pending = at + 1
        sift_up(pairs[p], pending[p], at)


@njit(cache=True)
def remove_top(p: int, devices: Any, pairs: Any, pending: Any, zeros: Any, arrived: Any) -> None:
    if devices[p].arrived > 0:
        devices[p].arrived = pop(zeros, arrived[p], 0, devices[p].arrived)
    else:
        pop_pending(p, devices, pairs, pending)
