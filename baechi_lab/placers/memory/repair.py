"""Repair: make a placement whose simulation fits in memory, from one that does not fit or from none.

Idea: the overflow is the number of bytes above the limits, summed over devices at the peaks of the simulation. Starts are the
given placement, packings of the persistent bytes, splits of a topological order, and each device alone. Each is simulated
with the planned order, first in first out, and an order that saves memory. The best start is annealed on the overflow until
it is 0; the rest of the budget improves the step time.

Complexity: `evaluations` simulations. Deterministic for a seed. Annealing: see `evaluation/anneal.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, Placement, allowed_devices
from ...graph.kernels.csr import Integers, grouped_sum
from ..evaluation.anneal import Schedule, anneal
from ..evaluation.assignment import Limits, make_assignment
from ..evaluation.cost import Prices, make_objective
from ..evaluation.evaluate import evaluate, overflow
from ..evaluation.improve import improve
from ..evaluation.model import make_model
from ..evaluation.moves import make_state, make_units
from ..problem import allowed_group_devices, groups_of
from .depth_first import depth_first_order
from .exhaustive import first_fitting
from .packing import best_fit, packing_proof, promised_bytes

__all__ = ["packing_proof", "repair"]

EVALUATIONS = 4000
"""Most simulations of a repair."""
LAST_EVALUATIONS = 100_000
"""Most simulations of a repair that is the last resort: `auto` refuses the graph if it finds nothing."""
ROUNDS = 6
"""Most starts that are repaired."""
MAX_SIMULATED_OPS = 100_000_000
"""Most ops simulated, over all simulations, until nothing exceeds a limit. Most placements need far fewer."""


def repair(
    graph: OpGraph,
    cluster: Cluster,
    start: Placement | None = None,
    seed: int = 0,
    evaluations: int | None = None,
    last_resort: bool = False,
) -> Placement | None:
    """Returns a placement that fits in memory and keeps colocation and allowed devices, or None if none is found.

    `start` may break any rule. `evaluations` is the number of simulations. The default is 4000 and fewer on large graphs, but
    more there while a limit is exceeded and no proof says that nothing fits: up to 100,000 for the `last_resort`.
    Raises `InfeasiblePlacement` if an op has no allowed device at all.
    """
    if graph.n == 0:
        return Placement(device=np.zeros(0, dtype=np.int32))
    budget = max(60, min(EVALUATIONS, 8_000_000 // graph.n)) if evaluations is None else evaluations
    evaluation_limit = LAST_EVALUATIONS if last_resort else EVALUATIONS
    removal = min(evaluation_limit, MAX_SIMULATED_OPS // graph.n) if evaluations is None else 0
    repaired_placement = _Repair(graph, cluster, seed).run(start, budget, removal)
    if repaired_placement is None and packing_proof(graph, cluster) is None:
        repaired_placement, _ = first_fitting(graph, cluster)
    return None if repaired_placement is None else repaired_placement.replace(placer="repair")


class _Attempt(NamedTuple):
    """A simulated candidate, in the order in which candidates are preferred; `start` is the number of its start."""

    overflow_bytes: float
    time_us: float
    start: int
    device: NDArray[np.int32]
    order: NDArray[np.number] | None


class _Repair:
    """One repair: the arrays of the problem, and the steps in order."""

    def __init__(self, graph: OpGraph, cluster: Cluster, seed: int):
        self.graph, self.cluster = graph, cluster
        self.model = make_model(graph, cluster)
        self.objective = make_objective(self.model, track=True)
        self.position = graph.position
        self.group = groups_of(graph)
        self.group_allowed = allowed_group_devices(graph, cluster, self.group)
        self.units = make_units(self.group, self.position, allowed_devices(graph, cluster))
        self.rng = np.random.default_rng(seed)

    def run(self, start: Placement | None, budget: int, removal: int = 0) -> Placement | None:
        """Spends `budget` simulations, or up to `removal` if that is more and a limit is still exceeded."""
        attempts: list[_Attempt] = []
        orders = [None, self.position.astype(np.float64), depth_first_order(self.graph)]
        for k, (device, rank) in enumerate(self._starts(start)):
            for order in [*orders, *([] if rank is None else [np.asarray(rank, dtype=np.float64).copy()])]:
                work = self.objective.work
                time = float(evaluate(self.model, work, make_assignment(device, order), Limits(True)))
                attempts.append(_Attempt(float(overflow(self.model, work)), time, k, device, order))
            if len(attempts) >= max(budget // 2, 6) and min(attempt.overflow_bytes for attempt in attempts) == 0:
                break
        attempts.sort(key=lambda attempt: attempt[:3])
        remaining = max(budget - len(attempts), 0)
        best: _Attempt | None = attempts[0]
        if attempts[0].overflow_bytes > 0:
            if packing_proof(self.graph, self.cluster) is not None:
                return None
            candidates, best = attempts[:ROUNDS], None
            steps = max(remaining, removal) // len(candidates)
            for attempt in candidates:
                state = make_state(attempt.device, attempt.order)
                # Bytes first; of two candidates with the same overflow the faster is better.
                objective = self.objective._replace(prices=Prices(1.0 / max(attempt.time_us, 1e-9), 1.0))
                heat = max(attempt.overflow_bytes * 0.05, 2.0)
                anneal(objective, state, self.units, Schedule(heat, heat * 1e-3, steps, until_feasible=True), self.rng)
                if not state.cost[3] > 0:
                    time_us, device = float(state.cost[2]), state.best_device.copy()
                    rank = state.best_position.astype(np.float64) if state.by_rank else None
                    best = _Attempt(0.0, time_us, attempt.start, device, rank)
                    break
            remaining = remaining // 4
        if best is None:
            return None
        return improve(self.objective, self.units, best.device, best.order, best.time_us, remaining, self.rng)

    def _starts(self, start: Placement | None) -> Iterator[tuple[NDArray[np.int32], NDArray[np.number] | None]]:
        """Yields devices per op, each group on one allowed device, and a planned rank if there is one."""
        if start is not None:
            yield self._with_whole_groups(start.device), start.rank
        unit_bytes = promised_bytes(self.graph)
        total = unit_bytes + grouped_sum(self.graph.output_bytes + self.graph.temp_bytes, self.group, len(unit_bytes))
        for weight in (unit_bytes, total):
            for device in self._splits(weight):
                yield device, None
            device_of_unit = best_fit(weight, unit_bytes, self.group_allowed, self.cluster.memory_bytes)
            if device_of_unit is not None:
                yield device_of_unit[self.group].astype(np.int32), None
        for d in range(self.cluster.n):
            yield self._with_whole_groups(np.full(self.graph.n, d)), None

    def _with_whole_groups(self, device: Integers) -> NDArray[np.int32]:
        """Returns the devices after every group moved to the allowed device that has most of its ops."""
        votes = np.zeros(self.group_allowed.shape, dtype=np.int64)
        np.add.at(votes, (self.group, np.minimum(device, self.cluster.n - 1)), 1)
        group_device = np.where(self.group_allowed, votes, -1).argmax(axis=1)
        return group_device[self.group].astype(np.int32)

    def _splits(self, weight: NDArray[np.int64]) -> Iterator[NDArray[np.int32]]:
        """Yields cuts of the topological order with bytes in proportion to memory; first with backward beside forward ops."""
        share = np.cumsum(self.cluster.memory_bytes / max(int(self.cluster.memory_bytes.sum()), 1))
        first_position = np.full(len(weight), self.graph.n)
        position = self.position.copy()
        has_forward = self.graph.forward_of >= 0
        columns = [position]
        if has_forward.any():
            folded_position = position.copy()
            folded_position[has_forward] = position[self.graph.forward_of[has_forward]]
            columns.insert(0, folded_position)
        for column in columns:
            first_position[:] = self.graph.n
            np.minimum.at(first_position, self.group, column)
            order = np.argsort(first_position, kind="stable")
            middle_bytes = np.cumsum(weight[order]) - weight[order] / 2
            group_device = np.empty(len(weight), dtype=np.int64)
            group_device[order] = np.searchsorted(share, middle_bytes / max(middle_bytes[-1], 1), side="right")
            yield self._with_whole_groups(np.minimum(group_device, self.cluster.n - 1)[self.group])
