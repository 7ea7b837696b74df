"""From stages to a placement: candidates of the dynamic programmes, measured, the best one kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from ...graph import Cluster, OpGraph, Placement
from ..memory.feasible import repaired
from ..memory.packing import infeasible, refuse_the_impossible
from .climb import climb, moves_allowed
from .objective import Measured, Objective

ATTEMPTS = 6
"""Plans with less and less memory, before the search for one that fits ends."""


class Cut(NamedTuple):
    """One candidate: `unit` int32[n] of every op, `stage` int64[units] of every unit, `devices` of every stage (equal ones
    share it); `name` tells where it comes from; `cost` is what the programme says it costs, microseconds."""

    unit: NDArray[Any]
    stage: NDArray[Any]
    devices: tuple[tuple[int, ...], ...]
    name: str
    cost: float

    def placement(self) -> Placement:
        first = np.array([some[0] for some in self.devices], dtype=np.int32)
        groups = tuple(some for some in self.devices if len(some) > 1)
        return Placement(device=first[self.stage[self.unit]], replicas=groups, info={"split": self.name})


def made_of(
    unit: NDArray[Any],
    count: int,
    stages: Iterable[tuple[Any, int, int]],
    order: tuple[int, ...],
    name: str,
    cost: float,
) -> Cut:
    """A cut from stages (members, first device of the chain, number of devices)."""
    stage = np.zeros(count, dtype=np.int64)
    devices: list[tuple[int, ...]] = []
    for members, d, r in stages:
        stage[members] = len(devices)
        devices.append(tuple(order[d : d + r]))
    return Cut(unit, stage, tuple(devices), name, cost)


def shared_by_all(unit: NDArray[Any], count: int, order: tuple[int, ...], most: int) -> Iterator[Cut]:
    """Data parallelism: one stage, on two to `most` of the devices, whatever the programme thinks of it."""
    for r in range(2, most + 1):
        yield made_of(unit, count, [(slice(None), 0, r)], order, f"{r} replicas of everything", np.inf)


def best_cut(
    graph: OpGraph, cluster: Cluster, objective: Objective, cuts: Callable[[Cluster], Iterator[Cut]]
) -> Placement:
    """The best measured candidate that keeps within memory; `cuts(limits)` makes them for devices of so much memory.

    For a step of micro-batches the borders of its stages are moved as long as that helps (`climb`).

    `info`: `split` and `period_us`, `step_us` or `planned_us` as measured, `candidates` how many there were.
    Where no cut fits, a repaired placement, which need not be one (`repaired`), except for a step of micro-batches.
    Raises `InfeasiblePlacement`: nothing fits, proven where even the persistent bytes do not.
    """
    limits = cluster
    for _ in range(ATTEMPTS):
        measured = _all_measured(graph, cluster, objective, cuts(limits))
        fitting = [(found.us, k) for k, (found, _) in enumerate(measured) if found.feasible]
        if fitting:
            us, k = min(fitting)
            best = measured[k][1]
            if objective.name == "step":
                best, us = _climbed(graph, cluster, objective, best, us)
            return _told(best.placement(), objective, us, len(measured))
        refuse_the_impossible(graph, cluster)
        if not measured:
            break
        least = min((found.over for found, _ in measured), key=lambda over: int(over.sum()))
        limits = limits.with_memory(np.maximum(limits.memory_bytes - least, 0).tolist())
    start = measured[0][1].placement().replace(replicas=()) if measured else None
    mended = repaired(graph, cluster, start) if objective.name != "step" else None
    if mended is None:
        raise infeasible("no cut into stages that fits was found, which is no proof that none exists", graph, cluster)
    us = objective.measure(graph, cluster, mended).us
    return _told(mended.replace(info={**mended.info, "repaired": True}), objective, us, len(measured))


def _all_measured(
    graph: OpGraph, cluster: Cluster, objective: Objective, cuts: Iterator[Cut]
) -> list[tuple[Measured, Cut]]:
    """Every cut as measured; those that the schedule cannot work on are left out, if not all are."""
    found: list[tuple[Measured, Cut]] = []
    known: dict[Any, Measured] = {}  # several lines and goals may lead to one cut
    refused: InvalidInput | None = None
    for cut in cuts:
        placed = cut.placement()
        key = placed.device.tobytes(), placed.replicas
        try:
            if key not in known:
                known[key] = objective.measure(graph, cluster, placed)
            found.append((known[key], cut))
        except InvalidInput as error:
            refused = refused or error
    if refused is not None and not found:
        raise refused
    return found


def _climbed(graph: OpGraph, cluster: Cluster, objective: Objective, cut: Cut, us: float) -> tuple[Cut, float]:
    def cost(stage: NDArray[Any]) -> float:
        try:
            found = objective.measure(graph, cluster, cut._replace(stage=stage).placement())
        except InvalidInput:  # an order that blocks itself, or no pipeline for this schedule
            return np.inf
        return found.us if found.feasible else np.inf

    stage, us = climb(cut.stage, us, cost, moves_allowed(graph.n * objective.micro_batches))
    return cut._replace(stage=stage), us


def _told(placement: Placement, objective: Objective, us: float, count: int) -> Placement:
    return placement.replace(info={**placement.info, objective.key: us, "candidates": count})
