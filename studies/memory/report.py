"""What a study of memory found: one row per device of a placement, and the figures that the target is stated in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

TARGET_MEAN, TARGET_WORST, TARGET_BELOW = 0.10, 0.25, 0.05
"""Mean and largest error aimed at, and how far a simulated peak may be below the measured one."""


@dataclass(frozen=True)
class Row:
    """One device of one placement; bytes.

    `simulated` is the largest peak of several orders that an executor may choose, `measured` what tensors asked for in the
    run that took most, `allocator` what the device's allocator took for them (0 where it does not say). `parts` are the
    measured persistent, outputs, temporary and received bytes at the measured peak.
    """

    model: str
    placement: str
    device: str
    simulated: int
    measured: int
    allocator: int
    simulated_parts: tuple[int, ...]
    parts: tuple[int, ...]

    @property
    def error(self) -> float:
        """Simulated / measured - 1."""
        return self.simulated / self.measured - 1.0


@dataclass(frozen=True)
class Summary:
    """Of absolute errors; `lowest` is the error of the simulated peak that is farthest below the measured one (0 if none
    is); `allowance` is what allocators took beyond what tensors asked for, as a share: the mean and the largest."""

    mean_error: float
    worst_error: float
    lowest: float
    allowance: float
    worst_allowance: float

    @property
    def met(self) -> bool:
        """Mean error within 10 %, worst within 25 %, never more than 5 % below."""
        return self.mean_error <= TARGET_MEAN and self.worst_error <= TARGET_WORST and self.lowest >= -TARGET_BELOW


def summarize_rows(rows: Sequence[Row]) -> Summary:
    """The figures over all rows; zeros for none.

    >>> row = Row("m", "single", "cpu:0", 110, 100, 105, (0, 110, 0, 0), (0, 100, 0, 0))
    >>> found = summarize_rows([row])
    >>> round(found.mean_error, 3), found.lowest, round(found.allowance, 3), found.met
    (0.1, 0.0, 0.05, False)
    """
    errors = np.array([row.error for row in rows] or [0.0])
    extra = np.array([row.allocator / row.measured - 1.0 for row in rows if row.allocator] or [0.0])
    return Summary(
        mean_error=float(np.abs(errors).mean()),
        worst_error=float(np.abs(errors).max()),
        lowest=float(min(errors.min(), 0.0)),
        allowance=float(extra.mean()),
        worst_allowance=float(extra.max()),
    )
