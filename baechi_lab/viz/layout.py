"""What all figures have in common."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from .colors import FONT, GRID

UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))
BYTES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def scale(largest: float, units: tuple[tuple[float, str], ...] = UNITS) -> tuple[float, str]:
    """The factor and unit in which `largest` has at least one digit before the point.

    >>> scale(2500.0)
    (1000.0, 'ms')
    """
    return next((unit for unit in units if largest >= unit[0]), units[-1])


def styled(figure: go.Figure, title: str, height: int, **layout: Any) -> go.Figure:
    """`figure` in the style of all our figures."""
    figure.update_layout(
        title={"text": title, "x": 0, "xref": "paper", "font": {"size": 15}},
        template="plotly_white",
        font={"family": FONT, "size": 12, "color": "#222222"},
        height=height,
        margin={"l": 70, "r": 20, "t": 50, "b": 45},
        hoverlabel={"align": "left"},
        **layout,
    )
    figure.update_annotations(font_size=12)
    figure.update_xaxes(gridcolor=GRID, zeroline=False)
    figure.update_yaxes(gridcolor=GRID, zeroline=False)
    return figure
