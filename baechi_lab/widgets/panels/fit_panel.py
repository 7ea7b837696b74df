"""Beside the memory view: will it fit, and the ways to make it fit, for the graph and devices of the current setting.

Of the setting, not of its result: where nothing fits there is none.
"""

from __future__ import annotations

import ipywidgets

from ...fitting.fit import fit
from ...fitting.record import HEAD, Fit
from ..background import Ticket
from ..compute import source
from ..fit_view import FitView
from ..guard import Guard
from ..tasks import Tasks
from .parts import WIDE, button, note, row, say, table


class FitPanel:
    """A button, the answer in one sentence, and a point and a row per way."""

    def __init__(self, tasks: Tasks):
        self.tasks, self.model = tasks, tasks.model
        self.ask = button("Will it fit?", "try more devices, recomputation and offloading, each simulated", self._ask)
        self.state, self.rows = note(), ipywidgets.HTML(layout=WIDE)
        self.answer: Fit | None = None
        self.points = ipywidgets.VBox([], layout=WIDE)
        self.widget = ipywidgets.VBox([row(self.ask), self.state, self.points, self.rows], layout=WIDE)

    def _ask(self) -> None:
        with Guard(self.model.fail):
            setting, model = self.model.setting, self.model

            def work(ticket: Ticket) -> Fit:
                _, graph = source(setting, model.subject, model.memo, ticket.report)
                tell = lambda way: ticket.report(f"will it fit: {way}")  # noqa: E731
                return fit(graph, setting.cluster, every_way=True, callback=tell)

            self.tasks.start("the ways to fit", work, self.show)

    def show(self, answer: Fit) -> None:
        """The answer, its ways as points, and their table."""
        self.answer = answer
        say(self.state, answer.answer, "good" if answer.fits else "bad")
        best = answer.best
        marked = -1 if best is None else answer.ways.index(best)
        self.points.children = [FitView(answer)]
        self.rows.value = table(HEAD, [way.texts() for way in answer.ways], marked)
