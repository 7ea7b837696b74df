"""All rules of `bounds.merge` for one assumed makespan, until nothing changes or something is impossible."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.jit import njit
from .energy import GRID, heaviest
from .machine import BIG, SLACK, compare
from .stagger import staggered
from .sweep import sweep
from .units import group_units, join

IMPOSSIBLE, STABLE, OPEN = 0, 1, 2


def blank(n: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """What is known of pairs of units before the first round: the row of each heavy unit, and which are apart."""
    return np.full(n, -1, np.int64), np.zeros((BIG, BIG), np.bool_)


@njit(cache=True)
def propagate(
    limit: float, order: Any, p: Any, held: Any, in_ptr: Any, in_near: Any, in_cost: Any, in_edge: Any, out_ptr: Any,
    out_near: Any, out_cost: Any, out_edge: Any, unit: Any, paid: Any, head: Any, tail: Any, ancestors: Any,
    descendants: Any, devices: int, memory: float, queued: bool, big: Any, apart: Any, rounds: int,
) -> int:  # fmt: skip
    """Apply all rules for some rounds; `unit`, `head`, `tail` and what `blank` makes are updated.

    Returns IMPOSSIBLE (no schedule is within `limit`), STABLE (nothing changes any more) or OPEN.
    """
    n, state = len(p), OPEN
    most = limit * (1.0 + SLACK)
    for _ in range(rounds):
        pointer, members = group_units(unit)
        rose = sweep(
            order, False, p, in_ptr, in_near, in_cost, in_edge, unit, big, apart, paid, pointer, members, ancestors,
            queued, head,
        )  # fmt: skip
        rose |= sweep(
            order, True, p, out_ptr, out_near, out_cost, out_edge, unit, big, apart, paid, pointer, members,
            descendants, queued, tail,
        )  # fmt: skip
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
        pointer, members = group_units(unit)
        if not compare(limit, pointer, members, head, p, tail, devices, held, memory, big, apart):
            return IMPOSSIBLE
        for u in range(n):
            for e in range(out_ptr[u], out_ptr[u + 1]):
                if paid[out_edge[e]] and unit[u] == unit[out_near[e]]:
                    return IMPOSSIBLE
        if not rose and not joined:
            state = STABLE
            break
    late = staggered(order, p, in_ptr, in_near, in_cost, out_ptr, out_near, out_cost, unit, head, tail, devices)
    return IMPOSSIBLE if late > most or heaviest(head, p, tail, n, devices, GRID) > most else state
