"""The list scheduler behind ETF and SCT, compiled: repeatedly start the (op, device) pair that can start earliest.

Idea (paper B, equation 1 and sections 2.3, 2.4, 3.1, 3.4): the earliest start of op `j` on device `p` is
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

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.heaps import pop, push
from ...graph.kernels.jit import njit, records
from ..problem import Problem
from .arrivals import PARALLEL, ROUNDING, arrival_of, may_run, queued_time, receiving_queue, waits_for_queue
from .pair_heaps import ARRIVED, BEHIND, FOLLOWING, HEAPS, NOT_READY, PENDING, REMOVED, Heaps, insert, rekey, remove
from .records import FETCH, WAITING, Records, Traffic, make_records


class Freed(NamedTuple):
    """A heap of when bytes become free: `time` float64, `code` int64 (tensor or group, and device), `size` int64[1]."""

    time: NDArray[np.float64]
    code: NDArray[np.int64]
    size: NDArray[np.int64]


@njit(cache=True, allocates=False)
def _insert_by_bound(p: int, op: int, devices: Records, pairs: Records, heaps: Heaps) -> None:
    start = max(devices[p].free, pairs[p, op].bound)
    if (start, op) < (devices[p].first_start, devices[p].first_op):
        devices[p].first_start, devices[p].first_op = start, op
    if pairs[p, op].bound <= devices[p].free:
        insert(p, op, ARRIVED, 0.0, pairs, heaps)
    else:
        insert(p, op, PENDING, pairs[p, op].bound, pairs, heaps)


@njit(cache=True, allocates=False)
def _first(p: int, queue: float, devices: Records, pairs: Records, heaps: Heaps) -> int:
    """The op of device `p` with the smallest (lower bound of its start, op), or -1.

    Ops that arrive before the device is free are among the arrived ones afterwards.
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
def _top(
    p: int, latest: float, last_op: int, traffic: Traffic, groups: Records, pairs: Records, heaps: Heaps, fetch: Records
) -> int:
    """Bring the pair of device `p` that starts earliest (ties by op) to the top of its heap.

    Returns its op, or -1 if every pair of the device comes after (`latest`, `last_op`) in the order of (start, op).
    The device's `first_start` and `first_op` are brought up to what is known afterwards.
    """
    ops, devices, comm = traffic.ops, traffic.devices, traffic.comm
    free, queue = devices[p].free, receiving_queue(p, comm, devices)
    while True:
        op = _first(p, queue, devices, pairs, heaps)
        is_early = op >= 0 and pairs[p, op].state == ARRIVED
        start = free if is_early else (np.inf if op < 0 else pairs[p, op].bound)
        devices[p].first_start, devices[p].first_op = start, op
        if op < 0 or (start, op) > (latest, last_op):
            return -1
        if ops[op].device >= 0 or not may_run(op, p, ops, groups, pairs):
            remove(p, op, pairs, heaps)
            continue
        if pairs[p, op].exact:
            return op
        if pairs[p, op].state == PENDING and (queue + pairs[p, op].queued) * (1 - ROUNDING) > pairs[p, op].bound:
            remove(p, op, pairs, heaps)
            insert(p, op, BEHIND, pairs[p, op].queued, pairs, heaps)
            continue
        arrival, count = arrival_of(op, p, False, traffic, fetch)
        pairs[p, op].exact, pairs[p, op].queued = count == 0, queued_time(count, fetch)
        if (is_early and arrival <= free) or (not is_early and arrival == pairs[p, op].bound):
            return op
        pairs[p, op].bound = arrival
        if waits_for_queue(arrival, count, fetch):
            remove(p, op, pairs, heaps)
            insert(p, op, FOLLOWING, fetch[0].cost, pairs, heaps)
        elif pairs[p, op].state == PENDING:
            rekey(p, op, pairs, heaps)
        else:
            remove(p, op, pairs, heaps)
            _insert_by_bound(p, op, devices, pairs, heaps)


@njit(cache=True, allocates=False)
def _awake_for(p: int, traffic: Traffic, groups: Records, pairs: Records, fetch: Records) -> int:
    """The favourite child that device `p` stays awake for; -1 for none."""
    ops, devices = traffic.ops, traffic.devices
    if devices[p].last < 0:
        return -1
    j = ops[devices[p].last].child
    if j < 0 or ops[j].missing > 0 or ops[j].device >= 0 or not may_run(j, p, ops, groups, pairs):
        return -1
    start_here = max(devices[p].free, arrival_of(j, p, False, traffic, fetch)[0])
    for d in range(len(devices)):
        if d != p and may_run(j, d, ops, groups, pairs):
            start_there = arrival_of(j, d, False, traffic, fetch)[0]
            if start_here >= max(devices[d].free, start_there):
                return -1
    return j


