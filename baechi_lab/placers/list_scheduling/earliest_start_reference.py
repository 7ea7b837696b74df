"""Readable twin of `earliest_start.py`: compares every (op, device) pair in every step, and can log its reasons.

Used by the tests (identical results) and for `explain=True` (the decision log). O(ops^2 x devices).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.csr import inverse
from ..problem import Problem


@dataclass(frozen=True)
class Candidate:
    """One (op, device) pair of a step: earliest start in microseconds, and why it was not available, if so."""

    op: int
    device: int
    start_us: float
    excluded: str = ""


@dataclass(frozen=True)
class Decision:
    """One step of the list scheduler: the candidates, those ruled out with reasons, and the chosen pair."""

    step: int
    candidates: tuple[Candidate, ...]
    chosen: Candidate
    reason: str


@dataclass
class _State:
    problem: Problem
    child: NDArray[np.int32]
    parent: NDArray[np.int32]
    device: list[int] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    finish: list[float] = field(default_factory=list)
    order: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        n, devices = self.problem.table.shape
        self.device, self.start, self.finish = [-1] * n, [0.0] * n, [0.0] * n
        self.free, self.last = [0.0] * devices, [-1] * devices
        self.queues = [[0.0] * devices, [0.0] * devices]
        self.group_device = [-1] * len(self.problem.promised)
        self.copy_arrival: dict[tuple[int, int], float] = {}  # (tensor, device) -> arrival of the cached copy
        self.level = [0] * devices
        self.frees: list[tuple[float, int, int]] = []
        self.unread = [int(k) for k in np.diff(self.problem.consumer_ptr)]
        self.last_use: dict[tuple[int, int], float] = {}
        self.left = [int(k) for k in self.problem.group_size]
        self.dropped: dict[tuple[int, int], str] = {}

    def arrival(self, op: int, p: int) -> tuple[float, list[tuple[int, float, float]], list[list[float]]]:
        """Returns when all inputs of `op` are on `p`; the transfers (tensor, receive start, end); the queues after."""
        q = self.problem
        queues, latest, fresh = [list(x) for x in self.queues], 0.0, []
        for t in q.inputs[q.input_ptr[op] : q.input_ptr[op + 1]].tolist():
            source = int(q.producer[t])
            a, finish_us = self.device[source], self.finish[source]
            if a != p and (t, p) in self.copy_arrival:
                finish_us = self.copy_arrival[t, p]
            elif a != p:
                cost = float(q.latency[a, p] + q.per_byte[a, p] * q.size_bytes[t])
                receive = finish_us
                if q.comm != 0:
                    incoming = 0 if q.comm == 1 else 1
                    send = max(finish_us, queues[0][a])
                    queues[0][a] = send + cost
                    receive = max(send, queues[incoming][p])
                    queues[incoming][p] = receive + cost
                finish_us = receive + cost
                fresh.append((t, receive, finish_us))
            latest = max(latest, finish_us)
        return latest, fresh, queues

    def earliest(self, op: int, p: int) -> float:
        return max(self.free[p], self.arrival(op, p)[0])

    def may_run(self, op: int, p: int) -> bool:
        group_device = self.group_device[self.problem.group[op]]
        return bool(self.problem.allowed[op, p]) and group_device in (-1, p) and (op, p) not in self.dropped

    def awake_for(self, p: int, ready: list[int]) -> int:
        """Returns the favourite child that device `p` waits for: ready, unscheduled, and first to start here; -1 for none."""
        last = self.last[p]
        j = int(self.child[last]) if last >= 0 else -1
        if j < 0 or j not in ready or not self.may_run(j, p):
            return -1
        start_here = self.earliest(j, p)
        other_devices = [q for q in range(len(self.free)) if q != p and self.may_run(j, q)]
        return j if all(start_here < self.earliest(j, q) for q in other_devices) else -1

    def urgent(self, op: int, time: float) -> bool:
        """Its inputs are there by `time` on whichever device may run it."""
        return all(self.arrival(op, q)[0] <= time for q in range(len(self.free)) if self.may_run(op, q))

    def lacks_memory(self, op: int, p: int) -> str:
        q = self.problem
        latest, fresh, _ = self.arrival(op, p)
        start = max(self.free[p], latest)
        while self.frees and self.frees[0][0] <= start:
            _, d, size = heapq.heappop(self.frees)
            self.level[d] -= size
        g = q.group[op]
        copies = sum(int(q.size_bytes[t]) for t, _, _ in fresh)
        promise = int(q.promised[g] + q.reserve[g]) if self.group_device[g] < 0 else 0
        own_bytes = int(q.output_bytes[op] + q.temp[op])
        need = promise + copies + max(own_bytes - int(q.reserve[g]), 0)
        running = 0
        if self.last[p] >= 0 and any(receive < self.free[p] for _, receive, _ in fresh):
            running = int(q.temp[self.last[p]])
        need = max(need, promise + copies + running)
        if self.level[p] + need <= q.limit[p]:
            return ""
        return f"needs {need} bytes, {max(int(q.limit[p]) - self.level[p], 0)} left"

    def free_at(self, time: float, d: int, size: int) -> None:
        if size > 0:
            heapq.heappush(self.frees, (time, d, size))

    def commit(self, op: int, p: int) -> None:
        q = self.problem
        latest, fresh, self.queues = self.arrival(op, p)
        self.start[op] = max(self.free[p], latest)
        self.finish[op] = self.free[p] = self.start[op] + float(q.table[op, p])
        self.device[op], self.last[p] = p, op
        self.order.append(op)
        g = int(q.group[op])
        if self.group_device[g] < 0:
            self.group_device[g] = p
            self.level[p] += int(q.promised[g] + q.reserve[g])
            for i in np.flatnonzero(q.group == g).tolist():
                self.dropped.pop((i, p), None)  # the promise is paid now: look at the device again
        self.left[g] -= 1
        if self.left[g] == 0:
            self.free_at(self.finish[op], p, int(q.reserve[g]))
        for t, _, end in fresh:
            self.copy_arrival[t, p] = end
            self.level[p] += int(q.size_bytes[t])
            a = self.device[int(q.producer[t])]
            self.last_use[t, a] = max(self.last_use[t, a], end)
        for t in q.inputs[q.input_ptr[op] : q.input_ptr[op + 1]].tolist():
            self.last_use[t, p] = max(self.last_use.get((t, p), 0.0), self.finish[op])
            self.unread[t] -= 1
            if self.unread[t] == 0:
                for d in range(len(self.free)):
                    if (t, d) in self.last_use:
                        self.free_at(self.last_use[t, d], d, int(q.size_bytes[t]))
        for t in range(int(q.output_ptr[op]), int(q.output_ptr[op + 1])):
            self.level[p] += int(q.size_bytes[t])
            self.last_use[t, p] = self.finish[op]
            if self.unread[t] == 0:
                self.free_at(self.finish[op], p, int(q.size_bytes[t]))


def _pairs(state: _State, ready: list[int]) -> list[tuple[float, int, bool, int]]:
    """Every (op, device) pair that may be chosen, best first: earliest start, op, its favourite parent's device, device."""
    pairs = []
    for op in ready:
        parent = int(state.parent[op])
        parent_device = state.device[parent] if parent >= 0 else -1
        pairs += [
            (state.earliest(op, p), op, p != parent_device, p) for p in range(len(state.free)) if state.may_run(op, p)
        ]
    return sorted(pairs)


