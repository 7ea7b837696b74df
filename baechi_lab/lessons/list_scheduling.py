"""Exercises of `30_list_scheduling.ipynb`: earliest starts and list schedules."""

from __future__ import annotations

import numpy as np

from ..graph import Cluster, Link, OpGraph
from .exercise import function, number, placement

EDGES = ("ab1", "ac1", "ad1", "be1", "ce2", "cf2", "dg1", "eh2", "fh2", "fi2", "gi1", "hj1", "ij2")
TEN = OpGraph.from_edges(
    [6, 6, 3, 4, 4, 5, 4, 2, 6, 5],
    [(ord(edge[0]) - 97, ord(edge[1]) - 97, int(edge[2])) for edge in EDGES],
    persistent_bytes=[10] * 10,
    names=list("abcdefghij"),
    name="ten",
)
"""The graph of the lesson: microseconds, and a byte takes one microsecond between devices."""
THREE = Cluster.uniform(3, memory_bytes=1000, link=Link(0.0, 1.0), comm="parallel")


def earliest_start(device: int, free: float, inputs: list[tuple[int, float, float]]) -> float:
    """Returns the earliest start on `device`, which is free at `free`; an input is (device, end, transfer time).

    >>> earliest_start(1, 14.0, [(0, 12.0, 1.0), (1, 10.0, 2.0)])
    14.0
    """
    return max(
        [free, *(end if producer_device == device else end + transfer for producer_device, end, transfer in inputs)]
    )


def _cases() -> list[tuple[int, float, list[tuple[int, float, float]]]]:
    rng = np.random.default_rng(7)
    cases = []
    for _ in range(20):
        inputs = [tuple(float(x) for x in rng.integers(0, (2, 20, 5))) for _ in range(int(rng.integers(1, 4)))]
        cases.append((int(rng.integers(2)), float(rng.integers(0, 20)), [(int(w), e, t) for w, e, t in inputs]))
    return [(0, 3.0, []), *cases]


CHECKS = {
    # Device 1 is busy with d until 14; the byte of b arrives at 13.
    1: number(
        14.0,
        "microseconds",
        {
            13.0: "its inputs are there by then; what is the device doing?",
            12.0: "b ended on the other device: its byte has to travel",
            10.0: "e reads b as well, and the device has d to do",
        },
    ),
    # 1 + 5 on the same device, 1 + t elsewhere; at a tie the lower device wins.
    2: number(
        5.0,
        "microseconds",
        {
            6.0: "when could the second reader start on the same device, and when elsewhere?",
            10.0: "the second reader waits for one other, not for two",
            1.0: "how long would the second reader have to wait on the same device?",
        },
    ),
    # Both x are 0.5: 5 + 4 / 2 + 10.
    3: number(
        17.0,
        "microseconds",
        {
            15.0: "both x would be 0, but they must sum to at least 1",
            19.0: "that is with a whole x; fractions are allowed",
            25.0: "there are as many devices as one likes",
        },
    ),
    4: placement(TEN, THREE, at_most_us=28.0),
    5: function(earliest_start, _cases),
}
