"""Exercises of `00_quickstart.ipynb`: what is a placement?"""

from __future__ import annotations

from ..graph import Cluster, Link, OpGraph
from .exercise import number, placement

TWO = Cluster.uniform(2, memory_bytes=1000, link=Link(1.0, 0.0), comm="parallel")
SEVEN = OpGraph.from_edges(
    [1, 4, 3, 2, 5, 3, 1],
    [(0, 1, 1), (0, 2, 1), (0, 3, 1), (1, 4, 1), (2, 5, 1), (3, 5, 1), (4, 6, 1), (5, 6, 1)],
    persistent_bytes=[10] * 7,
    names=["read", "a", "b", "c", "d", "e", "write"],
    name="seven",
)

CHECKS = {
    # The first exercises are about read (2 us), left (4 us), right (5 us) and join (1 us).
    # right: 2 to 7 on device 0; left: 3 to 7 on device 1, its tensor is back at 8; join: 8 to 9.
    1: number(
        9.0,
        "microseconds",
        {
            10.0: "that is the step of the placement above, before the exchange",
            8.0: "join has to wait for the tensor that comes from the other device",
            12.0: "that is one device after the other; left and right run at the same time",
        },
    ),
    # left on the other device: join starts at max(7, 6 + 2 t), the step is 7 + 2 t; on one device it is 12.
    2: number(
        2.5,
        "microseconds",
        {
            2.0: "that holds for right on the other device; moving left instead is better",
            5.0: "two transfers are on the way there and back",
            1.0: "that is the time that they take now",
        },
    ),
    3: placement(SEVEN, TWO),
    # Three ops of 10 bytes; beside them two tensors of one byte at a time.
    4: number(
        32.0,
        "bytes",
        {
            30.0: "those are the weights; tensors need room as well",
            40.0: "the weights of right are on the other device",
            31.0: "while left runs, what it reads and what it writes are both there",
        },
        within=0.0,
    ),
}
