"""The charts of the panels, as what `ChartView` draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph.units import format_bytes, format_limit, format_us
from ..viz.colors import SERIES, device_colors
from ..viz.fit_chart import FAR, peak_axis
from ..viz.layout import BYTES, UNITS, scale
from .views.chart_view import bars, curves, limit, points, rule, series

if TYPE_CHECKING:
    import pandas

    from ..fitting.record import Fit
    from .running import LiveRun

CURVES = tuple(f"var(--bl-series-{k})" for k in range(len(SERIES)))
"""What is no device: `viz.colors.SERIES`, by the names of `views/common.css`, which has them for light and dark pages."""
SIMULATED, MEASURED = CURVES[0], CURVES[5]
LIMIT, FAINT = "var(--bl-danger)", "var(--bl-faint)"


def times_chart(table: pandas.DataFrame) -> Any:
    """Step time by placer: simulated (hollow where it does not fit), measured beside it, the lower bound as a line."""
    factor, unit = scale(_largest(table["makespan_us"], table["measured_us"]), UNITS)
    hollow = [not ok for ok in table["feasible"].astype(bool)]
    series_list = [
        series(table["makespan_us"] / factor, "simulated", SIMULATED, hollow=hollow, tips=_tips(table, "makespan_us"))
    ]
    if table["measured_us"].notna().any():
        tips = _tips(table, "measured_us")
        series_list.append(series(table["measured_us"].astype(float) / factor, "measured", MEASURED, tips=tips))
    bound = float(table["lower_bound_us"].max()) if len(table) else float("nan")
    rules = [rule(bound / factor, "lower bound", LIMIT)] if bound == bound else []
    return bars(table["placer"], f"step time ({unit})", series_list, rules)


def _tips(table: pandas.DataFrame, column: str) -> list[str]:
    pairs = zip(table["placer"], table[column], strict=True)
    return [f"{name}: {format_us(float(us))}" if us is not None and us == us else "" for name, us in pairs]


def _largest(*columns: pandas.Series) -> float:
    numbers = [float(x) for column in columns for x in column if x is not None and x == x]
    return max(numbers, default=0.0)


def peaks_chart(table: pandas.DataFrame, device_names: tuple[str, ...], limits: Any) -> Any:
    """Peak memory by placer, one bar per device in the device's colour, limits as a line."""
    rows_with_peaks = table[table["device_peak_bytes"].notna()]
    rows = list(rows_with_peaks["device_peak_bytes"])
    largest = max((max(row) for row in rows), default=0)
    factor, unit = scale(float(largest), BYTES)
    series_list = [
        series([row[d] / factor for row in rows], name, color, tips=[f"{name}: {format_bytes(row[d])}" for row in rows])
        for d, (name, color) in enumerate(zip(device_names, device_colors(device_names), strict=True))
    ]
    shown = [x for x in sorted({int(x) for x in limits}) if x <= FAR * largest]
    return bars(
        rows_with_peaks["placer"],
        f"peak memory ({unit})",
        series_list,
        [rule(x / factor, "limit", LIMIT) for x in shown],
    )


def run_chart(live: LiveRun) -> Any:
    """Measured step times in the order in which they came, their median with its interval, and the simulated time."""
    times = np.array(live.seconds) * 1e6
    factor, unit = scale(max(float(times.max(initial=0.0)), live.simulated_seconds * 1e6), UNITS)
    count = len(times)
    tips = [f"step {k + 1}: {format_us(float(us))}" for k, us in enumerate(times)]
    promised = f"simulated for {live.costs}" if live.costs else "simulated"
    rules = [rule(live.simulated_seconds * 1e6 / factor, promised, SIMULATED)]
    if count:
        low, high = (bound * 1e6 / factor for bound in live.interval())
        median = live.median * 1e6 / factor
        rules += [rule(low, to=high, color=MEASURED), rule(median, "median", MEASURED, dash=False)]
    measured_series = series(times / factor, "measured", MEASURED, np.arange(1, count + 1), tips=tips)
    marks: dict[str, Any] = {"ticks": list(range(1, count + 1))} if count <= 12 else {}
    return curves("step", f"step time ({unit})", [measured_series], rules, **marks)


def progress_chart(points: list[tuple[float, float]], limit_seconds: float | None) -> Any:
    """Best step time so far over the seconds of a search, as `(seconds, microseconds)`, up to its limit."""
    finite_points = [(s, us) for s, us in points if np.isfinite(us)]
    factor, unit = scale(max((us for _, us in finite_points), default=0.0), UNITS)
    best_series = series(
        [us / factor for _, us in finite_points],
        "best so far",
        CURVES[0],
        [s for s, _ in finite_points],
        tips=[f"after {s:.1f} s: {format_us(us)}" for s, us in finite_points],
    )
    axis_range: dict[str, Any] = {"from": 0.0} | ({} if limit_seconds is None else {"to": float(limit_seconds)})
    return curves("seconds", f"step ({unit})", [best_series], steps=True, **axis_range)


