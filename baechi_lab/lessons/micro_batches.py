"""Exercises of `33_micro_batches.ipynb`: the best number of micro-batches, and the number that fits."""

from __future__ import annotations

from .exercise import function, number


def step_ms(sequences: int, stages: int, micro_batches: int, fixed_ms: float, sequence_ms: float) -> float:
    """Returns the step of a pipeline of equal stages: a micro-batch of b sequences takes `fixed_ms + sequence_ms b` on each.

    >>> step_ms(64, 8, 16, 2.0, 5.0)
    506.0
    """
    return (micro_batches + stages - 1) * (fixed_ms + sequence_ms * sequences / micro_batches)


CHECKS = {
    # (16 + 8 - 1) (2 + 5 * 4) = 23 * 22.
    1: number(
        506,
        "ms",
        {
            352.0: "the last stage has to wait for the first micro-batch",
            336.0: "the last stage has to wait for the first micro-batch",
            528.0: "one less: the first micro-batch is the same on its way",
        },
    ),
    # 4: 11 * 82 = 902; 8: 15 * 42 = 630; 16: 506; 32: 39 * 12 = 468; 64: 71 * 7 = 497.
    2: number(
        32,
        "micro-batches",
        {64.0: "the holes are smallest, but each one takes 2 ms however little it does", 16.0: "go on: fewer holes"},
        within=0.0,
    ),
    # min(M, 8) * 64 / M * 0.9 + 6 <= 40: 512 / M <= 37.7.
    3: number(
        16,
        "micro-batches",
        {
            14.0: "so many would do, but they have to be a power of two",
            64.0: "fewer do as well",
            32.0: "fewer do as well",
            8.0: "all eight are held then, as with GPipe",
        },
        within=0.0,
    ),
    4: function(
        step_ms, lambda: [(64, 8, 16, 2.0, 5.0), (12, 4, 3, 0.0, 1.0), (8, 1, 8, 1.0, 0.5), (100, 5, 20, 3.0, 0.1)]
    ),
}
