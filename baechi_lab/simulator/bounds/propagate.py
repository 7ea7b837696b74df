"""All rules of `bounds.merge` for one assumed makespan, until nothing changes or something is impossible."""

from __future__ import annotations

from ...graph.kernels.jit import njit
from .energy import GRID, heaviest
from .machine import SLACK, compare
from .problem import MergeProblem
from .stagger import staggered
from .sweep import Known, sweep
from .units import group_units, join

IMPOSSIBLE, STABLE, OPEN = 0, 1, 2


@njit(cache=True)
def propagate(limit: float, x: MergeProblem, known: Known, rounds: int) -> int:
    """Apply all rules for some rounds; all of `known` but `paid` is updated.

    Returns IMPOSSIBLE (no schedule is within `limit`), STABLE (nothing changes any more) or OPEN.
    """
    p, out_ptr, out_near, out_cost, out_edge = x.p, x.after.pointer, x.after.near, x.after.cost, x.after.edge
    unit, paid, head, tail = known.unit, known.paid, known.head, known.tail
    n, state = len(p), OPEN
    most = limit * (1.0 + SLACK)
    for _ in range(rounds):
        units = group_units(unit)
        rose = sweep(x, False, known, units)
        rose |= sweep(x, True, known, units)
        for i in range(n):
            if head[i] + p[i] + tail[i] > most:
                return IMPOSSIBLE
        joined = False
        for u in range(n):
            for e in range(out_ptr[u], out_ptr[u + 1]):
                v = out_near[e]
                if head[u] + p[u] + out_cost[e] + p[v] + tail[v] > most:
                    if paid[out_edge[e]]:
                        return IMPOSSIBLE
                    joined |= join(unit, u, v)
        if not compare(limit, x, known, group_units(unit)):
            return IMPOSSIBLE
        for u in range(n):
            for e in range(out_ptr[u], out_ptr[u + 1]):
                if paid[out_edge[e]] and unit[u] == unit[out_near[e]]:
                    return IMPOSSIBLE
        if not rose and not joined:
            state = STABLE
            break
    late = staggered(x, unit, head, tail)
    return IMPOSSIBLE if late > most or heaviest(head, p, tail, n, x.devices, GRID) > most else state
