"""Chart of the options of `bl.fit`: time per sample against the peak of the fullest device."""

from __future__ import annotations

import plotly.graph_objects as go

from ..errors import InvalidInput
from ..fitting.record import Fit, FitOption, fullest_device_bytes
from ..graph.units import format_limit
from .colors import INK, LIMIT, series_colors, text_color
from .layout import BYTES, LEGEND, annotate, scale, styled

NAMED = 10
"""Most points with names beside them; more points have a legend."""
FAR = 3
"""A limit above this multiple of the largest peak is not drawn, because all points would lie together."""


def time_scale(answer: Fit) -> tuple[float, str]:
    """Returns the factor and unit of times: those that suit the step as it is, else the longest step."""
    times_us = [option.time_per_sample_us for option in answer.options if option.timeline is not None]
    first = answer.options[0]
    return scale(first.time_per_sample_us if first.timeline is not None else max(times_us, default=1.0))


def fit_options(answer: Fit, *, title: str = "Options that fit: time against memory") -> go.Figure:
    """Draws a point per simulated option, hollow if it does not fit; the line joins the options of the Pareto front.

    `customdata` of a point is its position in `answer.options`.

    >>> from baechi_lab import Cluster, OpGraph, fit
    >>> [trace.name for trace in fit_options(fit(OpGraph.from_edges([5.0]), Cluster.uniform(1))).data]
    ['as it is']
    """
    if not isinstance(answer, Fit):
        raise InvalidInput(f"fit_options draws what bl.fit returned, not a {type(answer).__name__}")
    simulated_options = [k for k, option in enumerate(answer.options) if option.timeline is not None]
    factor, unit = time_scale(answer)
    capacity_bytes = answer.room_bytes
    largest_peak = max([*(fullest_device_bytes(answer.options[k]) for k in simulated_options), 1])
    limit_is_drawn = capacity_bytes <= FAR * largest_peak
    byte_factor, byte_unit = scale(max(largest_peak, capacity_bytes) if limit_is_drawn else largest_peak, BYTES)
    figure = go.Figure()
    front = answer.pareto()
    if len(front) > 1:
        x = [fullest_device_bytes(option) / byte_factor for option in front]
        y = [option.time_per_sample_us / factor for option in front]
        line = {"color": INK, "dash": "dot", "width": 1.5}
        figure.add_trace(go.Scatter(x=x, y=y, mode="lines", line=line, name="no other beats", hoverinfo="skip"))
    kinds = list(dict.fromkeys(answer.options[k].kind for k in simulated_options))
    for kind, color in zip(kinds, series_colors(len(kinds)), strict=True):
        of_kind = [k for k in simulated_options if answer.options[k].kind == kind]
        options = [answer.options[k] for k in of_kind]
        figure.add_trace(
            go.Scatter(
                x=[fullest_device_bytes(option) / byte_factor for option in options],
                y=[option.time_per_sample_us / factor for option in options],
                mode="markers",
                name=options[0].kind,
                customdata=of_kind,
                text=[_hover_text(option) for option in options],
                hovertemplate="%{text}<extra></extra>",
                marker={
                    "size": 12,
                    "color": color,
                    "symbol": ["circle" if option.fits else "circle-open" for option in options],
                },
            )
        )
    if limit_is_drawn:
        figure.add_vline(
            x=capacity_bytes / byte_factor,
            line={"color": LIMIT, "dash": "dash", "width": 1.5},
            annotation={"text": "memory of a device", "font": {"color": text_color(LIMIT)}},
            annotation_position="bottom right",  # above are the names of slow options
        )
    figure.update_xaxes(title_text=peak_axis(capacity_bytes, limit_is_drawn, byte_unit), rangemode="tozero")
    time_of = "sample" if any(answer.options[k].batch_size for k in simulated_options) else "step"
    figure.update_yaxes(title_text=f"time per {time_of} ({unit})", rangemode="tozero")
    styled(figure, title, 420, legend=LEGEND)
    if len(simulated_options) > NAMED:
        return figure
    points = [trace for trace in figure.data if trace.mode == "markers"]
    return annotate(figure, [(x, y, t.name, t.marker.color) for t in points for x, y in zip(t.x, t.y, strict=True)])


def peak_axis(capacity_bytes: int, limit_is_drawn: bool, unit: str) -> str:
    """Returns the title of the axis of peaks, with the limit if that is not drawn."""
    limit_text = "" if limit_is_drawn else f"; a device has {format_limit(capacity_bytes)}"
    return f"peak of the fullest device ({unit}){limit_text}"


def _hover_text(option: FitOption) -> str:
    texts = option.texts()
    return (
        f"<b>{option.kind}</b>: {option.choice_in_words}<br>{texts[3]} per step, peak {texts[5]}<br>gives up {texts[6]}"
    )
