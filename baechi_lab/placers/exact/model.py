"""The scheduling problem of docs/simulated-time.md as a CP-SAT model.

Variables: x[g, d] "group g is on device d"; the start of every op; per tensor and receiving device the start of its send and
of its receive; where transfers queue, which of two producers ends first. Constraints:

- Devices: an op occupies its device for its duration; no two ops overlap.
- Precedence: an op starts no earlier than each of its inputs arrives: at the producer's end on the same device, otherwise at
  the receive's start plus the cost.
- Transfers: queues serve requests in the order in which their tensors were produced.
- Memory (`add_memory`): outputs, temporaries and received copies next to the persistent bytes.
- Colocation groups share x; devices that are not allowed are left out.

This is the relaxed model. Ops and transfers may start later than they could, the copies of one tensor may be sent in any
order, and equal devices are numbered in one way only. Its optimum is a lower bound of every schedule. The strict model adds
the simulator's rule that nothing waits without need: for ops `forbid_idling`, for transfers `add_transfers`. Its optimum is
the best that any placement and any order can reach in the simulator.

Transfers under `sequential` and `duplex`: a send holds the sender's queue and a receive the receiver's for the cost. Nothing
on one queue overlaps. Requests are served in the order in which their tensors were produced, ties by producer, then tensor.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...graph.kernels.csr import grouped_sum
from ..problem import devices_are_equal, memory_may_run_out
from .variables import ExactModel

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import IntervalVar, IntVar, LinearExprT, LiteralT

Key = tuple[int, int]


class QueueUse(NamedTuple):
    """A possible use of a queue: transfer (tensor, receiver), its side, the literal that it takes place, and its times."""

    key: Key
    side: str
    literal: LiteralT
    start: LinearExprT
    stop: LinearExprT
    interval: IntervalVar


def add_transfers(m: ExactModel) -> None:
    """Adds one possible transfer per tensor and receiving device."""
    for t in range(m.graph.tensor_count):
        producer = int(m.graph.tensor_producer[t])
        readers = sorted({int(m.group[j]) for j in m.graph.tensor_consumers(t).tolist()} - {int(m.group[producer])})
        for d in range(m.cluster.n if readers else 0):
            _transfer(m, (t, d), producer, readers)
    if m.cluster.comm != "parallel":
        _Queues(m)


def _transfer(m: ExactModel, key: Key, producer: int, readers: list[int]) -> None:
    """Adds the rule that a transfer takes place if a group that reads the tensor is on the device and its producer is not."""
    t, d = key
    present, produced_here = m.bool(f"sent{t},{d}"), m.on(producer, d)
    m.model.add_implication(present, ~produced_here)
    for g in readers:
        m.model.add_bool_or([present, produced_here, ~m.x[g][d]])
    m.model.add_bool_or([*(m.x[g][d] for g in readers), ~present])
    costs = m.times.transfer[t, :, d].tolist()
    m.cost[key] = sum(costs[s] * m.on(producer, s) for s in range(m.cluster.n))
    m.present[key] = present
    if m.cluster.comm == "parallel":
        m.send[key] = m.receive[key] = _at_once(m, producer)
        return
    m.send[key] = m.var(m.horizon, f"S{t},{d}")
    m.receive[key] = m.var(m.horizon, f"R{t},{d}")
    m.model.add(m.send[key] >= m.end[producer]).only_enforce_if(present)
    m.model.add(m.receive[key] >= m.send[key]).only_enforce_if(present)


def _at_once(m: ExactModel, producer: int) -> IntVar:
    """Returns the end of the producer.

    If times were rounded: the end that it rounds to, which may be one unit later than the sum.
    """
    if m.times.exact:
        return m.end[producer]
    start = m.var(m.horizon)
    m.at_one_instant(start, m.end[producer])
    return start


class _Queues:
    """A queue ("out", "in" or "both", device) serves its users one after the other, in the order of production."""

    def __init__(self, m: ExactModel):
        self.m = m
        self.lanes: dict[tuple[str, int], list[QueueUse]] = {}
        self.earlier: dict[tuple[str, Key], list[tuple[object, list[object]]]] = {}
        for t, d in m.present:
            producer = int(m.graph.tensor_producer[t])
            self._use((t, d), "in", d, m.present[t, d])
            for s in range(m.cluster.n):
                if s != d:
                    present, produced_here = m.present[t, d], m.on(producer, s)
                    is_sent = m.bool()
                    m.model.add_bool_and([present, produced_here]).only_enforce_if(is_sent)
                    m.model.add_bool_or([~present, ~produced_here, is_sent])
                    self._use((t, d), "out", s, is_sent)
        for lane in self.lanes.values():
            m.model.add_no_overlap([use.interval for use in lane])
            for one, two in combinations(lane, 2):
                i, k = (int(m.graph.tensor_producer[use.key[0]]) for use in (one, two))
                same_tensor = one.key[0] == two.key[0]
                if one.key == two.key or (same_tensor and not m.strict):
                    continue  # copies of one tensor: any order, so that devices may be renumbered
                before = m.model.new_constant(int(one.key < two.key)) if i == k else m.before(i, k)
                m.model.add(one.stop <= two.start).only_enforce_if([one.literal, two.literal, before])
                m.model.add(two.stop <= one.start).only_enforce_if([one.literal, two.literal, ~before])
                if m.strict:
                    conditions = [one.literal, two.literal, before]
                    self.earlier.setdefault((two.side, two.key), []).append((one.stop, conditions))
                    conditions = [one.literal, two.literal, ~before]
                    self.earlier.setdefault((one.side, one.key), []).append((two.stop, conditions))
        if m.strict:
            # A transfer starts as soon as it can: a send when its tensor is produced or an earlier user leaves its queue, a
            # receive when its send does or an earlier user leaves its queue.
            for key, present in m.present.items():
                producer_end = m.end[int(m.graph.tensor_producer[key[0]])]
                for side, start, ready in (("out", m.send[key], producer_end), ("in", m.receive[key], m.send[key])):
                    reasons = [m.reason(start, ready, [present])]
                    reasons += [
                        m.reason(start, stop, conditions) for stop, conditions in self.earlier.get((side, key), [])
                    ]
                    m.model.add_bool_or([*reasons, ~present])

    def _use(self, key: Key, side: str, queue: int, literal: LiteralT) -> None:
        m = self.m
        start = m.send[key] if side == "out" else m.receive[key]
        stop, length = m.var(2 * m.horizon), m.var(int(m.times.transfer[key[0]].max()))
        m.model.add(length == m.cost[key])
        interval = m.model.new_optional_interval_var(start, length, stop, literal, "")
        lane = "both" if m.cluster.comm == "sequential" else side
        self.lanes.setdefault((lane, queue), []).append(QueueUse(key, side, literal, start, stop, interval))


def add_transfer_bounds(m: ExactModel) -> None:
    """Adds constraints that follow from the others, and that the solver can use before receivers and queues are decided.

    An op starts no earlier than the end of a producer on another device plus the least cost of its tensor. Where transfers queue,
    those to one op arrive one after the other: after the k-th earliest end of its producers, all transfers from that producer and
    later ones follow.
    """
    # Longest path to the end of each op with free transfers; not compiled, since loading a compiler would take a second.
    earliest_ends: list[int] = m.times.duration.min(axis=1).tolist()
    earliest_start = [0] * m.graph.n
    for op in m.graph.order.tolist():
        earliest_ends[op] += earliest_start[op]
        for output in m.graph.outputs(op):
            for reader in m.graph.tensor_consumers(output).tolist():
                earliest_start[reader] = max(earliest_start[reader], earliest_ends[op])
    away = ~np.eye(m.cluster.n, dtype=bool)
    incoming: dict[int, list[tuple[int, LinearExprT]]] = {}
    for t in sorted({t for t, _ in m.present}):
        i = int(m.graph.tensor_producer[t])
        least = int(m.times.transfer[t][away].min())
        for j in m.graph.tensor_consumers(t).tolist():
            least_cost = least * (1 - m.together(i, j))
            m.model.add(m.start[j] >= m.end[i] + least_cost)
            incoming.setdefault(j, []).append((earliest_ends[i], least_cost))
    if m.cluster.comm != "parallel":
        for j, arrivals in incoming.items():
            arrivals.sort(key=lambda entry: entry[0])
            for k in range(len(arrivals) - 1):
                m.model.add(m.start[j] >= arrivals[k][0] + sum(least_cost for _, least_cost in arrivals[k:]))


def build_model(m: ExactModel) -> ExactModel:
    """Adds all variables and constraints to an empty model."""
    m.add_devices()
    m.add_ops()
    add_transfers(m)
    m.add_inputs()
    if m.cluster.n > 1:
        add_transfer_bounds(m)
    if memory_may_run_out(m.graph, m.cluster):
        add_memory(m)
    if m.strict:
        forbid_idling(m)
    elif devices_are_equal(m.graph, m.cluster):
        # Of equal devices one numbering: group g may use device d only if a group before it is on device d - 1.
        for g, row in enumerate(m.x):
            for d in range(1, m.cluster.n):
                m.model.add_bool_or([*(m.x[h][d - 1] for h in range(g)), ~row[d]])
    m.model.minimize(m.makespan)
    return m


def forbid_idling(m: ExactModel) -> None:
    """Requires that another op ends on the device when `i` starts if an op was ready there before."""
    n, model = m.graph.n, m.model
    ready: list[IntVar] = []  # when all inputs of each op are on its device
    for i in range(n):
        ready.append(m.var(m.horizon, f"r{i}"))
        if m.arrivals[i]:
            model.add_max_equality(ready[i], m.arrivals[i])
        else:
            model.add(ready[i] == 0)
        model.add(m.start[i] >= ready[i])
    for i in range(n):
        follows = [
            m.reason(m.start[i], m.end[j], [m.together(i, j), m.before(j, i)])
            for j in range(n)
            if j != i and not m.after[i, j]
        ]
        is_packed = m.bool(f"packed{i}")
        model.add_bool_or([*follows, ~is_packed])
        m.at_one_instant(m.start[i], ready[i], ~is_packed)
        for k in range(n):
            if k != i and not m.after[k, i]:
                inputs_ready = ready[k] + m.times.tolerance >= m.start[i]
                model.add(inputs_ready).only_enforce_if([m.together(i, k), m.before(i, k), ~is_packed])


UNITS = 10**6
"""Units that the largest device's memory is divided into."""


