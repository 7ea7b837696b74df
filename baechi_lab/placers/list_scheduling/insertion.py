"""The list scheduler behind HEFT and `bl.ListScheduler`, compiled: which op next, on which device, in which gap.

Idea: of the ops whose producers are all scheduled, take the one of the least key; or, for `OP_BY_START`, the pair of op
and device that can start earliest. Look up on every feasible device when its inputs are there and when the device has time
for it, and choose a device. With insertion an op may use a gap between ops scheduled before (HEFT, MCP). Otherwise it goes
behind the last one (ETF, FIFO).

The classical model: transfers never wait for each other (`parallel` in the simulator), so an input is on a device at
`finish + latency + bytes x us_per_byte`. A device keeps its busy intervals, merged where they touch; a gap is found by
bisection, and the search ends where no gap can beat the best device so far. O((ops + edges) x devices + gaps visited).

Memory and groups (Mayer et al. 2017, section 5.1): the first op of a colocation group places it and promises its bytes, later
members only get their time. Devices that are not allowed or lack the promised bytes are left out.

`tests/helpers/insertion_reference.py` is the readable twin with identical results.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.csr import inverse
from ...graph.kernels.heaps import pop, push
from ...graph.kernels.jit import njit
from ..partition import DeviceUsage, assign_unit, emptiest, feasible
from ..problem import Problem

OP_BY_KEY, OP_BY_READY_TIME, OP_BY_START = 0, 1, 2
"""Rules for the next op: the least of given keys, the first that became ready, or that of the pair that can start earliest."""

DEVICE_BY_FINISH, DEVICE_BY_START, DEVICE_BY_DURATION, DEVICE_BY_FREE_TIME = 0, 1, 2, 3
"""Rules for its device: earliest finish, earliest start, shortest duration, or the first to be free whatever the inputs."""


class Plan(NamedTuple):
    """A planned schedule of n ops.

    Args:
        device: int32[n].
        start, finish: float64[n], microseconds.
        sequence: int64[n], the ops in the order in which they were scheduled.
        overflows: the number of groups put on a device that lacks the memory.
    """

    device: NDArray[np.int32]
    start: NDArray[np.float64]
    finish: NDArray[np.float64]
    sequence: NDArray[np.int64]
    overflows: int


class Rule(NamedTuple):
    """The rule that chooses the next op and its device, and whether the op may fill a gap between scheduled ops."""

    op_rule: int
    device_rule: int
    insertion: bool


class Sources(NamedTuple):
    """The producers of an op's inputs, and the costs of their transfers: fields of `Problem`."""

    producer: NDArray[np.int32]
    size: NDArray[np.int64]
    input_ptr: NDArray[np.int64]
    inputs: NDArray[np.int32]
    latency: NDArray[np.float64]
    per_byte: NDArray[np.float64]


class Busy(NamedTuple):
    """The busy intervals of each device: `start`, `end` float64[D, ..] of the first `intervals` int64[D], ascending."""

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    intervals: NDArray[np.int64]


def insertion_schedule(
    problem: Problem, key: NDArray[np.float64], op_rule: int, device_rule: int, insertion: bool, need: NDArray[np.int64]
) -> Plan:
    """Schedules every op.

    Args:
        key: float64[n], for `OP_BY_KEY`: the ready op of the least key is next, of equal keys that of the least index.
        op_rule: `OP_BY_KEY`, `OP_BY_READY_TIME` or `OP_BY_START`.
        device_rule: `DEVICE_BY_FINISH`, `DEVICE_BY_START`, `DEVICE_BY_DURATION` or `DEVICE_BY_FREE_TIME`.
        insertion: whether an op may use a gap between ops scheduled before.
        need: int64[groups], the bytes by which a device that lacks memory is chosen where none has enough.
    """
    key = np.ascontiguousarray(key, dtype=np.float64)
    return _schedule(problem, Rule(op_rule, device_rule, insertion), key, need)


def start_order(plan: Plan) -> NDArray[np.int64]:
    """Returns int64[n]: position of each op by planned start; at one instant what ends first, then what was scheduled first."""
    return inverse(np.lexsort((inverse(plan.sequence), plan.finish, plan.start)))


@njit(cache=True)
def _arrivals(
    i: int, device: NDArray[np.int32], finish: NDArray[np.float64], sources: Sources, out: NDArray[np.float64]
) -> None:
    """Sets `out` float64[D]: when all inputs of op `i` are on each device."""
    producer, size, input_ptr, inputs, latency, per_byte = sources
    out[:] = 0.0
    for e in range(input_ptr[i], input_ptr[i + 1]):
        t = inputs[e]
        u = producer[t]
        p = device[u]
        for d in range(len(out)):
            arrival_us = finish[u]
            if d != p:
                arrival_us = finish[u] + (latency[p, d] + per_byte[p, d] * size[t])
            if arrival_us > out[d]:
                out[d] = arrival_us


