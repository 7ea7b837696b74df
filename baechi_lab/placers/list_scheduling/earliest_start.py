"""The list scheduler behind ETF and SCT, compiled: repeatedly start the (op, device) pair that can start earliest.

Idea (Jeon et al. 2020, equation 1 and sections 2.3, 2.4, 3.1, 3.4): the earliest start of op `j` on device `p` is
`max(free[p], arrival of its inputs on p)`, waits in the communication queues included. Per device four heaps
(`pair_heaps.py`) hold the ready ops. With queued transfers an arrival only moves later as queues fill, so a heap key is
a lower bound that is raised when it comes to the top: first to what the receiver's queue alone says, then to the
arrival itself. Ops whose one transfer waits for the receiver's queue move with it and keep their order. The one thing
that makes an arrival earlier, a tensor that another op has already brought to the device, re-keys the ops that read it.
A device whose first pair starts later than the best one so far is not looked into.
So the pair taken is exactly the smallest (start, op, device), at O((ops + edges) x devices x log ops) in practice.

Memory: a pair whose device lacks the bytes is dropped for good. Placing the first op of a group promises the
group's persistent bytes. An op that no device has room for goes where most is left and is counted; the caller
then finds the violation in simulation.

`earliest_start_reference.py` is the readable twin with identical results.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.heaps import pop, push
from ...graph.kernels.jit import njit, records
from ..problem import Problem
from .arrivals import PARALLEL, ROUNDING, arrival_of, may_run, queued_time, receiving_queue, waits_for_queue
from .pair_heaps import ARRIVED, BEHIND, FOLLOWING, HEAPS, NOT_READY, PENDING, REMOVED, Heaps, insert, rekey, remove
from .records import FETCH, WAITING, Records, Schedule, ScheduleState, make_state


class Releases(NamedTuple):
    """A heap of when bytes become free: `time` float64 in microseconds, `code` int64, and its length `size` int64[1].

    `code` is `t * devices + p` for tensor `t` on device `p`, and `(tensors + g) * devices + p` for the reserve of group `g`.
    """

    time: NDArray[np.float64]
    code: NDArray[np.int64]
    size: NDArray[np.int64]


@njit(cache=True, allocates=False)
def _insert_by_bound(p: int, op: int, devices: Records, pairs: Records, heaps: Heaps) -> None:
    """Inserts `op` into the heap of device `p` that its lower bound belongs to: *arrived* or *pending*."""
    start = max(devices[p].free, pairs[p, op].bound)
    if (start, op) < (devices[p].first_start, devices[p].first_op):
        devices[p].first_start, devices[p].first_op = start, op
    if pairs[p, op].bound <= devices[p].free:
        insert(p, op, ARRIVED, 0.0, pairs, heaps)
    else:
        insert(p, op, PENDING, pairs[p, op].bound, pairs, heaps)


@njit(cache=True, allocates=False)
def _first_by_bound(p: int, queue: float, devices: Records, pairs: Records, heaps: Heaps) -> int:
    """Returns the op of device `p` with the smallest (lower bound of its start, op), or -1.

    Ops that arrive before the device is free are moved to the heap of arrived ops.
    """
    free, row, (waiting, size) = devices[p].free, HEAPS * p, heaps
    while True:
        op, bound = -1, np.inf
        if size[row + PENDING] > 0:
            op, bound = waiting[row + PENDING, 0].op, waiting[row + PENDING, 0].key
        for state in (FOLLOWING, BEHIND):
            if size[row + state] > 0:
                queued_op, queued_bound = waiting[row + state, 0].op, queue + waiting[row + state, 0].key
                if state == BEHIND:
                    queued_bound *= 1 - ROUNDING
                if queued_bound < bound or (queued_bound == bound and queued_op < op):
                    op, bound = queued_op, queued_bound
                    pairs[p, op].bound = bound
        if bound > free:
            return waiting[row + ARRIVED, 0].op if size[row + ARRIVED] > 0 else op
        remove(p, op, pairs, heaps)
        insert(p, op, ARRIVED, 0.0, pairs, heaps)


@njit(cache=True, allocates=False)
def _earliest_on_device(
    p: int, latest_us: float, last_op: int, state: ScheduleState, heaps: Heaps, fetches: Records
) -> int:
    """Returns the op that starts earliest on device `p` (ties by op), and moves it to the top of its heap.

    Returns -1 if every pair of the device comes after (`latest_us`, `last_op`) in the order of (start, op).
    Updates the device's lower bound (`first_start`, `first_op`).
    """
    ops, devices, pairs = state.ops, state.devices, state.pairs
    free, queue = devices[p].free, receiving_queue(p, state.comm, devices)
    while True:
        op = _first_by_bound(p, queue, devices, pairs, heaps)
        is_early = op >= 0 and pairs[p, op].state == ARRIVED
        start = free if is_early else (np.inf if op < 0 else pairs[p, op].bound)
        devices[p].first_start, devices[p].first_op = start, op
        if op < 0 or (start, op) > (latest_us, last_op):
            return -1
        if ops[op].device >= 0 or not may_run(op, p, state):
            remove(p, op, pairs, heaps)
            continue
        if pairs[p, op].exact:
            return op
        if pairs[p, op].state == PENDING and (queue + pairs[p, op].queued) * (1 - ROUNDING) > pairs[p, op].bound:
            remove(p, op, pairs, heaps)
            insert(p, op, BEHIND, pairs[p, op].queued, pairs, heaps)
            continue
        arrival, count = arrival_of(op, p, False, state, fetches)
        pairs[p, op].exact, pairs[p, op].queued = count == 0, queued_time(count, fetches)
        if (is_early and arrival <= free) or (not is_early and arrival == pairs[p, op].bound):
            return op
        pairs[p, op].bound = arrival
        if waits_for_queue(arrival, count, fetches):
            remove(p, op, pairs, heaps)
            insert(p, op, FOLLOWING, fetches[0].cost, pairs, heaps)
        elif pairs[p, op].state == PENDING:
            rekey(p, op, pairs, heaps)
        else:
            remove(p, op, pairs, heaps)
            _insert_by_bound(p, op, devices, pairs, heaps)


@njit(cache=True, allocates=False)
def _awake_for(p: int, state: ScheduleState, fetches: Records) -> int:
    """Returns the favourite child that device `p` stays awake for; -1 for none."""
    ops, devices = state.ops, state.devices
    if devices[p].last_op < 0:
        return -1
    j = ops[devices[p].last_op].child
    if j < 0 or ops[j].missing_inputs > 0 or ops[j].device >= 0 or not may_run(j, p, state):
        return -1
    start_here = max(devices[p].free, arrival_of(j, p, False, state, fetches)[0])
    for d in range(len(devices)):
        if d != p and may_run(j, d, state):
            start_there = arrival_of(j, d, False, state, fetches)[0]
            if start_here >= max(devices[d].free, start_there):
                return -1
    return j


@njit(cache=True, allocates=False)
def _is_urgent(op: int, time: float, state: ScheduleState, fetches: Records) -> bool:
    """Whether the inputs of `op` arrive by `time` on every device that may run it."""
    for d in range(len(state.devices)):
        if may_run(op, d, state):
            if arrival_of(op, d, False, state, fetches)[0] > time:
                return False
    return True


@njit(cache=True, allocates=False)
def _best_while_awake(
    p: int,
    awaited_op: int,
    latest_us: float,
    last_op: int,
    state: ScheduleState,
    heaps: Heaps,
    fetches: Records,
    skipped_ops: NDArray[np.int64],
) -> int:
    """Returns the earliest op of device `p`, which is awake for `awaited_op`: that op, or an urgent one; -1 for none."""
    devices, pairs, count = state.devices, state.pairs, 0
    op = _earliest_on_device(p, latest_us, last_op, state, heaps, fetches)
    while op >= 0 and op != awaited_op:
        start = max(devices[p].free, pairs[p, op].bound)
        if _is_urgent(op, start, state, fetches):
            break
        remove(p, op, pairs, heaps)
        skipped_ops[count] = op
        count += 1
        op = _earliest_on_device(p, latest_us, last_op, state, heaps, fetches)
    for k in range(count):
        _insert_by_bound(p, skipped_ops[k], devices, pairs, heaps)
    return op


@njit(cache=True, allocates=False)
def _choose_pair(
    has_favourites: bool, state: ScheduleState, heaps: Heaps, fetches: Records, skipped_ops: NDArray[np.int64]
) -> tuple[int, int]:
    """Returns the op and device of the smallest (start, op, not beside its favourite parent, device).

    The device with the smallest lower bound is searched first, since the others can then be skipped more often.
    """
    ops, devices, pairs = state.ops, state.devices, state.pairs
    best, best_p, best_start, best_without_parent = -1, -1, np.inf, True
    likely = 0
    for p in range(1, len(devices)):
        if (devices[p].first_start, devices[p].first_op) < (devices[likely].first_start, devices[likely].first_op):
            likely = p
    for k in range(len(devices)):
        p = likely if k == 0 else (k - 1 if k <= likely else k)
        last_op = best if has_favourites or p < best_p else best - 1
        if (devices[p].first_start, devices[p].first_op) > (best_start, last_op):
            continue
        awaited_op = -1
        if has_favourites:
            awaited_op = _awake_for(p, state, fetches)
        if awaited_op >= 0:
            op = _best_while_awake(p, awaited_op, best_start, last_op, state, heaps, fetches, skipped_ops)
        else:
            op = _earliest_on_device(p, best_start, last_op, state, heaps, fetches)
        if op < 0:
            continue
        start = max(devices[p].free, pairs[p, op].bound)
        without_parent = ops[op].parent < 0 or ops[ops[op].parent].device != p
        if (start, op, without_parent, p) < (best_start, best, best_without_parent, best_p) or best < 0:
            best, best_p, best_start, best_without_parent = op, p, start, without_parent
    return best, best_p


@njit(cache=True, allocates=False)
def _lacks_memory(op: int, p: int, state: ScheduleState, fetches: Records, releases: Releases) -> bool:
    """Whether starting `op` on `p` would exceed the device's memory, including promised bytes."""
    ops, tensors, groups, devices = state.ops, state.tensors, state.groups, state.devices
    release_time, release_code, size = releases
    arrival, count = arrival_of(op, p, False, state, fetches)
    start = max(devices[p].free, arrival)
    while size[0] > 0 and release_time[0] <= start:
        item, d = release_code[0] // len(devices), release_code[0] % len(devices)
        size[0] = pop(release_time, release_code, 0, size[0])
        last = len(tensors) - 1
        devices[d].used_bytes -= tensors[item].size_bytes if item < last else groups[item - last].reserve
    copied_bytes, arrives_early = 0, False
    for k in range(count):
        copied_bytes += tensors[fetches[k].tensor].size_bytes
        arrives_early = arrives_early or fetches[k].receive < devices[p].free
    g = ops[op].group
    promise = groups[g].promised_bytes + groups[g].reserve if groups[g].device < 0 else 0
    own_bytes = max(ops[op].output_bytes + ops[op].temp_bytes - groups[g].reserve, 0)
    if arrives_early and devices[p].last_op >= 0:
        own_bytes = max(own_bytes, ops[devices[p].last_op].temp_bytes)  # the copy comes in while the last op still runs
    return devices[p].used_bytes + promise + copied_bytes + own_bytes > devices[p].limit