@njit(cache=True, allocates=False)
def _urgent(op: int, time: float, traffic: Traffic, groups: Records, pairs: Records, fetch: Records) -> bool:
    """Its inputs are there by `time` on whichever device may run it."""
    for d in range(len(traffic.devices)):
        if may_run(op, d, traffic.ops, groups, pairs):
            if arrival_of(op, d, False, traffic, fetch)[0] > time:
                return False
    return True


@njit(cache=True, allocates=False)
def _best_while_awake(
    p: int,
    awaited: int,
    latest: float,
    last_op: int,
    traffic: Traffic,
    groups: Records,
    pairs: Records,
    heaps: Heaps,
    fetch: Records,
    held_pairs: NDArray[np.int64],
) -> int:
    """The earliest pair of a device that is awake for `awaited`: that op, or an urgent one."""
    devices, count = traffic.devices, 0
    op = _top(p, latest, last_op, traffic, groups, pairs, heaps, fetch)
    while op >= 0 and op != awaited:
        start = max(devices[p].free, pairs[p, op].bound)
        if _urgent(op, start, traffic, groups, pairs, fetch):
            break
        remove(p, op, pairs, heaps)
        held_pairs[count] = op
        count += 1
        op = _top(p, latest, last_op, traffic, groups, pairs, heaps, fetch)
    for k in range(count):
        _insert_by_bound(p, held_pairs[k], devices, pairs, heaps)
    return op


@njit(cache=True, allocates=False)
def _choose(
    favour: bool,
    traffic: Traffic,
    groups: Records,
    pairs: Records,
    heaps: Heaps,
    fetch: Records,
    held_pairs: NDArray[np.int64],
) -> tuple[int, int]:
    """The smallest (start, op, not beside its favourite parent, device) over the devices."""
    ops, devices = traffic.ops, traffic.devices
    best, best_p, best_start, best_without_parent = -1, -1, np.inf, True
    likely = 0
    for p in range(1, len(devices)):
        if (devices[p].first_start, devices[p].first_op) < (devices[likely].first_start, devices[likely].first_op):
            likely = p
    for k in range(len(devices)):
        p = likely if k == 0 else (k - 1 if k <= likely else k)
        last_op = best if favour or p < best_p else best - 1
        if (devices[p].first_start, devices[p].first_op) > (best_start, last_op):
            continue
        awaited = -1
        if favour:
            awaited = _awake_for(p, traffic, groups, pairs, fetch)
        if awaited >= 0:
            op = _best_while_awake(p, awaited, best_start, last_op, traffic, groups, pairs, heaps, fetch, held_pairs)
        else:
            op = _top(p, best_start, last_op, traffic, groups, pairs, heaps, fetch)
        if op < 0:
            continue
        start = max(devices[p].free, pairs[p, op].bound)
        without_parent = ops[op].parent < 0 or ops[ops[op].parent].device != p
        if (start, op, without_parent, p) < (best_start, best, best_without_parent, best_p) or best < 0:
            best, best_p, best_start, best_without_parent = op, p, start, without_parent
    return best, best_p


@njit(cache=True, allocates=False)
def _lacks_memory(op: int, p: int, traffic: Traffic, groups: Records, fetch: Records, freed: Freed) -> bool:
    """Whether starting `op` on `p` would exceed the device's memory, including promised bytes."""
    ops, tensors, devices, (free_time, free_code, size) = traffic.ops, traffic.tensors, traffic.devices, freed
    arrival, count = arrival_of(op, p, False, traffic, fetch)
    start = max(devices[p].free, arrival)
    while size[0] > 0 and free_time[0] <= start:
        item, d = free_code[0] // len(devices), free_code[0] % len(devices)
        size[0] = pop(free_time, free_code, 0, size[0])
        last = len(tensors) - 1
        devices[d].level -= tensors[item].size if item < last else groups[item - last].reserve
    brought, arrives_early = 0, False
    for k in range(count):
        brought += tensors[fetch[k].tensor].size
        arrives_early = arrives_early or fetch[k].receive < devices[p].free
    g = ops[op].group
    promise = groups[g].promised + groups[g].reserve if groups[g].device < 0 else 0
    own_bytes = max(ops[op].made + ops[op].temp - groups[g].reserve, 0)
    if arrives_early and devices[p].last >= 0:
        own_bytes = max(own_bytes, ops[devices[p].last].temp)  # the copy comes in while the last op still runs
    return devices[p].level + promise + brought + own_bytes > devices[p].limit


