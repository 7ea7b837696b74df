"""What the study found: one row per model, number of processes and schedule, and the figures that the target is stated in.

PyTorch and TensorFlow write rows of one kind into parts of one file.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from baechi_lab.fidelity import provenance
from baechi_lab.graph.formats.files import write_atomically

if TYPE_CHECKING:
    import pandas

TARGET_ERROR = 0.10
"""Mean error of the simulated step that the study aims at."""
CLEAR = 0.10
"""Schedules whose measured steps differ by more than this, the same way in every round, must be ranked right."""
FORMAT, VERSION = "baechi_lab pipelines", 1


@dataclass(frozen=True)
class Row:
    """One schedule of one model; times in microseconds of a step of `micro_batches`.

    `simulated_us` from the profile of one micro-batch and measured overheads; `measured_us` the median, with the
    interval `low_us`..`high_us`; `fastest_us` the fastest step. `busy_share` is the CPU time of the busiest process per
    time that passed; `others_share` the CPU seconds of other programs per second: high values mean a disturbed row.
    `single_us` is the measured step of all micro-batches on one process. `rounds_us` are the medians of the rounds, in
    each of which all schedules had a turn.
    """

    framework: str
    model: str
    processes: int
    schedule: str
    micro_batches: int
    stages: int
    simulated_us: float
    measured_us: float
    low_us: float
    high_us: float
    fastest_us: float
    busy_share: float
    others_share: float
    single_us: float
    rounds_us: tuple[float, ...] = ()

    @property
    def error(self) -> float:
        """Simulated / measured - 1."""
        return self.simulated_us / self.measured_us - 1.0

    def times_as_long(self, other: Row) -> float:
        """As another schedule, by round: a machine that changes its pace meets both. 1.0 where rounds contradict each other.

        >>> def row(*rounds):
        ...     return Row("x", "m", 2, "a", 4, 2, 9.0, float(np.median(rounds)), 0.0, 0.0, 0.0, 1.0, 0.0, 9.0, rounds)
        >>> row(120.0, 240.0, 130.0).times_as_long(row(100.0, 200.0, 100.0)), row(120.0, 90.0).times_as_long(row(100.0, 100.0))
        (1.2, 1.0)
        """
        if not self.rounds_us or len(self.rounds_us) != len(other.rounds_us):
            return self.measured_us / other.measured_us
        ratios = np.array(self.rounds_us) / np.array(other.rounds_us)
        return float(np.median(ratios)) if np.all(ratios > 1) or np.all(ratios < 1) else 1.0


@dataclass(frozen=True)
class Summary:
    """`mean_error` and `worst_error` of absolute values; `ranked_right` of the `clear_pairs` within a model and number
    of processes; `others_share` the median over rows."""

    rows: int
    mean_error: float
    worst_error: float
    clear_pairs: int
    ranked_right: int
    others_share: float

    @property
    def met(self) -> bool:
        """Mean error within 10 %, and every clear pair ranked right?"""
        return self.mean_error <= TARGET_ERROR and self.ranked_right == self.clear_pairs


def summarize_rows(rows: Iterable[Row]) -> Summary:
    """The figures over all rows.

    >>> def row(schedule, simulated, measured):
    ...     return Row("x", "m", 2, schedule, 4, 2, simulated, measured, measured, measured, measured, 1.0, 0.0, 9.0)
    >>> found = summarize_rows([row("a", 90.0, 100.0), row("b", 210.0, 200.0), row("c", 209.0, 205.0)])
    >>> round(found.mean_error, 3), found.clear_pairs, found.ranked_right    # b and c differ by 2.5 %
    (0.057, 2, 2)
    """
    rows = list(rows)
    groups: dict[tuple[str, str, int], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.framework, row.model, row.processes].append(row)
    clear = right = 0
    for rows_of_group in groups.values():
        for i, a in enumerate(rows_of_group):
            for b in rows_of_group[i + 1 :]:
                ratio = a.times_as_long(b)
                if max(ratio, 1 / ratio) > 1 + CLEAR:
                    clear += 1
                    right += (a.simulated_us < b.simulated_us) == (ratio < 1)
    errors = [abs(row.error) for row in rows]
    mean, worst = (float(np.mean(errors)), float(np.max(errors))) if errors else (0.0, 0.0)
    others_share = float(np.median([row.others_share for row in rows])) if rows else 0.0
    return Summary(len(rows), mean, worst, clear, right, others_share)


def to_pandas(rows: Sequence[Row]) -> pandas.DataFrame:
    """One line per row, times in milliseconds."""
    import pandas as pd

    return pd.DataFrame(
        {
            "framework": row.framework,
            "model": row.model,
            "processes": row.processes,
            "schedule": row.schedule,
            "simulated_ms": row.simulated_us / 1e3,
            "measured_ms": row.measured_us / 1e3,
            "low_ms": row.low_us / 1e3,
            "high_ms": row.high_us / 1e3,
            "fastest_ms": row.fastest_us / 1e3,
            "error": row.error,
            "times_faster": row.single_us / row.measured_us,
            "busy_share": row.busy_share,
            "others_share": row.others_share,
        }
        for row in rows
    )


def keep(path: str | os.PathLike[str], part: str, rows: Sequence[Row], **settings: Any) -> None:
    """Write one part into the file and keep the others."""
    document: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    if Path(path).exists():
        document = json.loads(Path(path).read_text("utf-8"))
    summary = summarize_rows(rows)
    document[part] = {
        **provenance(**settings),
        "summary": {**asdict(summary), "met": summary.met},
        "rows": [{**asdict(row), "error": row.error} for row in rows],
    }
    write_atomically(path, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())


def rows_of(document: Mapping[str, Any], framework: str | None = None) -> tuple[Row, ...]:
    """All rows of a stored document, or those of one framework."""
    parts = [
        document_part["rows"]
        for document_part in document.values()
        if isinstance(document_part, dict) and "rows" in document_part
    ]
    parsed_rows = (_row(row) for rows in parts for row in rows)
    return tuple(row for row in parsed_rows if framework is None or row.framework == framework)


def _row(stored_row: Mapping[str, Any]) -> Row:
    values = {key: stored_row[key] for key in Row.__dataclass_fields__ if key in stored_row}
    return Row(**{**values, "rounds_us": tuple(values.get("rounds_us", ()))})
