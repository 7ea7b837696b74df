"""What a fidelity study found: one row per placement, and the figures that the target is stated in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph import MEMORY_CATEGORIES
from ..profilers.machine_load import MOST

if TYPE_CHECKING:
    import pandas

    from ..executors.tensorflow.calibration import Calibration

TARGET_ERROR, WORST_ERROR = 0.05, 0.15
"""Mean and largest error that the study aims at."""
CLEAR = 0.10
"""Placements whose measured times differ by more than this must be ranked right."""
QUIET = 0.8
"""Share of the CPU below which a worker was disturbed too much for its times to count."""
DRIFT = 1.1
"""`Row.drift` above which it is told: times of single steps are then no better than that."""


@dataclass(frozen=True)
class Row:
    """One placement of one model; times in microseconds.

    `without_overheads_us` is what the simulator says from kernel times and wires alone; `compute_us` and
    `traced_compute_us` are the busiest device's kernels as profiled on worker 0 and as traced under the placement;
    `message_us` is what messages take of all processors; `busy_share` is the CPU time of the busiest worker per time that passed,
    in the round where it was least; `others_share` that of all other programs, in the round where it was most. Peaks are
    those of the device that held most when measured, as in `studies.memory`; 0 where they were not taken; their parts are
    persistent, outputs, temporary and received bytes (`Timeline.peak_parts`). `drift`: of the
    profiles of the step, one per round, the longest as a multiple of the shortest; far above 1 where cores change their pace.
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
    def where(self) -> str:
        """The largest part of the error: kernels that took another time under the placement, or the rest."""
        compute = abs(self.compute_error) >= abs(self.rest)
        part, share = ("compute", self.compute_error) if compute else ("transfers and runtime", self.rest)
        return f"{part} {share:+.0%}"

    @property
    def compute_error(self) -> float:
        """The busiest device's kernels as profiled, less those as traced, as a share of the measured time."""
        return (self.compute_us - self.traced_compute_us) / self.measured_us

    @property
    def rest(self) -> float:
        """The error that is not of kernels."""
        return self.error - self.compute_error


@dataclass(frozen=True)
class Summary:
    """`mean_error` and `worst_error` are of absolute values; `ranked_right` of `clear_pairs`; `rank_correlation` by model."""

    mean_error: float
    worst_error: float
    clear_pairs: int
    ranked_right: int
    rank_correlation: dict[str, float]
    quiet: bool

    @property
    def met(self) -> bool:
        """Was the target met: mean error within 5 %, none above 15 %, clear pairs ranked right, on an undisturbed machine?"""
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
        """One line per placement, times in milliseconds; parts of peaks are persistent/outputs/temporary/received."""
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
                "where": row.where,
                **self.parts(row),
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

    def parts(self, row: Row) -> dict[str, float]:
        """Where a row's error comes from, as shares of its measured time that add up to it.

        `from_compute`: kernels that took another time than profiled. `from_runtime`: what `single`, which has no
        transfers, is off beside them. `from_transfers`: the rest. Memory has no part: a CPU worker enforces no limit, and
        what its caches cost is in the kernels. Without a `single` row runtime and transfers are NaN.
        """
        found = [r for r in self.rows if r.model == row.model and r.placement == "single"]
        runtime = found[0].rest * found[0].measured_us / row.measured_us if found else float("nan")
        return {"from_compute": row.compute_error, "from_runtime": runtime, "from_transfers": row.rest - runtime}

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        rows = [{**asdict(row), "error": row.error, "where": row.where} for row in self.rows]
        found = self.summary
        return {
            "rows": rows,
            "summary": {**asdict(found), "met": found.met},
            "calibration": asdict(self.calibration),
        }

    def to_json(self) -> str:
        """Everything, as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def _single_us(self, model: str) -> float:
        found = [row.measured_us for row in self.rows if row.model == model and row.placement == "single"]
        return found[0] if found else float("nan")

    def __str__(self) -> str:
        found = self.summary
        text = self.to_pandas().to_string(index=False, float_format=lambda x: f"{x:.3g}")
        ranks = ", ".join(f"{model} {rho:.2f}" for model, rho in found.rank_correlation.items())
        quiet = "" if found.quiet else "\nThe machine was busy with other work: these times do not count."
        drift = max((row.drift for row in self.rows), default=1.0)
        if drift > DRIFT:
            quiet += f"\nThe cores changed their pace: one profile of a step took {drift:.2f} times as long as another."
        return (
            f"{text}\nmean error {found.mean_error:.1%}, worst {found.worst_error:.1%}; "
            f"{found.ranked_right} of {found.clear_pairs} clear pairs ranked right; rank correlation {ranks}{quiet}"
        )


def _megabytes(parts: dict[str, int]) -> str:
    return "/".join(f"{parts[name] / 1e6:.0f}" for name in MEMORY_CATEGORIES if name in parts)


def summarize_rows(rows: Sequence[Row], calibrated_share: float = 1.0) -> Summary:
    """Errors, pairs that differ by over 10 % and how many are ranked right, Spearman's rho per model, and whether
    other programs disturbed a row, or the calibration (its `busy_share`)."""
    errors = [abs(row.error) for row in rows]
    models = list(dict.fromkeys(row.model for row in rows))
    clear = right = 0
    correlation = {}
    for model in models:
        mine = [row for row in rows if row.model == model]
        correlation[model] = _spearman([r.predicted_us for r in mine], [r.measured_us for r in mine])
        for i, a in enumerate(mine):
            for b in mine[i + 1 :]:
                if max(a.measured_us, b.measured_us) > (1 + CLEAR) * min(a.measured_us, b.measured_us):
                    clear += 1
                    right += (a.predicted_us < b.predicted_us) == (a.measured_us < b.measured_us)
    # Only a placement on one device never waits for messages; elsewhere a low share of its own says nothing.
    alone = [row.busy_share for row in rows if row.placement == "single" or row.transfers == 0]
    quiet = min([calibrated_share, *alone]) >= QUIET and all(row.others_share <= MOST for row in rows)
    mean, worst = (float(np.mean(errors)), float(np.max(errors))) if errors else (0.0, 0.0)
    return Summary(mean, worst, clear, right, correlation, quiet)


def _spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation; NaN for fewer than two values or when one side does not vary."""
    from scipy.stats import rankdata

    x, y = (rankdata(values) for values in (a, b))
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])