@njit(cache=True, allocates=False)
def _schedule_release(time: float, size_bytes: int, code: int, releases: Releases) -> None:
    """Releases `size_bytes` bytes at `time`; see `Releases` for `code`."""
    if size_bytes > 0:
        releases.size[0] = push(releases.time, releases.code, 0, releases.size[0], time, code)


@njit(cache=True, allocates=False)
def _roomiest(op: int, state: ScheduleState) -> int:
    """Returns the device with most free bytes of those that are allowed for `op`, whether or not the bytes suffice."""
    devices, pairs = state.devices, state.pairs
    group_device, best = state.groups[state.ops[op].group].device, -1
    for p in range(len(devices)):
        if pairs[p, op].allowed and (group_device < 0 or group_device == p):
            if best < 0 or devices[p].limit - devices[p].used_bytes > devices[best].limit - devices[best].used_bytes:
                best = p
    return best


@njit(cache=True, allocates=False)
def _commit(op: int, p: int, step: int, state: ScheduleState, fetches: Records, releases: Releases) -> int:
    """Starts `op` on `p`; returns how many tensors were fetched (listed in `fetches`)."""
    ops, tensors, groups, devices, pairs = state.ops, state.tensors, state.groups, state.devices, state.pairs
    copies, inputs = state.copies, state.inputs
    count = len(devices)
    arrival, fetch_count = arrival_of(op, p, True, state, fetches)
    finish = max(devices[p].free, arrival) + pairs[p, op].duration
    ops[op].start, ops[op].finish = max(devices[p].free, arrival), finish
    ops[op].device, ops[op].position = p, step
    devices[p].free, devices[p].last_op = finish, op
    g = ops[op].group
    if groups[g].device < 0:
        groups[g].device = p
        devices[p].used_bytes += groups[g].promised_bytes + groups[g].reserve
    groups[g].unplaced -= 1
    if groups[g].unplaced == 0:
        _schedule_release(finish, groups[g].reserve, (len(tensors) - 1 + g) * count + p, releases)
    for k in range(fetch_count):
        t = fetches[k].tensor
        copies[t, p].arrival = fetches[k].end
        devices[p].used_bytes += tensors[t].size_bytes
        sender = ops[tensors[t].producer].device
        copies[t, sender].last_use = max(copies[t, sender].last_use, fetches[k].end)
    for e in range(ops[op].first_input, ops[op + 1].first_input):
        t = inputs[e]
        copies[t, p].last_use = max(copies[t, p].last_use, finish)
        tensors[t].unread -= 1
        if tensors[t].unread == 0:
            for d in range(count):
                if copies[t, d].last_use >= 0:
                    _schedule_release(copies[t, d].last_use, tensors[t].size_bytes, t * count + d, releases)
    for t in range(ops[op].first_output, ops[op + 1].first_output):
        devices[p].used_bytes += tensors[t].size_bytes
        copies[t, p].last_use = finish
        if tensors[t].unread == 0:
            _schedule_release(finish, tensors[t].size_bytes, t * count + p, releases)
    return fetch_count


