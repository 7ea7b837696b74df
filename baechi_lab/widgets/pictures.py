"""Static pictures (SVG) of the three views, for saved notebooks, nbconvert and pages without scripts.

They have no background, and can be read on light and on dark pages.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..graph import MEMORY_CATEGORIES, Timeline
from ..graph.device import short_device
from ..graph.units import format_bytes, format_us
from ..viz.colors import INK, LIMIT, device_colors
from ..viz.nested.scene import Paint, Scene
from ..viz.nested.svg import draw_scene
from ..viz.shades import CATEGORY_NAMES, LEGEND, shades
from .bars import Bars
from .levels import Row, memory_rows, peaks, steps

WIDTH = 960
GUTTER = 110
GRAPH_HEIGHT = 420
LINE_LETTERS = 150


def page(pictures: Sequence[tuple[str, str, float]], words: str = "") -> str:
    """Makes one SVG of `(title, body, height)` parts, one below the other; `words` describe it to screen readers."""
    y, body = 0.0, []
    for title, picture, height in pictures:
        if title:
            body.append(_text(4, y + 14, title, size=13, weight="600"))
            y += 22
        body.append(f'<g transform="translate(0 {y:g})">{picture}</g>')
        y += height + 10
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:g}" width="{WIDTH}" height="{y:g}"'
    words = html.escape(words or ", ".join(title for title, _, _ in pictures if title))
    head += f' style="max-width:100%;height:auto" role="img" aria-label="{words}"'
    return f'{head} font-family="Helvetica, Arial, sans-serif"><title>{words}</title>{"".join(body)}</svg>'


def text_picture(text: str) -> tuple[str, float]:
    """Makes a picture of a text in lines of at most `LINE_LETTERS` letters."""
    lines = textwrap.wrap(text, LINE_LETTERS)
    return "".join(_text(4, 12 + 15 * k, line, size=11) for k, line in enumerate(lines)), 15.0 * len(lines)


def graph_picture(scene: Scene, paint: Paint, device_names: Sequence[str]) -> tuple[str, float]:
    """Draws the scene as nested boxes, as large as the page, with the devices' colours."""
    if len(scene) == 0:
        return _text(4, 14, "the graph is empty"), 20
    colors = device_colors(device_names)
    wide, tall = scene.size
    k = min((WIDTH - 8) / max(wide, 1.0), GRAPH_HEIGHT / max(tall, 1.0), 1.4)
    body = draw_scene(replace(scene, notes=paint.notes), colors, paint.share, paint.crossing_bytes)
    used = np.flatnonzero(paint.share.any(axis=0)).tolist() or range(len(device_names))
    legend, lines = _legend([device_names[d] for d in used], [colors[d] for d in used])
    top = 6 + 16 * lines
    return f'{legend}<g transform="translate(4 {top}) scale({k:.4f})">{body}</g>', tall * k + top + 8


def timeline_picture(bars: Bars, device_names: Sequence[str]) -> tuple[str, float]:
    """Draws one lane per device for ops and one for transfers; bars closer than half a pixel are joined.

    Neighbours that do nothing are one line.
    """
    colors = device_colors(device_names)
    scale = (WIDTH - GUTTER - 8) / max(bars.span_us, 1e-12)
    y, body = 4.0, []
    for k, lane in enumerate(bars.lanes):
        if lane["folded"]:
            body.append(_text(4, y + 13, lane["fold_label"], size=11))
            y += 20 if lane["fold_label"] else 0
            continue
        tall = 18.0 if lane["kind"] == "ops" else 9.0
        label = f"{lane['label']}" + (f" ({lane['origin']})" if lane["heading"] or lane["origin"] == "measured" else "")
        if lane["kind"] == "ops":
            body.append(_text(4, y + 13, label, size=11))
        merged_bars: list[tuple[int, float, float]] = []
        for b in range(int(bars.pointer[k]), int(bars.pointer[k + 1])):
            bar_color = int(bars.color[b])
            start_x = float(bars.start_us[b] * scale)
            end_x = float(bars.end_us[b] * scale)
            if merged_bars and merged_bars[-1][0] == bar_color and start_x - merged_bars[-1][2] < 0.5:
                merged_bars[-1] = (bar_color, merged_bars[-1][1], max(end_x, merged_bars[-1][2]))
            else:
                merged_bars.append((bar_color, start_x, end_x))
        for color, x0, x1 in merged_bars:
            fill = colors[color % len(colors)]
            wide = max(x1 - x0, 0.4)
            body.append(f'<path d="M{GUTTER + x0:.1f} {y:.1f}h{wide:.1f}v{tall:g}h{-wide:.1f}z" fill="{fill}"/>')
        y += tall + (2 if lane["kind"] == "ops" else 6)
    body.append(
        _text(GUTTER, y + 10, "0", size=10) + _text(WIDTH - 8, y + 10, format_us(bars.span_us), size=10, anchor="end")
    )
    return "".join(body), y + 14


