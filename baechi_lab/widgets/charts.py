"""Charts of the panels, as specifications that `ChartView` draws."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph.units import format_bytes, format_limit, format_us, plain_number, plural
from ..sweeps.best import without_rounding_errors
from ..viz.colors import SERIES, device_colors
from ..viz.fit_chart import FAR, peak_axis, time_scale
from ..viz.layout import BYTES, UNITS, scale
from .views.chart_view import Chart, bars, curves, heat, limit, points, rule, series
from .views.table_view import ONE, PERCENT, quantity

if TYPE_CHECKING:
    import pandas

    from ..fitting.record import Fit
    from .running import LiveRun

CURVES = tuple(f"var(--bl-series-{k})" for k in range(len(SERIES)))
"""Colours of curves that stand for no device: `viz.colors.SERIES`, by their names in `views/common.css`, light and dark."""
SIMULATED, MEASURED = CURVES[0], CURVES[5]
MOST_BARS = 12
"""Most devices with a bar of their own for each placer: more are too narrow, and their legend covers the chart."""
LIMIT, FAINT = "var(--bl-danger)", "var(--bl-faint)"


def times_chart(table: pandas.DataFrame) -> Chart:
    """Makes a chart of the step by placer: simulated (hollow if it does not fit), measured, and the lower bound as a line."""
    factor, unit = scale(_largest(table["makespan_us"], table["measured_us"]), UNITS)
    hollow = [not ok for ok in table["feasible"].astype(bool)]
    series_list = [
        series(table["makespan_us"] / factor, "simulated", SIMULATED, hollow=hollow, tips=_tips(table, "makespan_us"))
    ]
    if table["measured_us"].notna().any():
        tips = _tips(table, "measured_us")
        series_list.append(series(table["measured_us"].astype(float) / factor, "measured", MEASURED, tips=tips))
    bound = float(table["lower_bound_us"].max()) if len(table) else float("nan")
    rules = [] if math.isnan(bound) else [rule(bound / factor, "lower bound", LIMIT)]
    return bars(table["placer"], f"step time ({unit})", series_list, rules)


def _tips(table: pandas.DataFrame, column: str) -> list[str]:
    """Returns the placer and the time of each row, as texts; empty if the time is missing."""
    pairs = zip(table["placer"], table[column], strict=True)
    return [f"{name}: {format_us(float(us))}" if is_known(us) else "" for name, us in pairs]


def _largest(*columns: pandas.Series) -> float:
    """Returns the largest number of some columns; 0 if there is none."""
    numbers = [float(x) for column in columns for x in column if is_known(x)]
    return max(numbers, default=0.0)


def peaks_chart(table: pandas.DataFrame, device_names: tuple[str, ...], limits: Iterable[int]) -> Chart:
    """Makes a chart of peak memory by placer: one bar per device in the device's colour, limits as a line.

    Of more than `MOST_BARS` devices, each placer has one bar, that of its fullest device.
    """
    rows_with_peaks = table[table["device_peak_bytes"].notna()]
    rows = list(rows_with_peaks["device_peak_bytes"])
    largest = max((max(row) for row in rows), default=0)
    factor, unit = scale(float(largest), BYTES)
    if len(device_names) > MOST_BARS:
        peaks = [max(row) for row in rows]
        series_list = [
            series([x / factor for x in peaks], "fullest device", SIMULATED, tips=list(map(format_bytes, peaks)))
        ]
    else:
        series_list = [
            series(
                [row[d] / factor for row in rows], name, color, tips=[f"{name}: {format_bytes(row[d])}" for row in rows]
            )
            for d, (name, color) in enumerate(zip(device_names, device_colors(device_names), strict=True))
        ]
    visible_limits = [x for x in sorted({int(x) for x in limits}) if x <= FAR * largest]
    return bars(
        rows_with_peaks["placer"],
        f"peak memory ({unit})",
        series_list,
        [rule(x / factor, "limit", LIMIT) for x in visible_limits],
    )


def run_chart(live: LiveRun) -> Chart:
    """Makes a chart of measured step times in order, with their median, its interval, and the simulated time."""
    times = np.array(live.seconds) * 1e6
    factor, unit = scale(max(float(times.max(initial=0.0)), live.simulated_seconds * 1e6), UNITS)
    count = len(times)
    tips = [f"step {k + 1}: {format_us(float(us))}" for k, us in enumerate(times)]
    simulated_label = f"simulated for {live.costs}" if live.costs else "simulated"
    rules = [rule(live.simulated_seconds * 1e6 / factor, simulated_label, SIMULATED)]
    if count:
        low, high = (bound * 1e6 / factor for bound in live.interval())
        median = live.median * 1e6 / factor
        rules += [rule(low, to=high, color=MEASURED), rule(median, "median", MEASURED, dash=False)]
    measured_series = series(times / factor, "measured", MEASURED, np.arange(1, count + 1), tips=tips)
    marks: dict[str, Any] = {"ticks": list(range(1, count + 1))} if count <= 12 else {}
    return curves("step", f"step time ({unit})", [measured_series], rules, **marks)


def progress_chart(best_steps: list[tuple[float, float]], limit_seconds: float | None) -> Chart:
    """Makes a chart of the best step over the seconds of a search, from `(seconds, microseconds)`, up to its limit."""
    finite_points = [(seconds, us) for seconds, us in best_steps if np.isfinite(us)]
    factor, unit = scale(max((us for _, us in finite_points), default=0.0), UNITS)
    best_series = series(
        [us / factor for _, us in finite_points],
        "best so far",
        CURVES[0],
        [seconds for seconds, _ in finite_points],
        tips=[f"after {seconds:.1f} s: {format_us(us)}" for seconds, us in finite_points],
    )
    axis_range: dict[str, Any] = {"from": 0.0} | ({} if limit_seconds is None else {"to": float(limit_seconds)})
    return curves("seconds", f"step time ({unit})", [best_series], steps=True, **axis_range)


def fit_chart(answer: Fit) -> Chart:
    """Makes a chart of the options of `bl.fit`, as `viz.fit_options`: a point's id is its position in `answer.options`."""
    from ..fitting.record import fullest_device_bytes

    simulated_options = [k for k, option in enumerate(answer.options) if option.timeline is not None]
    capacity_bytes = answer.room_bytes
    largest_peak = max([*(fullest_device_bytes(answer.options[k]) for k in simulated_options), 1])
    is_limit_shown = capacity_bytes <= FAR * largest_peak
    size, bytes_unit = scale(float(max(largest_peak, capacity_bytes) if is_limit_shown else largest_peak), BYTES)
    factor, unit = time_scale(answer)

    def option_series(options: Any, name: str, color: str, **attributes: Any) -> Chart:
        y = [option.time_per_sample_us / factor for option in options]
        x = [fullest_device_bytes(option) / size for option in options]
        return series(y, name, color, x, [not option.fits for option in options], **attributes)

    series_list = [option_series(answer.pareto(), "", FAINT, dash=True)]
    kinds = list(enumerate(dict.fromkeys(answer.options[k].kind for k in simulated_options)))
    for k, kind in kinds[1:] + kinds[:1]:  # the unchanged step is drawn last, above others at the same place
        ids = [position for position in simulated_options if answer.options[position].kind == kind]
        options = [answer.options[position] for position in ids]
        tips = [
            f"{option.choice_in_words}: {format_us(option.step_us)}, "
            f"{format_bytes(fullest_device_bytes(option))} on the fullest device"
            for option in options
        ]
        series_list.append(option_series(options, kind, CURVES[k % len(CURVES)], ids=ids, tips=tips))
    unit_of_work = "sample" if any(answer.options[k].batch_size for k in simulated_options) else "step"
    rules = [limit(capacity_bytes / size, "memory of a device", LIMIT)] if is_limit_shown else []
    return points(
        peak_axis(capacity_bytes, is_limit_shown, bytes_unit), f"time per {unit_of_work} ({unit})", series_list, rules
    )


