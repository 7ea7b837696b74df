"""Times of an instance as whole numbers, for the constraint solver."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, durations

SCALES = (1, 2, 4, 5, 8, 10, 20, 50, 100, 1000, 10_000)  # units per microsecond; the first that makes times whole
LARGEST = 10**9
"""Longest horizon in units of the model."""
CLOSE = 1e-6
"""Relative difference below which two times count as equal."""


@dataclass
class Times:
    """Costs as whole numbers: `scale` model units per microsecond. If not `exact`, they are rounded down.

    Every schedule stays one when it is rounded down: floor(start) + floor(p) <= floor(start + p), so whatever follows an end
    still does. The optimum in units is therefore at most that in microseconds. The true end, rounded, is at most one unit later
    than floor(start) + floor(p). This unit is the `tolerance` for everything that the strict model requires of simultaneous
    events.
    """

    duration: NDArray[np.int64]
    transfer: NDArray[np.int64]
    scale: float
    exact: bool

    @property
    def tolerance(self) -> int:
        """Units by which two simultaneous events may differ."""
        return 0 if self.exact else 1


def longest_chain(graph: OpGraph, cluster: Cluster) -> int:
    """Returns the most ops and transfers that can follow one another. Each loses less than a unit by rounding down."""
    return graph.n + graph.tensor_count * (cluster.n - 1)


def scaled_times(graph: OpGraph, cluster: Cluster, horizon_us: float) -> Times:
    """Returns durations int64[n, D] and transfer costs int64[T, D, D], exact if a small scale makes all of them whole.

    Otherwise rounding loses less than half of `CLOSE` of the horizon along a chain.
    """
    table = durations(graph, cluster)
    size = graph.tensor_bytes[:, None, None]
    cost = cluster.latency_us[None] + cluster.us_per_byte[None] * size
    everything = np.concatenate([table.reshape(-1), cost.reshape(-1)])
    for scale in SCALES:
        whole_times = np.rint(everything * scale)
        if horizon_us * scale <= LARGEST and np.allclose(everything * scale, whole_times, rtol=0, atol=1e-7):
            horizon = horizon_us * scale
            return Times(
                _clip_to_horizon(np.rint(table * scale), horizon),
                _clip_to_horizon(np.rint(cost * scale), horizon),
                float(scale),
                True,
            )
    units = min(2 * longest_chain(graph, cluster) / CLOSE, LARGEST)
    fine = units / max(horizon_us, 1e-12)
    return Times(
        _clip_to_horizon(np.floor(table * fine), units), _clip_to_horizon(np.floor(cost * fine), units), fine, False
    )


def _clip_to_horizon(times: NDArray[np.float64], horizon: float) -> NDArray[np.int64]:
    """Clips times above the horizon, which occur in no better schedule."""
    return np.minimum(times, np.ceil(horizon) + 1).astype(np.int64)
