"""The options of `bl.fit` as points; a click on one shows its timeline below."""

from __future__ import annotations

from typing import Any

import ipywidgets
import numpy as np

from ..fitting.record import Fit
from ..passes.unroll import unroll
from .charts import fit_chart
from .panels.parts import WIDE, note, say
from .views import TimelineView
from .views.chart_view import ChartView


class FitView(ipywidgets.VBox):
    """Time against memory of every option; a click on a point shows its timeline and its code.

    Args:
        answer: the `Fit` that `bl.fit` returned.

    >>> from baechi_lab import Cluster, OpGraph, fit
    >>> view = FitView(fit(OpGraph.from_edges([5.0]), Cluster.uniform(1)))
    >>> view.show(0)
    >>> view.shown.kind
    'as it is'
    """

    def __init__(self, answer: Fit):
        self.answer, self.words = (
            answer,
            note("Click a point for its timeline, and again for the next where several lie in one place."),
        )
        self.points, self.timeline = ChartView(height=240), TimelineView()
        self.points.show(fit_chart(answer))
        self.points.observe(lambda change: self.show(change["new"]) if change["new"] >= 0 else None, "clicked")
        self.shown: Any = None
        super().__init__([self.points, self.words], layout=WIDE)
        self.add_class("bl-panel")

    def show(self, number: int) -> None:
        """Shows the timeline of `answer.options[number]`."""
        option = self.answer.options[number]
        self.shown = option
        say(self.words, f"{option.kind}, {option.choice_in_words}: {option.command or option.error}")
        if option.timeline is not None and option.graph is not None:
            graph, micro_batch = option.graph, option.timeline.micro_batch
            if micro_batch is not None:
                graph = unroll(graph, int(np.max(micro_batch)) + 1, option.placement)
            self.timeline.show(graph, [option.timeline])
            self.children = [self.points, self.words, self.timeline]