MEASURES = {
    "samples per second": "samples_per_second",
    "step time": "makespan_us",
    "bubble: idle share": "bubble",
    "peak memory": "peak_bytes",
}
AXES = {
    "batch size": "batch_size",
    "micro-batches": "micro_batches",
    "devices": "devices",
    "memory": "memory_bytes",
    "replicas": "replicas",
    "placer": "placer",
    "schedule": "schedule",
}
WORDS = ("placer", "schedule")
"""Columns with words instead of numbers."""
LEAST_SPAN = 0.1
"""Least difference from the strongest to the faintest colour of a heat map, as a share of its largest value."""


def varied_axes(table: pandas.DataFrame) -> list[str]:
    """Returns the names of the axes along which a sweep has more than one value, in the order of `AXES`."""
    return [name for name, column in AXES.items() if table[column].nunique(dropna=False) > 1]


def heat_map(table: pandas.DataFrame, axis: str, by: str, measure: str) -> tuple[dict[str, Any], str]:
    """Makes a heat map of a sweep: a column for each value of `axis`, a row for each value of `by` (empty: one row).

    A cell shows the row of the sweep with the best `measure` of those that fit, of equal ones one on the Pareto front; its id is
    the label of that row in `table`.
    Better cells have a stronger colour. Rows on the Pareto front are marked.

    Returns:
        The chart, and sentences that describe it.
    """
    column, axis_column, by_column = MEASURES[measure], AXES[axis], AXES.get(by, "")
    units = {"makespan_us": UNITS, "peak_bytes": BYTES, "bubble": PERCENT}.get(column, ONE)
    values = quantity(measure, table[column].tolist(), units)
    front = set(pareto_front(table))
    # For each value of the axes, the best row of those that fit; its index is the position in `table`.
    rows = table.reset_index(drop=True).assign(
        _broken=~table["feasible"].astype(bool).to_numpy(),
        _cost=without_rounding_errors(table[column].astype(float) * _better(column)).to_numpy(),
        _dominated=[k not in front for k in range(len(table))],
    )
    rows = rows.sort_values(["_broken", "_cost", "_dominated"], kind="stable", na_position="last")
    best = rows.drop_duplicates([axis_column, by_column] if by_column else [axis_column]).sort_index()
    costs = (best[column].astype(float) * _better(column)).where(best["feasible"].astype(bool))
    # Differences of a few percent are faint: equal numbers on the screen have one colour.
    least, span = costs.min(), max(costs.max() - costs.min(), LEAST_SPAN * costs.abs().max())
    x_labels, y_labels = _values(table, axis_column), _values(table, by_column) if by_column else [""]
    cells = [
        {
            "x": x_labels.index(_word(axis_column, row[axis_column])),
            "y": y_labels.index(_word(by_column, row[by_column])) if by_column else 0,
            "text": values.texts[int(k)],
            "tip": _tip(row, column) + (" (on the Pareto front)" if k in front else ""),
            "id": int(table.index[k]),
            "fits": bool(row["feasible"]),
            "front": k in front,
            "good": _strength(float(cost - least), float(span)),
        }
        for (k, row), cost in zip(best.iterrows(), costs, strict=True)
    ]
    other_axes = [name for name in varied_axes(table) if name not in (axis, by)]
    notes = [f"Each cell is the best over all values of {' and '.join(other_axes)}."] if other_axes else []
    notes.append(
        "The stronger the colour, the better; ✗ does not fit; ◆ is on the Pareto front: nothing is both faster and "
        "smaller in memory; n × beside a point stands for n settings. A click on a cell opens its setting."
    )
    return heat(x_labels, y_labels, values.name, cells), " ".join(notes)


