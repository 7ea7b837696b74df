"""Bounds that see communication and still take milliseconds: `local-or-paid` and `staggered-work`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, OpGraph
from ..graph.jit import njit
from .bounds_problem import MergeProblem, merge_problem
from .bounds_sweep import paid_heads


def paid_bounds(graph: OpGraph, cluster: Cluster) -> dict[str, float]:
    """Both bounds by name. O(ops + edges) apart from sorting.

    `local-or-paid`: the longest path in which every producer is either on its reader's device, and delays it by running
    there, or elsewhere, and delays it by its transfer (rules 1 and 5 of `bounds_merge`), once from the front and once from
    the back; an op with head h, duration p and tail q makes the step last at least h + p + q.

    `staggered-work`: see `_staggered`.

    >>> from baechi_lab import Cluster, Link, OpGraph
    >>> join = OpGraph.from_edges([10, 10, 10, 1], [(0, 3, 1), (1, 3, 1), (2, 3, 1)])
    >>> paid_bounds(join, Cluster.uniform(3, link=Link(15.0, 0.0)))["local-or-paid"]
    26.0
    """
    if graph.n == 0 or cluster.n < 2:
        return {}
    problem = merge_problem(graph, cluster, reach=False)
    head, tail = paid_heads(problem)
    return {
        "local-or-paid": float((head + problem.p + tail).max()),
        "staggered-work": _staggered(problem, head, tail, cluster.n),
    }


def _staggered(problem: MergeProblem, head: NDArray[Any], tail: NDArray[Any], devices: int) -> float:
    """Devices cannot all start at 0 and stop at the end: what they run first and last had to be sent or is still needed.

    The first op with a positive duration on a device has all its producers with a positive duration elsewhere, so it
    starts no earlier than their ends plus transfers (a producer of duration 0 may be local, then the same holds for its
    producers). These first ops are distinct. With A(m) and B(m) the sums of the m smallest such starts and (for the last
    ops, backwards) tails, a schedule that uses m devices has m * makespan >= work + A(m) + B(m), so the makespan is at
    least the minimum of (work + A(m) + B(m)) / m over m = 1 .. D.
    """
    busy = problem.p > 0.0
    if not busy.any():
        return 0.0
    begin = np.sort(_alone(problem.order, False, problem.p, *problem.before[:3], problem.unit, head)[busy])
    finish = np.sort(_alone(problem.order, True, problem.p, *problem.after[:3], problem.unit, tail)[busy])
    most = min(devices, len(begin))
    used = np.arange(1, most + 1)
    return float(((problem.p.sum() + np.cumsum(begin[:most]) + np.cumsum(finish[:most])) / used).min())


@njit(cache=True)
def _alone(order: Any, backwards: bool, p: Any, pointer: Any, near: Any, cost: Any, unit: Any, head: Any) -> Any:
    """float64[n]: earliest start of each op if nothing of positive duration ran on its device before (infinite: never)."""
    n = len(p)
    found = np.zeros(n)
    for k in range(n):
        v = order[n - 1 - k] if backwards else order[k]
        start = 0.0
        for e in range(pointer[v], pointer[v + 1]):
            u = near[e]
            remote = head[u] + p[u] + cost[e] if unit[u] != unit[v] else np.inf
            start = max(start, remote if p[u] > 0.0 else min(remote, found[u]))
        found[v] = start
    return found