def add_memory(m: ExactModel) -> None:
    """Keeps the bytes that each device holds within its memory, from the start to the end of every span.

    Sizes are rounded down to a common unit, so nothing that fits is excluded.
    """
    unit = max(1, int(m.cluster.memory_bytes.max()) // UNITS)
    spans: list[list[tuple[object, int]]] = [[] for _ in range(m.cluster.n)]
    for t in range(m.graph.tensor_count):
        size = int(m.graph.tensor_bytes[t]) // unit
        if size:
            # An output: from its producer's start until its last local reader has ended and its last copy has arrived.
            producer = int(m.graph.tensor_producer[t])
            free, length = m.var(2 * m.horizon, f"free{t}"), m.var(2 * m.horizon)
            m.model.add(free >= m.end[producer])
            for j in m.graph.tensor_consumers(t).tolist():
                m.model.add(free >= m.end[j]).only_enforce_if(m.together(producer, j))
            for d in range(m.cluster.n):
                if (t, d) in m.present:
                    m.model.add(free >= m.receive[t, d] + m.cost[t, d]).only_enforce_if(m.present[t, d])
                span = m.model.new_optional_interval_var(m.start[producer], length, free, m.on(producer, d), "")
                spans[d].append((span, size))
            # A received copy: from the start of the receive until the last reader on that device has ended.
            for d in range(m.cluster.n):
                if (t, d) not in m.present:
                    continue
                present, free_time, length = m.present[t, d], m.var(2 * m.horizon), m.var(2 * m.horizon)
                m.model.add(free_time >= m.receive[t, d] + m.cost[t, d]).only_enforce_if(present)
                for j in m.graph.tensor_consumers(t).tolist():
                    m.model.add(free_time >= m.end[j]).only_enforce_if([present, m.on(j, d)])
                spans[d].append(
                    (m.model.new_optional_interval_var(m.receive[t, d], length, free_time, present, ""), size)
                )
    for i in np.flatnonzero(m.graph.temp_bytes >= unit).tolist():
        for d in range(m.cluster.n):
            length = int(m.times.duration[i, d])
            span = m.model.new_optional_interval_var(m.start[i], length, m.end[i], m.on(i, d), "")
            spans[d].append((span, int(m.graph.temp_bytes[i]) // unit))
    # Persistent bytes are held throughout. An op must also fit alone, next to the persistent bytes of its group.
    group_bytes = grouped_sum(m.graph.persistent_bytes, m.group, len(m.x))
    alone = m.graph.output_bytes + m.graph.temp_bytes + group_bytes[m.group]
    for d in range(m.cluster.n):
        memory_bytes = int(m.cluster.memory_bytes[d])
        m.model.add(sum(int(b) * m.x[g][d] for g, b in enumerate(group_bytes.tolist()) if b) <= memory_bytes)
        for g in np.flatnonzero(group_bytes >= unit).tolist():
            span = m.model.new_optional_fixed_size_interval_var(0, 2 * m.horizon, m.x[g][d], "")
            spans[d].append((span, int(group_bytes[g]) // unit))
        for i in np.flatnonzero(alone > memory_bytes).tolist():
            m.model.add(m.on(i, d) == 0)
    for d in range(m.cluster.n):
        if spans[d]:
            capacity = int(m.cluster.memory_bytes[d]) // unit
            m.model.add_cumulative([s for s, _ in spans[d]], [b for _, b in spans[d]], capacity)
