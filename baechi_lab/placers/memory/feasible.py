"""A memory-aware plan must hold in simulation: verify it, plan more carefully, then repair, then say why not.

The plan's own memory timeline is exact for the plan; the simulation starts transfers when tensors are produced and
may order ops differently, so its peaks can be higher. Each further attempt plans with less memory than the devices
have, by what the last one exceeded.
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
from .packing import infeasible, refuse_the_impossible

ATTEMPTS, MOST_ATTEMPTS = 4, 12

_REPAIRS: ContextVar[bool] = ContextVar("repairs", default=True)


@contextmanager
def plans_alone() -> Iterator[None]:
    """Within it rules only plan: what would have to be repaired, or tried out, is refused at once.

    For those who ask many rules about many graphs (`bl.fit`), where one repair after all of them does as well.
    """
    before = _REPAIRS.set(False)
    try:
        yield
    finally:
        _REPAIRS.reset(before)


def repaired(graph: OpGraph, cluster: Cluster, start: Placement | None) -> Placement | None:
    """What a repair makes of a plan that does not fit, or None."""
    from .repair import repair

    return repair(graph, cluster, start) if _REPAIRS.get() else None


def _attempts(graph: OpGraph) -> int:
    """Plans before a repair: more on large graphs, where a plan is cheap beside the simulations that a repair needs."""
    return ATTEMPTS + min(graph.n // 2000, MOST_ATTEMPTS - ATTEMPTS)


def within_memory(graph: OpGraph, cluster: Cluster, attempt: Callable[[Cluster, bool], Placement]) -> Placement:
    """The first placement of `attempt(limits, careful)` that keeps within memory when simulated, else a repaired one.

    `info["attempts"]` counts the plans made, `info["repaired"]` tells of a repair.
    Raises `InfeasiblePlacement` with what was needed and what each device has.
    """
    limit = cluster.memory_bytes.copy()
    best, least = None, None
    for number in range(1, _attempts(graph) + 1):
        try:
            plan = attempt(cluster if number == 1 else cluster.with_memory(limit.tolist()), number > 1)
        except InfeasiblePlacement:  # of limits that the devices may not have: no answer to what was asked
            refuse_the_impossible(graph, cluster)
            break
        _, peak = makespan_and_peak(graph, cluster, plan)
        over = np.maximum(peak - cluster.memory_bytes, 0)
        if not over.any():
            return plan.replace(info={**plan.info, "attempts": number})
        if least is None or over.sum() < least:
            best, least = plan, int(over.sum())
        if number == 1:
            refuse_the_impossible(graph, cluster)
        limit = np.maximum(limit - over, 0)
    return _mended(graph, cluster, best)


def _mended(graph: OpGraph, cluster: Cluster, start: Placement | None) -> Placement:
    found = repaired(graph, cluster, start)
    if found is not None:
        return found.replace(info={**found.info, "attempts": _attempts(graph), "repaired": True})
    why = first_fitting(graph, cluster)[1] if _REPAIRS.get() else ""
    raise infeasible(why or "no placement that fits was found, which is no proof that none exists", graph, cluster)