@njit(cache=True, allocates=False)
def _enter(op: int, p: int, state: ScheduleState, heaps: Heaps, fetches: Records) -> None:
    """Enters `op`, whose predecessors are all placed, into the heaps of device `p`."""
    bound, count = arrival_of(op, p, False, state, fetches)
    pair = state.pairs[p, op]
    pair.bound, pair.queued = bound, queued_time(count, fetches)
    pair.exact = state.comm == PARALLEL or count == 0
    _insert_by_bound(p, op, state.devices, state.pairs, heaps)


@njit(cache=True, allocates=False)
def _reopen_group(g: int, p: int, state: ScheduleState, heaps: Heaps, fetches: Records) -> None:
    """Adds the dropped pairs of group `g` on device `p` again, since the device's memory is now promised to the group."""
    groups, pairs = state.groups, state.pairs
    for k in range(groups[g].first_member, groups[g + 1].first_member):
        i = state.members[k]
        if pairs[p, i].dropped:
            pairs[p, i].dropped = False
            if pairs[p, i].state == REMOVED and state.ops[i].device < 0:
                _enter(i, p, state, heaps, fetches)


@njit(cache=True, allocates=False)
def _rekey_readers(
    p: int, fetch_count: int, state: ScheduleState, heaps: Heaps, fetches: Records, other_fetches: Records
) -> None:
    """Lowers the bounds of the ready ops that read a tensor just fetched: it is cached on `p`, so they may start earlier."""
    tensors, pairs = state.tensors, state.pairs
    for k in range(fetch_count):
        t = fetches[k].tensor
        for e in range(tensors[t].first_consumer, tensors[t + 1].first_consumer):
            j = state.consumers[e]
            if state.ops[j].device < 0 and FOLLOWING <= pairs[p, j].state <= PENDING:
                remove(p, j, pairs, heaps)
                _enter(j, p, state, heaps, other_fetches)


