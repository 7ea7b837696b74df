"""Exercises of `10_workbench.ipynb`: reading and changing a placement."""

from __future__ import annotations

import numpy as np

from ..graph import Cluster, Link, OpGraph
from .exercise import function, number, placement

EIGHT = OpGraph.from_edges(
    [2, 5, 4, 3, 4, 6, 3, 1],
    [(0, 1, 1), (0, 2, 1), (0, 3, 1), (1, 4, 2), (2, 5, 1), (3, 6, 2), (4, 7, 1), (5, 7, 1), (6, 7, 1)],
    persistent_bytes=[10] * 8,
    names=["read", "a", "b", "c", "d", "e", "f", "write"],
    name="eight",
)
TWO = Cluster.uniform(2, memory_bytes=60, link=Link(1.0, 0.5), comm="parallel")


def waiting(intervals: list[tuple[float, float]], step_us: float) -> float:
    """Returns the share of a step in which a device is idle; intervals are the starts and ends of its ops.

    >>> waiting([(0, 2), (5, 6)], 10)
    0.7
    """
    return 1 - sum(end - start for start, end in intervals) / step_us


def _cases() -> list[tuple[list[tuple[float, float]], float]]:
    rng = np.random.default_rng(5)
    cases: list[tuple[list[tuple[float, float]], float]] = [([], 4.0), ([(0.0, 4.0)], 4.0)]
    for n in (2, 3, 5):
        times = np.cumsum(rng.integers(1, 6, 2 * n)).astype(float).tolist()
        cases.append((list(zip(times[::2], times[1::2], strict=True)), times[-1] + 3.0))
    return cases


CHECKS = {
    # 182.2 ms over the bound of 98.1 ms.
    1: number(
        182.2 / 98.1,
        "times",
        {
            0.857: "that is the gap, by how much longer the step is",
            84.1: "those are milliseconds",
            0.5384: "turn it round",
        },
    ),
    2: placement(EIGHT, TWO),
    3: function(waiting, _cases),
}
