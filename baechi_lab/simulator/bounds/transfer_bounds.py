"""Bounds that see communication and still take milliseconds: `local-or-paid` and `staggered-work`."""

from __future__ import annotations

from ...graph import Cluster, OpGraph
from .problem import merge_problem
from .stagger import staggered_work_us
from .sweep import paid_heads


def paid_bounds(graph: OpGraph, cluster: Cluster) -> dict[str, float]:
    """Returns both bounds by name. O(ops + edges) apart from sorting.

    `local-or-paid`: the longest path on which every producer delays its reader, either because it runs on the reader's device or
    by its transfer from another one (rules 1 and 5 of `bounds.merge`). Heads h are such paths from the front, tails q from the
    back. With an op of duration p, the step lasts at least h + p + q.

    `staggered-work`: see `bounds.stagger`.
    """
    if graph.n == 0 or cluster.n < 2:
        return {}
    x = merge_problem(graph, cluster, reach=False)
    head, tail = paid_heads(x)
    return {
        "local-or-paid": float((head + x.p + tail).max()),
        "staggered-work": float(staggered_work_us(x, x.unit, head, tail)),
    }
