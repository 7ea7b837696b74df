"""Search for the shortest step of several micro-batches under a schedule: annealing of stages, each candidate simulated.

A candidate gives every unit (`pipeline_stages.pipeline_units`) a stage, and every stage a device. A move takes a random unit to a
neighbouring stage, with what must go with it so that the stages stay a pipeline, or exchanges the devices of two stages. What
the schedule cannot work on, or exceeds memory, is worth nothing. Complexity: one simulated step per candidate.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from ...graph import Cluster, OpGraph, Placement
from ..contiguous import lines
from ..pipeline_stages.objective import Objective
from ..pipeline_stages.pipeline_units import PipelineUnits, make_pipeline_units
from .budget import Budget
from .parameters import SEARCH, SearchParameters


def search_step(
    graph: OpGraph,
    cluster: Cluster,
    objective: Objective,
    start: Placement,
    budget: Budget,
    seed: int,
    tell: Callable[[float, int], None],
    numbers: SearchParameters = SEARCH,
) -> tuple[Placement, float, int]:
    """The best placement found, its step in microseconds, and the steps that were simulated; never worse than `start`."""
    rng, units = np.random.default_rng(seed), make_pipeline_units(graph, cluster, next(iter(lines(graph).values())))
    cost = _Cost(graph, cluster, objective, units)
    best, us, used = start, objective.measure(graph, cluster, start).us, 1
    home = cost.home_of(start)
    if home is None:
        return best, us, used
    moves, current_us = Moves(units, cluster, rng), us
    hot, cold = numbers.step_heat
    try:
        while (progress := budget.spent(used)) < 1.0 and len(home) and cluster.n > 1:
            used += 1  # also where nothing moves, so that it comes to an end
            neighbour = moves.one(home)
            if neighbour is None:
                continue
            neighbour_us = cost.of(neighbour)
            temperature = us * hot * (cold / hot) ** progress
            if neighbour_us <= current_us - temperature * np.log(1.0 - rng.random()):
                home, current_us = neighbour, neighbour_us
                if neighbour_us < us * (1 - 1e-12):
                    best, us = cost.placement(neighbour), neighbour_us
            tell(us, used)
    except KeyboardInterrupt:  # what was found is the answer
        budget.stopped = budget.interrupted = True
    return best, us, used


class _Cost:
    """What assignments `home` int64[units] of units to devices cost; those seen before are not simulated again."""

    def __init__(self, graph: OpGraph, cluster: Cluster, objective: Objective, units: PipelineUnits):
        self.graph, self.cluster, self.objective, self.units = graph, cluster, objective, units
        self.costs: dict[bytes, float] = {}

    def placement(self, home: NDArray[np.int64]) -> Placement:
        return Placement(device=home[self.units.unit].astype(np.int32))

    def home_of(self, placement: Placement) -> NDArray[np.int64] | None:
        """The assignment of a placement; None where a unit is on several devices."""
        home = np.zeros(self.units.n, dtype=np.int64)
        home[self.units.unit] = placement.device
        return home if np.array_equal(home[self.units.unit], placement.device) else None

    def of(self, home: NDArray[np.int64]) -> float:
        """Microseconds of the step, infinite where it cannot be."""
        key = home.tobytes()
        if key not in self.costs:
            self.costs[key] = self._measured(home)
        return self.costs[key]

    def _measured(self, home: NDArray[np.int64]) -> float:
        if not self.units.allowed[np.arange(len(home)), home].all():
            return np.inf
        held_bytes = np.zeros(self.cluster.n, dtype=np.int64)
        np.add.at(held_bytes, home, self.units.persistent_bytes)
        if np.any(held_bytes > self.cluster.memory_bytes):
            return np.inf
        try:
            measurement = self.objective.measure(self.graph, self.cluster, self.placement(home))
        except InvalidInput:  # no pipeline for this schedule
            return np.inf
        return measurement.us if measurement.feasible else np.inf


class Moves:
    """Random changes of an assignment that leave its stages a pipeline, if they were one."""

    def __init__(self, units: PipelineUnits, cluster: Cluster, rng: np.random.Generator):
        self.units, self.rng = units, rng
        self.devices = cluster.n
        self.after: list[list[int]] = [[] for _ in range(units.n)]
        self.before: list[list[int]] = [[] for _ in range(units.n)]
        for a, b in zip(units.source.tolist(), units.target.tolist(), strict=True):
            self.after[a].append(b)
            self.before[b].append(a)

    def one(self, home: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Another assignment; None where the draw changes nothing."""
        if self.rng.random() < 0.1 and self.devices > 1:
            neighbour = home.copy()
            a, b = self.rng.choice(self.devices, 2, replace=False).tolist()
            neighbour[home == a], neighbour[home == b] = b, a
            return None if np.array_equal(neighbour, home) else neighbour
        used = set(home.tolist())
        return self.shifted(home, [d for d in range(self.devices) if d not in used])

    def shifted(self, home: NDArray[np.int64], free: list[int]) -> NDArray[np.int64] | None:
        """A unit to the stage before or behind, or to a device of `free`, with what must go along."""
        line = self.line(home)
        neighbour = home.copy()
        unit, shift_later = int(self.rng.integers(self.units.n)), bool(self.rng.random() < 0.5)
        place = line.index(int(home[unit])) + (1 if shift_later else -1)
        if 0 <= place < len(line):
            to = line[place]
        elif free:
            to = int(self.rng.choice(free))
        else:
            return None
        waiting = [unit]
        while waiting:  # what comes after it in its stage goes along, or before it
            u = waiting.pop()
            if neighbour[u] == home[unit]:
                neighbour[u] = to
                waiting += [v for v in (self.after if shift_later else self.before)[u] if neighbour[v] == home[unit]]
        return neighbour

    def line(self, home: NDArray[np.int64]) -> list[int]:
        """The used devices in the order of their stages, along which every edge of a pipeline runs."""
        used = np.unique(home)
        order = np.zeros(self.devices)
        reach = np.zeros(len(home))
        for u in range(len(home)):  # stages before, as units are numbered along their edges
            reach[u] = max((reach[v] + (home[v] != home[u]) for v in self.before[u]), default=0.0)
        np.maximum.at(order, home, reach)
        a, b = home[self.units.source], home[self.units.target]
        waits = {d: set(a[(b == d) & (a != d)].tolist()) for d in used.tolist()}
        line: list[int] = []
        while waits:  # no pipeline where none is ready: then by the stages before
            ready = [d for d, waits_for in waits.items() if waits_for <= set(line)] or list(waits)
            line.append(min(ready, key=lambda d: (order[d], d)))
            del waits[line[-1]]
        return line
