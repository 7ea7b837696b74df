"""Checkpoints of a simulation: the simulation of a changed candidate continues at the last checkpoint before the change.

A simulation saves its state at a few checkpoints, at which equal shares of the ops have started. The *base* is the
candidate that was accepted last. The next candidate differs from the base in a few ops, and both simulations are equal
until the first of these ops matters. The device of an op matters once a producer of the op ends, because the producer's
sends are requested then or the op becomes ready. The priority of an op matters once the op becomes ready, so not before its
last producer ends. The simulation continues at the last checkpoint before, and its numbers are bit for bit those of a
simulation from the beginning (tests).

Checkpoints are in two banks: those of the base and those of the candidate in simulation. `checkpoint_bank[k]` is the bank of
the base's checkpoint `k`. A checkpoint at which more transfers are under way than `Work` has room for is not saved (its time
is infinite).

Saving checkpoints takes about a sixth of a simulation, and a move of an op without inputs changes everything from the
start. So `anneal` measures its first candidates and stops saving checkpoints where they save too little.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.jit import njit
from .model import Model
from .ready import NO_BITS, lowest_bit, set_bit
from .work import Work

_HEADER = 4
"""Numbers at the beginning of a saved state: transfers so far, in the heap, under way, and ops started."""


@njit(cache=True, allocates=False)
def goal_of(k: int, checkpoints: int, n: int) -> int:
    """Returns how many of `n` ops must have started at checkpoint `k` of `checkpoints`."""
    return (k + 1) * n // (checkpoints + 1) + 1


@njit(cache=True, nogil=True, allocates=False)
def forget_checkpoints(w: Work, position: int) -> None:
    """Deletes the checkpoints after `position` of the candidate in simulation."""
    for k in range(position + 1, len(w.checkpoint_bank)):
        w.checkpoint_time[1 - w.checkpoint_bank[k], k] = np.inf


@njit(cache=True, nogil=True, allocates=False)
def accept_checkpoints(w: Work, position: int) -> None:
    """Makes the candidate, which was simulated from checkpoint `position` (-1: from the beginning), the new base."""
    start, base_start, bank = w.start, w.base_start, w.checkpoint_bank
    if position < 0:
        for i in range(len(start)):
            base_start[i] = start[i]
    else:
        time = w.checkpoint_time[bank[position], position]
        for i in range(len(start)):
            base_start[i] = start[i] if base_start[i] > time else base_start[i]
    for k in range(position + 1, len(bank)):
        bank[k] = 1 - bank[k]


@njit(cache=True, nogil=True, allocates=False)
def last_checkpoint_before(
    m: Model, w: Work, device: NDArray[np.int32], changed_ops: NDArray[np.int32], changed_count: int
) -> int:
    """Returns the last checkpoint before the first `changed_count` of `changed_ops` matter; -1: simulate from the beginning.

    A negative `changed_count` means that only priorities changed. A producer that also changed may be timed on its new device: it
    matters before it ends on either device.
    """
    table, input_ptr, inputs, producer, base_start = m.table, m.input_ptr, m.inputs, m.producer, w.base_start
    checkpoint_time, bank = w.checkpoint_time, w.checkpoint_bank
    first_checkpoint_us, time_us = checkpoint_time[bank[0], 0], np.inf
    if first_checkpoint_us == np.inf:
        return -1
    for k in range(abs(changed_count)):
        op = changed_ops[k]
        first_end_us, last_end_us = np.inf, 0.0
        for e in range(input_ptr[op], input_ptr[op + 1]):
            p = producer[inputs[e]]
            end_us = base_start[p] + table[p, device[p]]
            first_end_us, last_end_us = min(first_end_us, end_us), max(last_end_us, end_us)
        time_us = min(time_us, first_end_us if changed_count > 0 and first_end_us < np.inf else last_end_us)
        if time_us <= first_checkpoint_us:
            return -1
    checkpoint = -1
    for k in range(len(bank)):
        if checkpoint_time[bank[k], k] < time_us:
            checkpoint = k
    return checkpoint


@njit(cache=True, nogil=True, allocates=False)
def save_checkpoint(
    k: int, w: Work, at: NDArray[np.int32], by_rank: bool, parallel: bool, state: tuple[float, int, int, int]
) -> None:
    """Saves checkpoint `k` of the candidate in simulation.

    `state`: the time up to which all events are done, the transfers so far, those in the heap, and the ops started. `at`: the
    op of each priority.
    """
    now_us, slots, waiting, finished_count = state
    head, tail, line, bits, missing, heap = w.head, w.tail, w.line, w.bits, w.missing, w.heap
    running, list_head, list_tail, slot_info, slot_end = w.running, w.list_head, w.list_tail, w.slot_info, w.slot_end
    busy_until, queue_out, queue_in, spent_us = w.busy_until, w.queue_out, w.queue_in, w.spent
    devices, n, bank = len(head), len(missing), 1 - w.checkpoint_bank[k]
    ints, floats = w.checkpoint_ints[bank, k], w.checkpoint_floats[bank, k]
    transfer_start, time_start = _HEADER + 4 * devices + 2 * n, 4 * devices
    saved_transfers, capacity = 0, len(floats) - time_start
    for q in range(1 if parallel else devices):
        slot = list_head[q]
        while (saved_transfers < waiting) if parallel else (slot >= 0):
            if saved_transfers == capacity:
                return
            slot = heap[saved_transfers] if parallel else slot
            ints[transfer_start + 4 * saved_transfers] = slot
            for z in range(3):
                ints[transfer_start + 4 * saved_transfers + 1 + z] = slot_info[3 * slot + z]
            floats[time_start + saved_transfers] = slot_end[slot]
            saved_transfers += 1
            slot = slot_info[3 * slot + 2]
    ints[0], ints[1], ints[2], ints[3] = slots, waiting, saved_transfers, finished_count
    ready = _HEADER + 4 * devices + n
    for d in range(devices):
        base, count = _HEADER + 4 * d, tail[d] - head[d]
        ints[base], ints[base + 1], ints[base + 2], ints[base + 3] = running[d], list_head[d], list_tail[d], count
        floats[4 * d], floats[4 * d + 1], floats[4 * d + 2] = busy_until[d], queue_out[d], queue_in[d]
        floats[4 * d + 3] = spent_us[d]
        if not by_rank:
            first = d * (n + 1) + head[d]
            for z in range(count):
                ints[ready + z] = line[first + z]
            ready += count
        elif count > 0:
            words = d * (len(bits) // devices)
            for word_index in range((n + 63) >> 6):
                word = bits[words + word_index]
                while word != NO_BITS:
                    ints[ready] = at[(word_index << 6) + lowest_bit(word)]
                    ready += 1
                    word &= word - np.uint64(1)
    first = _HEADER + 4 * devices
    for i in range(n):
        ints[first + i] = missing[i]
    w.checkpoint_time[bank, k] = now_us


@njit(cache=True, nogil=True, allocates=False)
def restore_checkpoint(k: int, w: Work, position: NDArray[np.int32], by_rank: bool) -> tuple[float, int, int, int]:
    """Restores checkpoint `k` of the base; returns its `state` as `save_checkpoint` takes it."""
    head, tail, line, bits, missing, heap = w.head, w.tail, w.line, w.bits, w.missing, w.heap
    running, list_head, list_tail, slot_info, slot_end = w.running, w.list_head, w.list_tail, w.slot_info, w.slot_end
    busy_until, queue_out, queue_in, fresh, fresh_at = w.busy_until, w.queue_out, w.queue_in, w.fresh, w.fresh_at
    spent_us = w.spent
    alloc_next, readers = w.alloc_next, w.readers
    devices, n, bank = len(head), len(missing), w.checkpoint_bank[k]
    ints, floats = w.checkpoint_ints[bank, k], w.checkpoint_floats[bank, k]
    transfer_start, time_start = _HEADER + 4 * devices + 2 * n, 4 * devices
    words, stride = (n + 63) >> 6, len(bits) // max(devices, 1)
    if by_rank:
        bits[:] = NO_BITS
    first = _HEADER + 4 * devices
    for i in range(n):
        missing[i] = ints[first + i]
    ready = first + n
    for d in range(devices):
        base = _HEADER + 4 * d
        running[d], list_head[d], list_tail[d], count = ints[base], ints[base + 1], ints[base + 2], ints[base + 3]
        busy_until[d], queue_out[d], queue_in[d] = floats[4 * d], floats[4 * d + 1], floats[4 * d + 2]
        spent_us[d] = floats[4 * d + 3]
        head[d], tail[d], fresh[d], fresh_at[d] = 0, count, 0, -1.0
        alloc_next[d], readers[d] = -1, 0
        for z in range(count):
            if by_rank:
                set_bit(bits, d * stride, words, position[ints[ready + z]], 1)
            else:
                line[d * (n + 1) + z] = ints[ready + z]
        ready += count
    for z in range(ints[2]):
        slot = ints[transfer_start + 4 * z]
        heap[z] = slot  # in order; only the heap's where transfers do not queue
        slot_end[slot] = floats[time_start + z]
        for y in range(3):
            slot_info[3 * slot + y] = ints[transfer_start + 4 * z + 1 + y]
    return w.checkpoint_time[bank, k], ints[0], ints[1], ints[3]
