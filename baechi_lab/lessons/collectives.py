"""Exercises of `35_collectives.ipynb`: the cost of collectives, by hand."""

from __future__ import annotations

from ..graph import Cluster, Link
from ..graph.collectives import Collectives
from .exercise import function, number

NEAR, FAR = Link(1.0, 0.001), Link(5.0, 0.01)
_SIZES = (4_000, 1_000_000)  # bytes: latencies count for the first, bandwidths for the second


def ring_us(devices: int, size_bytes: int, latency_us: float, us_per_byte: float) -> float:
    """Returns the microseconds of an all-reduce around a ring of equal links.

    >>> ring_us(4, 8000, 1.0, 0.001)    # 6 messages of 2000 bytes
    18.0
    """
    cluster = Cluster.uniform(devices, link=Link(latency_us, us_per_byte))
    return Collectives(cluster).us("all_reduce", size_bytes, range(devices))


def _cases() -> list[tuple[int, int, float, float]]:
    return [(devices, size, 1.0, 0.001) for devices in (2, 4, 8) for size in _SIZES]


CHECKS = {
    # 2 * 3 messages of 8000 / 4 bytes: 6 * (1 + 2).
    1: number(
        18.0,
        "microseconds",
        {
            9.0: "that is the first half: every device has one sum, and no device has all of them",
            54.0: "are whole tensors sent, or parts of them?",
            24.0: "how many rounds does the ring of four need to get a part to the last device?",
        },
    ),
    2: function(ring_us, _cases),
    # Four all-reduces of 2 * 4096 * 8192 bytes over 8 devices; 14 rounds each.
    3: number(
        4 * 14 * (2 + 2 * 4096 * 8192 / 8 / 400e3) / 1000,
        "milliseconds",
        {
            4 * 14 * (2 + 2 * 4096 * 8192 / 8 / 400e3): "in milliseconds",
            14 * (2 + 2 * 4096 * 8192 / 8 / 400e3) / 1000: "a layer has four of them: two in each direction",
            4 * 14 * (2 + 4096 * 8192 / 8 / 400e3) / 1000: "bfloat16 has two bytes",
        },
    ),
    # Within four: 6 * (1 + 2000); between two: 2 * (5 + 1e6 / 4 / 2 * 0.01), of 8 MB.
    4: number(
        6 * (1 + 8e6 / 4 * 0.001) + 2 * (5 + 8e6 / 4 / 2 * 0.01),
        "microseconds",
        {
            14 * (5 + 8e6 / 8 * 0.01): "that is one ring over all eight; go level by level",
            6 * (1 + 8e6 / 4 * 0.001) + 2 * (5 + 8e6 / 2 * 0.01): "what is left after the first half within a machine?",
        },
    ),
}