def fit_chart(answer: Fit) -> Any:
    """The ways of `bl.fit` as in `viz.fit_options`: a point each, whose id is its position in `answer.options`."""
    from ..fitting.record import fullest_device_bytes

    tried = [k for k, option in enumerate(answer.options) if option.timeline is not None]
    capacity_bytes, largest_peak = (
        answer.room_bytes,
        max([*(fullest_device_bytes(answer.options[k]) for k in tried), 1]),
    )
    near = capacity_bytes <= FAR * largest_peak
    size, bytes_unit = scale(float(max(largest_peak, capacity_bytes) if near else largest_peak), BYTES)
    factor, unit = scale(max((answer.options[k].time_per_sample_us for k in tried), default=1.0), UNITS)

    def option_series(options: Any, name: str, color: str, **attributes: Any) -> Any:
        y, x = [w.time_per_sample_us / factor for w in options], [fullest_device_bytes(w) / size for w in options]
        return series(y, name, color, x, [not w.fits for w in options], **attributes)

    series_list = [option_series(answer.pareto(), "", FAINT, dash=True)]
    for k, kind in enumerate(dict.fromkeys(answer.options[k].kind for k in tried)):
        ids = [n for n in tried if answer.options[n].kind == kind]
        options = [answer.options[n] for n in ids]
        tips = [
            f"{w.choice}: {format_us(w.step_us)}, {format_bytes(fullest_device_bytes(w))} on the fullest device"
            for w in options
        ]
        series_list.append(option_series(options, kind, CURVES[k % len(CURVES)], ids=ids, tips=tips))
    per = "sample" if any(answer.options[k].batch_size for k in tried) else "step"
    rules = [limit(capacity_bytes / size, "memory of a device", LIMIT)] if near else []
    return points(peak_axis(capacity_bytes, near, bytes_unit), f"time per {per} ({unit})", series_list, rules)