def _decide(state: _State, ready: list[int]) -> tuple[Candidate, list[Candidate], str, bool]:
    """Returns the pair to schedule, the candidates, the reason, and whether memory had to be exceeded."""
    ruled_out: list[Candidate] = []
    while True:
        pairs = _pairs(state, ready)
        awake = [state.awake_for(p, ready) for p in range(len(state.free))]
        blocked = []
        for start, op, _, p in pairs:
            if awake[p] in (-1, op) or state.urgent(op, start):
                break
            blocked.append(Candidate(op, p, start, f"device awake for op {awake[p]}, op not urgent"))
        lack = state.lacks_memory(op, p)
        if not lack:
            reason = f"earliest start {start:g} us"
            if awake[p] == op:
                reason += ", favourite child of the device's last op"
            elif awake[p] != -1:
                reason += ", urgent on a device that is awake for another op"
            skip = {(c.op, c.device) for c in blocked}
            open_pairs = [Candidate(o, d, s) for s, o, _, d in pairs if (o, d) not in skip]
            return Candidate(op, p, start), [*open_pairs, *blocked, *ruled_out], reason, False
        state.dropped[op, p] = lack
        ruled_out.append(Candidate(op, p, start, lack))
        if not any(state.may_run(op, q) for q in range(len(state.free))):
            # The device with most free bytes of those that are allowed for `op`.
            problem, group_device = state.problem, state.group_device[state.problem.group[op]]
            allowed_devices = [d for d in range(len(state.free)) if problem.allowed[op, d] and group_device in (-1, d)]
            p = max(allowed_devices, key=lambda d: (int(problem.limit[d]) - state.level[d], -d))
            return (
                Candidate(op, p, state.earliest(op, p)),
                ruled_out,
                "no device has the memory; this one has most",
                True,
            )


def earliest_start_reference(
    problem: Problem, child: NDArray[np.int32], parent: NDArray[np.int32], explain: bool = False
) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64], NDArray[Any], int, tuple[Decision, ...]]:
    """Same inputs and results as `earliest_start`, plus the decision log where `explain`."""
    state = _State(problem, child, parent)
    missing = [int(k) for k in np.diff(problem.input_ptr)]
    ready = [i for i in range(len(missing)) if missing[i] == 0]
    overflows, log = 0, []
    for step in range(len(missing)):
        decision, candidates, reason, exceeded = _decide(state, ready)
        overflows += exceeded
        if explain:
            log.append(Decision(step, tuple(candidates), decision, reason))
        state.commit(decision.op, decision.device)
        ready.remove(decision.op)
        for t in range(int(problem.output_ptr[decision.op]), int(problem.output_ptr[decision.op + 1])):
            for i in problem.consumers[problem.consumer_ptr[t] : problem.consumer_ptr[t + 1]].tolist():
                missing[i] -= 1
                if missing[i] == 0:
                    ready.append(i)
    order = inverse(np.array(state.order, dtype=np.int64))
    return np.array(state.device, np.int32), np.array(state.start), np.array(state.finish), order, overflows, tuple(log)
