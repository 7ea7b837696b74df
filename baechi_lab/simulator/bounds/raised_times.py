"""`probed-path` and `energy`: bounds by heads and tails that `bounds.probe` and `bounds.energy` raise within a time limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.compiling import working_seconds
from .energy import energy_heads, window
from .probe import probe_heads
from .problem import MergeProblem
from .stagger import staggered_work_us
from .sweep import paid_heads

PROBE_SHARE = 0.6
"""Share of the time for probes; small zones come first."""


class RaisedTimes(NamedTuple):
    """Valid heads and tails float64[n] and the bounds that follow from them, by name."""

    head: NDArray[np.float64]
    tail: NDArray[np.float64]
    bounds: dict[str, float]


def raise_heads_and_tails(problem: MergeProblem, zones: Sequence[int], seconds: float = np.inf) -> RaisedTimes:
    """Raises the heads of `paid_heads` by probing with each size of zone in turn, then by energy."""
    x, began = problem, working_seconds()
    head, tail = paid_heads(x)
    for k, zone in enumerate(zones):
        probe_heads(x, head, tail, zone, began + seconds * PROBE_SHARE * (k + 1) / len(zones))
    probed_path_us = float((head + x.p + tail).max())
    energy_heads(x, head, tail, began + seconds)
    last = float(staggered_work_us(x, x.unit, head, tail))
    energy = max(float((head + x.p + tail).max()), window(x, head, tail), last)
    return RaisedTimes(head, tail, {"probed-path": probed_path_us, "energy": energy})