def _strength(excess: float, span: float) -> float:
    """Returns the strength of a cell's colour from 0 to 1; `excess` over the best cell is NaN for a cell that does not fit."""
    if math.isnan(excess):
        return 0.0
    return 1.0 - excess / span if span else 1.0


def _values(table: pandas.DataFrame, column: str) -> list[str]:
    """Returns the values of an axis as texts: numbers ascending, words in the order of the rows; a missing value is last."""
    values = table[column].drop_duplicates()
    return [_word(column, v) for v in (values if column in WORDS else values.sort_values(na_position="last"))]


def pareto_front(table: pandas.DataFrame) -> list[int]:
    """Returns the positions of the rows that fit and that no other row beats in both step and peak memory, fastest first.

    If batch sizes differ, rows are compared by their time per sample. Rounding errors of sums make no difference.
    """
    times = without_rounding_errors(_front_times(table))
    fits = table["feasible"].astype(bool) & times.notna() & table["peak_bytes"].notna()
    peaks = table["peak_bytes"].astype(float)
    front: list[int] = []
    for k in sorted(np.flatnonzero(fits).tolist(), key=lambda k: (times.iloc[k], peaks.iloc[k])):
        slowest = front[-1] if front else None
        if (
            slowest is None
            or peaks.iloc[k] < peaks.iloc[slowest]
            or (times.iloc[k], peaks.iloc[k]) == (times.iloc[slowest], peaks.iloc[slowest])
        ):
            front.append(k)
    return front


