"""The options of `bl.fit` as points; a click on one shows its timeline below."""

from __future__ import annotations

import numpy as np

from ..fitting.record import Fit, FitOption
from ..passes.unroll import unroll
from .charts import fit_chart
from .panels.parts import WIDE, note, say
from .pictures import page, text_picture, timeline_picture
from .views import TimelineView
from .views.base import PicturedBox
from .views.chart_view import ChartView


class FitView(PicturedBox):
    """Time against memory of every option; a click on a point shows its timeline and its code.

    As the output of a cell it begins with the best option, whose timeline is also the picture of a saved notebook.

    Args:
        answer: the `Fit` that `bl.fit` returned.

    >>> from baechi_lab import Cluster, OpGraph, fit
    >>> view = FitView(fit(OpGraph.from_edges([5.0]), Cluster.uniform(1)))
    >>> view.show(0)
    >>> view.shown.kind
    'as it is'
    """

    def __init__(self, answer: Fit):
        self.answer = answer
        self.words = note("Click a point for its timeline, and again for the next where several lie in one place.")
        self.points, self.timeline = ChartView(height=200), TimelineView()
        self.points.show(fit_chart(answer))
        self.points.observe(lambda change: self.show(change["new"]) if change["new"] >= 0 else None, "clicked")
        self.shown: FitOption | None = None
        super().__init__([self.points, self.words], layout=WIDE)
        self.add_class("bl-panel")

    def show(self, number: int) -> None:
        """Shows the timeline of `answer.options[number]`."""
        option = self.answer.options[number]
        self.shown = option
        say(self.words, _in_words(option))
        if option.timeline is not None and option.graph is not None:
            graph, micro_batch = option.graph, option.timeline.micro_batch
            if micro_batch is not None:
                graph = unroll(graph, int(np.max(micro_batch)) + 1, option.placement)
            self.timeline.show(graph, [option.timeline])
            self.children = [self.points, self.words, self.timeline]
        self.renew_picture()

    def picture(self) -> str:
        if self.shown is None or self.timeline.drawn_bars is None:
            return ""
        timeline = timeline_picture(self.timeline.drawn_bars, self.timeline.devices)
        return page([("", *text_picture(_in_words(self.shown))), ("Timeline", *timeline)], self.in_words().strip("<>"))

    def in_words(self) -> str:
        return f"<FitView: {self.answer.answer}>"

    def _ipython_display_(self, **arguments: object) -> None:
        self._begin_with_the_best()
        super()._ipython_display_(**arguments)

    def _display_(self) -> object:
        self._begin_with_the_best()
        return super()._display_()

    def _begin_with_the_best(self) -> None:
        if self.shown is None and self.answer.best is not None:
            self.show(self.answer.options.index(self.answer.best))


def _in_words(option: FitOption) -> str:
    return f"{option.kind}, {option.choice_in_words}: {option.command or option.error}"