MEASURES = {
    "samples per second": "samples_per_second",
    "step time": "makespan_us",
    "bubble (idle share)": "bubble",
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
MOST_CURVES = 6


def varied_axes(table: pandas.DataFrame) -> list[str]:
    """The names of the axes along which a sweep has more than one value, in the order of `AXES`."""
    return [name for name, column in AXES.items() if table[column].nunique(dropna=False) > 1]


def sweep_chart(table: pandas.DataFrame, axis: str, by: str, measure: str) -> tuple[Any, str]:
    """A sweep's answer to one question: `measure` along `axis`, a curve for each value of `by` (empty: one curve).

    What else varies is taken at its best; crosses mark where nothing fits. At most a handful of curves is drawn, the best.

    Returns:
        the chart, and a sentence on what is not drawn.
    """
    column, along, by_label = MEASURES[measure], AXES[axis], AXES.get(by, "")
    (factor, unit), (along_factor, along_unit) = (_scale_of(table, key) for key in (column, along))
    measure, axis_title = measure + unit, axis + along_unit
    points = _best_points(table, along, by_label, column)
    curves_of = [(_word(by_label, name), rows) for name, rows in points.groupby("_by", sort=False)]
    if along not in WORDS:
        curves_of = _once(curves_of, along, column)
    sorted_curves = sorted(curves_of, key=lambda pair: _rank(pair[1], column))
    names = [name for name, _ in curves_of]
    shown = sorted(sorted_curves[:MOST_CURVES], key=lambda pair: names.index(pair[0]))
    left_out = [name for name in varied_axes(table) if name not in (axis, by)]
    notes = [f"Each point is the best over {', '.join(left_out)}."] if left_out else []
    if len(sorted_curves) > MOST_CURVES:
        notes.append(
            f"{len(sorted_curves) - MOST_CURVES} curves that reach nothing better are left out; the table has every row."
        )
    series_list = [_curve(rows, along, column, (factor, along_factor), name, k) for k, (name, rows) in enumerate(shown)]
    if along in WORDS:
        labels = list(dict.fromkeys(points[along].astype(str)))
        series_list = [_on(labels, rows, along, curve) for (_, rows), curve in zip(shown, series_list, strict=True)]
        return bars(labels, measure, series_list), " ".join(notes)
    ticks = sorted({float(x) for curve in series_list for x in curve["x"]})
    marks: dict[str, Any] = {"ticks": ticks} if len(ticks) <= 12 else {}
    return curves(axis_title, measure, series_list, **marks), " ".join(notes)


def _scale_of(table: pandas.DataFrame, column: str) -> tuple[float, str]:
    """What values of a column are multiplied with, and their unit in brackets: the one that suits the largest."""
    units = {"makespan_us": UNITS, "peak_bytes": BYTES, "memory_bytes": BYTES}.get(column)
    if units is None:
        return 1.0, ""
    size, unit = scale(_largest(table[column]), units)
    return 1.0 / size, f" ({unit})"


def _once(curves: list[tuple[str, pandas.DataFrame]], along: str, column: str) -> list[tuple[str, pandas.DataFrame]]:
    """Curves that lie on each other as one, under the names of all of them."""
    same: dict[Any, list[tuple[str, pandas.DataFrame]]] = {}
    for name, rows in curves:
        ordered = rows.sort_values(along, kind="stable")
        key = ordered[[along, column, "feasible"]].to_csv(index=False)  # NaN is like NaN there
        same.setdefault(key, []).append((name, rows))
    names_of = {key: [name for name, _ in pairs] for key, pairs in same.items()}
    suffixes = {key: f" and {len(names) - 3} more" if len(names) > 3 else "" for key, names in names_of.items()}
    return [(", ".join(names_of[key][:3]) + suffixes[key], pairs[0][1]) for key, pairs in same.items()]


def _better(column: str) -> float:
    """The sign that makes the better value of a measure the smaller."""
    return -1.0 if column == "samples_per_second" else 1.0


def _rank(rows: pandas.DataFrame, column: str) -> float:
    """How good a curve is: its best point that fits."""
    fits = rows[rows["feasible"].astype(bool)]
    values = fits[column].astype(float) * _better(column)
    return float(values.min()) if len(values.dropna()) else float("inf")


def _best_points(table: pandas.DataFrame, along: str, by_column: str, column: str) -> pandas.DataFrame:
    """One row for each value of the axis and of what curves are for: of those that fit, the best."""
    rows = table.assign(
        _by=table[by_column].astype(object) if by_column else "",
        _broken=~table["feasible"].astype(bool),
        _cost=table[column].astype(float) * _better(column),
    )
    rows = rows.sort_values(["_broken", "_cost"], kind="stable", na_position="last")
    best = rows.drop_duplicates([along, "_by"]).sort_index()
    return best if along in WORDS else best[best[along].notna()]


def _curve(
    rows: pandas.DataFrame, along: str, column: str, factors: tuple[float, float], name: str, number: int
) -> Any:
    """A curve; `factors` are those of the values, and of where they stand."""
    factor, along_factor = factors
    shown = rows if along in WORDS else rows.sort_values(along, kind="stable")
    x = range(len(shown)) if along in WORDS else shown[along].astype(float) * along_factor
    tips = [_tip(row, column) for _, row in shown.iterrows()]
    hollow = [not ok for ok in shown["feasible"].astype(bool)]
    values = shown[column].astype(float) * factor
    return series(values, name, CURVES[number % len(CURVES)], x, hollow, tips)


def _on(labels: list[str], rows: pandas.DataFrame, along: str, curve: Any) -> Any:
    """The values of a curve at the labels that all curves share."""
    at = {label: k for k, label in enumerate(rows[along].astype(str))}
    empty: dict[str, Any] = {"y": None, "hollow": True, "tips": ""}
    columns = {key: [curve[key][at[x]] if x in at else none for x in labels] for key, none in empty.items()}
    return {**curve, **columns}


def _tip(row: Any, column: str) -> str:
    """A row of a sweep in words: its setting, its value, and why it does not fit."""
    setting = ", ".join(_word(c, row[c]) for c in AXES.values() if _is_known(row[c]))
    words: Any = {"makespan_us": format_us, "peak_bytes": format_bytes}.get(column, lambda v: f"{v:.4g}")
    value = f": {words(float(row[column]))}" if _is_known(row[column]) else ""
    why = "" if row["feasible"] else f" (does not fit{': ' + str(row['error']) if row['error'] else ''})"
    return setting + value + why


def _is_known(value: Any) -> bool:
    return value is not None and value == value and value != ""


def _word(column: str, value: Any) -> str:
    """A value of an axis in words; empty for the values that are not given."""
    if not column or not _is_known(value):
        return "" if not column else f"no {column.replace('_', ' ')}"
    plural = "" if value == 1 else "s"
    words: dict[str, Any] = {
        "devices": lambda v: f"{int(v)} device{plural}",
        "memory_bytes": format_limit,
        "batch_size": lambda v: f"batch {int(v)}",
        "micro_batches": lambda v: f"{int(v)} micro-batch{'es' if v > 1 else ''}",
        "replicas": lambda v: f"{int(v)} replica{plural}",
    }
    return str(words.get(column, str)(value))