def _front_times(table: pandas.DataFrame) -> pandas.Series:
    """Returns the step times in microseconds, per sample if batch sizes differ."""
    times = table["makespan_us"].astype(float)
    return times / table["batch_size"].astype(float) if table["batch_size"].nunique() > 1 else times


def pareto_chart(table: pandas.DataFrame) -> Chart:
    """Makes a chart of the step against the peak of the fullest device: a point per row of a sweep, its label as id.

    The line joins the rows of the Pareto front.
    """
    times, peaks = _front_times(table), table["peak_bytes"].astype(float)
    (factor, unit), (size, bytes_unit) = scale(_largest(times), UNITS), scale(_largest(peaks), BYTES)

    def points_of(rows: list[int], name: str, color: str, **attributes: Any) -> Chart:
        hollow = [not ok for ok in table["feasible"].iloc[rows].astype(bool)]
        x, y = peaks.iloc[rows] / size, times.iloc[rows] / factor
        return series(y, name, color, x, hollow, **attributes)

    series_list = [points_of(pareto_front(table), "", FAINT, dash=True)]
    for k, placer in enumerate(table["placer"].drop_duplicates()):
        rows = np.flatnonzero((table["placer"] == placer) & times.notna() & peaks.notna()).tolist()
        tips = [_tip(table.iloc[row], "makespan_us") for row in rows]
        series_list.append(points_of(rows, str(placer), CURVES[k % len(CURVES)], ids=table.index[rows], tips=tips))
    time_label = "time per sample" if table["batch_size"].nunique() > 1 else "step time"
    title = "Pareto front: time against memory"
    return points(f"peak memory ({bytes_unit})", f"{time_label} ({unit})", series_list, title=title)


def _better(column: str) -> float:
    """Returns the sign by which a measure is multiplied so that smaller is better."""
    return -1.0 if column == "samples_per_second" else 1.0


def _tip(row: Any, column: str) -> str:
    """Describes a row of a sweep: its setting, its value, and the reason why it does not fit."""
    setting = ", ".join(_word(c, row[c]) for c in AXES.values() if is_known(row[c]))
    format_value: Any = {"makespan_us": format_us, "peak_bytes": format_bytes, "bubble": "{:.1%}".format}.get(
        column, plain_number
    )
    value = f": {format_value(float(row[column]))}" if is_known(row[column]) else ""
    reason = "" if row["feasible"] else f" (does not fit{': ' + str(row['error']) if row['error'] else ''})"
    return setting + value + reason


def is_known(value: object) -> bool:
    """Whether a cell of a sweep has a value."""
    return value is not None and value == value and value != ""


def _word(column: str, value: object) -> str:
    """Returns a value of an axis as text; empty for a missing value."""
    if not column or not is_known(value):
        return "" if not column else f"no {column.replace('_', ' ')}"
    words: dict[str, Any] = {
        "devices": lambda v: f"{int(v)} {plural('device', v)}",
        "memory_bytes": format_limit,
        "batch_size": lambda v: f"batch {int(v)}",
        "micro_batches": lambda v: f"{int(v)} {plural('micro-batch', v)}",
        "replicas": lambda v: f"{int(v)} {plural('replica', v)}",
    }
    return str(words.get(column, str)(value))
