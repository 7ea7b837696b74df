"""The results of a fidelity study: one row per placement, and the summary figures of the target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..graph import MEMORY_CATEGORIES
from ..profilers.machine_load import MAX_OTHERS_SHARE

if TYPE_CHECKING:
    import pandas

    from ..executors.tensorflow.calibration import Calibration

TARGET_ERROR, WORST_ERROR = 0.05, 0.15
"""Target of the study: mean and largest error."""
CLEAR = 0.10
"""Placements whose measured times differ by more than this must be ranked correctly."""
QUIET = 0.8
"""Smallest CPU share of a worker whose times count. Below it, other programs disturbed the worker."""
DRIFT = 1.1
"""`Row.drift` above this is reported: times of single steps are not more exact than that."""


@dataclass(frozen=True)
class Row:
    """One placement of one model; times in microseconds.

    Fields:
        without_overheads_us: the simulated time from kernel times and wires alone.
        compute_us, traced_compute_us: kernels of the busiest device, as profiled on worker 0 and as traced under the placement.
        message_us: processor time of all messages.
        busy_share: CPU time of the busiest worker per elapsed time, in the round where it was smallest.
        others_share: CPU time of all other programs per elapsed time, in the round where it was largest.
        simulated_peak_bytes, measured_peak_bytes: peaks of the device with the largest measured peak; 0 if not measured. Their
            parts are persistent, output, temporary and received bytes (`Timeline.peak_parts`).
        drift: longest profile of the step divided by the shortest, one per round. Far above 1 if cores change their speed.
    """

    model: str
    placement: str
    ops: int
    transfers: int
    predicted_us: float
    measured_us: float
    measured_low_us: float
    measured_high_us: float
    compute_us: float
    traced_compute_us: float
    message_us: float
    without_overheads_us: float
    busy_share: float
    others_share: float = 0.0
    simulated_peak_bytes: int = 0
    measured_peak_bytes: int = 0
    simulated_peak_parts: dict[str, int] = field(default_factory=dict)
    measured_peak_parts: dict[str, int] = field(default_factory=dict)
    drift: float = 1.0

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        return self.predicted_us / self.measured_us - 1.0

    @property
    def largest_error_part(self) -> str:
        """The larger part of the error in words: kernels with another duration under the placement, or the rest."""
        compute = abs(self.compute_error) >= abs(self.rest_error)
        source, share = ("compute", self.compute_error) if compute else ("transfers and runtime", self.rest_error)
        return f"{source} {share:+.0%}"

    @property
    def compute_error(self) -> float:
        """Kernels of the busiest device as profiled, minus those as traced, divided by the measured time."""
        return (self.compute_us - self.traced_compute_us) / self.measured_us

    @property
    def rest_error(self) -> float:
        """The error that does not come from kernels."""
        return self.error - self.compute_error


@dataclass(frozen=True)
class Summary:
    """`mean_error` and `worst_error` are absolute. `ranked_right` counts within `clear_pairs`. `rank_correlation`: per model."""

    mean_error: float
    worst_error: float
    clear_pairs: int
    ranked_right: int
    rank_correlation: dict[str, float]
    quiet: bool

    @property
    def met(self) -> bool:
        """Whether the target is met: mean error at most 5 %, none above 15 %, clear pairs ranked correctly, machine quiet."""
        near = self.mean_error <= TARGET_ERROR and self.worst_error <= WORST_ERROR
        return self.quiet and near and self.ranked_right == self.clear_pairs


@dataclass(frozen=True)
class Report:
    """The rows of a study and the overheads that it used."""

    rows: tuple[Row, ...]
    calibration: Calibration

    @property
    def summary(self) -> Summary:
        """The figures over all rows."""
        return summarize_rows(self.rows, self.calibration.busy_share)

    def to_pandas(self) -> pandas.DataFrame:
        """Returns a row per placement, times in milliseconds; parts of peaks are persistent/outputs/temporary/received."""
        import pandas as pd

        return pd.DataFrame(
            {
                "model": row.model,
                "placement": row.placement,
                "transfers": row.transfers,
                "predicted_ms": row.predicted_us / 1e3,
                "measured_ms": row.measured_us / 1e3,
                "low_ms": row.measured_low_us / 1e3,
                "high_ms": row.measured_high_us / 1e3,
                "error": row.error,
                "where": row.largest_error_part,
                **self.error_parts(row),
                "without_overheads_ms": row.without_overheads_us / 1e3,
                "of_single": row.measured_us / self._single_us(row.model),
                "busy_share": row.busy_share,
                "others_share": row.others_share,
                "drift": row.drift,
                "simulated_peak_mb": row.simulated_peak_bytes / 1e6,
                "measured_peak_mb": row.measured_peak_bytes / 1e6,
                "simulated_parts_mb": _megabytes(row.simulated_peak_parts),
                "measured_parts_mb": _megabytes(row.measured_peak_parts),
            }
            for row in self.rows
        )

    def error_parts(self, row: Row) -> dict[str, float]:
        """Returns the parts of a row's error, as shares of its measured time that add up to the error.

        `from_compute`: kernels with another duration than profiled. `from_runtime`: the remaining error of `single`, which has
        no transfers. `from_transfers`: the rest. Memory has no part: a CPU worker enforces no limit, and costs of caches are
        in the kernels. Without a `single` row, runtime and transfers are NaN.
        """
        single_rows = [r for r in self.rows if r.model == row.model and r.placement == "single"]
        runtime = (
            single_rows[0].rest_error * single_rows[0].measured_us / row.measured_us if single_rows else float("nan")
        )
        return {"from_compute": row.compute_error, "from_runtime": runtime, "from_transfers": row.rest_error - runtime}

    def to_dict(self) -> dict[str, object]:
        """Returns everything, ready for JSON."""
        rows = [{**asdict(row), "error": row.error, "where": row.largest_error_part} for row in self.rows]
        summary = self.summary
        return {
            "rows": rows,
            "summary": {**asdict(summary), "met": summary.met},
            "calibration": asdict(self.calibration),
        }

    def to_json(self) -> str:
        """Returns everything, as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def _single_us(self, model: str) -> float:
        single_us = [row.measured_us for row in self.rows if row.model == model and row.placement == "single"]
        return single_us[0] if single_us else float("nan")

    def __str__(self) -> str:
        summary = self.summary
        text = self.to_pandas().to_string(index=False, float_format=lambda x: f"{x:.3g}")
        ranks = ", ".join(f"{model} {rho:.2f}" for model, rho in summary.rank_correlation.items())
        quiet = "" if summary.quiet else "\nThe machine was busy with other work: these times do not count."
        drift = max((row.drift for row in self.rows), default=1.0)
        if drift > DRIFT:
            quiet += f"\nThe cores changed their pace: one profile of a step took {drift:.2f} times as long as another."
        return (
            f"{text}\nmean error {summary.mean_error:.1%}, worst {summary.worst_error:.1%}; "
            f"{summary.ranked_right} of {summary.clear_pairs} clear pairs ranked right; rank correlation {ranks}{quiet}"
        )