@njit(cache=True, interpreted_if=lambda has_favourites, state: state.pairs.size < 30_000)
def _schedule(has_favourites: bool, state: ScheduleState) -> int:
    """Chooses a pair of op and device in every step, in place; returns how many ops exceed the memory of their device."""
    ops, tensors, groups, devices, pairs = state.ops, state.tensors, state.groups, state.devices, state.pairs
    consumers = state.consumers
    n, count, most_inputs = len(ops) - 1, len(devices), 1
    for i in range(n):
        most_inputs = max(most_inputs, ops[i + 1].first_input - ops[i].first_input)
    fetches = records(np.empty(most_inputs, FETCH))
    other_fetches = records(np.empty(most_inputs, FETCH))
    skipped_ops = np.empty(n, np.int64)
    heaps = Heaps(records(np.empty((HEAPS * count, n), WAITING)), np.zeros(HEAPS * count, np.int64))
    heap_size = len(tensors) + len(consumers) + len(groups) + 1
    releases = Releases(np.empty(heap_size), np.empty(heap_size, np.int64), np.zeros(1, np.int64))
    for p in range(count):
        devices[p].first_start, devices[p].first_op = np.inf, n
        for i in range(n):
            pairs[p, i].state = NOT_READY
    for i in range(n):
        if ops[i].missing_inputs == 0:
            for p in range(count):
                if pairs[p, i].allowed:
                    _enter(i, p, state, heaps, fetches)
    overflows = 0
    for step in range(n):
        while True:
            op, p = _choose_pair(has_favourites, state, heaps, fetches, skipped_ops)
            if not _lacks_memory(op, p, state, fetches, releases):
                break
            pairs[p, op].dropped = True  # it stays in its heap and is skipped when it comes to the top
            any_allowed = False
            for d in range(count):
                any_allowed = any_allowed or may_run(op, d, state)
            if not any_allowed:
                p = _roomiest(op, state)
                overflows += 1
                break
        group_is_new = groups[ops[op].group].device < 0
        fetch_count = _commit(op, p, step, state, fetches, releases)
        if group_is_new:
            _reopen_group(ops[op].group, p, state, heaps, other_fetches)
        if state.comm != PARALLEL:
            _rekey_readers(p, fetch_count, state, heaps, fetches, other_fetches)
        for t in range(ops[op].first_output, ops[op + 1].first_output):
            for e in range(tensors[t].first_consumer, tensors[t + 1].first_consumer):
                i = consumers[e]
                ops[i].missing_inputs -= 1
                if ops[i].missing_inputs == 0:
                    for d in range(count):
                        if may_run(i, d, state):
                            _enter(i, d, state, heaps, other_fetches)
    return overflows


def earliest_start(problem: Problem, child: NDArray[np.int32], parent: NDArray[np.int32]) -> Schedule:
    """Schedules every op; `child` and `parent` int32[n] are favourites (-1 for none), or empty for plain ETF."""
    n = len(problem.table)
    state = make_state(problem)
    has_favourites = len(child) > 0
    if has_favourites:
        state.ops["child"][:n], state.ops["parent"][:n] = child, parent
    overflows = _schedule(has_favourites, state)
    device, start, finish, position = (state.ops[name][:n].copy() for name in ("device", "start", "finish", "position"))
    return Schedule(device, start, finish, position, int(overflows))
