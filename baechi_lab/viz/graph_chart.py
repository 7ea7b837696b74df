"""The graph as nested boxes, coloured by device: the workbench's picture as a figure."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..graph import OpGraph, Placement
from ..graph.arguments import check_records
from ..graph.units import format_bytes, format_us
from .colors import FONT, device_colors
from .layout import LEGEND, styled
from .nested.scene import Scene, build_scene, crossing_bytes, device_shares
from .nested.svg import BAR, draw_scene
from .nested.tree import build_tree

NO_DEVICE = "#9A9A9A"
EDGE = 2
"""Pixels around the picture, for the lines of the outermost boxes."""
WIDTH = 900
"""Usual width of the drawing in pixels, from which its height follows."""


def graph(
    opgraph: OpGraph,
    placement: Placement | None = None,
    *,
    device_names: tuple[str, ...] | None = None,
    max_nodes: int = 24,
    title: str | None = None,
) -> go.Figure:
    """Draws name scopes as nested boxes, with the share of each device in their time, and one arrow per pair of boxes.

    The backward pass (∇) is below the forward pass. The width of an arrow grows with its bytes; it is orange if some of them go
    to another device. Devices in `device_names` without ops are in the legend, too. At most `max_nodes` boxes are drawn; a
    graph with no more ops is drawn op by op. A graph without scopes is cut where its structure repeats, or else into
    intervals of time.

    Raises `InvalidInput` if the placement was made for another graph.

    >>> from baechi_lab import OpGraph, Placement
    >>> figure = graph(OpGraph.from_edges([5, 10], [(0, 1, 8)]), Placement(device=[0, 1]))
    >>> [trace.name for trace in figure.data]
    ['device 0', 'device 1']
    """
    if not isinstance(opgraph, OpGraph):
        raise InvalidInput(f"graph draws an OpGraph, not {type(opgraph).__name__}")
    if max_nodes < 1:
        raise InvalidInput(f"max_nodes is {max_nodes}; it must be at least 1")
    if placement is not None:
        check_records(placement=placement)
    device = None if placement is None else placement.on(opgraph).device
    scene = scene_of(opgraph, max_nodes)
    count = 0 if device is None else max(int(device.max(initial=-1)) + 1, len(device_names or ()))
    names = tuple(device_names[d] if device_names and d < len(device_names) else f"device {d}" for d in range(count))
    share = None if device is None else device_shares(opgraph.duration_us, scene, device, len(names))
    shown_note = f", {len(scene)} boxes drawn" if len(scene) < opgraph.n else ""
    heading = title or f"{opgraph.name}: {opgraph.n:,} ops{shown_note}"
    return boxes(opgraph, scene, share, names, device_colors(len(names)), device, heading)


def scene_of(opgraph: OpGraph, max_nodes: int) -> Scene:
    """Returns a scene of at most `max_nodes` boxes; a graph with no more ops is drawn op by op."""
    tree = build_tree(opgraph)
    return build_scene(opgraph, tree, range(len(tree)) if opgraph.n <= max_nodes else tree.open_until(max_nodes))


def boxes(
    opgraph: OpGraph,
    scene: Scene,
    share: NDArray[np.float64] | None,
    names: Sequence[str],
    colors: Sequence[str],
    device: NDArray[np.int32] | None,
    title: str,
) -> go.Figure:
    """Draws the scene, each box with its `share` float64[boxes, len(names)] of the classes with these names and colours."""
    figure = go.Figure(_hover(opgraph, scene, share, names, colors))
    scene_width, scene_height = max(scene.size[0], 1.0), max(scene.size[1], 1.0)
    if len(scene):
        crossing = None if device is None else crossing_bytes(opgraph, scene.arrows, device)
        body = draw_scene(scene, colors, share, crossing)
        width, height = scene_width + 2 * EDGE, scene_height + 2 * EDGE
        view_box = f"{-EDGE} {-EDGE} {width:.1f} {height:.1f}"
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view_box}" font-family="{FONT}">'
        encoded_svg = base64.b64encode(f"{head}{body}</svg>".encode()).decode()
        figure.add_layout_image(
            {
                "source": f"data:image/svg+xml;base64,{encoded_svg}",
                "xref": "x",
                "yref": "y",
                "x": -EDGE,
                "y": -EDGE,
                "sizex": width,
                "sizey": height,
                "sizing": "stretch",
                "layer": "below",
            }
        )
    figure.update_xaxes(visible=False, range=[-4, scene_width + 4], constrain="domain")
    figure.update_yaxes(visible=False, range=[scene_height + 4, -4], scaleanchor="x")
    height = int(np.clip(scene_height * min(WIDTH / scene_width, 1.3), 120, 760)) + 90
    figure = styled(
        figure, title, height, legend={**LEGEND, "itemsizing": "constant"}, hovermode="closest", hoverdistance=40
    )
    return figure.update_layout(margin={"l": 10, "r": 10, "b": 10})


def _hover(
    opgraph: OpGraph, scene: Scene, share: NDArray[np.float64] | None, names: Sequence[str], colors: Sequence[str]
) -> list[go.Scatter]:
    """Draws a mark in the bar of every box, in the colour of its largest share, with the tooltip of the box."""
    largest_class = np.full(len(scene), -1) if share is None else share.argmax(axis=1)
    traces = []
    for device in range(-1 if (largest_class < 0).any() else 0, len(names)):
        rows = np.flatnonzero(largest_class == device)
        if not len(rows):  # the legend names it, because it may have a part of a box
            marker = {"symbol": "square", "color": colors[device]}
            traces.append(go.Scatter(x=[None], y=[None], mode="markers", name=names[device], marker=marker))
            continue
        traces.append(
            go.Scatter(
                x=scene.x[rows],
                y=(scene.y + scene.height / 2 - BAR / 2)[rows],
                mode="markers",
                name=names[device] if device >= 0 else "not placed",
                opacity=float(device >= 0),
                marker={"size": 2, "symbol": "square", "color": colors[device] if device >= 0 else NO_DEVICE},
                hovertext=[
                    _hover_text(opgraph, scene, k, None if share is None else share[k], names) for k in rows.tolist()
                ],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    return traces


def _hover_text(
    opgraph: OpGraph, scene: Scene, node: int, share: NDArray[np.float64] | None, names: Sequence[str]
) -> str:
    """Returns the tooltip of a box: its name, ops, devices, time and persistent bytes."""
    ops = scene.tree.members(int(scene.nodes[node]))
    kind = opgraph.op_types[int(ops[0])] if len(ops) == 1 else f"{len(ops):,} ops"
    groups = [len(opgraph.members[i]) for i in ops] if opgraph.group_of is not None else []
    original = f" ({sum(groups)} original ops)" if groups else ""
    devices_text = (
        "not placed"
        if share is None
        else ", ".join(
            names[d] + (f" {share[d]:.0%}" if share[d] < 0.995 else "") for d in np.flatnonzero(share > 0.0005).tolist()
        )
    )
    time, persistent = format_us(float(scene.duration_us[node])), int(opgraph.persistent_bytes[ops].sum())
    name = scene.tree.names[int(scene.nodes[node])]
    return f"<b>{name}</b><br>{kind}{original} on {devices_text}<br>{time}, {format_bytes(persistent)} persistent"
