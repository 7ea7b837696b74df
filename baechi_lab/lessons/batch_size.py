"""Exercises of `11_batch_size.ipynb`: the batch sizes that fit, and the one that trains fastest."""

from __future__ import annotations

import numpy as np

from .exercise import function, number


def best_batch(rows: list[tuple[int, float, float]], memory_bytes: float) -> int:
    """Returns the batch size with the most samples per second of those that fit; rows are (batch, seconds, peak bytes).

    >>> best_batch([(64, 0.2, 2e9), (128, 0.3, 4e9), (256, 0.5, 8e9)], 4e9)
    128
    """
    fitting = [(batch / seconds, batch) for batch, seconds, peak in rows if peak <= memory_bytes]
    return max(fitting)[1] if fitting else 0


def _cases() -> list[tuple[list[tuple[int, float, float]], float]]:
    rng = np.random.default_rng(7)
    cases: list[tuple[list[tuple[int, float, float]], float]] = [([(8, 1.0, 5.0)], 4.0), ([(8, 1.0, 4.0)], 4.0)]
    for _ in range(5):
        batches = 2 ** np.arange(3, 9)
        seconds = 0.1 + batches * rng.uniform(0.001, 0.01, 6)
        peaks = 1e9 + batches * 2e7
        rows = list(zip(batches.tolist(), seconds.tolist(), peaks.tolist(), strict=True))
        cases.append((rows, float(rng.uniform(1.1e9, 6e9))))
    return cases


CHECKS = {
    # 256 samples in 0.317 s.
    1: number(
        256 / 0.317,
        "samples per second",
        {
            0.317 / 256: "that is seconds per sample",
            256 / 317: "that is per millisecond",
            256 * 0.317: "divide by the time",
        },
    ),
    # 1 GB + 12 MB a sample: 250 samples fill 4 GB.
    2: number(
        128,
        "samples",
        {
            250.0: "so many fit, but the sweep has powers of two only",
            256.0: "they take a little more than there is",
            333.0: "the weights need room as well",
        },
        within=0.0,
    ),
    3: function(best_batch, _cases),
}
