"""The plotly charts of the panels; drawn without a background, so that they fit a light and a dark page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ..viz.colors import LIMIT, OKABE_ITO, device_colors
from ..viz.layout import BYTES, UNITS, scale

if TYPE_CHECKING:
    import pandas

    from .running import LiveRun

INK = "#858585"
"""A grey that can be read on white and on black; a bar that belongs to no device has it."""
MEASURED = "#C2B280"
"""Measured bars beside simulated ones: a sand that is no device's colour."""


def plain(figure: go.Figure, height: int = 280, **layout: Any) -> go.Figure:
    """The panels' common look."""
    figure.update_layout(
        template="none", paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", font={"color": INK, "size": 11},
        height=height, margin={"l": 62, "r": 14, "t": 30, "b": 42}, title_font_size=12,
        **{"legend": {"orientation": "h", "y": 1.14, "x": 0}, **layout},
    )  # fmt: skip
    figure.update_xaxes(gridcolor="rgba(133,133,133,0.25)", zeroline=False, linecolor=INK)
    figure.update_yaxes(gridcolor="rgba(133,133,133,0.25)", zeroline=False, linecolor=INK, rangemode="tozero")
    return figure


def times_figure(table: pandas.DataFrame) -> go.Figure:
    """Step time by placer: simulated (hatched where it does not fit), measured beside it, lower bound as a line."""
    feasible = table["feasible"].astype(bool)
    factor, unit = scale(_largest(table["makespan_us"], table["measured_us"]), UNITS)
    figure = go.Figure(
        go.Bar(
            x=table["placer"], y=table["makespan_us"] / factor, name="simulated",
            marker={"color": INK, "pattern": {"shape": ["" if ok else "/" for ok in feasible]}},
        )
    )  # fmt: skip
    if table["measured_us"].notna().any():
        figure.add_bar(
            x=table["placer"], y=table["measured_us"].astype(float) / factor, name="measured", marker_color=MEASURED
        )
    bound = float(table["lower_bound_us"].max()) if len(table) else float("nan")
    if bound == bound:
        figure.add_hline(
            y=bound / factor,
            line={"color": LIMIT, "dash": "dash"},
            annotation_text="lower bound",
            annotation_position="top left",
        )
    figure.update_yaxes(title_text=f"step time ({unit})")
    return plain(figure, showlegend=True)


def _largest(*columns: pandas.Series) -> float:
    found = [float(x) for column in columns for x in column if x is not None and x == x]
    return max(found, default=0.0)


def peaks_figure(table: pandas.DataFrame, device_names: tuple[str, ...], limits: Any) -> go.Figure:
    """Peak memory by placer, one bar per device in the device's colour, limits as a line."""
    figure = go.Figure()
    known = table[table["device_peak_bytes"].notna()]
    largest = max((max(row) for row in known["device_peak_bytes"]), default=0)
    factor, unit = scale(float(largest), BYTES)
    for d, (name, color) in enumerate(zip(device_names, device_colors(device_names), strict=True)):
        figure.add_bar(
            x=known["placer"], y=[row[d] / factor for row in known["device_peak_bytes"]], name=name, marker_color=color
        )
    for limit in sorted({int(x) for x in limits}):
        if limit <= 3 * largest:
            figure.add_hline(y=limit / factor, line={"color": LIMIT, "dash": "dash"}, annotation_text="limit")
    figure.update_yaxes(title_text=f"peak memory ({unit})")
    return plain(figure, barmode="group", showlegend=True)


MEASURES = {
    "step time (ms)": ("makespan_us", 1e-3),
    "samples per second": ("samples_per_second", 1.0),
    "peak memory (GB)": ("peak_bytes", 1e-9),
}
AXES = {"batch size": "batch_size", "devices": "devices", "memory (GB)": "memory_bytes"}


def sweep_figure(table: pandas.DataFrame, axis: str = "batch size", measure: str = "samples per second") -> go.Figure:
    """A sweep's rows as curves over one axis, a curve per combination of the others; hollow marks do not fit."""
    column, factor = MEASURES[measure]
    along = AXES[axis]
    others = [c for c in (*AXES.values(), "placer") if c != along and table[c].nunique(dropna=False) > 1]
    figure = go.Figure()
    groups = table.groupby(others, dropna=False, sort=False) if others else [((), table)]
    for k, (values, rows) in enumerate(groups):
        shown = rows.sort_values(along, kind="stable")
        color = OKABE_ITO[k % len(OKABE_ITO)]
        marks = {"symbol": ["circle" if ok else "x-open" for ok in shown["feasible"].astype(bool)], "size": 8}
        figure.add_scatter(
            x=_scaled(shown[along], along), y=shown[column].astype(float) * factor, name=_name(others, values),
            mode="lines+markers", marker={"color": color, **marks}, line={"color": color},
        )  # fmt: skip
    figure.update_xaxes(title_text=axis)
    figure.update_yaxes(title_text=measure)
    return plain(figure, 320, showlegend=bool(others), legend={"orientation": "v", "x": 1.01, "y": 1.0})


def _scaled(values: pandas.Series, column: str) -> Any:
    return values / 1e9 if column == "memory_bytes" else values


def _name(columns: list[str], values: Any) -> str:
    each = values if isinstance(values, tuple) else (values,)
    words: dict[str, Any] = {
        "devices": lambda v: f"{v} device" + ("s" if v != 1 else ""), "memory_bytes": lambda v: f"{v / 1e9:g} GB",
        "batch_size": lambda v: f"batch {v}", "placer": str,
    }  # fmt: skip
    return ", ".join(words[c](v) for c, v in zip(columns, each, strict=True))


def run_figure(live: LiveRun) -> go.Figure:
    """Measured step times in the order in which they came, their median with its interval, and the simulated time."""
    times = np.array(live.seconds) * 1e6
    factor, unit = scale(max(float(times.max(initial=0.0)), live.simulated_seconds * 1e6), UNITS)
    times = times / factor
    figure = go.Figure(
        go.Scatter(
            x=np.arange(1, len(times) + 1), y=times, mode="lines+markers", name="measured", line_color=OKABE_ITO[0]
        )
    )
    if len(times):
        low, high = live.interval()
        figure.add_hline(y=live.median * 1e6 / factor, line_color=OKABE_ITO[0], annotation_text="median")
        figure.add_hrect(
            y0=low * 1e6 / factor, y1=high * 1e6 / factor, fillcolor=OKABE_ITO[0], opacity=0.15, line_width=0
        )
    figure.add_hline(
        y=live.simulated_seconds * 1e6 / factor,
        line={"color": OKABE_ITO[1], "dash": "dash"},
        annotation_text="simulated",
    )
    figure.update_xaxes(title_text="step")
    figure.update_yaxes(title_text=f"step time ({unit})")
    return plain(figure, 240, showlegend=False)
