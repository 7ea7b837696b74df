"""Applies all rules of `bounds.merge` for an assumed makespan until they derive nothing new, or a contradiction."""

from __future__ import annotations

from ...graph.kernels.jit import njit
from .energy import GRID, heaviest
from .one_machine import SLACK, compare
from .problem import MergeProblem
from .stagger import staggered_work_us
from .sweep import Deductions, sweep
from .units import group_units, join

IMPOSSIBLE, STABLE, OPEN = 0, 1, 2
"""Results of a propagation."""


@njit(cache=True)
def propagate(limit: float, x: MergeProblem, deductions: Deductions, rounds: int) -> int:
    """Apply all rules for some rounds; all of `deductions` but `is_paid` is updated.

    Returns IMPOSSIBLE (no schedule is within `limit`), STABLE (nothing changes any more) or OPEN.
    """
    p, out_ptr, out_near, out_cost, out_edge = x.p, x.after.pointer, x.after.near, x.after.cost, x.after.edge
    unit, is_paid, head, tail = deductions.unit, deductions.is_paid, deductions.head, deductions.tail
    n, state = len(p), OPEN
    limit_with_slack = limit * (1.0 + SLACK)
    for _ in range(rounds):
        units = group_units(unit)
        rose = sweep(x, False, deductions, units)
        rose |= sweep(x, True, deductions, units)
        for i in range(n):
            if head[i] + p[i] + tail[i] > limit_with_slack:
                return IMPOSSIBLE
        has_joined = False
        for u in range(n):
            for e in range(out_ptr[u], out_ptr[u + 1]):
                v = out_near[e]
                if head[u] + p[u] + out_cost[e] + p[v] + tail[v] > limit_with_slack:
                    if is_paid[out_edge[e]]:
                        return IMPOSSIBLE
                    has_joined |= join(unit, u, v)
        if not compare(limit, x, deductions, group_units(unit)):
            return IMPOSSIBLE
        for u in range(n):
            for e in range(out_ptr[u], out_ptr[u + 1]):
                if is_paid[out_edge[e]] and unit[u] == unit[out_near[e]]:
                    return IMPOSSIBLE
        if not rose and not has_joined:
            state = STABLE
            break
    stagger_bound = staggered_work_us(x, unit, head, tail)
    return (
        IMPOSSIBLE
        if stagger_bound > limit_with_slack or heaviest(head, p, tail, n, x.devices, GRID) > limit_with_slack
        else state
    )
