"""Fits a `Link` and a communication mode to times of transfers, which `bl.measure_link` takes.

Plain least squares over sizes of 2^2 .. 2^26 bytes would be dominated by the largest. Instead, the fit minimises the squared
*relative* error over the median time of each size, with non-negative coefficients (if the best line has a negative
coefficient, the best non-negative line has 0 there). Weights are recomputed from the fit a few times. A sample whose error
is above half of its fitted time counts less (Huber, doi:10.1214/aoms/1177703732). The residual shows how linear the link is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidInput
from ..graph.columns import require_entries
from ..graph.link import Link

SIZES = tuple(2**k for k in range(2, 27, 2))
"""Sizes of the transferred tensors by default, in bytes."""

ROUNDS = 20
"""Reweightings of the fit."""

OUTLIER = 0.5
"""Relative error above which a sample counts less."""

SHORTEST_US = 1e-3
"""The resolution of the clock, a lower bound of every fitted time."""


NOTICEABLE = 0.2
"""Transfers wait for bytes only if the bytes take at least this share of a message's own time."""


@dataclass(frozen=True, eq=False)
class LinkFit:
    """A fitted `link`, and the samples behind it.

    `size_bytes` int64[s] and `seconds` float64[s, repeats] hold every transfer; `residual` is the root mean square,
    over the medians, of the error relative to the fitted time (0.1 = 10 %).
    """

    source: str
    target: str
    link: Link
    residual: float
    size_bytes: NDArray[np.int64]
    seconds: NDArray[np.float64]

    @property
    def median_us(self) -> NDArray[np.float64]:
        """float64[s]: median microseconds per size."""
        return 1e6 * np.median(self.seconds, axis=1)

    def __repr__(self) -> str:
        return (
            f"<LinkFit {self.source} -> {self.target}: {self.link.latency_us:.4g} us "
            f"+ {self.link.us_per_byte:.4g} us/byte, residual {self.residual:.1%}>"
        )


def fit_link(size_bytes: ArrayLike, time_us: ArrayLike) -> tuple[Link, float]:
    """Returns the link with the smallest relative error over the samples, and the root mean square of that error.

    Args:
        size_bytes, time_us: one entry per sample, times above 0.

    >>> fit_link([0, 1000, 2000], [10.0, 11.0, 12.0])
    (Link(latency_us=10.0, us_per_byte=0.001), 0.0)
    """
    size, measured_us = np.asarray(size_bytes, dtype=np.float64), np.asarray(time_us, dtype=np.float64)
    if size.shape != measured_us.shape or size.ndim != 1 or len(size) < 2:
        raise InvalidInput(
            f"sizes {size.shape} and times {measured_us.shape} must be two lists of equal length, at least 2"
        )
    require_entries("time_us", measured_us, np.isfinite(measured_us) & (measured_us > 0), "finite and above 0")
    require_entries("size_bytes", size, size >= 0, "at least 0")
    raised_us = measured_us
    for _ in range(ROUNDS):
        error = np.abs(measured_us / raised_us - 1.0)
        weight = np.minimum(1.0, OUTLIER / np.maximum(error, OUTLIER)) / raised_us**2
        # The best of both coefficients, the latency alone, and the bandwidth alone.
        root = np.sqrt(weight)
        table = np.stack([root, root * size], axis=1)
        candidates = []
        for columns in ([0, 1], [0], [1]):
            coefficients = np.zeros(2)
            coefficients[columns] = np.linalg.lstsq(table[:, columns], root * measured_us, rcond=None)[0]
            if np.all(coefficients >= 0):
                loss = float(np.sum((table @ coefficients - root * measured_us) ** 2))
                candidates.append((loss, float(coefficients[0]), float(coefficients[1])))
        _, latency, per_byte = min(candidates)
        raised_us = np.maximum(latency + per_byte * size, SHORTEST_US)
    residual = float(np.sqrt(np.mean((measured_us / raised_us - 1.0) ** 2)))
    # No digits beyond what least squares can tell.
    return Link(float(f"{latency:.10g}"), float(f"{per_byte:.10g}")), float(f"{residual:.10f}")


def waiting_shares(probes: NDArray[np.float64]) -> tuple[float, float]:
    """Returns how much a second transfer waits for the first, in the same and in the opposite direction: 0 (not) to 1 (fully).

    `probes` is float64[2, 4, repeats]. Its first axis is small tensors, which measure the overhead of ops and messages, and
    large tensors. Its second axis is the time of one transfer there, one back, two there, and one there with one back. The
    time of the bytes alone is compared for two transfers and one; if it is negligible, both results are 0.

    >>> small = [[0.0]] * 4
    >>> waiting_shares(np.array([small, [[3.0], [3.0], [6.0], [3.0]]]))  # two there take twice as long, there and back does not
    (1.0, 0.0)
    """
    small, large = np.median(probes, axis=2)
    one_there, one_back, two_there, there_and_back = np.maximum(large - small, 0.0)
    if min(one_there, one_back) <= NOTICEABLE * max(small[0], small[1]):
        return 0.0, 0.0
    wait = (two_there - one_there) / one_there, (there_and_back - max(one_there, one_back)) / min(one_there, one_back)
    return float(np.clip(wait[0], 0.0, 1.0)), float(np.clip(wait[1], 0.0, 1.0))


def comm_mode(same: float, opposite: float) -> str:
    """Returns the communication mode of `Cluster` that is nearest to two waiting shares.

    >>> comm_mode(0.1, 0.0), comm_mode(0.9, 0.2), comm_mode(1.0, 0.8)
    ('parallel', 'duplex', 'sequential')
    """
    if opposite >= 0.5:
        return "sequential"
    return "duplex" if same >= 0.5 else "parallel"


def vote(modes: Sequence[str]) -> str:
    """Returns the most common mode; if several are equally common, the one with more waiting."""
    order = ("sequential", "duplex", "parallel")
    return max(order, key=lambda mode: (modes.count(mode), -order.index(mode)))
