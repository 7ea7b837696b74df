"""The line above everything: what the current placement costs, progress, undo and redo, and the last problem."""

from __future__ import annotations

import html
import math

import ipywidgets

from ...graph.units import format_bytes, format_us
from ..compute import Outcome
from ..guard import Problem
from ..model import WorkbenchModel
from ..tasks import Tasks
from .parts import WIDE, button, row, say


class Header:
    """Facts of the outcome, buttons for the history, a progress bar with cancel, and problems that unfold."""

    def __init__(self, model: WorkbenchModel, tasks: Tasks):
        self.model, self.tasks = model, tasks
        self.facts = ipywidgets.HTML(layout=WIDE)
        self.undo = button("Undo", "take back the last change (Ctrl+Z in the graph)", model.undo)
        self.redo = button("Redo", "do it again (Ctrl+Y in the graph)", model.redo)
        self.bar = ipywidgets.FloatProgress(min=0.0, max=1.0, layout=ipywidgets.Layout(width="130px", height="14px"))
        self.doing = ipywidgets.HTML()
        self.cancel = button("Cancel", "stop; the last result stays", self._cancel)
        self.again = button("Compute", "compute the result of the present setting", model.refresh, style="warning")
        self.mark = ipywidgets.HTML()  # beside the buttons: a line of its own would push the views down at every change
        self.progress = row(self.bar, self.doing, self.cancel, wrap=False)
        self.progress.layout.width = "auto"
        self.problem = ipywidgets.HTML(layout=WIDE)
        self.dismiss = button("Dismiss", "hide this message", model.clear_problem)
        self.problem_row = row(self.problem, self.dismiss, wrap=False)
        buttons = row(self.undo, self.redo, self.again, self.mark, self.progress)
        self.widget = ipywidgets.VBox([self.facts, buttons, self.problem_row], layout=WIDE)
        for event, call in (
            ("outcome", self.show), ("stale", self._stale), ("progress", self._progress), ("problem", self._problem),
            ("history", self._history), ("task", self._progress),
        ):  # fmt: skip
            model.on(event, call)
        self._history((False, False))
        self._progress(("", -1.0))
        self._problem(None)

    def _cancel(self) -> None:
        self.model.cancel()
        self.tasks.cancel()

    def show(self, outcome: Outcome) -> None:
        """The numbers of an outcome."""
        line, fits = outcome.timeline, outcome.timeline.feasible
        spans = [f"<span>{html.escape(k)} <b>{html.escape(v)}</b></span>" for k, v in facts_of(outcome)]
        spans.insert(1, f'<span class="bl-{"good" if fits else "bad"}">{"fits" if fits else "does not fit"}</span>')
        why = "" if fits else f'<div class="bl-bad">{html.escape(line.violations[0].message)}</div>'
        self.text = f'<div class="bl-facts">{"".join(spans)}</div>{why}'
        self._stale(self.model.stale)

    def _stale(self, stale: bool) -> None:
        text = getattr(self, "text", "")
        self.facts.value = f'<div class="bl-stale">{text}</div>' if stale else text
        say(self.mark, "out of date: the numbers are those of an earlier setting" if stale else "")
        self.again.layout.display = "none"

    def _progress(self, said: tuple[str, float]) -> None:
        text, share = said
        self.progress.layout.visibility = "visible" if text else "hidden"
        self.bar.value = max(share, 0.0)
        self.doing.value = f'<span class="bl-note">{html.escape(text)}</span>'
        # After a cancelled computation nothing but a change would ever bring the result up to date.
        self.again.layout.display = "none" if text or not self.model.stale else "inline-flex"

    def _problem(self, problem: Problem | None) -> None:
        self.problem_row.layout.display = "flex" if problem else "none"
        if problem is not None:
            details = f"<details><summary>details</summary><pre>{html.escape(problem.details)}</pre></details>"
            self.problem.value = f'<div class="bl-problem" role="alert">{html.escape(problem.sentence)}{details}</div>'

    def _history(self, can: tuple[bool, bool]) -> None:
        self.undo.disabled, self.redo.disabled = not can[0], not can[1]


def facts_of(outcome: Outcome) -> list[tuple[str, str]]:
    """What an outcome costs and where it comes from, as names and texts."""
    line, setting = outcome.timeline, outcome.setting
    placed_by = setting.placer + (f" + {len(setting.moves)} moved by hand" if setting.moves else "")
    groups = f" in {outcome.coarse.n} groups" if outcome.coarse is not outcome.graph else ""
    return [
        ("step", format_us(line.makespan_us)),
        ("lower bound", format_us(outcome.lower_bound_us) if outcome.bounds else "none"),
        ("gap", f"{outcome.gap:.1%}" if not math.isnan(outcome.gap) else "unknown"),
        ("peak memory", format_bytes(int(line.peak_bytes.max(initial=0)))),
        ("moved", f"{format_bytes(line.moved_bytes)} in {len(line.transfers)} transfers"),
        ("placed by", f"{placed_by} in {outcome.base.seconds:.3g} s"),
        ("graph", f"{outcome.graph.n} ops{groups}"),
    ]
