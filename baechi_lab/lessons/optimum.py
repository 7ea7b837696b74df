"""Exercises of `31_exact.ipynb`: the optimum and its proof."""

from __future__ import annotations

from ..graph import Cluster, Link, OpGraph
from .exercise import best_us, function, number, placement

FIVE = OpGraph.from_edges([2.0, 2.0, 2.0, 3.0, 3.0], names=list("vwxyz"), name="five")
EQUAL = Cluster.uniform(2, memory_bytes=1000, link=Link(0.0, 0.0), comm="sequential")
WIRED = Cluster.uniform(2, memory_bytes=1000, link=Link(2.0, 0.0), comm="sequential")


def _cases() -> list[tuple[OpGraph, Cluster]]:
    """Returns cases that are small enough to try all placements; the last is best on one device."""
    fork = OpGraph.from_edges([1.0, 5.0, 4.0, 1.0], [(0, 1, 8), (0, 2, 8), (1, 3, 8), (2, 3, 8)], name="fork")
    chain = OpGraph.from_edges([3.0, 3.0, 3.0], [(0, 1, 8), (1, 2, 8)], name="chain")
    return [(FIVE, EQUAL), (fork, WIRED), (chain, WIRED)]


CHECKS = {
    # The longest path is 25, the work on three devices 45 / 3 = 15.
    1: number(
        25.0,
        "microseconds",
        {
            15.0: "that is the work per device; does another bound say more?",
            45.0: "that is one device",
            22.5: "that is the work on two devices",
        },
    ),
    # 3 + 3 and 2 + 2 + 2.
    2: placement(FIVE, EQUAL, at_most_us=6.0),
    # The optimum may be as small as 29: 32 / 29 - 1.
    3: number(
        100 * (32 / 29 - 1),
        "percent",
        {
            100 * (1 - 29 / 32): "that is of the step; the question is how much longer it is than what may be possible",
            3.0: "those are microseconds",
            32 / 29 - 1: "in percent",
        },
    ),
    4: function(best_us, _cases),
}
