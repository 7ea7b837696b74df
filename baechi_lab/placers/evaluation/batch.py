"""Step times of many placements of one graph, in one compiled call that releases the interpreter lock: rewards of a policy.

Idea: the same rules as `evaluation.evaluate`, first in, first out. Whatever does not depend on the placement is left out
beforehand: inputs that are sure to arrive before others (`evaluation.waits`), and tensors within one colocation group.
Devices are looked up per group instead of per op. Memory is not followed during a simulation. A device holds at most the
persistent bytes and all outputs of its ops, every copy that it received and its largest temporary; mostly this upper bound
fits. Only where it does not, `evaluation.evaluate` simulates again and follows memory.

The rules of events are repeated here for speed: `evaluate` takes 1.8 to 2.9 times as long for the same step
times, and 1.3 to 2.2 times where it need not follow memory (1000 placements of optimized GNMT, 543 and 1111 ops, on 2 and 5
devices, processor time of one thread, medians of seven). Tests compare every step time with the simulator's.

Complexity: O(ops + waits + steps * devices) per placement.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph
from ...graph.kernels.jit import njit
from ...simulator.kernel import PARALLEL, SEQUENTIAL
from ..problem import groups_of
from .assignment import Assignment, Limits, positions
from .evaluate import evaluate, overflow
from .model import Model, make_model
from .waits import make_waits
from .work import make_work, padded


class Plan(NamedTuple):
    """The graph and the cluster as arrays, which no placement changes.

    `degree`, `near*` and `far*` are those of `evaluation.waits.Waits`. Indices are unsigned, so compiled code need not test them
    for negative values. `cost` float64[n * D]: durations. `source`: ops without inputs. `unit`: of each op. `far_unit`: the unit
    of each op in `far`. `far_last`: True where the next op in `far` waits for another tensor. `size` float64: bytes of a tensor.
    Per unit, `persistent` bytes, `total_bytes` (these and all outputs), and `temp`, the largest temporary. Per device, `limit`
    bytes; per pair of devices, `latency` and `per_byte`.
    """

    cost: NDArray[np.float64]
    degree: NDArray[np.int32]
    source: NDArray[np.uint32]
    near_ptr: NDArray[np.uint32]
    near: NDArray[np.uint32]
    far_ptr: NDArray[np.uint32]
    far: NDArray[np.uint32]
    far_unit: NDArray[np.uint32]
    far_tensor: NDArray[np.uint32]
    far_last: NDArray[np.bool_]
    size: NDArray[np.float64]
    unit: NDArray[np.uint32]
    persistent: NDArray[np.int64]
    total_bytes: NDArray[np.int64]
    temp: NDArray[np.int64]
    limit: NDArray[np.int64]
    latency: NDArray[np.float64]
    per_byte: NDArray[np.float64]
    comm: int


class Scratch(NamedTuple):
    """Scratch space for the simulation of one placement; `received` float64[D] bytes is also a result.

    - `missing`: per op, inputs that are not yet on their way. `ready_at`: when the last of them arrives.
    - `woken`: ops of this instant that need no further input.
    - `line`: per device, ops that may start now, from `head` to `tail`; those from `fresh` on became ready at `fresh_at`.
    - `pending`: per device, ops that may start later, by time, from `first` to `last`; the next one at `coming_at`.
    - `running`: the op of each device, -1 for none, until `busy_until`. `queue_out`, `queue_in`: when queues are free.
    - `goal`: the devices to which the current tensor is sent. `arrival` float64[D]: when it reaches each device.
    """

    missing: NDArray[np.int32]
    ready_at: NDArray[np.float64]
    woken: NDArray[np.uint32]
    line: NDArray[np.uint32]
    head: NDArray[np.int64]
    tail: NDArray[np.int64]
    fresh: NDArray[np.int64]
    fresh_at: NDArray[np.float64]
    pending: NDArray[np.uint32]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    running: NDArray[np.int64]
    busy_until: NDArray[np.float64]
    coming_at: NDArray[np.float64]
    queue_out: NDArray[np.float64]
    queue_in: NDArray[np.float64]
    goal: NDArray[np.int64]
    arrival: NDArray[np.float64]
    received: NDArray[np.float64]


class Batch:
    """Evaluates placements of `graph` on `cluster`. One object serves one thread at a time.

    >>> from baechi_lab import Link
    >>> graph = OpGraph.from_edges([2e6, 3e6, 1e6], [(0, 2, 8), (1, 2, 8)])
    >>> batch = Batch(graph, Cluster.uniform(2, memory_bytes=100, link=Link(5e5, 0.0)))
    >>> batch.seconds(np.array([[0, 0, 0], [0, 1, 1]], dtype=np.int32)).tolist()
    [6.0, 4.0]
    """

    def __init__(self, graph: OpGraph, cluster: Cluster):
        self.model = make_model(graph, cluster)
        self.plan = _make_plan(graph, self.model)
        self.first = np.unique(self.plan.unit, return_index=True)[1]
        self.order = positions(None, graph.n)  # read by nobody, as ops run first in, first out
        self.work, self.scratch = make_work(self.model), _make_scratch(self.plan)

    def for_another_thread(self) -> Batch:
        """Returns a copy for another thread, with its own scratch space."""
        batch = object.__new__(Batch)
        batch.__dict__.update(self.__dict__)
        batch.work, batch.scratch = make_work(self.model), _make_scratch(self.plan)
        return batch

    def seconds(self, rows: NDArray[np.int32]) -> NDArray[np.float64]:
        """Returns the step times float64[s], in seconds, of `s` placements `rows` int32[s, n].

        A placement that exceeds a device's memory takes infinitely long.
        """
        rows = np.ascontiguousarray(rows, dtype=np.int32)
        unit_devices = np.ascontiguousarray(rows[:, self.first], dtype=np.int64)
        result = np.empty(len(rows))
        _seconds((self.plan, self.scratch), (self.model, self.work, *self.order), rows, unit_devices, result)
        return result


def _make_plan(graph: OpGraph, model: Model) -> Plan:
    unit = groups_of(graph)
    waits, units = make_waits(graph, unit), int(unit.max(initial=-1)) + 1
    persistent, output_bytes, temp = (np.zeros(units, dtype=np.int64) for _ in range(3))
    np.add.at(persistent, unit, graph.persistent_bytes)
    np.add.at(output_bytes, unit, model.output_bytes)
    np.maximum.at(temp, unit, graph.temp_bytes)
    last = np.append(waits.far_tensor[1:] != waits.far_tensor[:-1], True)
    index = lambda a: np.array(a, dtype=np.uint32)  # noqa: E731
    return Plan(
        cost=model.table.reshape(-1),
        degree=waits.degree,
        source=index(np.flatnonzero(waits.degree == 0)),
        near_ptr=index(waits.near_ptr),
        near=index(waits.near),
        far_ptr=index(waits.far_ptr),
        far=index(waits.far),
        far_unit=index(unit[waits.far]),
        far_tensor=index(waits.far_tensor),
        far_last=last,
        size=graph.tensor_bytes[waits.tensor].astype(np.float64),
        unit=index(unit),
        persistent=persistent,
        total_bytes=persistent + output_bytes,
        temp=temp,
        limit=model.limit,
        latency=model.latency,
        per_byte=model.per_byte,
        comm=model.comm,
    )


def _make_scratch(plan: Plan) -> Scratch:
    n, devices = len(plan.degree), len(plan.limit)
    ints = lambda size: np.zeros(size, dtype=np.int64)  # noqa: E731
    indices = lambda size: np.zeros(size, dtype=np.uint32)  # noqa: E731
    floats = np.zeros
    scratch = Scratch(
        missing=np.zeros(n, dtype=np.int32),
        ready_at=floats(n),
        woken=indices(n + 1),
        line=indices(devices * (n + 1)),
        head=ints(devices),
        tail=ints(devices),
        fresh=ints(devices),
        fresh_at=floats(devices),
        pending=indices(devices * (n + 1)),
        first=ints(devices),
        last=ints(devices),
        running=ints(devices),
        busy_until=floats(devices),
        coming_at=floats(devices),
        queue_out=floats(devices),
        queue_in=floats(devices),
        goal=ints(devices + 1),
        arrival=floats(devices),
        received=floats(devices),
    )
    return padded(scratch)


@njit(cache=True, nogil=True)
def _seconds(
    quick: Any,
    exact_columns: Any,
    rows: NDArray[np.int32],
    unit_devices: NDArray[np.int64],
    result: NDArray[np.float64],
) -> None:
    """Fill `result` (`Batch.seconds`) with the `quick` simulation (plan, scratch) or, where memory matters, the exact one."""
    p, s = quick
    model, work, position, at = exact_columns
    one_lane = len(work.running) == len(model.limit)  # `makespan_us` knows no collectives
    for k in range(len(rows)):
        surely, never = (
            _fits(p, unit_devices[k], s.received, False)
            if _together(p.unit, unit_devices[k], rows[k])
            else (False, False)
        )
        if never:
            result[k] = np.inf
            continue
        if surely and one_lane:  # copies aside
            result[k] = 1e-6 * makespan_us(p, s, unit_devices[k])
            if _fits(p, unit_devices[k], s.received, True)[0]:
                continue
        time = evaluate(model, work, Assignment(rows[k], position, at, False), Limits(True, np.inf, 0.0))
        result[k] = 1e-6 * time if overflow(model, work) == 0 else np.inf


@njit(cache=True, nogil=True)
def _together(unit: NDArray[np.uint32], unit_device: NDArray[np.int64], row: NDArray[np.int32]) -> bool:
    """Whether every op of a unit has the unit's device: `row` int32[n] per op, `unit_device` per unit."""
    for i in range(len(row)):  # noqa: SIM110 - compiled
        if row[i] != unit_device[unit[i]]:
            return False
    return True