@njit(cache=True)
def _earliest_gap(
    busy_start: NDArray[np.float64],
    busy_end: NDArray[np.float64],
    count: int,
    arrival_us: float,
    duration: float,
    insertion: bool,
    tail: float,
    latest_us: float,
) -> float:
    """Returns the earliest start from `arrival_us` on that fits between the busy intervals.

    It is infinite if start + `tail` exceeds `latest_us`: then the device is no better than another.
    """
    if not insertion:
        return max(arrival_us, busy_end[count - 1]) if count > 0 else arrival_us
    low, high = 0, count
    while low < high:  # bisects for the first interval that ends after the arrival
        middle = (low + high) >> 1
        if busy_end[middle] > arrival_us:
            high = middle
        else:
            low = middle + 1
    start = arrival_us
    for k in range(low, count):
        if start + tail > latest_us:
            return np.inf
        if start + duration <= busy_start[k]:
            return start
        start = busy_end[k]
    return start


@njit(cache=True)
def _occupy(
    busy_start: NDArray[np.float64], busy_end: NDArray[np.float64], count: int, start: float, finish: float
) -> int:
    """Adds an interval, which may have no length, merged with those that it touches; returns the new count."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if busy_start[middle] >= finish:
            high = middle
        else:
            low = middle + 1
    touches_next = low < count and busy_start[low] == finish
    touches_previous = low > 0 and busy_end[low - 1] == start
    if touches_previous and touches_next:
        busy_end[low - 1] = busy_end[low]
        for k in range(low, count - 1):
            busy_start[k], busy_end[k] = busy_start[k + 1], busy_end[k + 1]
        return count - 1
    if touches_previous:
        busy_end[low - 1] = finish
        return count
    if touches_next:
        busy_start[low] = start
        return count
    for k in range(count, low, -1):
        busy_start[k], busy_end[k] = busy_start[k - 1], busy_end[k - 1]
    busy_start[low], busy_end[low] = start, finish
    return count + 1


@njit(cache=True)
def _best_device(
    rule: Rule, arrival_us: NDArray[np.float64], duration: NDArray[np.float64], mask: NDArray[np.bool_], busy: Busy
) -> tuple[int, float]:
    """Returns the device and start of an op by the rule; ties by start, then device index."""
    device_rule, insertion = rule.device_rule, rule.insertion
    busy_start, busy_end, count = busy
    best, best_start, least = -1, 0.0, np.inf
    for d in range(len(mask)):
        if not mask[d]:
            continue
        cutoff_us = least if device_rule in (DEVICE_BY_FINISH, DEVICE_BY_START) else np.inf
        tail = duration[d] if device_rule == DEVICE_BY_FINISH else 0.0
        start = _earliest_gap(
            busy_start[d], busy_end[d], count[d], arrival_us[d], duration[d], insertion, tail, cutoff_us
        )
        score = start
        if device_rule == DEVICE_BY_FINISH:
            score = start + duration[d]
        elif device_rule == DEVICE_BY_DURATION:
            score = duration[d]
        elif device_rule == DEVICE_BY_FREE_TIME:
            score = busy_end[d, count[d] - 1] if count[d] > 0 else 0.0
        if best < 0 or score < least or (score == least and start < best_start):
            best, best_start, least = d, start, score
    return best, best_start


@njit(cache=True)
def _mark_candidates(g: int, memory: DeviceUsage, mask: NDArray[np.bool_]) -> bool:
    """Sets `mask` to the devices that group `g` may go to; returns False if none has the promised bytes: then the emptiest."""
    if memory.unit_device[g] >= 0:
        mask[:] = False
        mask[memory.unit_device[g]] = True
        return True
    if feasible(g, memory, mask):
        return True
    best = emptiest(mask, memory)
    fits = memory.used_persistent[best] + memory.persistent_bytes[g] <= memory.limit[best]
    mask[:] = False
    mask[best] = True
    return fits


@njit(cache=True)
def _earliest_pair(
    ready: NDArray[np.int64],
    size: int,
    rule: Rule,
    arrival_us: NDArray[np.float64],
    table: NDArray[np.float64],
    group: NDArray[np.int32],
    memory: DeviceUsage,
    busy: Busy,
    mask: NDArray[np.bool_],
) -> int:
    """Returns the position in `ready` of the op that can start earliest on its device; ties by op index."""
    best_place, earliest_us = 0, np.inf
    for k in range(size):
        i = ready[k]
        _mark_candidates(group[i], memory, mask)
        _, start = _best_device(rule, arrival_us[i], table[i], mask, busy)
        if start < earliest_us or (start == earliest_us and i < ready[best_place]):
            best_place, earliest_us = k, start
    return best_place


@njit(cache=True, interpreted_if=lambda problem, rule, key, *_: len(key) < 2000)
def _schedule(problem: Problem, rule: Rule, key: NDArray[np.float64], need: NDArray[np.int64]) -> Plan:
    """Schedules every op; arguments as in `insertion_schedule`."""
    table, allowed, group, op_rule = problem.table, problem.allowed, problem.group, rule.op_rule
    producer, input_ptr, inputs, output_ptr = problem.producer, problem.input_ptr, problem.inputs, problem.output_ptr
    consumer_ptr, consumers = problem.consumer_ptr, problem.consumers
    sources = Sources(producer, problem.size_bytes, input_ptr, inputs, problem.latency, problem.per_byte)
    n, devices, groups = len(key), len(problem.limit), len(problem.promised_bytes)
    device, start, finish = np.full(n, -1, np.int32), np.zeros(n), np.zeros(n)
    sequence, missing = np.empty(n, np.int64), np.empty(n, np.int64)
    group_allowed, unit_device = np.ones((groups, devices), np.bool_), np.full(groups, -1, np.int32)
    used_persistent, used, mask = np.zeros(devices, np.int64), np.zeros(devices, np.int64), np.zeros(devices, np.bool_)
    memory = DeviceUsage(group_allowed, problem.promised_bytes, need, problem.limit, used_persistent, used, unit_device)
    width = 16
    busy_start, busy_end, count = np.empty((devices, width)), np.empty((devices, width)), np.zeros(devices, np.int64)
    busy = Busy(busy_start, busy_end, count)
    ready_key, ready, waiting = np.empty(n), np.empty(n, np.int64), 0
    arrival_us = np.empty((n if op_rule == OP_BY_START else 1, devices))
    overflows = 0
    for i in range(n):
        for d in range(devices):
            if not allowed[i, d]:
                group_allowed[group[i], d] = False
        missing[i] = input_ptr[i + 1] - input_ptr[i]
    for i in range(n):
        if missing[i] == 0:
            if op_rule == OP_BY_START:
                arrival_us[i] = 0.0
                ready[waiting] = i
                waiting += 1
            else:
                waiting = push(ready_key, ready, 0, waiting, key[i] if op_rule == OP_BY_KEY else 0.0, i)
    for scheduled_count in range(n):
        if op_rule == OP_BY_START:
            at = _earliest_pair(ready, waiting, rule, arrival_us, table, group, memory, busy, mask)
            i = ready[at]
            waiting -= 1
            ready[at] = ready[waiting]
            row = i
        else:
            i = ready[0]
            waiting = pop(ready_key, ready, 0, waiting)
            row = 0
            _arrivals(i, device, finish, sources, arrival_us[0])
        g = group[i]
        if not _mark_candidates(g, memory, mask):
            overflows += 1
        d, start_us = _best_device(rule, arrival_us[row], table[i], mask, busy)
        if unit_device[g] < 0:
            assign_unit(g, d, memory)
        device[i], start[i], finish[i], sequence[scheduled_count] = d, start_us, start_us + table[i, d], i
        if count[d] == width:
            wider = np.empty((2, devices, 2 * width))
            for q in range(devices):
                for k in range(width):
                    wider[0, q, k], wider[1, q, k] = busy_start[q, k], busy_end[q, k]
            busy_start, busy_end, width = wider[0], wider[1], 2 * width
            busy = Busy(busy_start, busy_end, count)
        count[d] = _occupy(busy_start[d], busy_end[d], count[d], start_us, finish[i])
        for t in range(output_ptr[i], output_ptr[i + 1]):
            for e in range(consumer_ptr[t], consumer_ptr[t + 1]):
                v = consumers[e]
                missing[v] -= 1
                if missing[v] > 0:
                    continue
                if op_rule == OP_BY_START:
                    _arrivals(v, device, finish, sources, arrival_us[v])
                    ready[waiting] = v
                    waiting += 1
                else:
                    op_key = key[v]
                    if op_rule == OP_BY_READY_TIME:
                        op_key = 0.0
                        for k in range(input_ptr[v], input_ptr[v + 1]):
                            op_key = max(op_key, finish[producer[inputs[k]]])
                    waiting = push(ready_key, ready, 0, waiting, op_key, v)
    return Plan(device, start, finish, sequence, overflows)
