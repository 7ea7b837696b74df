"""The ways of `bl.fit` as points; a click on one shows its timeline below."""

from __future__ import annotations

from typing import Any

import ipywidgets
import plotly.graph_objects as go

from ..fitting.record import Fit
from ..viz import gantt, ways
from .panels.chart import Chart
from .panels.parts import WIDE, note, say


class FitView(ipywidgets.VBox):
    """Time against memory of every way; click a point for its timeline and the code that gives it.

    Args:
        answer: what `bl.fit` returned.

    >>> from baechi_lab import Cluster, OpGraph, fit
    >>> view = FitView(fit(OpGraph.from_edges([5.0]), Cluster.uniform(1)))
    >>> view.show(0)
    >>> view.shown.way
    'as it is'
    """

    def __init__(self, answer: Fit):
        self.answer, self.timeline, self.words = answer, Chart(), note("Click a point for its timeline.")
        self.points = go.FigureWidget(ways(answer))
        for trace in self.points.data:
            if trace.customdata is not None:
                trace.on_click(self._clicked)
        self.shown: Any = None
        super().__init__([self.points, self.words, self.timeline.widget], layout=WIDE)

    def _clicked(self, trace: Any, points: Any, _: Any) -> None:
        if points.point_inds:
            self.show(int(trace.customdata[points.point_inds[0]]))

    def show(self, number: int) -> None:
        """The timeline of `answer.ways[number]`."""
        way = self.answer.ways[number]
        self.shown = way
        say(self.words, f"{way.way}, {way.choice}: {way.command or way.error}")
        if way.timeline is not None:
            self.timeline.show(gantt(way.timeline))
