"""Chart of the groups that a planner learned, on the nested boxes of the graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..errors import InvalidInput
from ..graph import OpGraph, Placement
from ..graph.arguments import check_records
from ..graph.units import plural
from .colors import series_colors
from .graph_chart import NO_DEVICE, boxes, scene_of
from .nested.scene import device_shares

LINE = 22
"""Height in pixels of a line of the legend, which holds two groups."""


def groups(
    opgraph: OpGraph,
    placement: Placement,
    *,
    device_names: tuple[str, ...] | None = None,
    most: int = 8,
    max_nodes: int = 24,
    title: str | None = None,
) -> go.Figure:
    """Draws the boxes of `viz.graph`, each with the share of every learned group in its time; the legend has their devices.

    The `most` groups with most work have colours (none is a device's), the others are grey. Arrows are orange if some of their
    bytes go to another device. At most `max_nodes` boxes are drawn.

    Raises `InvalidInput` if the placement has no learned groups (`explain=True`), or belongs to another graph.

    >>> from baechi_lab.placers.planner.explain import learned_groups
    >>> graph = OpGraph.from_edges([5, 10], [(0, 1, 8)])
    >>> learned = learned_groups(graph, np.array([4, 4]), np.array([1, 1]))
    >>> figure = groups(graph, Placement(device=[1, 1], info={"explanation": learned}))
    >>> [trace.name for trace in figure.data]
    ['0 on device 1: 2 ops']
    """
    if not isinstance(opgraph, OpGraph):
        raise InvalidInput(f"groups draws an OpGraph, not {type(opgraph).__name__}")
    check_records(placement=placement)
    for name, value in (("most", most), ("max_nodes", max_nodes)):
        if value < 1:
            raise InvalidInput(f"{name} is {value}; it must be at least 1")
    explanations = placement.info.get("explanation")
    if explanations is None or not hasattr(explanations, "group"):
        raise InvalidInput(
            f"the placement by {placement.placer!r} tells no learned groups; place with 'hierarchical' and explain=True"
        )
    device = placement.on(opgraph).device
    is_spread = placement.group_of is not None and len(explanations.group) != opgraph.n
    group = np.minimum(explanations.group, most)[placement.group_of if is_spread else slice(None)]
    scene, row_count = scene_of(opgraph, max_nodes), min(most, len(explanations))
    is_truncated = len(explanations) > most
    names = [_label(explanations, k, most, device_names) for k in range(row_count + is_truncated)]
    share = device_shares(opgraph.duration_us, scene, group, len(names))
    heading = title or f"{opgraph.name}: {len(explanations)} learned groups of {len(explanations.group):,} ops"
    colors = [*series_colors(row_count), *([NO_DEVICE] if is_truncated else [])]
    figure = boxes(opgraph, scene, share, names, colors, device, heading)
    lines = -(-len(names) // 2) * LINE
    return figure.update_layout(margin_b=10 + lines, height=figure.layout.height + lines)


def _label(explanation: Any, group: int, largest: int, names: tuple[str, ...] | None) -> str:
    if group >= largest:
        return f"{len(explanation) - largest} more: {int(explanation.ops[largest:].sum())} ops"
    device = int(explanation.device[group])
    scope = f", {explanation.scope[group]}" if explanation.scope[group] else ""
    count = int(explanation.ops[group])
    device_name = names[device] if names else f"device {device}"
    return f"{group} on {device_name}: {count} {plural('op', count)}{scope}"
