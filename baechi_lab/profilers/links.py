"""From times of transfers to a `Link` and a communication mode; `bl.measure_link` takes the times.

Least squares over sizes of 2^2 .. 2^26 bytes would see only the largest. The fit minimises the squared *relative*
error instead, over the median time of each size, with both coefficients kept non-negative (if the best line has a
negative coefficient, the best non-negative one has it at 0). Weights are renewed from the fit a few times, and a sample
further off than half its fitted time counts less (Huber, doi:10.1214/aoms/1177703732). The residual says how linear
the link is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidInput
from ..graph.link import Link

SIZES = tuple(2**k for k in range(2, 27, 2))
"""Bytes of the tensors that are moved by default."""

ROUNDS = 20
"""Reweightings of the fit."""

OUTLIER = 0.5
"""Relative error from which a sample counts less."""

SHORTEST_US = 1e-3
"""The resolution of the clock, which no fitted time goes below."""


NOTICEABLE = 0.2
"""Bytes that take less than this share of a message's own time are no queue's reason."""


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
    """The link nearest to the samples in relative error, and the root mean square of that error.

    Args:
        size_bytes, time_us: one entry per sample, times above 0.

    >>> fit_link([0, 1000, 2000], [10.0, 11.0, 12.0])
    (Link(latency_us=10.0, us_per_byte=0.001), 0.0)
    """
    size, took = np.asarray(size_bytes, dtype=np.float64), np.asarray(time_us, dtype=np.float64)
    if size.shape != took.shape or size.ndim != 1 or len(size) < 2:
        raise InvalidInput(f"sizes {size.shape} and times {took.shape} must be two lists of equal length, at least 2")
    if not (np.all(np.isfinite(took)) and np.all(took > 0) and np.all(size >= 0)):
        raise InvalidInput("every transfer time must be finite and above 0, and every size not negative")
    fitted = took
    for _ in range(ROUNDS):
        error = np.abs(took / fitted - 1.0)
        weight = np.minimum(1.0, OUTLIER / np.maximum(error, OUTLIER)) / fitted**2
        latency, per_byte = _non_negative(size, took, weight)
        fitted = np.maximum(latency + per_byte * size, SHORTEST_US)
    residual = float(np.sqrt(np.mean((took / fitted - 1.0) ** 2)))
    # No digits beyond what least squares can tell.
    return Link(float(f"{latency:.10g}"), float(f"{per_byte:.10g}")), float(f"{residual:.10f}")


def _non_negative(size: NDArray[Any], took: NDArray[Any], weight: NDArray[Any]) -> tuple[float, float]:
    """Weighted least squares for `a + b * size` with `a, b >= 0`: the best of both, `a` alone and `b` alone."""
    root = np.sqrt(weight)
    table = np.stack([root, root * size], axis=1)
    candidates = []
    for columns in ([0, 1], [0], [1]):
        found = np.zeros(2)
        found[columns] = np.linalg.lstsq(table[:, columns], root * took, rcond=None)[0]
        if np.all(found >= 0):
            candidates.append((float(np.sum((table @ found - root * took) ** 2)), float(found[0]), float(found[1])))
    _, latency, per_byte = min(candidates)
    return latency, per_byte


def shares(probes: NDArray[np.float64]) -> tuple[float, float]:
    """How far a second transfer waits for the first, in the same and in the opposite direction: 0 not at all, 1 fully.

    `probes` is float64[2, 4, repeats], with small tensors, which say what the ops and messages around cost, and with
    large ones: the time of one tensor there, of one back, of two there, of one there and one back. The bytes' own time
    of two transfers is compared with that of one; where it does not stand out nothing waits for bytes.

    >>> small = [[0.0]] * 4
    >>> shares(np.array([small, [[3.0], [3.0], [6.0], [3.0]]]))  # two there take twice as long, there and back does not
    (1.0, 0.0)
    """
    small, large = np.median(probes, axis=2)
    one, back, same, opposite = np.maximum(large - small, 0.0)
    if min(one, back) <= NOTICEABLE * max(small[0], small[1]):
        return 0.0, 0.0
    wait = (same - one) / one, (opposite - max(one, back)) / min(one, back)
    return float(np.clip(wait[0], 0.0, 1.0)), float(np.clip(wait[1], 0.0, 1.0))


def comm_mode(same: float, opposite: float) -> str:
    """The communication mode of `Cluster` that is nearest to two waiting shares.

    >>> comm_mode(0.1, 0.0), comm_mode(0.9, 0.2), comm_mode(1.0, 0.8)
    ('parallel', 'duplex', 'sequential')
    """
    if opposite >= 0.5:
        return "sequential"
    return "duplex" if same >= 0.5 else "parallel"


def vote(modes: Sequence[str]) -> str:
    """The mode of most pairs; of equally many, the one with more waiting."""
    order = ("sequential", "duplex", "parallel")
    return max(order, key=lambda mode: (modes.count(mode), -order.index(mode)))
