"""Exercises of `34_it_does_not_fit.ipynb`: the cost of each option that makes a step fit."""

from __future__ import annotations

from .exercise import function, number


def step_us(forward_us: list[float], kept: list[bool]) -> float:
    """Returns a training step on one device: backward takes twice forward, and a stage that is not kept runs forward again.

    >>> step_us([1.0, 2.0, 3.0], [True, False, True])
    20.0
    """
    return sum(3 * us + (0 if keep else us) for us, keep in zip(forward_us, kept, strict=True))


CHECKS = {
    # 100 samples: 2 * 30 = 60 ms of one GPU; computing again 65; two devices 2 * 35 = 70.
    1: number(
        0.6,
        "GPU milliseconds per sample",
        {
            0.35: "two devices are both paid for",
            0.65: "something else is cheaper",
            0.7: "something else is cheaper",
            0.3: "it takes two micro-batches",
            60.0: "that is for all samples",
        },
    ),
    # 52.6 MB there and back at 12.5 GB/s: 2 * 4.208 ms.
    2: number(
        8.416,
        "ms",
        {
            4.208: "what went out has to come back",
            8416.0: "those are microseconds",
            0.0: "the link is busy all the same, even if no op waits for it",
        },
    ),
    3: function(
        step_us,
        lambda: [
            ([1.0, 2.0, 3.0], [True, False, True]),
            ([4.0], [True]),
            ([4.0], [False]),
            ([2.0, 7.0, 1.0, 8.0], [False, True, False, False]),
        ],
    ),
}
