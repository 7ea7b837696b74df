"""Repair: a placement whose simulation keeps within memory, from one that does not or from nothing.

Idea: how far a placement is from fitting is the overflow, the bytes above the limits summed over devices at the peaks
of its simulation. Starts are the given placement, packings of the promised bytes, splits of a topological order, and each
device alone; each is tried with the planned order, first in first out, and an order that saves memory. The best start
is annealed on the overflow until it is gone; what is left of the budget improves the time.

Complexity: `evaluations` simulations. Deterministic for a seed. Annealing: see `evaluation/anneal.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, Placement, allowed_devices
from ..evaluation.anneal import Schedule, anneal
from ..evaluation.assignment import Limits, make_assignment
from ..evaluation.cost import NEVER, Prices, evaluate_current, make_objective
from ..evaluation.evaluate import evaluate, overflow
from ..evaluation.model import make_model
from ..evaluation.moves import State, back_to_best, make_state, make_units
from ..problem import groups_of, output_bytes
from .exhaustive import first_fitting
from .order import depth_first_order
from .packing import best_fit, packing_proof, promises

__all__ = ["packing_proof", "repair"]

EVALUATIONS = 4000
ROUNDS = 6

REMOVAL = 100_000_000
"""Ops to simulate at most, over all simulations, until nothing exceeds a limit: most placements need far fewer."""


def repair(
    graph: OpGraph, cluster: Cluster, start: Placement | None = None, seed: int = 0, evaluations: int | None = None
) -> Placement | None:
    """A placement whose simulation exceeds no memory limit and keeps colocation and allowed devices; None if not found.

    `start` may break any rule; what it gives is used as far as it goes. `evaluations`: simulations to spend (default
    4000, fewer on large graphs, but more there while something exceeds a limit and no packing is known to be impossible).
    Raises `InfeasiblePlacement` when an op has no allowed device at all.

    >>> from baechi_lab import Cluster, OpGraph
    >>> graph = OpGraph.from_edges([1, 1], persistent_bytes=[60, 60])
    >>> sorted(repair(graph, Cluster.uniform(2, memory_bytes=100)).device.tolist())
    [0, 1]
    """
    if graph.n == 0:
        return Placement(device=np.zeros(0, dtype=np.int32))
    budget = max(60, min(EVALUATIONS, 8_000_000 // graph.n)) if evaluations is None else evaluations
    removal = min(EVALUATIONS, REMOVAL // graph.n) if evaluations is None else 0
    found = _Repair(graph, cluster, seed).run(start, budget, removal)
    if found is None and packing_proof(graph, cluster) is None:
        found, _ = first_fitting(graph, cluster)
    return None if found is None else found.replace(placer="repair")


class _Repair:
    """One repair: the arrays of the problem, and the steps in order."""

    def __init__(self, graph: OpGraph, cluster: Cluster, seed: int):
        self.graph, self.cluster = graph, cluster
        self.allowed = allowed_devices(graph, cluster)
        self.model = make_model(graph, cluster)
        # No byte above a limit is worth any time.
        self.objective = make_objective(self.model, Prices(1.0, NEVER, NEVER), track=True)
        self.position = np.empty(graph.n, dtype=np.int64)
        self.position[graph.order] = np.arange(graph.n)
        self.group = groups_of(graph)
        self.units = make_units(self.group, self.position, self.allowed)
        self.rng = np.random.default_rng(seed)

    def run(self, start: Placement | None, budget: int, removal: int = 0) -> Placement | None:
        """Spend `budget` simulations; as long as something exceeds a limit, up to `removal` where that is more."""
        best: tuple[float, float, int, Any, Any] | None = None
        tried = []
        for k, (device, rank) in enumerate(self._starts(start)):
            for order in self._orders(start, rank):
                time, over = self._measure(device, order)
                tried.append((over, time, k, device, order))
            if len(tried) >= max(budget // 2, 6) and min(t[0] for t in tried) == 0:
                break
        tried.sort(key=lambda t: t[:3])
        left = max(budget - len(tried), 0)
        if tried[0][0] > 0 and packing_proof(self.graph, self.cluster) is not None:
            return None
        if tried[0][0] > 0:
            rounds = tried[:ROUNDS]
            for candidate in rounds:
                best = self._remove_overflow(candidate, max(left, removal) // len(rounds))
                if best is not None:
                    break
            left = left // 4
        else:
            best = tried[0]
        return None if best is None else self._improve(best, left)

    def _measure(self, device: NDArray[Any], order: NDArray[Any] | None) -> tuple[float, float]:
        work = self.objective.work
        time = evaluate(self.model, work, make_assignment(device, order), Limits(True))
        return float(time), float(overflow(self.model, work))

    def _starts(self, start: Placement | None) -> Iterator[tuple[NDArray[np.int32], NDArray[Any] | None]]:
        """Devices per op, each group on one allowed device."""
        if start is not None:
            yield self._lawful(start.device), start.rank
        promised = promises(self.graph)
        for weight in (promised, self._bytes_of_groups()):
            for device in self._splits(weight):
                yield device, None
            packed = best_fit(weight, promised, self._group_allowed(), self.cluster.memory_bytes)
            if packed is not None:
                yield packed[self.group].astype(np.int32), None
        for d in range(self.cluster.n):
            yield self._lawful(np.full(self.graph.n, d)), None

    def _orders(self, start: Placement | None, own: Any) -> Iterator[NDArray[Any] | None]:
        yield None
        yield self.position.astype(np.float64)
        yield depth_first_order(self.graph)
        if own is not None:
            yield np.asarray(own, dtype=np.float64).copy()

    def _group_allowed(self) -> NDArray[np.bool_]:
        able = np.ones((int(self.group.max()) + 1, self.cluster.n), dtype=np.bool_)
        np.logical_and.at(able, self.group, self.allowed)
        return able

    def _bytes_of_groups(self) -> NDArray[np.int64]:
        total = np.zeros(int(self.group.max()) + 1, dtype=np.int64)
        np.add.at(total, self.group, self.graph.persistent_bytes + output_bytes(self.graph) + self.graph.temp_bytes)
        return total

    def _lawful(self, device: NDArray[Any]) -> NDArray[np.int32]:
        """`device` with every group where most of its ops are, among the devices it may use."""
        able = self._group_allowed()
        votes = np.zeros(able.shape, dtype=np.int64)
        np.add.at(votes, (self.group, np.minimum(device, self.cluster.n - 1)), 1)
        home = np.where(able, votes, -1).argmax(axis=1)
        return home[self.group].astype(np.int32)

    def _splits(self, weight: NDArray[np.int64]) -> Iterator[NDArray[np.int32]]:
        """Runs of the topological order, bytes in proportion to memory; a second form keeps backward ops with theirs."""
        share = np.cumsum(self.cluster.memory_bytes / max(int(self.cluster.memory_bytes.sum()), 1))
        first = np.full(len(weight), self.graph.n)
        where = self.position.copy()
        paired = self.graph.forward_of >= 0
        columns = [where]
        if paired.any():
            folded = where.copy()
            folded[paired] = where[self.graph.forward_of[paired]]
            columns.insert(0, folded)
        for column in columns:
            first[:] = self.graph.n
            np.minimum.at(first, self.group, column)
            order = np.argsort(first, kind="stable")
            filled = np.cumsum(weight[order]) - weight[order] / 2
            home = np.empty(len(weight), dtype=np.int64)
            home[order] = np.searchsorted(share, filled / max(filled[-1], 1), side="right")
            yield self._lawful(np.minimum(home, self.cluster.n - 1)[self.group])

    def _remove_overflow(self, start: Any, steps: int) -> Any:
        over, time, k, device, order = start
        state = make_state(device, order)
        # Bytes first; of two candidates with the same overflow the faster is better.
        objective = self.objective._replace(prices=Prices(1.0 / max(time, 1e-9), 1.0, 1.0))
        evaluate_current(objective, state)
        hot = max(over * 0.05, 2.0)
        anneal(objective, state, self.units, Schedule(hot, hot * 1e-3, steps, until_feasible=True), self.rng)
        if state.cost[3] > 0:
            return None
        return 0.0, float(state.cost[2]), k, state.best_device.copy(), _best_rank(state)

    def _improve(self, found: Any, steps: int) -> Placement:
        _, time, _, device, order = found
        state = make_state(device, order)
        evaluate_current(self.objective, state)
        back_to_best(state)
        hot = max(time * 0.01, 1e-9)
        anneal(self.objective, state, self.units, Schedule(hot, hot * 0.02, steps), self.rng)
        return Placement(device=state.best_device, order=_best_rank(state))


def _best_rank(state: State) -> NDArray[np.float64] | None:
    return state.best_position.astype(np.float64) if state.by_rank else None
