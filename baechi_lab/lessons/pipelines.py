"""Exercises of `32_pipelines.ipynb`: bubbles, activations and the order of 1F1B."""

from __future__ import annotations

from .exercise import function, number


def one_f_one_b(stage: int, stages: int, micro_batches: int) -> list[int]:
    """Returns the order of a stage in 1F1B: k is the forward pass of micro-batch k, -k its backward pass, from 1 on.

    >>> one_f_one_b(1, 3, 4)
    [1, 2, -1, 3, -2, 4, -3, -4]
    """
    ahead = min(stages - 1 - stage, micro_batches)
    order = list(range(1, ahead + 1))
    for k in range(ahead + 1, micro_batches + 1):
        order += [k, -(k - ahead)]
    return order + [-k for k in range(micro_batches - ahead + 1, micro_batches + 1)]


CHECKS = {
    # (p - 1) / (M + p - 1) = 3 / 15.
    1: number(
        0.2,
        "a share of the step",
        {
            0.25: "that is what one micro-batch's wait is of the work; the step is longer than the work",
            3 / 11: "that is the share with eight",
            0.8: "that is the share for which it works",
        },
    ),
    # min(M, p - s) = min(8, 6 - 1).
    2: number(
        5,
        "activations",
        {
            8.0: "that is GPipe, which runs all forward passes first",
            6.0: "that is stage 0",
            4.0: "count the one whose backward pass comes next",
        },
        within=0.0,
    ),
    3: function(one_f_one_b, lambda: [(0, 1, 3), (3, 4, 4), (0, 4, 8), (1, 4, 8), (2, 4, 5), (0, 3, 2)]),
}
