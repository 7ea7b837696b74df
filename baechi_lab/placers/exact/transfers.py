"""Transfers in the CP-SAT model: which tensors are sent where, and the queues in which they wait.

`sequential` and `duplex`: a send holds the sender's queue and a receive the receiver's for the cost. Nothing on one queue
overlaps. Requests are served in the order in which their tensors were produced, ties by producer, then tensor.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

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
