"""Readable twin of `earliest_start.py`: compares every (op, device) pair in every step, and can log its reasons.

Used by the tests (identical results) and for `explain=True` (the decision log). O(ops^2 x devices).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.csr import inverse
from ..problem import Problem
from .records import Schedule


@dataclass(frozen=True)
class Candidate:
    """One (op, device) pair of a step: earliest start in microseconds, and why it was not available, if so."""

    op: int
    device: int
    start_us: float
    excluded: str = ""


@dataclass(frozen=True)
class Decision:
    """One step of the list scheduler: the candidates, those ruled out with reasons, and the chosen pair.

    `follows_favourite`: the op is the favourite child of the device's last op, for which the device stayed awake.
    """

    step: int
    candidates: tuple[Candidate, ...]
    chosen: Candidate
    reason: str
    follows_favourite: bool = False


class Fetch(NamedTuple):
    """A transfer that an op needs: the tensor, and when the receiver starts and ends receiving it, in microseconds."""

    tensor: int
    receive: float
    end: float


class Pair(NamedTuple):
    """An op and a device that it could start on; pairs are sorted in the order in which the scheduler prefers them."""

    start_us: float
    op: int
    without_parent: bool
    device: int


class ReferenceState:
    """A schedule under construction: the placed ops, when devices and queues are free, and the bytes on each device."""

    def __init__(self, problem: Problem, child: NDArray[np.int32], parent: NDArray[np.int32]) -> None:
        n, devices = problem.table.shape
        self.problem, self.child, self.parent = problem, child, parent
        self.device, self.start, self.finish = [-1] * n, [0.0] * n, [0.0] * n
        self.order: list[int] = []
        self.free, self.last_op = [0.0] * devices, [-1] * devices
        self.queues = [[0.0] * devices, [0.0] * devices]  # of sending, or of both; of receiving
        self.group_device = [-1] * len(self.problem.promised_bytes)
        self.copy_arrival: dict[tuple[int, int], float] = {}  # (tensor, device) -> arrival of the cached copy
        self.used_bytes = [0] * devices
        self.releases: list[tuple[float, int, int]] = []  # heap of (time, device, bytes)
        self.unread = [int(k) for k in np.diff(self.problem.consumer_ptr)]
        self.last_use: dict[tuple[int, int], float] = {}
        self.unplaced_members = [int(k) for k in self.problem.group_size]
        self.dropped_pairs: dict[tuple[int, int], str] = {}

    def arrival(self, op: int, p: int) -> tuple[float, list[Fetch], list[list[float]]]:
        """Returns when all inputs of `op` are on `p`, the transfers, and the queues after them."""
        q = self.problem
        queues, latest, fetches = [list(queue) for queue in self.queues], 0.0, list[Fetch]()
        for t in q.inputs[q.input_ptr[op] : q.input_ptr[op + 1]].tolist():
            source = int(q.producer[t])
            sender, finish_us = self.device[source], self.finish[source]
            if sender != p and (t, p) in self.copy_arrival:
                finish_us = self.copy_arrival[t, p]
            elif sender != p:
                cost = float(q.latency[sender, p] + q.per_byte[sender, p] * q.size_bytes[t])
                receive = finish_us
                if q.comm != 0:
                    receiving_queue = 0 if q.comm == 1 else 1
                    send = max(finish_us, queues[0][sender])
                    queues[0][sender] = send + cost
                    receive = max(send, queues[receiving_queue][p])
                    queues[receiving_queue][p] = receive + cost
                finish_us = receive + cost
                fetches.append(Fetch(t, receive, finish_us))
            latest = max(latest, finish_us)
        return latest, fetches, queues

    def earliest(self, op: int, p: int) -> float:
        """Returns the earliest start of `op` on device `p`, in microseconds."""
        return max(self.free[p], self.arrival(op, p)[0])

    def may_run(self, op: int, p: int) -> bool:
        """Whether device `p` is allowed for `op`, its group is not elsewhere, and the pair was not dropped."""
        group_device = self.group_device[self.problem.group[op]]
        return bool(self.problem.allowed[op, p]) and group_device in (-1, p) and (op, p) not in self.dropped_pairs

    def awake_for(self, p: int, ready: list[int]) -> int:
        """Returns the favourite child that device `p` waits for: ready, unscheduled, and first to start here; -1 for none."""
        last = self.last_op[p]
        j = int(self.child[last]) if last >= 0 else -1
        if j < 0 or j not in ready or not self.may_run(j, p):
            return -1
        start_here = self.earliest(j, p)
        other_devices = [q for q in range(len(self.free)) if q != p and self.may_run(j, q)]
        return j if all(start_here < self.earliest(j, q) for q in other_devices) else -1

    def is_urgent(self, op: int, time: float) -> bool:
        """Whether the inputs of `op` arrive by `time` on every device that may run it."""
        return all(self.arrival(op, q)[0] <= time for q in range(len(self.free)) if self.may_run(op, q))

    def lacks_memory(self, op: int, p: int) -> str:
        """Says how many bytes `op` lacks on `p`; empty if it fits. Releases the bytes that are free when it would start."""
        q = self.problem
        latest, fetches, _ = self.arrival(op, p)
        start = max(self.free[p], latest)
        while self.releases and self.releases[0][0] <= start:
            _, d, size = heapq.heappop(self.releases)
            self.used_bytes[d] -= size
        g = q.group[op]
        copied_bytes = sum(int(q.size_bytes[fetch.tensor]) for fetch in fetches)
        promise = int(q.promised_bytes[g] + q.reserve[g]) if self.group_device[g] < 0 else 0
        own_bytes = max(int(q.output_bytes[op] + q.temp[op] - q.reserve[g]), 0)
        if self.last_op[p] >= 0 and any(fetch.receive < self.free[p] for fetch in fetches):
            own_bytes = max(own_bytes, int(q.temp[self.last_op[p]]))  # the copy arrives while the last op still runs
        need = promise + copied_bytes + own_bytes
        if self.used_bytes[p] + need <= q.limit[p]:
            return ""
        return f"needs {need} bytes, {max(int(q.limit[p]) - self.used_bytes[p], 0)} left"

    def schedule_release(self, time: float, d: int, size: int) -> None:
        if size > 0:
            heapq.heappush(self.releases, (time, d, size))

    def commit(self, op: int, p: int) -> None:
        """Starts `op` on device `p` as early as possible."""
        q = self.problem
        latest, fetches, self.queues = self.arrival(op, p)
        self.start[op] = max(self.free[p], latest)
        self.finish[op] = self.free[p] = self.start[op] + float(q.table[op, p])
        self.device[op], self.last_op[p] = p, op
        self.order.append(op)
        g = int(q.group[op])
        if self.group_device[g] < 0:
            self.group_device[g] = p
            self.used_bytes[p] += int(q.promised_bytes[g] + q.reserve[g])
            for i in np.flatnonzero(q.group == g).tolist():
                self.dropped_pairs.pop((i, p), None)  # the memory is promised now
        self.unplaced_members[g] -= 1
        if self.unplaced_members[g] == 0:
            self.schedule_release(self.finish[op], p, int(q.reserve[g]))
        for t, _, end in fetches:
            self.copy_arrival[t, p] = end
            self.used_bytes[p] += int(q.size_bytes[t])
            sender = self.device[int(q.producer[t])]
            self.last_use[t, sender] = max(self.last_use[t, sender], end)
        for t in q.inputs[q.input_ptr[op] : q.input_ptr[op + 1]].tolist():
            self.last_use[t, p] = max(self.last_use.get((t, p), 0.0), self.finish[op])
            self.unread[t] -= 1
            if self.unread[t] == 0:
                for d in range(len(self.free)):
                    if (t, d) in self.last_use:
                        self.schedule_release(self.last_use[t, d], d, int(q.size_bytes[t]))
        for t in range(int(q.output_ptr[op]), int(q.output_ptr[op + 1])):
            self.used_bytes[p] += int(q.size_bytes[t])
            self.last_use[t, p] = self.finish[op]
            if self.unread[t] == 0:
                self.schedule_release(self.finish[op], p, int(q.size_bytes[t]))


def startable_pairs(state: ReferenceState, ready: list[int]) -> list[Pair]:
    """Returns every pair of a ready op and a device that may run it, best first."""
    pairs = []
    for op in ready:
        parent = int(state.parent[op])
        parent_device = state.device[parent] if parent >= 0 else -1
        pairs += [
            Pair(state.earliest(op, p), op, p != parent_device, p)
            for p in range(len(state.free))
            if state.may_run(op, p)
        ]
    return sorted(pairs)


def _decide(state: ReferenceState, ready: list[int]) -> tuple[Decision, bool]:
    """Returns the decision, and whether the chosen pair exceeds the memory of its device."""
    step = len(state.order)
    without_memory: list[Candidate] = []
    while True:
        pairs = startable_pairs(state, ready)
        awaited_ops = [state.awake_for(p, ready) for p in range(len(state.free))]
        not_urgent = []
        for start, op, _, p in pairs:
            if awaited_ops[p] in (-1, op) or state.is_urgent(op, start):
                break
            not_urgent.append(Candidate(op, p, start, f"device awake for op {awaited_ops[p]}, op not urgent"))
        lack = state.lacks_memory(op, p)
        if not lack:
            reason = f"earliest start {start:g} us"
            if awaited_ops[p] == op:
                reason += ", favourite child of the device's last op"
            elif awaited_ops[p] != -1:
                reason += ", urgent on a device that is awake for another op"
            startable = (Candidate(pair.op, pair.device, pair.start_us) for pair in pairs[len(not_urgent) :])
            candidates = (*startable, *not_urgent, *without_memory)
            return Decision(step, candidates, Candidate(op, p, start), reason, awaited_ops[p] == op), False
        state.dropped_pairs[op, p] = lack
        without_memory.append(Candidate(op, p, start, lack))
        if not any(state.may_run(op, q) for q in range(len(state.free))):
            # The device with most free bytes of those that are allowed for `op`.
            problem, group_device = state.problem, state.group_device[state.problem.group[op]]
            allowed_devices = [d for d in range(len(state.free)) if problem.allowed[op, d] and group_device in (-1, d)]
            p = max(allowed_devices, key=lambda d: (int(problem.limit[d]) - state.used_bytes[d], -d))
            chosen = Candidate(op, p, state.earliest(op, p))
            return Decision(step, tuple(without_memory), chosen, "no device has the memory; this one has most"), True


def earliest_start_reference(
    problem: Problem, child: NDArray[np.int32], parent: NDArray[np.int32]
) -> tuple[Schedule, tuple[Decision, ...]]:
    """Returns the same schedule as `earliest_start`, and the log of decisions."""
    state = ReferenceState(problem, child, parent)
    missing = [int(k) for k in np.diff(problem.input_ptr)]
    ready = [i for i in range(len(missing)) if missing[i] == 0]
    overflows, log = 0, []
    for _ in missing:
        decision, exceeds_memory = _decide(state, ready)
        overflows += exceeds_memory
        log.append(decision)
        op = decision.chosen.op
        state.commit(op, decision.chosen.device)
        ready.remove(op)
        for t in range(int(problem.output_ptr[op]), int(problem.output_ptr[op + 1])):
            for i in problem.consumers[problem.consumer_ptr[t] : problem.consumer_ptr[t + 1]].tolist():
                missing[i] -= 1
                if missing[i] == 0:
                    ready.append(i)
    position = inverse(np.array(state.order, dtype=np.int64))
    device, start, finish = np.array(state.device, np.int32), np.array(state.start), np.array(state.finish)
    return Schedule(device, start, finish, position, overflows), tuple(log)
