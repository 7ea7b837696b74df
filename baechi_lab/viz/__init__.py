"""Records -> plotly figures. A view draws what a record says and computes no cost of its own."""

from .colors import device_colors
from .comparison_chart import comparison
from .curves_chart import curves
from .decision_chart import decisions
from .gantt_chart import gantt
from .graph_chart import graph
from .groups_chart import groups
from .layout import THEME, labelled, styled
from .memory_chart import memory
from .ways_chart import ways

__all__ = [
    "THEME",
    "comparison",
    "curves",
    "decisions",
    "device_colors",
    "gantt",
    "graph",
    "groups",
    "labelled",
    "memory",
    "styled",
    "ways",
]
