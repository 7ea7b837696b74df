"""The three canvas views: one Python class, one `.js` and one `.css` each."""

from .graph_view import GraphView
from .memory_view import MemoryView
from .timeline_view import TimelineView

__all__ = ["GraphView", "MemoryView", "TimelineView"]
