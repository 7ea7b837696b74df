"""Parameters and progress of a proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ...graph.units import format_us


@dataclass(frozen=True)
class ExactProgress:
    """Progress for a callback: seconds spent, step time of the best schedule and largest lower bound so far, in us."""

    seconds: float
    makespan_us: float
    bound_us: float

    def __str__(self) -> str:
        if not np.isfinite(self.makespan_us):
            return f"{self.seconds:.1f} s, looking for a first schedule"
        return f"{self.seconds:.1f} s, {format_us(self.makespan_us)}, lower bound {format_us(self.bound_us)}"


class ProofLimits(Protocol):
    """The parameters of `exact`, see `placers.exact.placer`."""

    @property
    def time_limit(self) -> float: ...
    @property
    def seed(self) -> int: ...
    @property
    def workers(self) -> int: ...
    @property
    def warm_start(self) -> float: ...
    @property
    def callback(self) -> Callable[[ExactProgress], object] | None: ...
