"""Chart of the memory of each device over time, by category, with the device's limit."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from ..checks import check_text, check_whole
from ..errors import InvalidInput
from ..graph import Timeline
from ..graph.units import format_bytes
from .colors import INK, LIMIT, device_colors
from .layout import BYTES, LEGEND, scale, styled
from .shades import CATEGORY_NAMES, shades
from .shades import LEGEND as GREYS

FAR = 1.6
"""A limit above this multiple of the largest peak is not drawn."""


def memory(timeline: Timeline, *, max_points: int = 1500, title: str | None = None) -> go.Figure:
    """Draws a panel per device: stacked areas of persistent, output, temporary and received bytes, and the limit.

    All panels have one time scale and one memory scale. The areas are shades of the device's colour, from dark
    (persistent) to light (received copies), as in the workbench.

    A device has at most `max_points` points. A point for several changes shows the largest of their levels, so that no peak is
    lost. A measured timeline without a log of changes shows its peaks.

    >>> from baechi_lab import Cluster, OpGraph, Placement, simulate
    >>> timeline = simulate(OpGraph.from_edges([5.0]), Cluster.uniform(1), Placement(device=[0]))
    >>> memory(timeline).layout.yaxis.title.text
    'peak memory (B)'
    """
    if not isinstance(timeline, Timeline):
        raise InvalidInput(f"memory draws a timeline, not {type(timeline).__name__}")
    check_whole("max_points", max_points)
    if title is not None:
        check_text("title", title)
    if not len(timeline.memory):
        return _peaks(timeline, title)
    devices = range(len(timeline.device_names))
    factor, unit = scale(float(timeline.peak_bytes.max(initial=0)), BYTES)
    time_factor, time_unit = scale(timeline.makespan_us)
    colors = device_colors(timeline.device_names)
    peak_bytes = max(int(timeline.peak_bytes.max(initial=0)), 1)
    near_limits = [b for b in timeline.memory_bytes if b <= FAR * peak_bytes]
    highest_bytes = 1.06 * max(peak_bytes, *near_limits, 1)
    figure = make_subplots(
        rows=len(devices),
        shared_xaxes=True,
        vertical_spacing=0.3 / max(4, 2 * len(devices)),
        subplot_titles=[_heading(timeline, d) for d in devices],
    )
    for row, device in enumerate(devices, 1):
        time, level = thin_levels(*timeline.memory.levels(device), max_points)
        time = np.append(time, timeline.makespan_us) / time_factor
        levels = np.vstack([level, level[-1:] if len(level) else np.zeros((1, 4), dtype=np.int64)]) / factor
        for column, category in enumerate(CATEGORY_NAMES):
            color = shades(colors[device])[column]
            figure.add_trace(
                go.Scatter(
                    x=time,
                    y=levels[:, column],
                    name=category,
                    legendgroup=category,
                    showlegend=False,
                    stackgroup=str(row),
                    mode="lines",
                    line={"shape": "hv", "width": 0.5, "color": color},
                    fillcolor=color,
                ),
                row=row,
                col=1,
            )
        limit = timeline.memory_bytes[device]
        if limit <= FAR * peak_bytes:  # a far larger limit would flatten the areas; the heading has it in any case
            figure.add_hline(y=limit / factor, line={"color": LIMIT, "dash": "dash", "width": 1.5}, row=row, col=1)
        figure.update_yaxes(title_text=f"memory ({unit})", range=[0, highest_bytes / factor], row=row, col=1)
    figure.add_traces([_legend_entry(*entry) for entry in zip(CATEGORY_NAMES, GREYS, strict=True)])
    figure.update_xaxes(range=[0, timeline.makespan_us / time_factor or 1.0])
    figure.update_xaxes(title_text=f"time ({time_unit})", row=len(devices), col=1)
    heading = title or f"Memory of one step, {timeline.origin}"
    return styled(figure, heading, 150 + 110 * len(devices), legend=LEGEND)


def _peaks(timeline: Timeline, title: str | None) -> go.Figure:
    """Draws the peaks of a timeline without a log of changes."""
    factor, unit = scale(float(timeline.peak_bytes.max(initial=0)), BYTES)
    names = list(timeline.device_names)
    figure = go.Figure(go.Bar(x=names, y=timeline.peak_bytes / factor, marker={"color": device_colors(names)}))
    figure.update_yaxes(title_text=f"peak memory ({unit})")
    figure.update_xaxes(title_text="device")
    return styled(figure, title or f"Peak memory of one step, {timeline.origin}", 300, showlegend=False)


def thin_levels(
    time: NDArray[np.float64], level: NDArray[np.int64], limit: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns at most `limit` of the rows: from each run of equally many changes, the row with the largest sum.

    >>> time, level = thin_levels(np.arange(4.0), np.array([[1], [9], [3], [4]]), 2)
    >>> time.tolist(), level[:, 0].tolist()
    ([1.0, 3.0], [9, 4])
    """
    if len(time) <= limit:
        return time, level
    total = level.sum(axis=1)
    edges = np.linspace(0, len(time), limit + 1).astype(np.int64)
    keep = np.array([a + int(total[a:b].argmax()) for a, b in pairwise(edges.tolist())])
    return time[keep], level[keep]


def _heading(timeline: Timeline, device: int) -> str:
    peak, limit = int(timeline.peak_bytes[device]), int(timeline.memory_bytes[device])
    warning = " — over its limit" if peak > limit else ""
    return f"{timeline.device_names[device]}: peak {format_bytes(peak)} of {format_bytes(limit)}{warning}"


def _legend_entry(category: str, color: str) -> go.Scatter:
    """Makes the entry of a category in the legend, in grey, because its shade depends on the device."""
    marker = {"symbol": "square", "size": 11, "color": color, "line": {"width": 1, "color": INK}}
    return go.Scatter(x=[None], y=[None], mode="markers", name=category, legendgroup=category, marker=marker)
