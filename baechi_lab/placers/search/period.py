"""Searches for the smallest period of endless micro-batches: annealing of the largest load (`pipeline_stages.device_loads`).

Chains start from the best cut into stages (`contiguous`), or from a given placement, and anneal in rounds. Each round starts
from the best candidate of all chains, at temperatures from a twentieth of its period down. The results of a round are measured
like in `bl.throughput`, and their memory by a simulated micro-batch. If that exceeds a device's memory, later rounds may place
fewer bytes there.
Of few assignments each is tried instead, those with the smallest load first.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, Placement
from ..pipeline_stages.device_loads import anneal_loads, largest_load, load_model, loads_of
from ..pipeline_stages.objective import Objective
from ..problem import every_assignment
from .budget import Budget
from .parameters import SEARCH, SearchParameters

MOST_ASSIGNMENTS = 4096
"""Most assignments that are all tried, which takes less than a tenth of a second."""


def search_period(
    graph: OpGraph,
    cluster: Cluster,
    objective: Objective,
    start: Placement,
    budget: Budget,
    workers: int,
    seed: int,
    tell: Callable[[float, int], None],
    numbers: SearchParameters = SEARCH,
) -> tuple[Placement, float, int]:
    """Returns the best placement, never worse than `start`, its period in microseconds, and the number of moves."""
    run = _Annealing(graph, cluster, objective, start, budget, workers, seed, numbers)
    try:
        if run.try_every_assignment():
            return run.best, run.us, run.used
        with ThreadPoolExecutor(workers) as pool:
            for _ in range(numbers.period_rounds):
                if budget.spent(run.used) >= 1.0 or run.us <= 0.0 or cluster.n == 1:
                    break
                run.round(pool)
                tell(run.us, run.used)
    except KeyboardInterrupt:  # the best candidate so far is returned
        budget.stopped = budget.interrupted = True
    return run.best, run.us, run.used


class _Annealing:
    """The best candidate so far, and the chains that improve it."""

    def __init__(
        self,
        graph: OpGraph,
        cluster: Cluster,
        objective: Objective,
        start: Placement,
        budget: Budget,
        workers: int,
        seed: int,
        numbers: SearchParameters,
    ):
        self.graph, self.cluster, self.objective, self.budget = graph, cluster, objective, budget
        self.numbers = numbers
        self.model = load_model(graph, cluster, sum=objective.sum)
        self.best, self.us, self.used, self.idle = start, objective.measure(graph, cluster, start).us, 0, 0
        self.unit_device = np.zeros(len(self.model.persistent_bytes), dtype=np.int64)
        self.unit_device[self.model.unit] = start.device
        self.limit = cluster.memory_bytes.copy()
        self.rngs = [np.random.default_rng([seed, k]) for k in range(workers)]

    def try_every_assignment(self) -> bool:
        """Tries all assignments if they are few, and returns whether they are."""
        loads: list[tuple[float, int, NDArray[np.int64]]] = []
        for unit_device in every_assignment(self.model.allowed, MOST_ASSIGNMENTS):
            self.used += 1
            if np.all(np.bincount(unit_device, self.model.persistent_bytes, self.cluster.n) <= self.limit):
                loads.append((largest_load(self.model, loads_of(self.model, unit_device))[0], self.used, unit_device))
        for load, _, unit_device in sorted(loads):
            if load >= self.us * (1 - 1e-9) or self.budget.spent(0) >= 1.0:
                break
            self._take(unit_device)
        return self.used > 0

    def round(self, pool: ThreadPoolExecutor) -> None:
        """Anneals all chains once, and measures their results, the most promising first."""
        workers, evaluations_left = len(self.rngs), self.budget.evaluations
        steps = self.numbers.period_round
        if evaluations_left is not None:
            steps = max(min(steps, -(-(evaluations_left - self.used) // workers)), 1)
        chain_results = list(pool.map(lambda rng: self._chain(rng, steps), self.rngs))
        self.used += steps * workers
        self.idle += 1
        for load, unit_device in sorted(chain_results, key=lambda pair: pair[0]):
            if load < self.us * (1 - 1e-9):
                self._take(unit_device)

    def _chain(self, rng: np.random.Generator, steps: int) -> tuple[float, NDArray[np.int64]]:
        m, start_device = self.model, self.unit_device.copy()
        if self.idle > self.numbers.period_idle and rng.random() < 0.5:
            start_device = np.where(m.allowed, rng.random(m.allowed.shape), -1.0).argmax(axis=1)
        first, factor, last = self.numbers.period_heat
        hot = first * self.us * factor ** (self.idle % 4)
        return anneal_loads(m, start_device, self.limit, hot, hot * last, steps, rng)  # type: ignore[no-any-return]

    def _take(self, unit_device: NDArray[np.int64]) -> None:
        placement = Placement(device=unit_device[self.model.unit].astype(np.int32))
        measurement = self.objective.measure(self.graph, self.cluster, placement)
        us = self.objective.improved_us(self.graph, self.cluster, placement, measurement, self.us)
        if us < self.us:
            self.best, self.us, self.unit_device, self.idle = placement, us, unit_device, 0
        elif not measurement.feasible:  # outputs and temporaries do not fit in addition to persistent bytes
            self.limit = np.maximum(self.limit - measurement.overflow_bytes, 0)
