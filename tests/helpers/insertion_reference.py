"""The readable twin of `insertion.py`: the same list scheduler with lists and sorting. Slow, for tests and teaching."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from baechi_lab.placers.problem import Problem


@dataclass
class ReferencePlan:
    """Per op: device, start, finish; ops in the order scheduled; ops put where memory is lacking."""

    device: dict[int, int] = field(default_factory=dict)
    start: dict[int, float] = field(default_factory=dict)
    finish: dict[int, float] = field(default_factory=dict)
    sequence: list[int] = field(default_factory=list)
    overflows: int = 0


class _Scheduler:
    def __init__(self, problem: Problem, choice: str, insertion: bool, need: Sequence[int]):
        self.problem, self.choice, self.insertion, self.need = problem, choice, insertion, [int(b) for b in need]
        self.devices, self.plan = range(len(problem.limit)), ReferencePlan()
        self.busy: list[list[tuple[float, float]]] = [[] for _ in self.devices]
        self.unit_device: dict[int, int] = {}
        self.members = [[i for i in range(len(problem.group)) if problem.group[i] == g] for g in range(len(self.need))]

    def inputs(self, i: int) -> list[int]:
        return self.problem.inputs[self.problem.input_ptr[i] : self.problem.input_ptr[i + 1]].tolist()

    def arrival(self, i: int, d: int) -> float:
        arrivals = [0.0]
        for t in self.inputs(i):
            u = int(self.problem.producer[t])
            p, cost = self.plan.device[u], 0.0
            if p != d:
                cost = float(self.problem.latency[p, d] + self.problem.per_byte[p, d] * self.problem.size_bytes[t])
            arrivals.append(self.plan.finish[u] + cost)
        return max(arrivals)

    def gap(self, d: int, arrival_us: float, duration: float) -> float:
        if not self.insertion:
            return max([arrival_us, *(end for _, end in self.busy[d])])
        start = arrival_us
        for begin_us, end in self.busy[d]:
            if end > start:
                if start + duration <= begin_us:
                    break
                start = end
        return start

    def occupy(self, d: int, start: float, finish: float) -> None:
        insort(self.busy[d], (start, finish))
        merged: list[tuple[float, float]] = []
        for begin_us, end in self.busy[d]:
            if merged and merged[-1][1] == begin_us:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((begin_us, end))
        self.busy[d] = merged

    def bytes_of_groups_on(self, d: int, column: Sequence[int] | NDArray[np.int64]) -> int:
        return sum(int(column[g]) for g, p in self.unit_device.items() if p == d)

    def candidates(self, g: int) -> tuple[list[int], bool]:
        """Devices, and whether they have the promised bytes."""
        if g in self.unit_device:
            return [self.unit_device[g]], True
        promised_bytes, limit = self.problem.promised_bytes, self.problem.limit
        allowed_devices = [d for d in self.devices if all(self.problem.allowed[i, d] for i in self.members[g])]
        holds = [
            d
            for d in allowed_devices
            if self.bytes_of_groups_on(d, promised_bytes) + int(promised_bytes[g]) <= limit[d]
        ]
        roomy = [d for d in holds if self.bytes_of_groups_on(d, self.need) + self.need[g] <= limit[d]]
        if roomy:
            return roomy, True

        def level(d: int) -> tuple[float, int]:
            return (self.bytes_of_groups_on(d, self.need) / int(limit[d]) if limit[d] else float("inf")), d

        return [min(holds or allowed_devices, key=level)], bool(holds)

    def best(self, i: int) -> tuple[int, float]:
        """Device and start of op `i` by the rule; ties by start, then device index."""
        options = []
        for d in self.candidates(int(self.problem.group[i]))[0]:
            duration = float(self.problem.table[i, d])
            start = self.gap(d, self.arrival(i, d), duration)
            free = self.busy[d][-1][1] if self.busy[d] else 0.0
            score = {
                "earliest-finish": start + duration,
                "earliest-start": start,
                "fastest": duration,
                "first-free": free,
            }[self.choice]
            options.append((score, start, d))
        _, start, d = min(options)
        return d, start

    def place(self, i: int) -> None:
        g = int(self.problem.group[i])
        self.plan.overflows += not self.candidates(g)[1]
        d, start = self.best(i)
        self.unit_device.setdefault(g, d)
        finish = start + float(self.problem.table[i, d])
        self.plan.device[i], self.plan.start[i], self.plan.finish[i] = d, start, finish
        self.plan.sequence.append(i)
        self.occupy(d, start, finish)


def insertion_reference(
    problem: Problem, key: Sequence[float], mode: str, choice: str, insertion: bool, need: Sequence[int]
) -> ReferencePlan:
    """Schedule every op; `mode` is "static", "ready-time" or "earliest-start", `choice` as in `bl.ListScheduler`."""
    state = _Scheduler(problem, choice, insertion, need)
    unscheduled = list(range(len(key)))
    while unscheduled:
        finish_us = state.plan.finish
        ready = [i for i in unscheduled if all(int(problem.producer[t]) in finish_us for t in state.inputs(i))]
        if mode == "earliest-start":
            i = min(ready, key=lambda i: (state.best(i)[1], i))
        elif mode == "ready-time":
            i = min(
                ready, key=lambda i: (max([0.0, *(finish_us[int(problem.producer[t])] for t in state.inputs(i))]), i)
            )
        else:
            i = min(ready, key=lambda i: (key[i], i))
        state.place(i)
        unscheduled.remove(i)
    return state.plan
