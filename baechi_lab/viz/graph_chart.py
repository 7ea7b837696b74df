"""The graph in layers, coloured by device."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..graph import OpGraph, Placement
from ..graph.units import format_bytes, format_us
from .colors import device_colors
from .layers import Drawing, drawing
from .layout import styled

NO_DEVICE = "#9A9A9A"
LEGEND = {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 1, "xanchor": "right"}


def graph(
    opgraph: OpGraph,
    placement: Placement | None = None,
    *,
    device_names: tuple[str, ...] | None = None,
    max_nodes: int = 1500,
    title: str | None = None,
) -> go.Figure:
    """Ops from left to right by depth, area by duration, colour by device; edges that cross devices are drawn dark.

    Draw the coarse graph where there is one. A graph above `max_nodes` is drawn in bands: ops of neighbouring depths
    on one device become one node, which says how many it holds.

    Raises `InvalidInput` when the placement was made for another graph.

    >>> from baechi_lab import OpGraph, Placement
    >>> figure = graph(OpGraph.from_edges([5, 10], [(0, 1, 8)]), Placement(device=[0, 1]))
    >>> [trace.name for trace in figure.data]
    ['same device', 'between devices', 'device 0', 'device 1']
    """
    if not isinstance(opgraph, OpGraph):
        raise InvalidInput(f"graph draws an OpGraph, not {type(opgraph).__name__}")
    if max_nodes < 1:
        raise InvalidInput(f"max_nodes is {max_nodes}; it must be at least 1")
    device = None if placement is None else placement.on(opgraph).device
    drawn = drawing(opgraph, device, max_nodes)
    figure = go.Figure([*_edges(drawn), *_nodes(opgraph, drawn, device_names)])
    figure.update_xaxes(title_text="depth", showgrid=False)
    figure.update_yaxes(visible=False)
    held = f", {len(drawn.device)} drawn" if len(drawn.device) < opgraph.n else ""
    heading = title or f"{opgraph.name}: {opgraph.n} ops{held}"
    tall = int(np.clip(16 * drawn.widest, 340, 760))
    return styled(figure, heading, tall, legend=LEGEND, hovermode="closest")


def _edges(drawn: Drawing) -> list[go.Scatter]:
    crossing = drawn.device[drawn.source] != drawn.device[drawn.target]
    dark = float(np.clip(6.0 / np.sqrt(max(1, len(crossing))), 0.08, 0.5))  # many edges must not hide the nodes
    looks = (
        ("same device", ~crossing, f"rgba(0,0,0,{dark / 4:.2f})"),
        ("between devices", crossing, f"rgba(0,0,0,{dark:.2f})"),
    )
    return [
        go.Scatter(
            x=_path(drawn.x, drawn, mask), y=_path(drawn.y, drawn, mask), mode="lines", name=name, hoverinfo="skip",
            line={"width": 1, "color": color}, showlegend=bool(mask.any()),
        )
        for name, mask, color in looks
    ]  # fmt: skip


def _path(coordinate: NDArray[np.float64], drawn: Drawing, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """All chosen edges as one line, broken by NaN between edges."""
    source, target = coordinate[drawn.source[mask]], coordinate[drawn.target[mask]]
    return np.stack([source, target, np.full(len(source), np.nan)], axis=1).reshape(-1)


def _nodes(opgraph: OpGraph, drawn: Drawing, names: tuple[str, ...] | None) -> list[go.Scatter]:
    largest = float(drawn.duration_us.max(initial=0.0)) or 1.0
    size = 6 + 26 * np.sqrt(drawn.duration_us / largest)
    colors = device_colors(int(drawn.device.max(initial=0)) + 1)
    traces = []
    for device in np.unique(drawn.device).tolist():
        mine = np.flatnonzero(drawn.device == device)
        color = colors[device] if device >= 0 else NO_DEVICE
        label = "not placed" if device < 0 else names[device] if names else f"device {device}"
        texts = [_text(opgraph, drawn, k, label) for k in mine.tolist()]
        traces.append(
            go.Scatter(
                x=drawn.x[mine], y=drawn.y[mine], mode="markers", name=label,
                marker={"size": size[mine], "color": color, "opacity": 0.9, "line": {"width": 0.5, "color": "white"}},
                hovertext=texts, hovertemplate="%{hovertext}<extra></extra>",
            )
        )  # fmt: skip
    return traces


def _text(opgraph: OpGraph, drawn: Drawing, node: int, device: str) -> str:
    ops = drawn.members[node]
    longest = int(ops[opgraph.duration_us[ops].argmax()])
    more = f" and {len(ops) - 1} more" if len(ops) > 1 else ""
    groups = [len(opgraph.members[i]) for i in ops] if opgraph.group_of is not None else []
    original = f" ({sum(groups)} original ops)" if groups else ""
    persistent = format_bytes(int(opgraph.persistent_bytes[ops].sum()))
    return (
        f"<b>{opgraph.names[longest]}</b>{more}{original}<br>{opgraph.op_types[longest]} on {device}<br>"
        f"{format_us(float(opgraph.duration_us[ops].sum()))}, {persistent} persistent".replace(" us", " µs")
    )
