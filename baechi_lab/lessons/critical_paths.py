"""Exercises of `07_critical_path.ipynb`: the critical path and upward ranks."""

from __future__ import annotations

import numpy as np

from ..graph import Cluster, Device, Link, OpGraph
from .exercise import function, names, number, placement

SIX = OpGraph.from_edges(
    [2, 4, 6, 3, 3, 2],
    [(0, 1, 4), (0, 2, 4), (1, 3, 4), (2, 4, 4), (3, 5, 4), (4, 5, 4)],
    names=["read", "a", "b", "c", "d", "write"],
    name="six",
)
TWO = Cluster((Device("slow", "cpu", 1000, 1.0), Device("fast", "gpu", 1000, 2.0)), Link(0.0, 0.25), comm="parallel")


def upward_rank(durations: list[float], edges: list[tuple[int, int]]) -> list[float]:
    """Returns the longest path from each op to the end, including the op, without transfers; edges go from low to high index.

    >>> upward_rank([2, 4, 6, 3], [(0, 1), (0, 2), (1, 3)])
    [9, 7, 6, 3]
    """
    rank = list(durations)
    for i in reversed(range(len(durations))):
        rank[i] += max((rank[b] for a, b in edges if a == i), default=0)
    return rank


def _cases() -> list[tuple[list[int], list[tuple[int, int]]]]:
    rng = np.random.default_rng(3)
    cases = [([5], []), ([2, 3], [(0, 1)])]
    for n in (4, 5, 6, 8):
        edges = [(i, j) for i in range(n) for j in range(i + 1, n) if rng.random() < 0.4]
        cases.append((rng.integers(1, 10, n).tolist(), edges))
    return cases


CHECKS = {
    1: function(upward_rank, _cases),
    # With b of 3 us: 2 + 4 + 3 + 2 = 11 through a and c, 2 + 3 + 3 + 2 = 10 through b and d.
    2: names({"read", "a", "c", "write"}, SIX.names),
    # On P2: the tensor of t1 (ends at 9 on P3) arrives at 18, and t4 takes 8.
    3: number(
        26.0,
        "time units",
        {
            17.0: "t1 ran on P3: what it sends to another processor has to travel",
            45.0: "P3 has t3 to do until 28; another processor ends earlier",
            31.0: "that is P1",
            18.0: "then it starts",
        },
    ),
    4: placement(SIX, TWO, scheduler="pct"),
}
