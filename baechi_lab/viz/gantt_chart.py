"""The Gantt chart: the ops and the sends of every device over time."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from ..checks import check_flag, check_text, check_whole
from ..errors import InvalidInput
from ..graph import Timeline
from ..graph.units import format_bytes, format_us
from .bars import Bars, covered_us, merge_bars
from .colors import INK, LIMIT, OTHER_COLOR, class_colors, device_colors, text_on, with_opacity
from .layout import scale, styled
from .shades import HATCHED, mix_colors, phase_shades, pipeline_phases

COLOR_BY = ("device", "micro-batch")
NAMED = 60
"""Most ops of a timeline whose bars have names."""


def gantt(
    *timelines: Timeline,
    transfers: bool = True,
    max_bars: int = 2000,
    title: str | None = None,
    color_by: str = "device",
    moved: bool = False,
) -> go.Figure:
    """Draws a row per device, also idle ones, and below it a thinner row for its sends, coloured by the receiver.

    If a simulated graph has collectives, each device has a row for them, too, since they run beside its ops. A device of a
    pipeline shows its bubble: the share of the step in which it computes nothing.

    Several timelines, for example simulated and measured, are drawn one below the other with one time axis. A timeline has at
    most about `2 * max_bars` bars: rows that are too short are merged, and the bar says how many they are. If there are few
    ops, long enough bars have their names. `color_by` "micro-batch" colours ops by micro-batch, if the timeline has some.
    Otherwise the forward pass of a pipeline is light, its backward pass dark, and gradients of weights are hatched. With
    `moved`, ops of a further timeline on another device than in the first are outlined and counted.

    >>> from baechi_lab import Cluster, OpGraph, Placement, simulate
    >>> graph = OpGraph.from_edges([5, 10], [(0, 1, 8)])
    >>> len(gantt(simulate(graph, Cluster.uniform(2), Placement(device=[0, 1]))).data)
    3
    """
    if not timelines or not all(isinstance(t, Timeline) for t in timelines):
        raise InvalidInput("gantt draws one or more timelines; give what bl.simulate or bl.execute returned")
    check_text("color_by", color_by, COLOR_BY)
    check_whole("max_bars", max_bars)
    check_flag("transfers", transfers)
    check_flag("moved", moved)
    if title is not None:
        check_text("title", title)
    if color_by == "micro-batch" and any(t.micro_batch is None for t in timelines):
        raise InvalidInput('color_by is "micro-batch", but a timeline has none; simulate it with micro_batches=')
    differs = [_placed_differently(timelines[0], t) if moved else np.zeros(len(t.op), dtype=bool) for t in timelines]
    longest_us = max(t.makespan_us for t in timelines)
    factor, unit = scale(longest_us)
    figure = make_subplots(
        rows=len(timelines),
        shared_xaxes=True,
        vertical_spacing=0.12 / len(timelines),
        subplot_titles=[
            _heading(t) + (f", ops elsewhere: {int(a.sum()):,}" if moved and k else "")
            for k, (t, a) in enumerate(zip(timelines, differs, strict=True))
        ]
        if len(timelines) > 1
        else None,
    )
    for row, timeline in enumerate(timelines, 1):
        for trace in _traces(timeline, factor, differs[row - 1], max_bars, transfers, color_by):
            figure.add_trace(trace, row=row, col=1)
        kinds = [lambda d: d, *([_collectives] if timeline.on_communication_lane[timeline.op].any() else [])]
        kinds += [_sends] if transfers else []
        lanes = [kind(d) for d in timeline.device_names for kind in kinds]
        # The range is explicit: plotly leaves out categories at the ends that have no bar, which are idle devices.
        lane_range = [-0.6, len(lanes) - 0.4]
        figure.update_yaxes(
            type="category", categoryorder="array", categoryarray=lanes[::-1], range=lane_range, row=row, col=1
        )
        if pipeline_phases(timeline) is not None:
            names = [f"{lane}{_bubble(timeline, lane)}" for lane in lanes]
            figure.update_yaxes(tickmode="array", tickvals=lanes, ticktext=names, row=row, col=1)
    figure.update_xaxes(range=[0, longest_us / factor or 1.0])
    figure.update_xaxes(title_text=f"time ({unit})", row=len(timelines), col=1)
    figure.update_yaxes(title_text="device")
    rows = sum(len(t.device_names) * (1.5 if t.on_communication_lane[t.op].any() else 1.0) for t in timelines)
    heading = title or (_heading(timelines[0]) if len(timelines) == 1 else "Schedules of one step")
    return styled(
        figure,
        heading,
        round(130 + (52 if transfers else 34) * rows),
        barmode="overlay",
        showlegend=False,
        bargap=0.15,
        uniformtext={"minsize": 8, "mode": "hide"},
    )


def _heading(timeline: Timeline) -> str:
    return f"One step, {timeline.origin}: {format_us(timeline.makespan_us)}"


def _bubble(timeline: Timeline, lane: str) -> str:
    """Returns the text behind a device of a pipeline: the share of the step in which it computes nothing."""
    if lane not in timeline.device_names or timeline.makespan_us <= 0:
        return ""
    rows = (timeline.device == timeline.device_names.index(lane)) & ~timeline.on_communication_lane[timeline.op]
    share = 1.0 - covered_us(timeline.start_us[rows], timeline.end_us[rows]) / timeline.makespan_us
    return f", {max(share, 0.0):.0%} bubble"


def _sends(device: str) -> str:
    return f"{device} sends"


def _collectives(device: str) -> str:
    return f"{device} collectives"


def _placed_differently(first: Timeline, timeline: Timeline) -> NDArray[np.bool_]:
    """Returns bool[rows of `timeline`]: the ops on another device than in the first timeline, if that has them."""
    first_device = {first.op_names[k]: first.device_names[d] for k, d in zip(first.op, first.device, strict=True)}
    rows = zip(timeline.op.tolist(), timeline.device.tolist(), strict=True)
    pairs = [(first_device.get(timeline.op_names[k]), timeline.device_names[d]) for k, d in rows]
    return np.array([a is not None and a != b for a, b in pairs], dtype=np.bool_)


def _traces(
    timeline: Timeline, factor: float, differs: NDArray[np.bool_], max_bars: int, transfers: bool, color_by: str
) -> list[go.Bar]:
    """Returns the bars of all devices: ops, collectives and sends, a lane each."""
    colors = device_colors(timeline.device_names)
    limit = max(1, max_bars // max(1, len(timeline.device_names)))
    traces = []
    is_collective = timeline.on_communication_lane[timeline.op]
    for d, device in enumerate(timeline.device_names):
        for lane, in_lane in ((device, ~is_collective), (_collectives(device), is_collective)):
            rows = np.flatnonzero((timeline.device == d) & in_lane)
            if not len(rows):
                continue
            bars = merge_bars(timeline.start_us[rows], timeline.end_us[rows], limit)
            names = [timeline.op_names[timeline.op[rows[r]]] for r in bars.row]
            texts = [
                f"<b>{name}</b>{f' and {count - 1} more' if count > 1 else ''}<br>{_span(start, end)}"
                for name, count, start, end in zip(names, bars.row_count, bars.start, bars.end, strict=True)
            ]
            phases = pipeline_phases(timeline) if color_by == "device" else None
            phase = np.zeros(len(bars.row), np.uint8) if phases is None else phases[timeline.op[rows[bars.row]]]
            shades = [phase_shades(colors[d])[k] for k in phase.tolist()]
            if color_by == "micro-batch" and timeline.micro_batch is not None:
                # One colour per micro-batch, grey for ops that run once.
                batch = timeline.micro_batch[timeline.op[rows[bars.row]]]
                batch_colors = class_colors(int(batch.max(initial=0)) + 1)
                shades = [OTHER_COLOR if b < 0 else batch_colors[b] for b in batch.tolist()]
            bar = _bar(bars, lane, texts, shades, factor, 0.8 if lane == device else 0.4, differs[rows[bars.row]])
            if (phase == HATCHED).any():
                bar.marker.pattern = {
                    "shape": np.where(phase == HATCHED, "/", "").tolist(),
                    "size": 5,
                    "solidity": 0.25,
                }
            if len(timeline.op) <= NAMED:
                bar.update(_names(timeline, rows[bars.row], shades))
            traces.append(bar)
        if transfers:
            traces += _sending(timeline, d, colors, limit, factor)
    violations = [v for v in timeline.violations if v.device >= 0 and v.time_us == v.time_us]
    if violations:
        traces.append(
            go.Scatter(
                x=[v.time_us / factor for v in violations],
                y=[timeline.device_names[v.device] for v in violations],
                mode="markers",
                marker={"symbol": "x", "size": 11, "color": LIMIT, "line": {"width": 1, "color": "white"}},
                hovertext=[v.message for v in violations],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    return traces


def _names(timeline: Timeline, rows: NDArray[np.int64], shades: list[str]) -> dict[str, object]:
    """Returns the names on the bars."""
    return {
        "text": [timeline.op_names[op] for op in timeline.op[rows]],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "insidetextfont": {"color": [text_on(shade) for shade in shades]},
    }


def _sending(timeline: Timeline, device: int, colors: list[str], limit: int, factor: float) -> list[go.Bar]:
    """Returns the bars of what a device sends, in the colours of the receivers; none if it sends nothing."""
    transfers = timeline.transfers
    sent_rows = np.flatnonzero(transfers.source == device)
    if not len(sent_rows):
        return []
    # While a tensor waits for its receiver, the sender is free again, so the bar shows only the send.
    sent_us = transfers.start_us[sent_rows] + (transfers.end_us[sent_rows] - transfers.receive_us[sent_rows])
    bars = merge_bars(transfers.start_us[sent_rows], sent_us, limit)
    shades = [with_opacity(colors[target], 0.75) for target in transfers.target[sent_rows[bars.row]]]
    tensors, targets = timeline.transfers.tensor[sent_rows[bars.row]], timeline.transfers.target[sent_rows[bars.row]]
    return [
        _bar(
            bars,
            _sends(timeline.device_names[device]),
            [
                f"<b>{timeline.op_names[timeline.tensor_producer[t]]}</b> to {timeline.device_names[d]}, "
                f"{format_bytes(int(timeline.tensor_bytes[t]))}"
                f"{f', and {count - 1} more' if count > 1 else ''}<br>{_span(start, end)}"
                for t, d, count, start, end in zip(tensors, targets, bars.row_count, bars.start, bars.end, strict=True)
            ],
            shades,
            factor,
            0.4,
        )
    ]


def _bar(
    bars: Bars,
    lane: str,
    texts: list[str],
    colors: list[str],
    factor: float,
    width: float,
    marked: NDArray[np.bool_] | bool = False,
) -> go.Bar:
    """Returns one lane of bars with their hover texts; marked bars have a dark outline.

    Other outlines have a darker shade of the bar's colour: of a bar that is hardly wider, nothing else is seen.
    """
    darker = {color: mix_colors(color, "#000000", 0.25) if color.startswith("#") else color for color in set(colors)}
    outline: dict[str, Any] = {"width": 0.5, "color": [darker[color] for color in colors]}
    if np.any(marked):
        outline = {"width": np.where(marked, 1.5, 0.5), "color": np.where(marked, INK, outline["color"])}
    return go.Bar(
        orientation="h",
        y=[lane] * len(bars.start),
        base=bars.start / factor,
        x=(bars.end - bars.start) / factor,
        width=width,
        marker={"color": colors, "line": outline},
        hovertext=texts,
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _span(start: float, end: float) -> str:
    return f"{format_us(start)} to {format_us(end)} ({format_us(end - start)})"
