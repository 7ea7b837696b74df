"""`bl.calibrate`: fits the share of its peak performance that a kind of hardware reaches, from a few measured times.

A prediction is a function from `Hardware` to the time of a step. Least squares over relative errors finds the shares of peak
and the launch overhead for which predictions match measurements. Large errors count less (Huber's "soft" loss); the solver is
the trust-region method of scipy. Rows that are left out of the fit show how good the result is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput, UnknownNameError, in_short
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
"""Parameters that can be fitted, with their lower and upper bounds."""

STARTS = {"matmul_share": 0.7, "batched_share": 0.3, "bandwidth_share": 0.7, "arithmetic_share": 0.1}
"""Values from which the fit starts."""
SHARES = ("matmul_share", "batched_share", "bandwidth_share", "launch_us")
"""Parameters fitted by default: element-wise arithmetic rarely dominates on a GPU, so few rows can determine its share."""
LOSS_SCALE = 0.05
"""Relative error above which a row counts less."""


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
        """Relative errors of the rows that were left out of the fit."""
        return np.delete(self.errors, self.fitted)

    def __repr__(self) -> str:
        fit_error = np.abs(self.errors[self.fitted]).mean()
        text = f"<Calibration of {self.hardware.name} on {len(self.fitted)} rows: mean error {fit_error:.1%}"
        held_out_errors = np.abs(self.held_out)
        return text + (
            f", on {len(held_out_errors)} others {held_out_errors.mean():.1%}, at most {held_out_errors.max():.1%}>"
            if len(held_out_errors)
            else ">"
        )


def calibrate(
    hardware: Hardware | str,
    measurements: Sequence[Measurement],
    *,
    fit: Sequence[int] | None = None,
    parameters: Sequence[str] = SHARES,
) -> Calibration:
    """Fits the achieved shares of a kind of hardware to measured times.

    Args:
        hardware: a name or `Hardware`; the fit starts from it, apart from its shares.
        measurements: pairs (function from `Hardware` to predicted microseconds, measured microseconds).
        fit: indices of the rows to fit; None means all. The other rows only test the result.
        parameters: fields of `Hardware` to fit, of `matmul_share`, `batched_share`, `bandwidth_share`, `launch_us` (the
            default) and `arithmetic_share`, for processors.

    Raises:
        InvalidInput: there are fewer rows than parameters, a measured time is not above 0, or an index is out of range.
        UnknownNameError: a parameter or hardware is unknown.

    >>> step = lambda flops: lambda hardware: 1e6 * flops / (hardware.half_flops * hardware.matmul_share)
    >>> rows = [(step(f), 2e6 * f / 312e12) for f in (1e12, 5e12, 9e12)]    # half of the peak is reached
    >>> calibration = calibrate("a100", rows, fit=[0, 1], parameters=["matmul_share"])
    >>> round(calibration.hardware.matmul_share, 3), round(float(abs(calibration.held_out).max()), 3)
    (0.5, 0.0)
    """
    from scipy.optimize import least_squares

    initial_hardware = Hardware.named(hardware) if isinstance(hardware, str) else hardware
    if not isinstance(initial_hardware, Hardware):
        raise InvalidInput(f"hardware is {in_short(hardware)}; it must be a name or Hardware")
    for key in parameters:
        if key not in RANGES:
            raise UnknownNameError.of("parameter of a calibration", key, RANGES)
    if not isinstance(measurements, Sequence):
        raise InvalidInput(
            f"measurements is {in_short(measurements)}; it must be a list of pairs (prediction, microseconds)"
        )
    fit_rows = np.arange(len(measurements)) if fit is None else np.asarray(fit, dtype=np.int64)
    if len(fit_rows) and not (fit_rows.min() >= 0 and fit_rows.max() < len(measurements)):
        raise InvalidInput(f"fit names row {fit_rows.max()}; there are rows 0..{len(measurements) - 1}")
    if len(set(fit_rows.tolist())) < len(parameters):
        raise InvalidInput(
            f"fit has {len(set(fit_rows.tolist()))} rows; {len(parameters)} parameters need at least as many"
        )
    for k, row in enumerate(measurements):
        if not (isinstance(row, (tuple, list)) and len(row) == 2 and callable(row[0]) and isinstance(row[1], Real)):
            raise InvalidInput(f"measurements[{k}] is {in_short(row)}; it must be a pair (prediction, microseconds)")
        us = row[1]
        if not (np.isfinite(us) and us > 0):
            raise InvalidInput(f"measurements[{k}] took {us} us; it must be finite and above 0")
    measured_us = np.array([us for _, us in measurements], dtype=np.float64)

    def errors(values: NDArray[np.float64], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        candidate = _replace_parameters(initial_hardware, parameters, values)
        return np.array([measurements[k][0](candidate) for k in rows]) / measured_us[rows] - 1

    start = np.array([STARTS.get(key, max(getattr(initial_hardware, key), 1.0)) for key in parameters])
    low, high = np.array([RANGES[key] for key in parameters]).T
    solution = least_squares(
        errors,
        start,
        bounds=(low, high),
        x_scale=start,
        loss="soft_l1",
        f_scale=LOSS_SCALE,
        args=(fit_rows,),
        diff_step=1e-4,
    )
    return Calibration(
        _replace_parameters(initial_hardware, parameters, solution.x),
        fit_rows,
        errors(solution.x, np.arange(len(measured_us))),
    )


def _replace_parameters(hardware: Hardware, parameters: Sequence[str], values: NDArray[np.float64]) -> Hardware:
    new_values: dict[str, Any] = dict(zip(parameters, map(float, values), strict=True))
    return replace(hardware, **new_values)
