"""Searches for the shortest period or step of several micro-batches: annealing of stages and devices, each candidate measured.

A candidate is an assignment of units (`pipeline_stages.pipeline_units`) to leading devices, and for every leader its replicas.
A move shifts a unit to the previous or next stage, with other units so that the stages remain a pipeline, or exchanges two
devices. If devices may share a stage, a move may also add a device to a stage (an idle one, or one of another stage), cut a
stage with several devices into two, join two consecutive stages, or make a device idle. A candidate that exceeds memory, or
forms no pipeline for the schedule, has infinite cost. The start is the result of the dynamic programs; the moves improve what
these programs do not model. Of few assignments each is measured first. Complexity: one measured period or step per candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from ...graph import Cluster, OpGraph, Placement
from ...graph.kernels.csr import grouped_sum
from ..contiguous import lines
from ..evaluation.anneal import acceptance_threshold
from ..pipeline_stages.objective import Objective
from ..pipeline_stages.pipeline_units import PipelineUnits, make_pipeline_units
from ..problem import every_assignment
from .budget import Budget
from .parameters import SEARCH, SearchParameters

MOST_ASSIGNMENTS = 64
"""Most assignments that are all measured."""

Groups = Mapping[int, tuple[int, ...]]
"""All devices of each stage, the leading device first, by the leading device."""


class Candidate(NamedTuple):
    """A candidate: `unit_device` int64[units] is the leading device of every unit, `groups` the devices of every stage."""

    unit_device: NDArray[np.int64]
    groups: Groups

    @property
    def key(self) -> tuple[object, ...]:
        return self.unit_device.tobytes(), tuple(sorted(self.groups.values()))

    def placement(self, units: PipelineUnits) -> Placement:
        replica_groups = tuple(group for _, group in sorted(self.groups.items()) if len(group) > 1)
        return Placement(device=self.unit_device[units.unit].astype(np.int32), replicas=replica_groups)


def search_stages(
    graph: OpGraph,
    cluster: Cluster,
    objective: Objective,
    start: Placement,
    budget: Budget,
    seed: int,
    tell: Callable[[float, int], None],
    numbers: SearchParameters = SEARCH,
) -> tuple[Placement, float, int]:
    """Returns the best placement, never worse than `start`, its period or step in microseconds, and the measurements.

    A candidate is measured once.
    """
    rng, units = np.random.default_rng(seed), make_pipeline_units(graph, cluster, next(iter(lines(graph).values())))
    cost_of: dict[tuple[object, ...], float] = {}
    best, us, used = start, objective.measure(graph, cluster, start).us, 1
    try:
        for unit_device in every_assignment(units.allowed, MOST_ASSIGNMENTS):
            if budget.spent(used) >= 1.0:
                break
            assignment = _candidate_of_leaders(unit_device, {})
            used += 1
            cost_of[assignment.key] = _measure(graph, cluster, objective, assignment, units, us)
            if cost_of[assignment.key] < us * (1 - 1e-12):
                best, us = assignment.placement(units), cost_of[assignment.key]
            tell(us, used)
        # The candidate of the best placement; None if a unit is on several devices.
        unit_device = np.zeros(units.n, dtype=np.int64)
        unit_device[units.unit] = best.device
        groups = {group[0]: group for group in best.replicas}
        candidate = (
            _candidate_of_leaders(unit_device, groups) if np.array_equal(unit_device[units.unit], best.device) else None
        )
        if candidate is None or (used > 1 and not objective.replicas):
            return best, us, used
        moves = (SharedMoves if objective.replicas else Moves)(units, cluster, rng)
        current_us, (hot, cold) = us, numbers.step_heat
        while (progress := budget.spent(used)) < 1.0 and units.n and cluster.n > 1:
            used += 1  # also if no unit moves, so that the search ends
            neighbour = moves.any(candidate)
            if neighbour is None:
                continue
            if neighbour.key not in cost_of:
                cost_of[neighbour.key] = _measure(graph, cluster, objective, neighbour, units, us)
            neighbour_us = cost_of[neighbour.key]
            if neighbour_us <= acceptance_threshold(current_us, us * hot * (cold / hot) ** progress, rng):
                candidate, current_us = neighbour, neighbour_us
                if neighbour_us < us * (1 - 1e-12):
                    best, us = neighbour.placement(units), neighbour_us
            tell(us, used)
    except KeyboardInterrupt:  # the best candidate so far is returned
        budget.stopped = budget.interrupted = True
    return best, us, used


def best_of_few_assignments(graph: OpGraph, cluster: Cluster, objective: Objective) -> Placement | None:
    """Returns the best placement that fits, of all assignments if these are few; else None."""
    units = make_pipeline_units(graph, cluster, next(iter(lines(graph).values())))
    best, best_us = None, np.inf
    for unit_device in every_assignment(units.allowed, MOST_ASSIGNMENTS):
        candidate = _candidate_of_leaders(unit_device, {})
        us = _measure(graph, cluster, objective, candidate, units, best_us)
        if us < best_us:
            best, best_us = candidate.placement(units), us
    return best


def _candidate_of_leaders(unit_device: NDArray[np.int64], groups: Groups) -> Candidate:
    """Returns the groups of the leading devices; a leader without a group is alone."""
    return Candidate(unit_device, {d: groups.get(d, (d,)) for d in np.unique(unit_device).tolist()})


def _is_allowed(candidate: Candidate, units: PipelineUnits) -> bool:
    return all(
        units.allowed[candidate.unit_device == leader][:, group].all() for leader, group in candidate.groups.items()
    )


def _measure(
    graph: OpGraph, cluster: Cluster, objective: Objective, candidate: Candidate, units: PipelineUnits, best_us: float
) -> float:
    """Returns the period or step in microseconds; infinite if the candidate is infeasible.

    Below `best_us` the ops of groups must fit, too.
    """
    if not _is_allowed(candidate, units):
        return np.inf
    if np.any(grouped_sum(units.persistent_bytes, candidate.unit_device, cluster.n) > cluster.memory_bytes):
        return np.inf
    try:
        placement = candidate.placement(units)
        measurement = objective.measure(graph, cluster, placement)
        if measurement.feasible and measurement.us < best_us:
            return objective.improved_us(graph, cluster, placement, measurement, best_us)
    except InvalidInput:  # no pipeline for this schedule, or more replicas than micro-batches
        return np.inf
    return measurement.us if measurement.feasible else np.inf


class Moves:
    """Random changes of a candidate; stages that form a pipeline still do after a change."""

    def __init__(self, units: PipelineUnits, cluster: Cluster, rng: np.random.Generator):
        self.units, self.rng, self.devices = units, rng, cluster.n
        self.after: list[list[int]] = [[] for _ in range(units.n)]
        self.before: list[list[int]] = [[] for _ in range(units.n)]
        for a, b in zip(units.source.tolist(), units.target.tolist(), strict=True):
            self.after[a].append(b)
            self.before[b].append(a)

    def any(self, candidate: Candidate) -> Candidate | None:
        """Draws another candidate; None if it is the same."""
        if self.rng.random() < 0.1 and self.devices > 1:
            unit_device = candidate.unit_device.copy()
            a, b = self.rng.choice(self.devices, 2, replace=False).tolist()
            unit_device[candidate.unit_device == a], unit_device[candidate.unit_device == b] = b, a
            return (
                None if np.array_equal(unit_device, candidate.unit_device) else _candidate_of_leaders(unit_device, {})
            )
        return self._shift(candidate)

    def _shift(self, candidate: Candidate) -> Candidate | None:
        unit_device = self.shift_unit(candidate.unit_device, self._idle(candidate))
        return None if unit_device is None else _candidate_of_leaders(unit_device, candidate.groups)

    def _idle(self, candidate: Candidate) -> list[int]:
        used = {d for group in candidate.groups.values() for d in group}
        return [d for d in range(self.devices) if d not in used]

    def shift_unit(self, unit_device: NDArray[np.int64], free: list[int]) -> NDArray[np.int64] | None:
        """Shifts a unit to the previous or next stage, or to a device of `free`, with the units that must move with it."""
        line = self.line(unit_device)
        neighbour = unit_device.copy()
        unit, shift_later = int(self.rng.integers(self.units.n)), bool(self.rng.random() < 0.5)
        place = line.index(int(unit_device[unit])) + (1 if shift_later else -1)
        if 0 <= place < len(line):
            to = line[place]
        elif free:
            to = int(self.rng.choice(free))
        else:
            return None
        waiting = [unit]
        while waiting:  # its successors in its stage move along, or its predecessors
            u = waiting.pop()
            if neighbour[u] == unit_device[unit]:
                neighbour[u] = to
                waiting += [
                    v for v in (self.after if shift_later else self.before)[u] if neighbour[v] == unit_device[unit]
                ]
        return neighbour

    def line(self, unit_device: NDArray[np.int64]) -> list[int]:
        """Returns the used devices in the order of their stages, along which every edge of a pipeline leads."""
        used = np.unique(unit_device)
        order = np.zeros(self.devices)
        reach = np.zeros(len(unit_device))
        for u in range(len(unit_device)):  # stages before, as units are numbered along their edges
            reach[u] = max((reach[v] + (unit_device[v] != unit_device[u]) for v in self.before[u]), default=0.0)
        np.maximum.at(order, unit_device, reach)
        a, b = unit_device[self.units.source], unit_device[self.units.target]
        waits = {d: set(a[(b == d) & (a != d)].tolist()) for d in used.tolist()}
        line: list[int] = []
        while waits:  # if none is ready, it is no pipeline; then by the fewest previous stages
            ready = [d for d, waits_for in waits.items() if waits_for <= set(line)] or list(waits)
            line.append(min(ready, key=lambda d: (order[d], d)))
            del waits[line[-1]]
        return line


class SharedMoves(Moves):
    """Random changes of a candidate whose stages may have several devices."""

    def __init__(self, units: PipelineUnits, cluster: Cluster, rng: np.random.Generator):
        super().__init__(units, cluster, rng)
        alike = [(d.kind, d.memory_bytes, d.speed) for d in cluster.devices]
        self.kind = [alike.index(key) for key in alike]

    def any(self, candidate: Candidate) -> Candidate | None:
        """Draws another allowed candidate; None if it is the same."""
        moves = (
            self._shift,
            self._shift,
            self._exchange,
            self._widen,
            self._widen,
            self._cut_stage,
            self._join,
            self._spare,
        )
        neighbour = moves[int(self.rng.integers(len(moves)))](candidate)
        return neighbour if neighbour is not None and _is_allowed(neighbour, self.units) else None

    def _exchange(self, candidate: Candidate) -> Candidate | None:
        a, b = self.rng.choice(self.devices, 2, replace=False).tolist()
        swap = {a: b, b: a}
        groups = [tuple(swap.get(d, d) for d in group) for group in candidate.groups.values()]
        if any(len({self.kind[d] for d in group}) > 1 for group in groups):
            return None
        return self._of(candidate, dict(zip(candidate.groups, groups, strict=True)))

    def _widen(self, candidate: Candidate) -> Candidate | None:
        leader = self._one(list(candidate.groups))
        spare = [d for group in candidate.groups.values() if len(group) > 1 and group[0] != leader for d in group]
        alike = [d for d in [*self._idle(candidate), *spare] if self.kind[d] == self.kind[leader]]
        if not alike:
            return None
        added_device = self._one(alike)
        groups = {d: tuple(x for x in group if x != added_device) for d, group in candidate.groups.items()}
        return self._of(candidate, {**groups, leader: (*groups[leader], added_device)})

    def _cut_stage(self, candidate: Candidate) -> Candidate | None:
        """Cuts a stage: its first units keep some of its devices, the other units get the others."""
        wide = [d for d, group in candidate.groups.items() if len(group) > 1]
        if not wide:
            return None
        leader = self._one(wide)
        group, leader_units = candidate.groups[leader], np.flatnonzero(candidate.unit_device == leader)
        if len(leader_units) < 2:
            return None
        kept_count, at = int(self.rng.integers(1, len(group))), int(self.rng.integers(1, len(leader_units)))
        unit_device = candidate.unit_device.copy()
        unit_device[leader_units[at:]] = group[kept_count]
        return Candidate(
            unit_device, {**candidate.groups, leader: group[:kept_count], group[kept_count]: group[kept_count:]}
        )

    def _join(self, candidate: Candidate) -> Candidate | None:
        line = self.line(candidate.unit_device)
        if len(line) < 2:
            return None
        k = int(self.rng.integers(len(line) - 1))
        a, b = line[k], line[k + 1]
        if self.kind[a] != self.kind[b]:
            return None
        unit_device = np.where(candidate.unit_device == b, a, candidate.unit_device)
        devices = (*candidate.groups[a], *candidate.groups[b])
        return Candidate(unit_device, {**{d: g for d, g in candidate.groups.items() if d != b}, a: devices})

    def _spare(self, candidate: Candidate) -> Candidate | None:
        wide = [d for d, group in candidate.groups.items() if len(group) > 1]
        if not wide:
            return None
        leader = self._one(wide)
        return Candidate(candidate.unit_device, {**candidate.groups, leader: candidate.groups[leader][:-1]})

    def _of(self, candidate: Candidate, groups: Groups) -> Candidate:
        """Returns the same stages with other devices; `groups` by their previous leaders."""
        unit_device = candidate.unit_device.copy()
        for leader, group in groups.items():
            unit_device[candidate.unit_device == leader] = group[0]
        return Candidate(unit_device, {group[0]: group for group in groups.values()})

    def _one(self, among: list[int]) -> int:
        return among[int(self.rng.integers(len(among)))]
