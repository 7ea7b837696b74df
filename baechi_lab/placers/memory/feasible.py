"""Checks by simulation that a plan fits memory; if not, plans with less memory, then repairs, then raises with a reason.

The plan's own memory timeline is exact for the plan. The simulation starts transfers when tensors are produced and may order
ops differently, so its peaks can be higher. Each further attempt lowers the limits by the bytes that the last one exceeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from ...errors import InfeasiblePlacement
from ...graph import Cluster, OpGraph, Placement
from ...simulator import makespan_and_peak
from .exhaustive import first_fitting
from .packing import UNPROVEN, infeasible_placement, raise_if_impossible

ATTEMPTS, MAX_ATTEMPTS = 4, 12
"""How many plans are tried, for small and for the largest graphs."""

_REPAIRS: ContextVar[bool] = ContextVar("repairs", default=True)


@contextmanager
def without_repairs() -> Iterator[None]:
    """Lets placers only plan within this context. They raise at once instead of repairing or trying other limits.

    `bl.fit` asks many placers about many graphs and repairs one plan at the end.
    """
    before = _REPAIRS.set(False)
    try:
        yield
    finally:
        _REPAIRS.reset(before)


def repair_plan(graph: OpGraph, cluster: Cluster, start: Placement | None) -> Placement | None:
    """Repairs a plan that does not fit. Returns None if that fails or repairs are off."""
    from .repair import repair

    return repair(graph, cluster, start) if _REPAIRS.get() else None


def within_memory(graph: OpGraph, cluster: Cluster, attempt: Callable[[Cluster, bool], Placement]) -> Placement:
    """Returns the first placement of `attempt(limits, careful)` that fits in memory when it is simulated, else a repaired one.

    `limits` is the cluster with the memory that the plan may use; `careful` is True from the second plan on.
    `info["attempts"]` is the number of plans; `info["repaired"]` is True after a repair.
    Raises `InfeasiblePlacement` with the bytes needed and the memory of each device.
    """
    limit = cluster.memory_bytes.copy()
    best, least_overflow = None, None
    # Large graphs get more plans before a repair, since there a plan costs less than the simulations of a repair.
    attempts = ATTEMPTS + min(graph.n // 2000, MAX_ATTEMPTS - ATTEMPTS)
    for number in range(1, attempts + 1):
        try:
            plan = attempt(cluster if number == 1 else cluster.with_memory(limit.tolist()), number > 1)
        except InfeasiblePlacement:  # under adjusted limits, which proves nothing about the real ones
            raise_if_impossible(graph, cluster)
            break
        _, peak = makespan_and_peak(graph, cluster, plan)
        overflow_bytes = np.maximum(peak - cluster.memory_bytes, 0)
        if not overflow_bytes.any():
            return plan.replace(info={**plan.info, "attempts": number})
        if least_overflow is None or overflow_bytes.sum() < least_overflow:
            best, least_overflow = plan, int(overflow_bytes.sum())
        if number == 1:
            raise_if_impossible(graph, cluster)
        limit = np.maximum(limit - overflow_bytes, 0)
    repaired_placement = repair_plan(graph, cluster, best)
    if repaired_placement is not None:
        return repaired_placement.replace(info={**repaired_placement.info, "attempts": attempts, "repaired": True})
    proof = first_fitting(graph, cluster)[1] if _REPAIRS.get() else ""
    raise infeasible_placement(proof or UNPROVEN, graph, cluster, is_proof=bool(proof))
