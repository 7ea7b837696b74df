"""Colours of all views: one per device, distinguishable for colour-blind readers, too."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#882255")
"""Okabe and Ito's palette (Color Universal Design, 2008), with wine in place of black,
which a dark background would hide."""

SERIES = ("#6E50B6", "#999823", "#795B52", "#84959F", "#B0309A", "#A2946B")
"""Colours of placers, schedulers and settings: far from all device colours, and distinguishable for colour-blind readers.
Their contrast is at least 3 on white and on the dark pages of notebooks (#111111)."""

MEASURED = SERIES[5]
"""Measured bars beside simulated ones."""

CLASSES = ("#8C9FDB", "#EE8866", "#C3D26B", "#FFAABB", "#A5E3F5", "#8FCFB4", "#EEDD99", "#B08FD8")
"""Classes of ops (types, scopes, micro-batches) on a timeline: light colours, each far from every device's."""

OTHER_COLOR = "#BBBBBB"
"""The colour of ops without a class."""

LIMIT = "#C4283A"
"""Limits, bounds and violations."""

INK = "#757575"
"""The colour of texts and axes: legible on white and on dark pages, because figures have no background."""

GRID = "rgba(128,128,128,0.25)"
CLEAR = "rgba(0,0,0,0)"
FONT = "Inter, Helvetica, Arial, sans-serif"


def device_colors(devices: int | Sequence[str]) -> list[str]:
    """Returns one `#RRGGBB` per device, by position, so that a device has the same colour in every view.

    The ninth device and later ones have shades of the first eight: darker, lighter, and of neighbouring hues.

    >>> device_colors(2)
    ['#0072B2', '#E69F00']
    """
    return _shades(OKABE_ITO, devices if isinstance(devices, int) else len(devices))


def series_colors(count: int) -> list[str]:
    """Returns one `#RRGGBB` per curve, group or micro-batch; none is a device's."""
    return _shades(SERIES, count)


def class_colors(count: int) -> list[str]:
    """Returns one `#RRGGBB` per class of ops on a timeline; none is a device's.

    >>> class_colors(1), len(set(class_colors(12)))
    (['#8C9FDB'], 12)
    """
    return _shades(CLASSES, count)


def _shades(base: Sequence[str], count: int) -> list[str]:
    return [_shade(base[i % len(base)], i // len(base)) for i in range(count)]


def _shade(color: str, round_number: int) -> str:
    """Returns the shade of a colour for a round: its hue or one of its two neighbours; plain, darker or lighter."""
    hue, tone = divmod(round_number % 9, 3)
    darkening = 0.85 ** (round_number // 9)
    by = (0.0, 0.07, -0.07)[hue]
    if by == 0.0:
        base_color = color
    else:
        base_hue, lightness, saturation = colorsys.rgb_to_hls(*(c / 255 for c in _channels(color)))
        rgb = colorsys.hls_to_rgb((base_hue + by) % 1.0, lightness, saturation)
        base_color = "#" + "".join(f"{round(c * 255):02X}" for c in rgb)
    shade = (base_color, _darker(base_color, 0.7), _lighter(base_color, 0.4))[tone]
    return _darker(shade, darkening) if round_number >= 9 else shade


def _lighter(color: str, share: float) -> str:
    return "#" + "".join(f"{round(c + (255 - c) * share):02X}" for c in _channels(color))


def with_opacity(color: str, opacity: float) -> str:
    """Returns `#RRGGBB` with an opacity as `rgba(...)`."""
    red, green, blue = _channels(color)
    return f"rgba({red},{green},{blue},{opacity:g})"


def text_on(color: str) -> str:
    """Returns black or white, whichever has more contrast on `color` (relative luminance, WCAG 2.1)."""
    return "#000000" if _luminance(color) > 0.179 else "#FFFFFF"


def text_color(color: str) -> str:
    """Returns `color` adjusted for text on light and dark pages: contrast of 4.5 on white, 4 on #111111 (WCAG 2.1).

    >>> text_color("#512DA8"), text_color("#C2B280")
    ('#7A67C5', '#807655')
    """
    while _luminance(color) > 0.183:  # 1.05 / 4.5 - 0.05
        color = _darker(color, 0.95)
    while _luminance(color) < 0.174:  # 4 * (0.0056 + 0.05) - 0.05, and a little
        color = _lighter(color, 0.01)
    return color


def _luminance(color: str) -> float:
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (x / 255 for x in _channels(color))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _channels(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def _darker(color: str, factor: float) -> str:
    return "#" + "".join(f"{round(c * factor):02X}" for c in _channels(color))