@njit(cache=True, allocates=False)
def _free_at(time: float, bytes_: int, code: int, freed: Freed) -> None:
    if bytes_ > 0:
        freed.size[0] = push(freed.time, freed.code, 0, freed.size[0], time, code)


@njit(cache=True, allocates=False)
def _roomiest(op: int, ops: Records, devices: Records, groups: Records, pairs: Records) -> int:
    group_device, best = groups[ops[op].group].device, -1
    for p in range(len(devices)):
        if pairs[p, op].allowed and (group_device < 0 or group_device == p):
            if best < 0 or devices[p].limit - devices[p].level > devices[best].limit - devices[best].level:
                best = p
    return best


@njit(cache=True, allocates=False)
def _commit(
    op: int, p: int, step: int, traffic: Traffic, groups: Records, pairs: Records, fetch: Records, freed: Freed
) -> int:
    """Start `op` on `p`; returns how many tensors were fetched (listed in `fetch`)."""
    ops, tensors, devices, copies, _, inputs, _ = traffic
    count = len(devices)
    arrival, fetched = arrival_of(op, p, True, traffic, fetch)
    finish = max(devices[p].free, arrival) + pairs[p, op].duration
    ops[op].start, ops[op].finish = max(devices[p].free, arrival), finish
    ops[op].device, ops[op].position = p, step
    devices[p].free, devices[p].last = finish, op
    g = ops[op].group
    if groups[g].device < 0:
        groups[g].device = p
        devices[p].level += groups[g].promised + groups[g].reserve
    groups[g].left -= 1
    if groups[g].left == 0:
        _free_at(finish, groups[g].reserve, (len(tensors) - 1 + g) * count + p, freed)
    for k in range(fetched):
        t = fetch[k].tensor
        copies[t, p].there = fetch[k].end
        devices[p].level += tensors[t].size
        a = ops[tensors[t].producer].device
        copies[t, a].last_use = max(copies[t, a].last_use, fetch[k].end)
    for e in range(ops[op].first_input, ops[op + 1].first_input):
        t = inputs[e]
        copies[t, p].last_use = max(copies[t, p].last_use, finish)
        tensors[t].unread -= 1
        if tensors[t].unread == 0:
            for d in range(count):
                if copies[t, d].last_use >= 0:
                    _free_at(copies[t, d].last_use, tensors[t].size, t * count + d, freed)
    for t in range(ops[op].first_output, ops[op + 1].first_output):
        devices[p].level += tensors[t].size
        copies[t, p].last_use = finish
        if tensors[t].unread == 0:
            _free_at(finish, tensors[t].size, t * count + p, freed)
    return fetched


@njit(cache=True, allocates=False)
def _enter(op: int, p: int, traffic: Traffic, pairs: Records, heaps: Heaps, fetch: Records) -> None:
    """Enters `op`, whose predecessors are all placed, into the heaps of device `p`."""
    bound, count = arrival_of(op, p, False, traffic, fetch)
    pairs[p, op].bound = bound
    pairs[p, op].exact, pairs[p, op].queued = traffic.comm == PARALLEL or count == 0, queued_time(count, fetch)
    _insert_by_bound(p, op, traffic.devices, pairs, heaps)


@njit(cache=True, allocates=False)
def _reopen_group(
    g: int,
    p: int,
    members: NDArray[np.int64],
    traffic: Traffic,
    groups: Records,
    pairs: Records,
    heaps: Heaps,
    fetch: Records,
) -> None:
    """Add the dropped pairs of group `g` on device `p` again, since the device's memory is now promised to the group."""
    for k in range(groups[g].first_member, groups[g + 1].first_member):
        i = members[k]
        if pairs[p, i].dropped:
            pairs[p, i].dropped = False
            if pairs[p, i].state == REMOVED and traffic.ops[i].device < 0:
                _enter(i, p, traffic, pairs, heaps, fetch)


