"""Chart of a table: one curve per column, with its name at the end; missing values are marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from ..errors import InvalidInput
from .colors import INK, LIMIT, series_colors, text_color
from .layout import LEGEND, labelled, styled

if TYPE_CHECKING:
    import pandas

MAX_DIRECT_LABELS = 8
"""Most curves with names at their ends; more curves have a legend."""
MAX_MARKED_POINTS = 30
"""Most points of a curve that are marked with dots; a longer curve is a plain line."""


def curves(
    table: pandas.DataFrame,
    *,
    title: str,
    y: str,
    x: str | None = None,
    missing: str = "does not fit",
    log: bool = False,
    zero: bool = True,
) -> go.Figure:
    """Draws one curve per column over the index, and a cross labelled `missing` below for every missing value.

    Args:
        table: numbers, with the index along the x axis.
        title: title of the figure.
        y: title of the y axis, with its unit.
        x: title of the x axis; by default the name of the index.
        missing: the meaning of a missing value.
        log: whether both axes are logarithmic, without crosses.
        zero: whether the y axis starts at zero.

    >>> import pandas as pd
    >>> batch = pd.Index([64, 128], name="batch size")
    >>> table = pd.DataFrame({"1 device": [10.0, np.nan], "2 devices": [12.0, 20.0]}, index=batch)
    >>> [trace.name for trace in curves(table, title="Throughput", y="samples per second").data]
    ['1 device', '2 devices', 'does not fit']
    """
    if not hasattr(table, "columns") or not len(table.columns):
        raise InvalidInput(f"curves draws a table with a column per curve, not {type(table).__name__}")
    colors, figure = series_colors(len(table.columns)), go.Figure()
    names = [str(c) if not isinstance(c, tuple) else ", ".join(map(str, c)) for c in table.columns]
    values = table.to_numpy(dtype=np.float64)
    mode = "lines+markers" if len(table) <= MAX_MARKED_POINTS else "lines"
    for k, (name, color) in enumerate(zip(names, colors, strict=True)):
        figure.add_scatter(
            x=table.index,
            y=values[:, k],
            name=name,
            mode=mode,
            line={"color": color},
            marker={"size": 7},
            hovertemplate=f"{name}<br>%{{x}}: %{{y:.4g}}<extra></extra>",
        )
    kind = "log" if log else "linear"
    figure.update_xaxes(title_text=x or table.index.name, type=kind)
    figure.update_yaxes(title_text=y, type=kind, rangemode="tozero" if zero and not log else "normal")
    if log:
        figure.update_xaxes(dtick=1)
        figure.update_yaxes(dtick=1)
    styled(figure, title, 380, legend=LEGEND)
    if len(names) <= MAX_DIRECT_LABELS:
        labelled(figure)
    return figure if log else _missing(figure, table, values, names, colors, missing)


def _missing(
    figure: go.Figure, table: pandas.DataFrame, values: np.ndarray, names: list[str], colors: list[str], text: str
) -> go.Figure:
    """Draws the crosses in a band below the start of the axis, one row per curve."""
    absent = np.argwhere(~np.isfinite(values))
    if not len(absent):
        return figure
    low, high = figure.layout.yaxis.range or (0.0, float(np.nanmax(values)) * 1.06)
    row = 0.06 * (high - low)
    figure.add_scatter(
        x=[table.index[i] for i, _ in absent],
        y=[low - row * (k + 1) for _, k in absent],
        mode="markers",
        name=text,
        marker={"symbol": "x-thin", "size": 9, "line": {"width": 2, "color": [colors[k] for _, k in absent]}},
        hovertext=[f"{names[k]}, {table.index[i]}: {text}" for i, k in absent],
        showlegend=False,
        hovertemplate="%{hovertext}<extra></extra>",
    )
    rows = 1 + int(absent[:, 1].max())
    figure.add_hline(y=low, line={"color": INK, "width": 1})
    last = max(absent.tolist())
    figure.add_annotation(
        x=table.index[last[0]],
        y=low - row * (1 + absent[absent[:, 0] == last[0], 1].mean()),
        text=text,
        showarrow=False,
        xanchor="left",
        xshift=9,
        font={"size": 12, "color": text_color(LIMIT)},
    )
    step = 10 ** np.floor(np.log10((high - low) / 4))
    step *= next(k for k in (1, 2, 5, 10) if (high - low) / (step * k) <= 6)
    return figure.update_yaxes(
        range=[low - row * (rows + 1), high], tickvals=np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step
    )
