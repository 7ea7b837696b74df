"""Part 8, Explain: the decision log of the current placer, step by step, in the graph and the timeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets

from ..controls import HTML, IntSlider
from ..explaining import Log, logs_decisions
from ..guard import Guard
from ..tasks import Tasks
from .parts import WIDE, add_hint, button, note, row, say, table

INTRODUCTION = "One group is placed after the other: see which could start where, what was ruled out, and why."
REPLAYED = (
    "This placer keeps no log of its own. Its placement is replayed in the order of the schedule: see for every group "
    "where it could have started, and where it went."
)
SMOOTH = 3000
"""Most steps of a log for which the views follow the slider while it is dragged."""


class ExplainPanel:
    """A slider over the placer's decisions; `show_step(log, step)` marks them in the views, `clear()` ends that."""

    def __init__(self, tasks: Tasks, show_step: Callable[[Log, int], None], clear: Callable[[], None]):
        self.tasks, self.model, self.show_step, self.clear = tasks, tasks.model, show_step, clear
        explain = Guard(self.model.fail)(tasks.explain)
        self.start = button("Explain", "place again, keeping a log of every decision", explain, style="primary")
        self.first = button("|<", "first decision", lambda: self._move_to_step(0))
        self.before = button("<", "one decision back", lambda: self._move_to_step(self.slider.value - 2))
        self.after = button(">", "one decision on", lambda: self._move_to_step(self.slider.value))
        self.slider = add_hint(
            IntSlider(value=1, min=1, max=1, description="decision", layout=WIDE), "the decision that is shown"
        )
        self.next = button(
            "Next of interest",
            "where a device is excluded, a favourite followed or memory refused",
            self._move_to_interesting_step,
        )
        self.find = button("To selection", "the decision that placed the selected op", self._move_to_selection)
        self.close = button("End", "show the whole placement again", self._drop_log)
        buttons = row(self.first, self.before, self.after, self.next, self.find, self.close)
        self.steps = ipywidgets.VBox([self.slider, buttons], layout=WIDE)
        self.sentence, self.candidates = note(), HTML(layout=WIDE)
        self.slider.observe(lambda event: self._show_step(event["new"] - 1), "value")
        self.widget = ipywidgets.VBox([row(self.start), self.steps, self.sentence, self.candidates], layout=WIDE)
        self.log: Log | None = None
        self.model.on("log", self.show)
        self.model.on("outcome", lambda _: self._drop_log())
        self.model.on("stale", lambda stale: setattr(self.start, "disabled", stale))
        self.start.disabled = self.model.stale
        self._drop_log()

    def _move_to_step(self, step: int) -> None:
        if self.log is not None:
            self.slider.value = min(max(step + 1, 1), len(self.log))

    def _move_to_interesting_step(self) -> None:
        if self.log is not None:
            self._move_to_step(self.log.next_interesting(self.slider.value - 1))

    def _move_to_selection(self) -> None:
        if self.log is not None and self.model.selection:
            self._move_to_step(self.log.step_of(self.model.selection[0]))

    def attend(self, attended: bool) -> None:
        """Marks the step in the views while the panel is shown, and ends that otherwise."""
        if self.log is not None:
            self._show_step(self.slider.value - 1) if attended else self.clear()

    def _drop_log(self) -> None:
        if self.log is not None:
            self.log = None
            self.clear()
        self.steps.layout.display = "none"
        self.candidates.value = ""
        say(self.sentence, INTRODUCTION if logs_decisions(self.model.setting.placer) else REPLAYED)

    def show(self, log: Log) -> None:
        """Shows a log from its first step."""
        self.log = log
        self.steps.layout.display = "flex"
        self.slider.max = max(len(log), 1)
        self.slider.continuous_update = len(log) <= SMOOTH
        self.slider.value = 1
        self._show_step(0)

    def _show_step(self, step: int) -> None:
        log: Any = self.log
        if log is None or not len(log):
            return
        with Guard(self.model.fail):
            sentences = [log.sentence(step), log.tie(step), log.rule]
            if self.model.outcome is not None and self.model.outcome.executed_graph is self.model.outcome.graph:
                sentences.append(log.against_timeline(step, self.model.outcome.timeline))
            say(self.sentence, " ".join(filter(None, sentences)), "good" if log.logged_by_placer else "note")
            rows = log.rows(step)
            chosen_row = next((k for k, r in enumerate(rows) if r[3] == "chosen"), -1)
            head = ("candidate", "device", "earliest start", "")
            hidden_count = len(log.decisions[step].candidates) - len(rows)
            tail = f'<div class="bl-note">and {hidden_count:,} more</div>' if hidden_count > 0 else ""
            self.candidates.value = table(head, rows, chosen_row) + tail
            self.show_step(log, step)
