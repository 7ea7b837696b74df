"""Schedules of attacked placers side by side, for `08_attack.ipynb`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..placers import place
from ..simulator import simulate
from .attack import Instance

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#882255", "#999999")
Pair = tuple[str, str]


def add_schedule(figure: go.Figure, instance: Instance, placer: str, row: int, col: int) -> float:
    """Draw what `placer` makes of an instance; its step time in microseconds."""
    graph, cluster = instance.records()
    placed = place(graph, cluster, placer)
    timeline = simulate(graph, cluster, placed, "pct" if placer == "critical-path" else None)
    labels = [f"{d} (x{s:g})" for d, s in enumerate(instance.speeds)]
    for op, device, start, end in zip(
        timeline.op, timeline.device, timeline.start_us, timeline.end_us, strict=True
    ):  # fmt: skip
        figure.add_bar(
            x=[end - start], base=[start], y=[labels[device]], orientation="h", text=[str(op)], textangle=0,
            textposition="inside", insidetextanchor="middle", showlegend=False, row=row, col=col,
            marker={"color": COLORS[op % len(COLORS)], "line": {"color": "white", "width": 1}},
            hovertemplate=f"op {op}: {start:g} to {end:g} us<extra>{placer}</extra>",
        )  # fmt: skip
    figure.update_yaxes(categoryorder="array", categoryarray=labels[::-1], row=row, col=col)
    return timeline.makespan_us


def side_by_side(
    pairs: Mapping[Pair, Instance], ratios: Mapping[Pair, float], chosen: Sequence[Pair]
) -> go.Figure:  # fmt: skip
    """A row per pair: left the attacked placer, right the other, on one instance and time axis."""
    titles = [f"{p} instead of {q}: {ratios[p, q]:.1f} times" if k == 0 else q for p, q in chosen for k in (0, 1)]
    space = {"vertical_spacing": 0.45 / len(chosen), "horizontal_spacing": 0.1}
    figure = make_subplots(rows=len(chosen), cols=2, subplot_titles=titles, **space)
    for row, pair in enumerate(chosen, 1):
        longest = max(add_schedule(figure, pairs[pair], placer, row, col) for col, placer in enumerate(pair, 1))
        for col in (1, 2):
            figure.update_xaxes(range=[0, longest * 1.02], row=row, col=col)
    figure.update_annotations(font_size=12)
    look = {"template": "plotly_white", "margin": {"t": 30, "b": 20, "l": 60, "r": 10}}
    return figure.update_layout(barmode="overlay", height=170 * len(chosen), **look)
