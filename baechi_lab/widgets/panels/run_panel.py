"""Part 6, Run: the current placement on real devices, with live step times beside the simulated one."""

from __future__ import annotations

import html
from typing import Any

import ipywidgets

from ...graph import Run
from ...graph.link import FREE
from ...graph.units import format_us
from ...step_summary import below_bound
from ..charts import run_chart
from ..compute import Outcome, is_torch_step
from ..controls import HTML, Dropdown, IntText
from ..glossary import name_with_tooltip
from ..guard import Guard, guard_change
from ..running import LiveRun, assumed_link, copies_nothing
from ..tasks import Tasks
from ..views.chart_view import ChartView
from .parts import WIDE, add_hint, button, count_up_to, note, row, say, switch

STYLE = {"description_width": "60px"}
MOST_STEPS = 10_000
MEASURED_BELOW = "The measured timeline is below the simulated one."
KINDS = [("attached: GPUs, else CPU", "auto"), ("GPUs", "gpu"), ("CPU (logical devices)", "cpu")]


class RunPanel:
    """Chooses devices and steps, starts and stops a run, and shows its step times."""

    def __init__(self, tasks: Tasks):
        self.tasks, self.model = tasks, tasks.model
        self.kind = add_hint(
            Dropdown(description="devices", options=KINDS, style=STYLE), "on which devices of this machine it runs"
        )
        self.steps = add_hint(
            IntText(value=20, description="steps", style=STYLE),
            "how many are measured, after a few that are not",
        )
        self.steps.observe(self._check_steps, "value")
        self.steps.layout.width = "150px"
        self.native = switch(
            "compare with one device",
            "also measures the whole step on one device, as tf.function, Keras or eager PyTorch runs it without this package: "
            "how much faster or slower the placement is",
            True,
        )
        self.start = button("Start", "run the current placement for real", self._start, style="primary")
        self.stop = button("Stop", "end the run; what was measured is kept", self._stop)
        self.stop.disabled = True
        self.state = note()
        self.numbers, self.progress_note = HTML(layout=WIDE), note()
        self.likeness = HTML()
        guard = Guard(self.model.fail)
        profile, link = guard(lambda: self.model.change(profile="measured")), guard(tasks.measure_link)
        hint = "on this machine, and simulate with that"
        self.profile = button("Profile here first", f"measure the ops {hint}", profile, style="info")
        self.link = button("Measure the link here", f"time transfers {hint}", link, style="info")
        free = guard(lambda: self.model.change(cluster=self.model.setting.cluster.replace(link=FREE)))
        shared = "CPU devices of PyTorch share memory: nothing is copied between them"
        self.free = button("Transfers without cost", shared, free, style="info")
        self.likeness_row = row(self.likeness, self.profile, self.link, self.free)
        self.chart = ChartView(height=210)
        self.widget = ipywidgets.VBox(
            [
                row(self.kind, self.steps, self.native, self.start, self.stop),
                self.likeness_row,
                self.state,
                self.numbers,
                self.progress_note,
                self.chart,
            ],
            layout=WIDE,
        )
        self.model.on("live", self.show)
        self.model.on("run", self._show_run)
        self.model.on("outcome", lambda _: self._ready())
        self.model.on("problem", lambda problem: self._reset_after_failure() if problem else None)
        self._ready()

    def _ready(self) -> None:
        outcome = self.model.outcome
        runnable = outcome is not None and outcome.step is not None
        running = self.tasks.running
        reason = foreign(outcome) if runnable and outcome is not None else ""
        say(self.likeness, reason)
        self.likeness_row.layout.display = "flex" if reason else "none"
        is_measured = outcome is not None and outcome.setting.profile == "measured"
        self.profile.layout.display = "none" if is_measured else "inline-flex"
        is_torch = outcome is not None and is_torch_step(outcome.step)
        self.link.layout.display = "inline-flex" if is_measured and not is_torch else "none"
        is_copied = outcome is None or not copies_nothing(outcome)
        self.free.layout.display = "none" if is_copied or not is_measured else "inline-flex"
        self.start.disabled = not runnable or running
        if running:
            return
        run = self.tasks.run_of(outcome)
        if outcome is None or not runnable:
            say(
                self.state,
                "A graph alone cannot be run: open the workbench with a training step, or choose a model in Setting.",
            )
        elif run is None:
            say(self.state, f"Simulated: {format_us(outcome.timeline.makespan_us)}. Not run yet.")
        else:
            say(self.state, f"This placement was run. {MEASURED_BELOW}")
        if outcome is not None and run is not None:
            self.show(LiveRun.of(outcome, run))
        else:
            self._clear()

    def _clear(self) -> None:
        """Removes the numbers of another placement."""
        self.numbers.value = ""
        say(self.progress_note, "")
        self.chart.show(None)

    def _check_steps(self, change: Any) -> None:
        """Checks a typed number of steps; an invalid one is replaced by the previous one, with a note."""
        with guard_change(self.model.reject) as guard:
            count_up_to("steps", change["new"], MOST_STEPS)
        if guard.failed:
            self.steps.value = change["old"]

    def _start(self) -> None:
        with Guard(self.model.fail) as guard:
            self.tasks.run(self.steps.value, kind=self.kind.value, native=self.native.value)
        if not guard.failed:
            self.start.disabled, self.stop.disabled = True, False
            say(self.state, "Starting ...")
            self._clear()

    def _stop(self) -> None:
        self.tasks.runner.stop()
        say(self.state, "Stopping ...")

    def _reset_after_failure(self) -> None:
        if not self.tasks.running:
            self.stop.disabled = True
            self._ready()

    def show(self, live: LiveRun) -> None:
        low, high = live.interval()
        count = len(live.seconds)
        facts = [
            ("median", f"{format_us(live.median * 1e6)}" if count else "..."),
            ("95% interval", f"{format_us(low * 1e6)} to {format_us(high * 1e6)}" if count else "..."),
            (f"simulated{f' for {live.costs}' if live.costs else ''}", format_us(live.simulated_seconds * 1e6)),
            ("measured / simulated", f"{live.median / live.simulated_seconds:.2f}" if count and not live.costs else ""),
            ("steps", str(count)),
        ]
        for native_run in live.native:
            time_text = (
                format_us(native_run.median_seconds * 1e6) if len(native_run.step_seconds) else native_run.message
            )
            facts.append((native_run.name, time_text))
        if live.run is not None and live.run.native_ratio == live.run.native_ratio:
            facts.append(("measured / native", f"{live.run.native_ratio:.2f}"))
        facts_html = "".join(f"<span>{name_with_tooltip(k)} <b>{html.escape(v)}</b></span>" for k, v in facts if v)
        self.numbers.value = f'<div class="bl-facts">{facts_html}</div>'
        if live.run is None and not self.tasks.runner.stopping:
            say(self.state, f"Running: {live.phase} steps" if live.phase != "starting" else "Starting ...")
        say(self.progress_note, traced_in_words(live))
        self.chart.show(run_chart(live))

    def _show_run(self, outcome_and_run: tuple[Outcome, Run]) -> None:
        outcome, run = outcome_and_run
        self.stop.disabled = True
        self._ready()
        moved_note = f" {len(run.moved_ops)} ops ran elsewhere than placed." if run.moved_ops else ""
        why = f" {run.message}" if run.message and run.status not in ("ok", "cancelled") else ""
        status_sentence: Any = {"ok": "Done.", "cancelled": "Stopped."}.get(run.status, f"Ended: {run.status}.")
        if len(run.step_seconds) and self.tasks.run_of(self.model.outcome) is not run:
            say(
                self.state,
                f"{status_sentence}{moved_note}{why} It ran the placement before this one; go back to that to see it.",
            )
            return
        self.show(LiveRun.of(outcome, run))
        below = f" {MEASURED_BELOW}{undercut(outcome, run)}" if len(run.step_seconds) else ""
        say(self.state, f"{status_sentence}{moved_note}{why}{below}")


