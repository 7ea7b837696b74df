"""Groups that a planner learned, on the graph: do they follow the layers, the time steps, or nothing that has a name?"""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..errors import InvalidInput
from ..graph import OpGraph, Placement
from ..graph.units import format_us
from .colors import device_colors
from .graph_chart import NO_DEVICE
from .layers import Drawing, drawing
from .layout import styled

LEGEND = {"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0}
"""Below the drawing: groups have long names."""


def groups(
    opgraph: OpGraph,
    placement: Placement,
    *,
    device_names: tuple[str, ...] | None = None,
    most: int = 8,
    max_nodes: int = 1500,
    title: str | None = None,
) -> go.Figure:
    """Ops from left to right by depth, area by duration, coloured by learned group; the legend tells each group's device.

    The `most` groups with most work have colours, the rest is grey. Ops of neighbouring depths and one group become one
    node where there are more than `max_nodes`.

    Raises `InvalidInput` for a placement without learned groups (`explain=True`), or of another graph.

    >>> from baechi_lab.placers.planner.explain import learned_groups
    >>> graph = OpGraph.from_edges([5, 10], [(0, 1, 8)])
    >>> told = learned_groups(graph, np.array([4, 4]), np.array([1, 1]))
    >>> figure = groups(graph, Placement(device=[1, 1], info={"explanation": told}))
    >>> [trace.name for trace in figure.data]
    ['edges', '0 on device 1: 2 ops']
    """
    if not isinstance(opgraph, OpGraph):
        raise InvalidInput(f"groups draws an OpGraph, not {type(opgraph).__name__}")
    for name, value in (("most", most), ("max_nodes", max_nodes)):
        if value < 1:
            raise InvalidInput(f"{name} is {value}; it must be at least 1")
    told = placement.info.get("explanation")
    if told is None or not hasattr(told, "group"):
        raise InvalidInput(
            f"the placement by {placement.placer!r} tells no learned groups; place with 'hierarchical' and explain=True"
        )
    placement.on(opgraph)
    spread = placement.group_of is not None and len(told.group) != opgraph.n
    group = np.minimum(told.group, most)[placement.group_of if spread else slice(None)]
    drawn = drawing(opgraph, group.astype(np.int32), max_nodes)
    figure = go.Figure([_edges(drawn), *_nodes(opgraph, drawn, told, most, device_names)])
    figure.update_xaxes(title_text="depth", showgrid=False)
    figure.update_yaxes(visible=False)
    heading = title or f"{opgraph.name}: {len(told)} learned groups of {len(told.group)} ops"
    tall = int(np.clip(16 * drawn.widest, 420, 760))
    return styled(figure, heading, tall, legend=LEGEND, hovermode="closest")


def _edges(drawn: Drawing) -> go.Scatter:
    ends = np.stack([drawn.source, drawn.target], axis=1)
    gap = np.full((len(ends), 1), np.nan)
    x, y = (np.concatenate([c[ends], gap], axis=1).reshape(-1) for c in (drawn.x, drawn.y))
    dark = float(np.clip(6.0 / np.sqrt(max(1, len(ends))), 0.05, 0.3))
    line = {"width": 1, "color": f"rgba(0,0,0,{dark:.2f})"}
    return go.Scatter(x=x, y=y, mode="lines", name="edges", hoverinfo="skip", line=line, showlegend=False)


def _nodes(
    opgraph: OpGraph, drawn: Drawing, told: Any, most: int, names: tuple[str, ...] | None
) -> list[go.Scatter]:  # fmt: skip
    largest = float(drawn.duration_us.max(initial=0.0)) or 1.0
    size = 6 + 26 * np.sqrt(drawn.duration_us / largest)
    colors = device_colors(min(most, len(told)))
    traces = []
    for group in np.unique(drawn.device).tolist():
        mine = np.flatnonzero(drawn.device == group)
        texts = [_text(opgraph, drawn, k) for k in mine.tolist()]
        traces.append(
            go.Scatter(
                x=drawn.x[mine], y=drawn.y[mine], mode="markers", name=_label(told, group, most, names),
                marker={
                    "size": size[mine], "color": colors[group] if group < len(colors) else NO_DEVICE, "opacity": 0.9,
                    "line": {"width": 0.5, "color": "white"},
                },
                hovertext=texts, hovertemplate="%{hovertext}<extra></extra>",
            )
        )  # fmt: skip
    return traces


def _label(told: Any, group: int, most: int, names: tuple[str, ...] | None) -> str:
    if group >= most:
        return f"{len(told) - most} more: {int(told.ops[most:].sum())} ops"
    device = int(told.device[group])
    scope = f", {told.scope[group]}" if told.scope[group] else ""
    count = int(told.ops[group])
    where = names[device] if names else f"device {device}"
    return f"{group} on {where}: {count} op{'s' if count != 1 else ''}{scope}"


def _text(opgraph: OpGraph, drawn: Drawing, node: int) -> str:
    ops = drawn.members[node]
    longest = int(ops[opgraph.duration_us[ops].argmax()])
    more = f" and {len(ops) - 1} more" if len(ops) > 1 else ""
    took = format_us(float(opgraph.duration_us[ops].sum())).replace(" us", " µs")
    return f"<b>{opgraph.names[longest]}</b>{more}<br>{opgraph.op_types[longest]}, {took}"
