"""The workbench: thin views over records, in Jupyter. Needs the extra `lab` (ipywidgets, anywidget)."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import MissingPackage

_HOME = {
    "GraphView": "views",
    "TimelineView": "views",
    "MemoryView": "views",
    "Workbench": "workbench",
    "Setting": "setting",
    "move": "moves",
}

__all__ = ["GraphView", "MemoryView", "Setting", "TimelineView", "Workbench", "move"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'baechi_lab.widgets' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"baechi_lab.widgets.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name in ("anywidget", "ipywidgets", "traitlets"):
            raise MissingPackage.of(str(error.name), "lab", f"baechi_lab.widgets.{name}") from error
        raise
