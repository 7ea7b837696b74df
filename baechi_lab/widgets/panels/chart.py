"""A place for a plotly chart that is filled when there is something to show."""

from __future__ import annotations

from typing import Any

import ipywidgets
import plotly.graph_objects as go

from .parts import WIDE


class Chart:
    """Holds one `FigureWidget`, made with the first figure: its script, some megabytes, is sent only when needed."""

    def __init__(self) -> None:
        self.widget = ipywidgets.VBox([], layout=WIDE)
        self.figure: Any = None

    def show(self, figure: go.Figure) -> None:
        """Draw `figure` in place of what is there."""
        if self.figure is None:
            self.figure = go.FigureWidget(figure)
            self.widget.children = [self.figure]
            return
        with self.figure.batch_update():
            self.figure.data = []
            self.figure.layout = figure.layout
            self.figure.add_traces(figure.data)

    def clear(self) -> None:
        """Show nothing."""
        self.figure = None
        self.widget.children = []
