"""The workbench: thin views over records, in Jupyter. Needs ipywidgets and anywidget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .fit_view import FitView
    from .layouts_view import LayoutsView
    from .moves import move
    from .setting import Setting
    from .views import GraphView, MemoryView, TimelineView
    from .workbench import Workbench
else:
    __getattr__, __dir__ = lazy_names(__name__, needs=("anywidget", "ipywidgets", "traitlets"))

__all__ = ["FitView", "GraphView", "LayoutsView", "MemoryView", "Setting", "TimelineView", "Workbench", "move"]
