"""From stages to a placement: candidates of the dynamic programmes, measured, the best one kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, Placement
from ..memory.packing import infeasible, refuse_the_impossible
from ..memory.repair import repair
from .objective import Objective

ATTEMPTS = 6
"""Plans with less and less memory, before the search for one that fits ends."""


class Cut(NamedTuple):
    """One candidate: `home` int32[units], the first device of each unit's stage; `groups` of equal devices that share a
    stage; `name` tells where it comes from; `cost` is what the programme says it costs, microseconds."""

    unit: NDArray[Any]
    home: NDArray[Any]
    groups: tuple[tuple[int, ...], ...]
    name: str
    cost: float

    def placement(self) -> Placement:
        return Placement(device=self.home[self.unit].astype(np.int32), replicas=self.groups, info={"split": self.name})


def made_of(
    unit: NDArray[Any],
    count: int,
    stages: Iterable[tuple[Any, int, int]],
    order: tuple[int, ...],
    name: str,
    cost: float,
) -> Cut:
    """A cut from stages (members, first device of the chain, number of devices)."""
    home = np.zeros(count, dtype=np.int64)
    groups = []
    for members, d, r in stages:
        home[members] = order[d]
        if r > 1:
            groups.append(tuple(order[d : d + r]))
    return Cut(unit, home, tuple(groups), name, cost)


def best_cut(
    graph: OpGraph, cluster: Cluster, objective: Objective, cuts: Callable[[Cluster], Iterator[Cut]]
) -> Placement:
    """The best measured candidate that keeps within memory; `cuts(limits)` makes them for devices of so much memory.

    `info`: `split` and `period_us`, `step_us` or `planned_us` as measured, `candidates` how many there were.
    Where no cut fits, a repaired placement, which need not be one (`repaired`), except for a step of micro-batches.
    Raises `InfeasiblePlacement`: nothing fits, proven where even the persistent bytes do not.
    """
    limits = cluster
    for _ in range(ATTEMPTS):
        measured = [_measured(graph, cluster, objective, cut) for cut in cuts(limits)]
        fitting = [(us, k) for k, (us, over, _) in enumerate(measured) if not over.any()]
        if fitting:
            us, k = min(fitting)
            return _told(measured[k][2], objective, us, len(measured))
        refuse_the_impossible(graph, cluster)
        if not measured:
            break
        least = min((over for _, over, _ in measured), key=lambda over: int(over.sum()))
        limits = limits.with_memory(np.maximum(limits.memory_bytes - least, 0).tolist())
    mended = repair(graph, cluster, measured[0][2] if measured else None) if objective.name != "step" else None
    if mended is None:
        raise infeasible("no cut into stages that fits was found", graph, cluster)
    us, _ = objective.measure(graph, cluster, mended)
    return _told(mended.replace(info={**mended.info, "repaired": True}), objective, us, len(measured))


def _measured(graph: OpGraph, cluster: Cluster, objective: Objective, cut: Cut) -> tuple[float, Any, Placement]:
    placement = cut.placement()
    us, over = objective.measure(graph, cluster, placement)
    return us, over, placement


def _told(placement: Placement, objective: Objective, us: float, count: int) -> Placement:
    key = {"latency": "planned_makespan_us", "throughput": "period_us", "step": "step_us"}[objective.name]
    return placement.replace(info={**placement.info, key: us, "candidates": count})
