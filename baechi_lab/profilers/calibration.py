"""`bl.calibrate`: what share of its peaks a kind of hardware reaches, from a few measured times.

A model of a step says how long it takes on given `Hardware`; the shares of peak and the launch overhead that make it
say what was measured are found by least squares over relative errors, each counted less the further off it is (Huber's
"soft" loss), by the trust-region method of scipy. Rows that took no part tell how good the result is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput, UnknownNameError
from ..graph.hardware import Hardware

Measurement = tuple[Callable[[Hardware], float], float]
"""A function from hardware to the microseconds that a step should take on it, and those that it was measured to take."""

RANGES = {
    "matmul_share": (0.05, 1.0),
    "batched_share": (0.02, 1.0),
    "bandwidth_share": (0.05, 1.0),
    "launch_us": (0.0, 1000.0),
    "arithmetic_share": (0.01, 1.0),
}
"""What may be fitted, and between which values."""

STARTS = {"matmul_share": 0.7, "batched_share": 0.3, "bandwidth_share": 0.7, "arithmetic_share": 0.1}
SHARES = ("matmul_share", "batched_share", "bandwidth_share", "launch_us")
"""What is fitted where nobody says: element-wise arithmetic seldom decides on a GPU, so few rows can tell its share."""
LOSS_SCALE = 0.05
"""Relative error from which a row counts less and less."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """The fitted hardware, and the relative errors (predicted / measured - 1) of fitted and of other rows.

    `fitted` int64[rows used], `errors` float64[all rows], in the order of the measurements.
    """

    hardware: Hardware
    fitted: NDArray[np.int64]
    errors: NDArray[np.float64]

    @property
    def held_out(self) -> NDArray[np.float64]:
        """Relative errors of the rows that took no part in the fit."""
        return np.delete(self.errors, self.fitted)

    def __repr__(self) -> str:
        used = np.abs(self.errors[self.fitted]).mean()
        text = f"<Calibration of {self.hardware.name} on {len(self.fitted)} rows: mean error {used:.1%}"
        rest = np.abs(self.held_out)
        return text + (f", on {len(rest)} others {rest.mean():.1%}, at most {rest.max():.1%}>" if len(rest) else ">")


def calibrate(
    hardware: Hardware | str,
    measurements: Sequence[Measurement],
    *,
    fit: Sequence[int] | None = None,
    parameters: Sequence[str] = SHARES,
) -> Calibration:
    """Fit the achieved shares of a kind of hardware to measured times.

    Args:
        hardware: a name or `Hardware`; where a fit begins, apart from its shares.
        measurements: pairs (function from `Hardware` to predicted microseconds, measured microseconds).
        fit: indices of the rows to fit to; None means all. The others only test the result.
        parameters: fields of `Hardware` to fit, of `matmul_share`, `batched_share`, `bandwidth_share`, `launch_us` (the
            default) and `arithmetic_share`, for processors.

    Raises:
        InvalidInput: fewer rows than parameters, a measured time that is not above 0, an index that no row has.
        UnknownNameError: an unknown parameter or hardware.

    >>> step = lambda flops: lambda hardware: 1e6 * flops / (hardware.half_flops * hardware.matmul_share)
    >>> rows = [(step(f), 2e6 * f / 312e12) for f in (1e12, 5e12, 9e12)]    # half of the peak is reached
    >>> found = calibrate("a100", rows, fit=[0, 1], parameters=["matmul_share"])
    >>> round(found.hardware.matmul_share, 3), round(float(abs(found.held_out).max()), 3)
    (0.5, 0.0)
    """
    from scipy.optimize import least_squares

    begin = Hardware.named(hardware) if isinstance(hardware, str) else hardware
    if not isinstance(begin, Hardware):
        raise InvalidInput(f"hardware is {hardware!r:.60}; it must be a name or Hardware")
    chosen = _checked(measurements, fit, parameters)
    measured = np.array([us for _, us in measurements], dtype=np.float64)

    def errors(values: Any, rows: Any) -> NDArray[np.float64]:
        tried = _with(begin, parameters, values)
        return np.array([measurements[k][0](tried) for k in rows]) / measured[rows] - 1

    start = np.array([STARTS.get(key, max(getattr(begin, key), 1.0)) for key in parameters])
    low, high = np.array([RANGES[key] for key in parameters]).T
    found = least_squares(
        errors, start, bounds=(low, high), x_scale=start, loss="soft_l1", f_scale=LOSS_SCALE, args=(chosen,),
        diff_step=1e-4,
    )  # fmt: skip
    return Calibration(_with(begin, parameters, found.x), chosen, errors(found.x, np.arange(len(measured))))


def _with(hardware: Hardware, parameters: Sequence[str], values: Any) -> Hardware:
    changed: dict[str, Any] = dict(zip(parameters, map(float, values), strict=True))
    return replace(hardware, **changed)


def _checked(
    measurements: Sequence[Measurement], fit: Sequence[int] | None, parameters: Sequence[str]
) -> NDArray[np.int64]:
    for key in parameters:
        if key not in RANGES:
            raise UnknownNameError.of("parameter of a calibration", key, RANGES)
    if not isinstance(measurements, Sequence):
        raise InvalidInput(
            f"measurements is {measurements!r:.60}; it must be a list of pairs (prediction, microseconds)"
        )
    chosen = np.arange(len(measurements)) if fit is None else np.asarray(fit, dtype=np.int64)
    if len(chosen) and not (chosen.min() >= 0 and chosen.max() < len(measurements)):
        raise InvalidInput(f"fit names row {chosen.max()}; there are rows 0..{len(measurements) - 1}")
    if len(set(chosen.tolist())) < len(parameters):
        raise InvalidInput(
            f"fit has {len(set(chosen.tolist()))} rows; {len(parameters)} parameters need as many at least"
        )
    for k, row in enumerate(measurements):
        if not (isinstance(row, (tuple, list)) and len(row) == 2 and callable(row[0]) and isinstance(row[1], Real)):
            raise InvalidInput(f"measurements[{k}] is {row!r:.60}; it must be a pair (prediction, microseconds)")
        us = row[1]
        if not (np.isfinite(us) and us > 0):
            raise InvalidInput(f"measurements[{k}] took {us} us; it must be finite and above 0")
    return chosen
