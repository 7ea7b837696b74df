"""Common parts of all figures: the theme, units that suit the numbers, and labels at the ends of lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from .colors import CLEAR, FONT, GRID, INK, SERIES, series_colors, text_color

UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, "us"))
BYTES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
LEGEND = {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "xanchor": "left"}
"""Legend of figures whose marks have no names beside them: below the plot, since plotly's buttons are above it."""
TOP, BOTTOM, LINE = 50, 50, 15
"""Pixels above and below the plot, and from one label to the next."""

_AXIS = {
    "gridcolor": GRID,
    "zeroline": False,
    "automargin": True,
    "linecolor": GRID,
    "ticks": "",
    "title": {"standoff": 8},
}
THEME = go.layout.Template(
    layout={
        "font": {"family": FONT, "size": 12, "color": INK},
        "title": {"x": 0, "xref": "paper", "xanchor": "left", "font": {"size": 15}},
        "colorway": series_colors(18),
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "modebar": {"bgcolor": CLEAR, "color": INK, "activecolor": SERIES[0]},
        "margin": {"l": 70, "r": 20, "t": TOP, "b": BOTTOM},
        "hoverlabel": {"align": "left"},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "annotationdefaults": {"font": {"size": 12}},
    }
)
"""The plotly template of all figures: `plotly.express.line(..., template=viz.THEME)`. Its colours are no device's.

Figures have no background: they are shown on light and on dark pages."""


def scale(largest: float, units: tuple[tuple[float, str], ...] = UNITS) -> tuple[float, str]:
    """Returns the factor and unit in which `largest` has at least one digit before the point.

    >>> scale(2500.0)
    (1000.0, 'ms')
    """
    return next((unit for unit in units if largest >= unit[0]), units[-1])


def styled(figure: go.Figure, title: str, height: int = 380, **layout: object) -> go.Figure:
    """Applies the theme of all figures and a title to `figure`; `layout` is passed to plotly.

    >>> styled(go.Figure(), "Step time").layout.title.text
    'Step time'
    """
    figure.update_layout(template=THEME, title_text=title, height=height, **layout)
    figure.update_annotations(font_size=12)
    return figure


def labelled(figure: go.Figure) -> go.Figure:
    """Adds the names of lines at their ends, in their colours, in place of a legend; call it after `styled`.

    Labels that would overlap are moved apart. Lines without a name get no label.

    >>> figure = styled(go.Figure(go.Scatter(x=[1, 2], y=[3, 4], name="m-etf", mode="lines")), "Step time")
    >>> [label.text for label in labelled(figure).layout.annotations]
    ['m-etf']
    """
    lines = [t for t in figure.data if t.type == "scatter" and "lines" in (t.mode or "lines") and t.name]
    finite_points = [(t, np.flatnonzero(np.isfinite(np.asarray(t.y, dtype=np.float64)))) for t in lines]
    colors = [t.line.color or color for t, color in zip(figure.data, series_colors(len(figure.data)), strict=True)]
    last_points = [(t, finite[-1]) for t, finite in finite_points if len(finite)]
    if not last_points:
        return figure
    for t, _ in last_points:
        t.update(line_color=colors[figure.data.index(t)])
    leftward = [bool(k > 0 and t.x[k] < t.x[k - 1]) for t, k in last_points]
    return annotate(figure, [(t.x[k], t.y[k], t.name, t.line.color) for t, k in last_points], leftward)


def annotate(
    figure: go.Figure, points: Sequence[tuple[object, float, str, str]], leftward: Sequence[bool] = ()
) -> go.Figure:
    """Adds texts beside points `(x, y, text, colour)`, in place of a legend; texts that would overlap are moved apart.

    A text is to the right of its point, or to the left if the line comes from the right (`leftward`).
    """
    axis = figure.layout.yaxis
    if axis.range is None:
        values = np.concatenate([np.asarray(t.y, dtype=np.float64) for t in figure.data])
        values = values[np.isfinite(values)]
        values = np.log10(values) if axis.type == "log" else values
        least = min(float(values.min()), 0.0) if axis.rangemode == "tozero" else float(values.min())
        margin = 0.06 * (float(values.max()) - least or 1.0)
        low, high = (least if axis.rangemode == "tozero" else least - margin), float(values.max()) + margin
    else:
        low, high = float(axis.range[0]), float(axis.range[1])
    plot_height = (figure.layout.height or 380) - TOP - BOTTOM
    pixels = np.array([(_on_axis(figure.layout.yaxis, y) - low) / (high - low) * plot_height for _, y, _, _ in points])
    sides = leftward or [False] * len(points)
    for (x, y, text, color), shift, on_left in zip(points, spread_positions(pixels) - pixels, sides, strict=True):
        figure.add_annotation(
            x=_on_axis(figure.layout.xaxis, x),
            y=_on_axis(figure.layout.yaxis, y),
            text=text,
            showarrow=False,
            xanchor="right" if on_left else "left",
            xshift=-9 if on_left else 9,
            yshift=float(shift),
            font={"color": text_color(color), "size": 12},
        )
    figure.update_yaxes(range=[low, high])
    return figure.update_layout(showlegend=False, margin_r=24 + 7 * max(len(text) for _, _, text, _ in points))


def spread_positions(positions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns positions near the `positions` ones and in their order, with distances of at least `LINE`.

    >>> spread_positions(np.array([10.0, 10.0, 100.0])).tolist()
    [2.5, 17.5, 100.0]
    """
    order = np.argsort(positions, kind="stable")
    wished_in_order = positions[order].astype(np.float64)
    heaps: list[list[float]] = []  # middle and number of labels in one cluster
    for value in wished_in_order.tolist():
        heaps.append([value, 1])
        while len(heaps) > 1 and heaps[-1][0] - heaps[-2][0] < LINE * (heaps[-1][1] + heaps[-2][1]) / 2:
            middle, count = heaps.pop()
            total = count + heaps[-1][1]
            heaps[-1] = [(heaps[-1][0] * heaps[-1][1] + middle * count) / total, total]
    spread = np.concatenate([m + LINE * (np.arange(c) - (c - 1) / 2) for m, c in heaps] or [wished_in_order])
    result = np.empty(len(positions))
    result[order] = spread
    return result


def _on_axis(axis: Any, value: Any) -> Any:
    """Returns the position of an annotation: plotly expects the logarithm on logarithmic axes."""
    return float(np.log10(value)) if axis.type == "log" else value
