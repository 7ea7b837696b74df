"""A scene as SVG: the picture of `viz.graph`, of saved notebooks and of pages without scripts."""

from __future__ import annotations

import html
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..colors import INK
from .scene import LABEL, NOTE, TITLE, Arrows, Scene

EDGE, FRAME = "#8A9097", "#B4BAC0"
TITLE_TEXT = "#72767B"
"""Colour of frame titles, which are drawn on the page, light or dark."""
CROSSING = "#C2410C"
BAR = 5.0  # height in pixels of the bar of devices in a box
HEAD = 7.0  # length in pixels of an arrow's head


def draw_scene(
    scene: Scene,
    colors: Sequence[str] = (),
    share: NDArray[np.float64] | None = None,
    crossing: NDArray[np.float64] | None = None,
) -> str:
    """Returns the body of an SVG from (0, 0) on: frames, arrows, boxes with labels, and bars of device shares.

    The page may be light or dark: boxes are holes through which one sees it, and texts are legible on both.
    """
    elements = [_frame(scene, k) for k in range(len(scene.frames))]
    widest_first = np.argsort(-scene.arrows.bytes, kind="stable").tolist()
    elements += [_arrow(scene.arrows, k, bool(crossing is not None and crossing[k] >= 0)) for k in widest_first]
    if elements:
        mask_id, mask = _outside_boxes(scene)
        elements = [mask, f'<g mask="url(#{mask_id})">', *elements, "</g>"]
    elements += [_box(scene, k, colors, None if share is None else share[k]) for k in range(len(scene))]
    return "".join(elements)


def arrow_widths(arrows: Arrows) -> NDArray[np.float64]:
    """Returns the widths of arrows in pixels: they grow with the root of the bytes, from 0.8 to 4 for the most bytes."""
    largest = max(float(arrows.bytes.max(initial=0)), 1.0)
    return 0.8 + 3.2 * np.sqrt(arrows.bytes / largest)


def arrow_opacity(arrows: Arrows) -> float:
    """Returns the opacity of arrows, which is lower if there are many, so that boxes stay visible."""
    return float(np.clip(60 / max(len(arrows), 1), 0.4, 1.0))


def _frame(scene: Scene, k: int) -> str:
    x, y, w, h = scene.frame_box[k].tolist()
    title = html.escape(scene.label(int(scene.frames[k])))
    return (
        f'<rect x="{x - w / 2:.1f}" y="{y - h / 2:.1f}" width="{w:.1f}" height="{h:.1f}" rx="6" fill="#808080" '
        f'fill-opacity="0.07" stroke="{FRAME}"/><text x="{x - w / 2 + 8:.1f}" y="{y - h / 2 + TITLE - 5:.1f}" '
        f'font-size="{LABEL:g}" font-weight="600" fill="{TITLE_TEXT}">{title}</text>'
    )


def _arrow(arrows: Arrows, k: int, crosses: bool) -> str:
    """Returns an arrow as a curve through its points, with a head."""
    points = arrows.points[arrows.pointer[k] : arrows.pointer[k + 1]].copy()
    upright, width = bool(arrows.upright[k]), float(arrow_widths(arrows)[k])
    axis = 1 if upright else 0
    sign = 1.0 if points[-1, axis] >= points[-2, axis] else -1.0
    tip = points[-1].copy()
    points[-1, axis] -= sign * (HEAD - 1)
    half = 2.2 + width / 2
    base = points[-1]
    across = np.array([0.0, half]) if axis == 0 else np.array([half, 0.0])
    corners = (base + across, base - across, tip)
    head = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in (c.tolist() for c in corners)) + "z"
    color = CROSSING if crosses else EDGE
    text = f"M{points[0, 0]:.1f} {points[0, 1]:.1f}"
    for (x0, y0), (x1, y1) in zip(points[:-1].tolist(), points[1:].tolist(), strict=True):
        bend = 0.5 * ((y1 - y0) if upright else (x1 - x0))
        first, second = ((x0, y0 + bend), (x1, y1 - bend)) if upright else ((x0 + bend, y0), (x1 - bend, y1))
        text += f"C{first[0]:.1f} {first[1]:.1f} {second[0]:.1f} {second[1]:.1f} {x1:.1f} {y1:.1f}"
    return (
        f'<g opacity="{arrow_opacity(arrows):.2f}"><path d="{text}" fill="none" stroke="{color}" '
        f'stroke-width="{width:.2f}"/><path d="{head}" fill="{color}"/></g>'
    )


def _outside_boxes(scene: Scene) -> tuple[str, str]:
    """Returns the id of the mask of all that is outside of boxes, and the mask.

    Another mask has another id: a page may have several pictures in it, and takes the first element of an id.
    """
    x, y = scene.x - scene.width / 2, scene.y - scene.height / 2
    boxes = zip(x.tolist(), y.tolist(), scene.width.tolist(), scene.height.tolist(), strict=True)
    holes = "".join(_rect(*box, 'rx="4"') for box in boxes)
    page = _rect(-HEAD, -HEAD, scene.size[0] + 2 * HEAD, scene.size[1] + 2 * HEAD, 'fill="#FFFFFF"')
    mask_id = f"outside-{zlib.crc32((page + holes).encode()):x}"
    return mask_id, f'<mask id="{mask_id}" maskUnits="userSpaceOnUse">{page}{holes}</mask>'


def _box(scene: Scene, k: int, colors: Sequence[str], share: NDArray[np.float64] | None) -> str:
    """Returns a box with its colour, the bar of device shares, its label and its note."""
    w, h = float(scene.width[k]), float(scene.height[k])
    x, y = float(scene.x[k]) - w / 2, float(scene.y[k]) - h / 2
    main = -1 if share is None or share.max() < 0.995 else int(share.argmax())
    elements = []
    if share is not None:
        x_left = x + 1
        for d in np.flatnonzero(share > 0.0005).tolist():
            wide = (w - 2) * float(share[d])
            elements.append(_rect(x_left, y + h - BAR, wide, BAR - 0.5, f'fill="{colors[d]}"'))
            x_left += wide
    outline = colors[main] if main >= 0 else INK
    elements.append(_rect(x, y, w, h, f'rx="4" fill="none" stroke="{outline}"'))
    note, middle = scene.notes[k], x + w / 2
    line = y + (15 if note else h / 2 + (2 if share is not None else 4))
    elements.append(_text(middle, line, scene.label(int(scene.nodes[k])), LABEL, INK))
    if note:
        elements.append(_text(middle, y + 28, note, NOTE, INK))
    return "".join(elements)


def _rect(x: float, y: float, w: float, h: float, style: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(w, 0):.1f}" height="{h:.1f}" {style}/>'


def _text(x: float, y: float, text: str, size: float, color: str) -> str:
    style = f'font-size="{size:g}" text-anchor="middle" fill="{color}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{html.escape(text)}</text>'