def _megabytes(bytes_by_category: dict[str, int]) -> str:
    return "/".join(f"{bytes_by_category[name] / 1e6:.0f}" for name in MEMORY_CATEGORIES if name in bytes_by_category)


def summarize_rows(rows: Sequence[Row], calibrated_share: float = 1.0) -> Summary:
    """Returns the errors of predictions, how well they rank placements, and whether other programs disturbed the measurement.

    Pairs of rows of one model count as ranked if their measured times differ by over 10 %. `calibrated_share` is the
    `busy_share` of the calibration.
    """
    errors = [abs(row.error) for row in rows]
    models = list(dict.fromkeys(row.model for row in rows))
    clear = right = 0
    correlation = {}
    for model in models:
        model_rows = [row for row in rows if row.model == model]
        correlation[model] = _spearman([r.predicted_us for r in model_rows], [r.measured_us for r in model_rows])
        for i, a in enumerate(model_rows):
            for b in model_rows[i + 1 :]:
                if max(a.measured_us, b.measured_us) > (1 + CLEAR) * min(a.measured_us, b.measured_us):
                    clear += 1
                    right += (a.predicted_us < b.predicted_us) == (a.measured_us < b.measured_us)
    # Only a placement on one device never waits for messages. A low CPU share of other placements shows nothing.
    alone = [row.busy_share for row in rows if row.placement == "single" or row.transfers == 0]
    quiet = min([calibrated_share, *alone]) >= QUIET and all(row.others_share <= MAX_OTHERS_SHARE for row in rows)
    mean, worst = (float(np.mean(errors)), float(np.max(errors))) if errors else (0.0, 0.0)
    return Summary(mean, worst, clear, right, correlation, quiet)


def _spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Returns the rank correlation; NaN for fewer than two values or if one side is constant."""
    from scipy.stats import rankdata

    x, y = (rankdata(values) for values in (a, b))
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])