@njit(cache=True, nogil=True)
def _fits(
    p: Plan, unit_device: NDArray[np.int64], received_bytes: NDArray[np.float64], copies: bool
) -> tuple[bool, bool]:
    """Returns whether every device surely has enough memory, and whether some device surely has not."""
    surely, never = True, False
    for d in range(len(p.limit)):
        held_bytes, peak_bytes, temp = 0, 0, 0
        for u in range(len(unit_device)):
            if unit_device[u] == d:
                held_bytes += p.persistent[u]
                peak_bytes += p.total_bytes[u]
                temp = max(temp, p.temp[u])
        never = never or held_bytes > p.limit[d]
        surely = surely and peak_bytes + temp + (received_bytes[d] if copies else 0.0) <= p.limit[d]
    return surely, never


@njit(cache=True, nogil=True)
def makespan_us(p: Plan, s: Scratch, unit_device: NDArray[np.int64]) -> float:
    """Simulate the placement of every unit on its device `unit_device` int64[units]; returns its makespan in microseconds.

    It is one loop without helpers: a call that passes arrays counts references, which takes longer than such a helper.
    """
    cost, degree, source, near_ptr, near = p.cost, p.degree, p.source, p.near_ptr, p.near
    far_ptr, far, far_unit, far_tensor, far_last = p.far_ptr, p.far, p.far_unit, p.far_tensor, p.far_last
    size, unit, latency, per_byte, comm = p.size, p.unit, p.latency, p.per_byte, p.comm
    missing, ready_at, woken, line, head, tail = s.missing, s.ready_at, s.woken, s.line, s.head, s.tail
    fresh, fresh_at, pending, first, last = s.fresh, s.fresh_at, s.pending, s.first, s.last
    running, busy_until, coming_at = s.running, s.busy_until, s.coming_at
    queue_out, queue_in, goal, arrival, received_bytes = s.queue_out, s.queue_in, s.goal, s.arrival, s.received
    n, devices = len(degree), len(latency)
    for d in range(devices):
        head[d] = tail[d] = fresh[d] = first[d] = last[d] = d * (n + 1)
        fresh_at[d] = queue_out[d] = queue_in[d] = received_bytes[d] = 0.0
        running[d] = -1
        busy_until[d] = coming_at[d] = np.inf
    missing[:] = degree
    ready_at[:] = 0.0
    for i in source:
        d = unit_device[unit[i]]
        line[tail[d]] = i
        tail[d] += 1
    now_us = 0.0
    while True:
        end, ending, ends_count, coming = np.inf, -1, 0, np.inf
        for d in range(devices):
            if running[d] < 0 and head[d] < tail[d]:
                op = line[head[d]]
                head[d] += 1
                running[d] = op
                busy_until[d] = now_us + cost[op * devices + d]
            if busy_until[d] < end:
                end, ending, ends_count = busy_until[d], d, 1
            elif busy_until[d] == end:
                ends_count += 1
            coming = min(coming, coming_at[d])
        if end == np.inf and coming == np.inf:
            return now_us
        now_us = min(end, coming)
        count = 0  # ops whose last input is there or on its way
        d = ending if end == now_us else -1
        while d >= 0:  # ops that end now, by op index: their sends join the queues in that order
            if ends_count > 1:
                for q in range(devices):
                    if busy_until[q] == now_us and running[q] < running[d]:
                        d = q
            op = running[d]
            running[d] = -1
            busy_until[d] = np.inf
            for k in range(near_ptr[op], near_ptr[op + 1]):
                i = near[k]
                missing[i] -= 1
                woken[count] = i
                count += 1 if missing[i] == 0 else 0
            goals, goal_begin = 0, far_ptr[op]
            for k in range(goal_begin, far_ptr[op + 1]):
                q = unit_device[far_unit[k]]
                if q != d:  # one more destination of this tensor; ascending and distinct
                    g = goals
                    while g > 0 and goal[g - 1] > q:
                        g -= 1
                    if g == 0 or goal[g - 1] != q:
                        for j in range(goals, g, -1):
                            goal[j] = goal[j - 1]
                        goal[g] = q
                        goals += 1
                if not far_last[k]:
                    continue
                arrival[d] = now_us
                for g in range(goals):
                    q = goal[g]
                    received_bytes[q] += size[far_tensor[k]]
                    transfer_us = latency[d, q] + per_byte[d, q] * size[far_tensor[k]]
                    leaves = now_us
                    if comm != PARALLEL:  # behind what is in the queues of both
                        leaves = max(now_us, queue_out[d])
                        queue_out[d] = leaves + transfer_us
                        if comm == SEQUENTIAL:
                            leaves = max(leaves, queue_out[q])
                            queue_out[q] = leaves + transfer_us
                        else:
                            leaves = max(leaves, queue_in[q])
                            queue_in[q] = leaves + transfer_us
                    arrival[q] = leaves + transfer_us
                for j in range(goal_begin, k + 1):
                    i = far[j]
                    ready_at[i] = max(ready_at[i], arrival[unit_device[far_unit[j]]])
                    missing[i] -= 1
                    woken[count] = i
                    count += 1 if missing[i] == 0 else 0
                goals, goal_begin = 0, k + 1
            d = -1
            if ends_count > 1:
                for q in range(devices):
                    if busy_until[q] == now_us:
                        d = q
        if coming == now_us:
            for q in range(devices):
                while coming_at[q] == now_us:
                    woken[count] = pending[first[q]]
                    count += 1
                    first[q] += 1
                    coming_at[q] = ready_at[pending[first[q]]] if first[q] < last[q] else np.inf
        for j in range(count):
            i = woken[j]
            time, d = ready_at[i], unit_device[unit[i]]
            if time > now_us:  # into what is pending, by time, mostly at the end
                k = last[d]
                last[d] = k + 1
                while k > first[d] and ready_at[pending[k - 1]] > time:
                    pending[k] = pending[k - 1]
                    k -= 1
                pending[k] = i
                coming_at[d] = ready_at[pending[first[d]]]
                continue
            k = tail[d]  # into the line behind what is ready, at one instant by op index
            tail[d] = k + 1
            if fresh_at[d] != now_us:
                fresh_at[d] = now_us
                fresh[d] = k
            while k > fresh[d] and k > head[d] and line[k - 1] > i:
                line[k] = line[k - 1]
                k -= 1
            line[k] = i
