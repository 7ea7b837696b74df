"""Schedules of attacked placers side by side, for `08_attack.ipynb`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from baechi_lab.lessons.worst_cases import Instance
from baechi_lab.placers import place
from baechi_lab.simulator import simulate
from baechi_lab.viz.colors import device_colors, text_on
from baechi_lab.viz.layout import styled

Pair = tuple[str, str]


def add_schedule(figure: go.Figure, instance: Instance, placer: str, row: int, col: int) -> float:
    """Draw what `placer` makes of an instance; its step time in microseconds."""
    graph, cluster = instance.records()
    placement = place(graph, cluster, placer)
    timeline = simulate(graph, cluster, placement, "pct" if placer == "critical-path" else None)
    colors = device_colors(len(instance.speeds))
    labels = [f"{d} (x{s:g})" for d, s in enumerate(instance.speeds)]
    # A device without an op has its row too.
    figure.add_bar(
        x=[0.0] * len(labels), y=labels, orientation="h", showlegend=False, hoverinfo="skip", row=row, col=col
    )
    for op, device, start, end in zip(timeline.op, timeline.device, timeline.start_us, timeline.end_us, strict=True):
        figure.add_bar(
            x=[end - start],
            base=[start],
            y=[labels[device]],
            orientation="h",
            text=[str(op)],
            textangle=0,
            textposition="inside",
            insidetextanchor="middle",
            showlegend=False,
            row=row,
            col=col,
            textfont={"color": text_on(colors[device])},
            marker={"color": colors[device], "line": {"color": "white", "width": 1}},
            hovertemplate=f"op {op}: {start:g} to {end:g} us<extra>{placer}</extra>",
        )
    figure.update_yaxes(categoryorder="array", categoryarray=labels[::-1], row=row, col=col)
    return timeline.makespan_us


def side_by_side(
    pairs: Mapping[Pair, Instance], ratios: Mapping[Pair, float], chosen_pairs: Sequence[Pair]
) -> go.Figure:
    """A row per pair: left the attacked placer, right the other, on one instance and time axis."""
    titles = [f"{p} instead of {q}: {ratios[p, q]:.1f} times" if k == 0 else q for p, q in chosen_pairs for k in (0, 1)]
    space = {"vertical_spacing": 0.45 / len(chosen_pairs), "horizontal_spacing": 0.1}
    figure = make_subplots(rows=len(chosen_pairs), cols=2, subplot_titles=titles, **space)
    for row, pair in enumerate(chosen_pairs, 1):
        longest = max(add_schedule(figure, pairs[pair], placer, row, col) for col, placer in enumerate(pair, 1))
        for col in (1, 2):
            figure.update_xaxes(range=[0, longest * 1.02], row=row, col=col)
    figure.update_xaxes(title_text="time (us)", row=len(chosen_pairs))
    figure.update_yaxes(title_text="device (speed)", col=1)
    title = "The attacked placer (left) and another (right) on one instance"
    return styled(figure, title, 120 + 165 * len(chosen_pairs), barmode="overlay", margin={"t": 75})
