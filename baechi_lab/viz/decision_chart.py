"""Chart of a decision log: a slider position per step, with the candidates, the chosen one and the reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..errors import InvalidInput
from ..graph import Cluster, OpGraph, Placement, durations
from ..graph.arguments import check_records
from ..graph.units import format_us
from .colors import INK, LIMIT, device_colors, text_color, text_on
from .layout import scale, styled

MOST_STEPS = 200
"""Most steps of a log, because the figure has the bars of all earlier steps for every step."""


def decisions(graph: OpGraph, cluster: Cluster, placement: Placement, title: str | None = None) -> go.Figure:
    """Draws the steps of a placement of `graph` made with `explain=True`; the slider also works in a saved notebook.

    Bars are placed ops on their devices; the op of this step has a dark border. Circles above them are other candidate pairs,
    at their earliest start. Crosses below are pairs that were ruled out; their tooltips say why.

    Raises `InvalidInput` if the placement has no log, or one of more than 200 steps.

    >>> from baechi_lab import Cluster, OpGraph, place
    >>> graph, cluster = OpGraph.from_edges([5, 10], [(0, 1, 8)]), Cluster.uniform(2)
    >>> len(decisions(graph, cluster, place(graph, cluster, "m-etf", explain=True)).layout.sliders[0].steps)
    2
    """
    check_records(graph=graph, cluster=cluster, placement=placement)
    log = placement.info.get("decisions")
    if not log:
        raise InvalidInput("the placement has no decision log; place with explain=True (m-etf, m-sct, etf, sct)")
    if len(log) > MOST_STEPS:
        raise InvalidInput(
            f"the decision log has {len(log)} steps, the chart takes {MOST_STEPS}; bl.Workbench steps through longer ones"
        )
    end = max(d.chosen.start_us + float(durations(graph, cluster)[d.chosen.op, d.chosen.device]) for d in log)
    factor, unit = scale(max(end, max(c.start_us for d in log for c in (d.chosen, *d.candidates))))
    figure, heading = go.Figure(), title or f"Decisions of {placement.placer}"
    for k in range(len(log)):
        figure.add_traces(_traces(graph, cluster, log, k, factor))
    figure.update_xaxes(title_text=f"time ({unit})", range=[0, 1.05 * end / factor])
    lanes = [-d for d in range(cluster.n)]
    figure.update_yaxes(title_text="device", tickvals=lanes, ticktext=list(cluster.names), range=[lanes[-1] - 0.7, 0.7])
    sentences = [_decision_text(graph, cluster, d) for d in log]
    count = len(sentences)
    steps = [
        {
            "method": "update",
            "label": str(k + 1),
            "args": [
                {"visible": [i == k for i in range(count) for _ in range(3)]},
                {"title.text": _title(heading, text)},
            ],
        }
        for k, text in enumerate(sentences)
    ]
    styled(
        figure,
        heading,
        220 + 60 * cluster.n,
        barmode="overlay",
        showlegend=False,
        sliders=[{"active": count - 1, "currentvalue": {"prefix": "step "}, "pad": {"t": 45}, "steps": steps}],
    )
    return figure.update_layout(margin={"t": 75}, title_text=_title(heading, sentences[-1]))


def _decision_text(graph: OpGraph, cluster: Cluster, decision: Any) -> str:
    """Returns the chosen pair and the reason as a sentence."""
    pair = decision.chosen
    place_and_time = f"{graph.names[pair.op]} on {cluster.names[pair.device]} at {format_us(pair.start_us)}"
    return f"{place_and_time}: {decision.reason}"


def _title(heading: str, sentence: str) -> str:
    return f"{heading}<br><sup>{sentence}</sup>"


def _traces(
    graph: OpGraph, cluster: Cluster, log: Sequence[Any], step: int, factor: float
) -> list[go.Bar | go.Scatter]:
    """Returns the three traces of a slider position; those of the last position are shown at first."""
    marks = (_marks(graph, log[step], factor, of_excluded) for of_excluded in (False, True))
    shown_decisions = log[: step + 1]
    colors = device_colors(cluster.names)
    table, chosen_pairs = durations(graph, cluster), [d.chosen for d in shown_decisions]
    pair_colors = [colors[c.device] for c in chosen_pairs]
    traces = [
        go.Bar(
            orientation="h",
            y=[-c.device for c in chosen_pairs],
            base=[c.start_us / factor for c in chosen_pairs],
            x=[float(table[c.op, c.device]) / factor for c in chosen_pairs],
            width=0.5,
            text=[graph.names[c.op] for c in chosen_pairs],
            textposition="inside",
            insidetextanchor="middle",
            textfont={"color": [text_on(color) for color in pair_colors]},
            marker={
                "color": pair_colors,
                "line": {
                    "color": INK,
                    "width": np.where(np.arange(len(shown_decisions)) < len(shown_decisions) - 1, 0.3, 2.5),
                },
            },
            hovertext=[f"step {k + 1}: {d.reason}" for k, d in enumerate(shown_decisions)],
            hovertemplate="%{hovertext}<extra></extra>",
        ),
        *marks,
    ]
    for trace in traces:
        trace.visible = step == len(log) - 1
    return traces


def _marks(graph: OpGraph, decision: Any, factor: float, of_excluded: bool) -> go.Scatter:
    """Draws the excluded or the other pairs that were not chosen; pairs of one device and start share a mark."""
    pairs_by_position: dict[tuple[int, float], list[Any]] = defaultdict(list)
    for c in decision.candidates:
        if bool(c.excluded) == of_excluded and (c.op, c.device) != (decision.chosen.op, decision.chosen.device):
            pairs_by_position[c.device, c.start_us].append(c)
    texts = [", ".join(graph.names[c.op] for c in pairs) for pairs in pairs_by_position.values()]
    reasons = ["<br>".join(f"{graph.names[c.op]}: {c.excluded}" for c in pairs) for pairs in pairs_by_position.values()]
    color = LIMIT if of_excluded else INK
    return go.Scatter(
        x=[start / factor for _, start in pairs_by_position],
        y=[-d + (-0.42 if of_excluded else 0.42) for d, _ in pairs_by_position],
        mode="markers+text",
        text=texts,
        textposition="middle right",
        textfont={"color": text_color(color)},
        marker={"symbol": "x" if of_excluded else "circle-open", "size": 9, "color": color},
        hovertext=reasons if of_excluded else texts,
        hovertemplate="%{hovertext}<extra></extra>",
    )
