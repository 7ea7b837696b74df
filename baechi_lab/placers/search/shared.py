"""Search where devices may share a stage: annealing of stages and of the devices that each of them has, all measured.

A candidate is an assignment of units (`pipeline_stages.pipeline_units`) to leading devices, and for every leader the equal
devices that repeat what it does. A move shifts a unit to the stage before or behind (`search.steps`), exchanges two devices,
gives a stage one device more (an idle one, or one that another stage can spare), cuts a stage with several devices into two,
joins two stages that follow each other, or lets a device be idle. The start is what the dynamic programmes find, whose stages are
all widths of all intervals of a few lines; what they cannot see, because only the measurement says it, is left to the moves.
Complexity: one measured period or step per candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from ...graph import Cluster, OpGraph, Placement
from ..contiguous import lines
from ..pipeline_stages.objective import Objective
from ..pipeline_stages.pipeline_units import PipelineUnits, make_pipeline_units
from .budget import Budget
from .parameters import SEARCH, SearchParameters
from .steps import Moves

Groups = Mapping[int, tuple[int, ...]]
"""Leading device -> all devices of its stage, itself first."""


class Candidate(NamedTuple):
    """`home` int64[units]: the leading device of every unit."""

    home: NDArray[np.int64]
    groups: Groups

    @property
    def key(self) -> tuple[Any, ...]:
        return self.home.tobytes(), tuple(sorted(self.groups.values()))

    def placement(self, units: PipelineUnits) -> Placement:
        shared = tuple(group for _, group in sorted(self.groups.items()) if len(group) > 1)
        return Placement(device=self.home[units.unit].astype(np.int32), replicas=shared)


def search_shared(
    graph: OpGraph,
    cluster: Cluster,
    objective: Objective,
    start: Placement,
    budget: Budget,
    seed: int,
    tell: Callable[[float, int], None],
    numbers: SearchParameters = SEARCH,
) -> tuple[Placement, float, int]:
    """The best placement found, its period or step in microseconds, how many were measured; never worse than `start`."""
    rng, units = np.random.default_rng(seed), make_pipeline_units(graph, cluster, next(iter(lines(graph).values())))
    cost_of: dict[tuple[object, ...], float] = {}
    us, used = objective.measure(graph, cluster, start).us, 1
    candidate = _candidate(start, units)
    if candidate is None:
        return start, us, used
    moves, current_us, best = SharedMoves(units, cluster, rng), us, candidate
    hot, cold = numbers.step_heat
    try:
        while (progress := budget.spent(used)) < 1.0 and units.n and cluster.n > 1:
            used += 1  # also where nothing moves, so that it comes to an end
            neighbour = moves.any(candidate)
            if neighbour is None or not _is_allowed(neighbour, units):
                continue
            if neighbour.key not in cost_of:
                cost_of[neighbour.key] = _measured(graph, cluster, objective, neighbour.placement(units))
            neighbour_us = cost_of[neighbour.key]
            if neighbour_us <= current_us - us * hot * (cold / hot) ** progress * np.log(1.0 - rng.random()):
                candidate, current_us = neighbour, neighbour_us
                if neighbour_us < us * (1 - 1e-12):
                    best, us = neighbour, neighbour_us
            tell(us, used)
    except KeyboardInterrupt:  # what was found is the answer
        budget.stopped = budget.interrupted = True
    return best.placement(units), us, used


def _candidate(placement: Placement, units: PipelineUnits) -> Candidate | None:
    """None where a unit is on several devices."""
    home = np.zeros(units.n, dtype=np.int64)
    home[units.unit] = placement.device
    groups = {group[0]: group for group in placement.replicas}
    groups_by_leader = {d: groups.get(d, (d,)) for d in np.unique(home).tolist()}
    return Candidate(home, groups_by_leader) if np.array_equal(home[units.unit], placement.device) else None


def _is_allowed(candidate: Candidate, units: PipelineUnits) -> bool:
    return all(units.allowed[candidate.home == leader][:, group].all() for leader, group in candidate.groups.items())


def _measured(graph: OpGraph, cluster: Cluster, objective: Objective, placement: Placement) -> float:
    try:
        measurement = objective.measure(graph, cluster, placement)
    except InvalidInput:  # no pipeline for this schedule, or more replicas than micro-batches
        return np.inf
    return measurement.us if measurement.feasible else np.inf


class SharedMoves:
    """Random changes of a candidate that leave its stages a pipeline, if they were one."""

    def __init__(self, units: PipelineUnits, cluster: Cluster, rng: np.random.Generator):
        self.units, self.rng, self.devices = units, rng, cluster.n
        self.shifts = Moves(units, cluster, rng)
        alike = [(d.kind, d.memory_bytes, d.speed) for d in cluster.devices]
        self.kind = [alike.index(key) for key in alike]

    def any(self, candidate: Candidate) -> Candidate | None:
        """Another candidate; None where the draw changes nothing."""
        moves = (self._shift, self._shift, self._exchange, self._widen, self._widen, self._cut, self._join, self._spare)
        return moves[int(self.rng.integers(len(moves)))](candidate)

    def _shift(self, candidate: Candidate) -> Candidate | None:
        home = self.shifts.shifted(candidate.home, self._idle(candidate))
        return None if home is None else _led(home, {**{d: (d,) for d in np.unique(home).tolist()}, **candidate.groups})

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

    def _cut(self, candidate: Candidate) -> Candidate | None:
        """The first units of a stage keep some of its devices, the others get the rest."""
        wide = [d for d, group in candidate.groups.items() if len(group) > 1]
        if not wide:
            return None
        leader = self._one(wide)
        group, leader_units = candidate.groups[leader], np.flatnonzero(candidate.home == leader)
        if len(leader_units) < 2:
            return None
        kept_count, at = int(self.rng.integers(1, len(group))), int(self.rng.integers(1, len(leader_units)))
        home = candidate.home.copy()
        home[leader_units[at:]] = group[kept_count]
        return Candidate(home, {**candidate.groups, leader: group[:kept_count], group[kept_count]: group[kept_count:]})

    def _join(self, candidate: Candidate) -> Candidate | None:
        line = self.shifts.line(candidate.home)
        if len(line) < 2:
            return None
        k = int(self.rng.integers(len(line) - 1))
        a, b = line[k], line[k + 1]
        if self.kind[a] != self.kind[b]:
            return None
        home = np.where(candidate.home == b, a, candidate.home)
        joined = (*candidate.groups[a], *candidate.groups[b])
        return Candidate(home, {**{d: g for d, g in candidate.groups.items() if d != b}, a: joined})

    def _spare(self, candidate: Candidate) -> Candidate | None:
        wide = [d for d, group in candidate.groups.items() if len(group) > 1]
        if not wide:
            return None
        leader = self._one(wide)
        return Candidate(candidate.home, {**candidate.groups, leader: candidate.groups[leader][:-1]})

    def _of(self, candidate: Candidate, groups: Groups) -> Candidate:
        """The same stages under other devices; `groups` by the leaders that they had."""
        home = candidate.home.copy()
        for leader, group in groups.items():
            home[candidate.home == leader] = group[0]
        return Candidate(home, {group[0]: group for group in groups.values()})

    def _idle(self, candidate: Candidate) -> list[int]:
        used = {d for group in candidate.groups.values() for d in group}
        return [d for d in range(self.devices) if d not in used]

    def _one(self, among: list[int]) -> int:
        return among[int(self.rng.integers(len(among)))]


def _led(home: NDArray[np.int64], groups: Groups) -> Candidate:
    """Without the devices of stages that have no unit left."""
    used = set(np.unique(home).tolist())
    return Candidate(home, {d: group for d, group in groups.items() if d in used})