def memory_picture(timelines: Sequence[Timeline]) -> tuple[str, float]:
    """Draws bytes over time per device and timeline, stacked by category, with the limit if it is on the scale."""
    rows = memory_rows(timelines)
    peak_list, span = peaks(rows), max((t.makespan_us for t in timelines), default=0.0)
    top = max([p.bytes for p in peak_list], default=1) * 1.15 or 1.0
    body, tall, origins = [], 56.0, len({row.timeline.origin for row in rows})
    for k, (row, peak) in enumerate(zip(rows, peak_list, strict=True)):
        y0, limit = k * (tall + 10), row.limit_bytes
        body.append(_text(4, y0 + 12, short_device(row.timeline.device_names[row.device]), size=11))
        body.append(_text(4, y0 + 26, f"peak {format_bytes(peak.bytes)}", size=10))
        body.append(_text(4, y0 + 39, f"of {format_bytes(limit)}", size=10))
        body.append(_text(4, y0 + 52, row.timeline.origin if origins > 1 else "", size=10))
        body.append(_areas(row, y0, tall, top, span))
        if limit <= top:
            y = y0 + tall * (1 - limit / top)
            body.append(f'<path d="M{GUTTER} {y:.1f}H{WIDTH - 8}" stroke="{LIMIT}" stroke-dasharray="5 3"/>')
        if peak.measured_bytes:
            y = y0 + tall * (1 - peak.measured_bytes / top)
            body.append(f'<path d="M{GUTTER} {y:.1f}H{WIDTH - 8}" stroke="{INK}" stroke-dasharray="2 3"/>')
            body.append(_text(WIDTH - 10, y - 3, "measured peak", size=9, anchor="end"))
    height = len(rows) * (tall + 10)
    legend, _ = _legend(CATEGORY_NAMES, LEGEND)
    return "".join(body) + f'<g transform="translate(0 {height:g})">{legend}</g>', height + 16


def _areas(row: Row, y0: float, tall: float, top: float, span: float) -> str:
    time, levels = steps(row.timeline, row.device, limit=600)
    if len(time) == 0:
        return ""
    end = max(row.timeline.makespan_us, float(time[-1]))
    x = GUTTER + np.append(time, end) / max(span, end, 1e-12) * (WIDTH - GUTTER - 8)
    upper = np.cumsum(levels, axis=1)
    shapes, fill = [], shades(device_colors(row.device + 1)[row.device])
    for k in reversed(range(len(MEMORY_CATEGORIES))):
        y = y0 + tall * (1 - upper[:, k] / top)
        line = "".join(f"V{b:.1f}H{a:.1f}" for a, b in zip(x[1:].tolist(), y.tolist(), strict=True))
        shapes.append(f'<path d="M{x[0]:.1f} {y0 + tall:.1f}{line}V{y0 + tall:.1f}z" fill="{fill[k]}"/>')
    return "".join(shapes)


def _legend(names: Sequence[str], colors: Sequence[str]) -> tuple[str, int]:
    """Returns the names with their colours, and in how many lines they are."""
    x, line, elements = 4.0, 0, []
    for name, color in zip(names, colors, strict=True):
        wide = 26 + 6.5 * len(name)
        if x + wide > WIDTH:
            x, line = 4.0, line + 1
        y = 2 + 16 * line
        elements.append(
            f'<rect x="{x:g}" y="{y}" width="10" height="10" fill="{color}"/>' + _text(x + 14, y + 9, name, size=11)
        )
        x += wide
    return "".join(elements), line + 1


def _text(x: float, y: float, text: str, size: int = 11, anchor: str = "start", weight: str = "400") -> str:
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="{INK}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{html.escape(text)}</text>'
