"""A chain of a search: a sequence of annealings with its own candidate, scratch space and random numbers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...graph.kernels.csr import inverse
from ..evaluation.anneal import NO_STEPS, Schedule, anneal
from ..evaluation.assignment import make_assignment
from ..evaluation.moves import Units, back_to_best, make_state
from ..evaluation.orders import Candidate
from .budget import Budget, Window
from .combine import LINES, Donor, combine, line_of, renumber_devices
from .instance import Instance
from .parameters import Level
from .reduced import Subproblem, without_implied_edges
from .runs import project_to_ops, with_runs


@dataclass
class Chain:
    """A sequence of annealings in one thread; `best` is its best candidate."""

    instance: Instance
    rng: np.random.Generator
    name: str = ""
    state: Any = None
    used: int = 0

    def __post_init__(self) -> None:
        self.objective = self.instance.objective()
        self.best_before_restart: tuple[float, Candidate] | None = None

    def start_from(self, start: Candidate, restart: bool = False) -> None:
        """Continue from `start`; with `restart` the previous best candidate is kept as a result."""
        self.best_before_restart = (self.cost, self.best) if restart and self.state is not None else None
        self.name = start.name
        self.state = make_state(start.device, start.rank, self.instance.parameters)
        self.evaluate(self.subproblem_of(self.instance.groups))

    @property
    def current_cost(self) -> float:
        """Cost of the best candidate since the last restart."""
        return float(self.state.cost[1])

    @property
    def cost(self) -> float:
        """Cost of the best candidate: its time, plus a prohibitive amount for every byte above a limit."""
        before = np.inf if self.best_before_restart is None else self.best_before_restart[0]
        return min(self.current_cost, before)

    @property
    def best(self) -> Candidate:
        """The best candidate so far, over all restarts."""
        if self.best_before_restart is None or self.current_cost < self.best_before_restart[0]:
            return self.current_best
        return self.best_before_restart[1]

    @property
    def current_best(self) -> Candidate:
        """The best candidate since the last restart."""
        rank = self.state.best_position.astype(np.float64) if self.state.by_rank else None
        overflow_bytes = float(self.state.cost[3]) if self.instance.track else 0.0
        return Candidate(self.name, self.state.best_device.copy(), rank, float(self.state.cost[2]), overflow_bytes)

    def cycle(self, share: Budget, levels: Sequence[Level] | None = None, partners: Sequence[Candidate] = ()) -> None:
        """Anneals on every level from coarse to fine, each time from the best candidate.

        If there are `partners`, the cycle begins by taking over their better segments (`search.combine`).
        """
        p, rng = self.instance.parameters, self.rng
        levels = p.levels if levels is None else levels
        window = Window(share, self.used)
        first = p.combine_share if partners else 0.0
        if partners:
            self._combine(partners, window.portion(0.0, first))
        for k, (unit_count, hot, cold) in enumerate(levels):
            back_to_best(self.state)
            units = self.instance.units(self.state.device, unit_count, rng)
            if len(units.ptr) < 2:
                return
            step = (1.0 - first) / len(levels)
            self._level(units, (hot, cold), window.portion(first + step * k, first + step * (k + 1)))
        back_to_best(self.state)

    def _combine(self, candidates: Sequence[Candidate], window: Window) -> None:
        """Takes over the better segments of `candidates`, until the window ends or no candidate differs."""
        instance, attempt, remaining = self.instance, 0, list(candidates)
        back_to_best(self.state)
        subproblem = self.subproblem_of(instance.groups)
        self.evaluate(subproblem)
        while remaining and window.progress(self.used) is not None:
            one = int(self.rng.integers(0, len(remaining)))
            partner = remaining[one]
            device = renumber_devices(partner.device, self.state.device, instance.work, instance.cluster.n)
            line = line_of(LINES[attempt % len(LINES)], instance, subproblem.units, self.rng)
            steps, evaluations_left = instance.parameters.first_steps, window.evaluations_left(self.used)
            if evaluations_left is not None:
                steps = max(1, min(steps, evaluations_left))
            donor = Donor(line, make_assignment(device, partner.rank), steps)
            simulations = combine(subproblem.objective, self.state, subproblem.units, donor, self.rng)
            if simulations == 0:
                del remaining[one]
            self.used, attempt = self.used + simulations, attempt + 1

    def _level(self, units: Units, heat: tuple[float, float], window: Window) -> None:
        """Anneals `units` within the window, on runs of ops if these make simulations shorter."""
        subproblem, short = self.subproblem_of(units), None
        if self.state.by_rank and not len(self.instance.samples.table):
            self.evaluate(subproblem)
            short = with_runs(self.instance, subproblem)
        if short is None:
            self._anneal(without_implied_edges(self.instance, subproblem), heat, window)
            return
        self.evaluate(short)
        self._anneal(short, heat, window)
        back_to_best(short.state)
        self.evaluate(short)
        for device, line in project_to_ops(short, self.state.position):
            self.state.device[:], self.state.at[:], self.state.position[:] = device, line, inverse(line)
            self.evaluate(subproblem)

    def subproblem_of(self, units: Units) -> Subproblem:
        """Returns the subproblem of single ops, of which `units` move."""
        return Subproblem(self.objective, self.state, units)

    def evaluate(self, subproblem: Subproblem) -> None:
        """Simulates the subproblem's current candidate; its cost is then in the state."""
        anneal(subproblem.objective, subproblem.state, subproblem.units, NO_STEPS, self.rng)
        self.used += 1

    def _anneal(self, subproblem: Subproblem, heat: tuple[float, float], window: Window) -> None:
        """Anneal from the first to the last `heat` (in makespans) over the window, in slices of time."""
        p, (hot, cold) = self.instance.parameters, heat
        scale, pace = float(subproblem.state.cost[2]), p.first_steps
        while (progress := window.progress(self.used)) is not None:
            temperature = scale * hot * (cold / hot) ** progress
            steps, evaluations_left = pace, window.evaluations_left(self.used)
            if evaluations_left is not None and window.budget.evaluations is not None:
                steps = max(1, min(1 + window.budget.evaluations // p.slice_part, p.slice_steps, evaluations_left))
            began = time.perf_counter()
            schedule = Schedule(temperature, temperature, steps, moves=p.moves)
            self.used += anneal(subproblem.objective, subproblem.state, subproblem.units, schedule, self.rng)
            seconds = max(time.perf_counter() - began, 1e-6)
            pace = max(p.fewest_steps, min(p.most_steps, int(steps * p.slice_seconds / seconds)))