def undercut(outcome: Outcome, run: Run) -> str:
    """Says why the run is shorter than the lower bound; empty if it is not, or if the bound is for other hardware."""
    if foreign(outcome):
        return ""
    reason = below_bound(run.median_seconds * 1e6, outcome.lower_bound_us, outcome.graph)
    return f" The run {reason}." if reason else ""


def foreign(outcome: Outcome) -> str:
    """Says why a run on this machine measures another step than the simulated one; empty if it does not."""
    if outcome.setting.profile == "measured":
        link = assumed_link(outcome)
        if not link:
            return ""
        until = "they have no cost" if copies_nothing(outcome) else "the link is measured, too"
        return (
            f"Ops have the times of this machine, transfers those of the preset {link}: simulated and measured step times are no "
            f"comparison before {until}."
        )
    return (
        f"The simulated step time is an estimate for {outcome.setting.hardware}; a run measures this machine. "
        "The two cannot be compared."
    )


def traced_in_words(live: LiveRun) -> str:
    """Says that the timeline shows a separate step that was run under a trace; empty without such a step."""
    timeline = None if live.run is None else live.run.timeline
    if timeline is None or not live.seconds:
        return ""
    is_longer = timeline.makespan_us > live.median * 1e6
    reason = "tracing takes time of its own" if is_longer else "single steps differ, most of all on a busy machine"
    return (
        f"The timeline shows one traced step of {format_us(timeline.makespan_us)}, run apart from the {len(live.seconds)} "
        f"measured ones, whose median is {format_us(live.median * 1e6)}: {reason}."
    )
