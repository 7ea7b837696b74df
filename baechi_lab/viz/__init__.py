"""Plotly figures of records. A figure draws the numbers of a record and computes no costs."""

import warnings
from typing import Any

from .colors import device_colors
from .comparison_chart import comparison
from .curves_chart import curves
from .decision_chart import decisions
from .fit_chart import fit_options
from .gantt_chart import gantt
from .graph_chart import graph
from .groups_chart import groups
from .layout import THEME, labelled, styled
from .memory_chart import memory

__all__ = [
    "THEME",
    "comparison",
    "curves",
    "decisions",
    "device_colors",
    "fit_options",
    "gantt",
    "graph",
    "groups",
    "labelled",
    "memory",
    "styled",
]


def __getattr__(name: str) -> Any:
    if name == "ways":
        warnings.warn("viz.ways is deprecated; use viz.fit_options", DeprecationWarning, stacklevel=2)
        return fit_options
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