@njit(cache=True, allocates=False)
def _rekey_readers(
    p: int,
    fetched: int,
    consumers: NDArray[np.int32],
    traffic: Traffic,
    pairs: Records,
    heaps: Heaps,
    fetch: Records,
    other_fetch: Records,
) -> None:
    """Tensors just fetched are cached on `p`: ready ops that read them may start there earlier than thought."""
    ops, tensors = traffic.ops, traffic.tensors
    for k in range(fetched):
        t = fetch[k].tensor
        for e in range(tensors[t].first_consumer, tensors[t + 1].first_consumer):
            j = consumers[e]
            if ops[j].device < 0 and FOLLOWING <= pairs[p, j].state <= PENDING:
                remove(p, j, pairs, heaps)
                _enter(j, p, traffic, pairs, heaps, other_fetch)


@njit(cache=True, interpreted_if=lambda favour, traffic, groups, pairs, *_: pairs.size < 30_000)
def _schedule(
    favour: bool,
    traffic: Traffic,
    groups: Records,
    pairs: Records,
    consumers: NDArray[np.int32],
    members: NDArray[np.int64],
) -> int:
    """Chooses a pair of op and device in every step, in place; returns how many ops exceed the memory of their device."""
    ops, tensors, devices, comm = traffic.ops, traffic.tensors, traffic.devices, traffic.comm
    n, count, most_inputs = len(ops) - 1, len(devices), 1
    for i in range(n):
        most_inputs = max(most_inputs, ops[i + 1].first_input - ops[i].first_input)
    fetch = records(np.empty(most_inputs, FETCH))
    other_fetch = records(np.empty(most_inputs, FETCH))
    held_pairs = np.empty(n, np.int64)
    heaps = Heaps(records(np.empty((HEAPS * count, n), WAITING)), np.zeros(HEAPS * count, np.int64))
    heap_size = len(tensors) + len(consumers) + len(groups) + 1
    freed = Freed(np.empty(heap_size), np.empty(heap_size, np.int64), np.zeros(1, np.int64))
    for p in range(count):
        devices[p].first_start, devices[p].first_op = np.inf, n
        for i in range(n):
            pairs[p, i].state = NOT_READY
    for i in range(n):
        if ops[i].missing == 0:
            for p in range(count):
                if pairs[p, i].allowed:
                    _enter(i, p, traffic, pairs, heaps, fetch)
    overflows = 0
    for step in range(n):
        while True:
            op, p = _choose(favour, traffic, groups, pairs, heaps, fetch, held_pairs)
            if not _lacks_memory(op, p, traffic, groups, fetch, freed):
                break
            pairs[p, op].dropped = True  # it stays in its heap and is skipped when it comes to the top
            any_allowed = False
            for d in range(count):
                any_allowed = any_allowed or may_run(op, d, ops, groups, pairs)
            if not any_allowed:
                p = _roomiest(op, ops, devices, groups, pairs)
                overflows += 1
                break
        first = groups[ops[op].group].device < 0
        fetched = _commit(op, p, step, traffic, groups, pairs, fetch, freed)
        if first:
            _reopen_group(ops[op].group, p, members, traffic, groups, pairs, heaps, other_fetch)
        if comm != PARALLEL:
            _rekey_readers(p, fetched, consumers, traffic, pairs, heaps, fetch, other_fetch)
        for t in range(ops[op].first_output, ops[op + 1].first_output):
            for e in range(tensors[t].first_consumer, tensors[t + 1].first_consumer):
                i = consumers[e]
                ops[i].missing -= 1
                if ops[i].missing == 0:
                    for d in range(count):
                        if may_run(i, d, ops, groups, pairs):
                            _enter(i, d, traffic, pairs, heaps, other_fetch)
    return overflows


def earliest_start(problem: Problem, child: NDArray[np.int32], parent: NDArray[np.int32]) -> Any:
    """Schedule every op.

    `child` and `parent` int32[n] are favourites (-1 for none), or empty for plain ETF. Returns device int32[n],
    planned start and finish float64[n], position int64[n], and how many ops had to be put where memory is lacking.
    """
    n = len(problem.table)
    traffic, groups, pairs = make_records(problem)
    ops, favour = traffic.ops, len(child) > 0
    ops["child"], ops["parent"] = -1, -1
    if favour:
        ops["child"][:n], ops["parent"][:n] = child, parent
    overflows = _schedule(favour, traffic, groups, pairs, problem.consumers, problem.members)
    scheduled = ops[:n]
    return (
        scheduled["device"].copy(),
        scheduled["start"].copy(),
        scheduled["finish"].copy(),
        scheduled["position"].copy(),
        int(overflows),
    )
