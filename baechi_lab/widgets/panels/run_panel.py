"""Part 6, Run: the current placement on real devices, step times live beside the simulated one."""

from __future__ import annotations

import html
from typing import Any

import ipywidgets

from ...graph import Run
from ...graph.units import format_us
from ..charts import run_figure
from ..compute import Outcome
from ..guard import Guard
from ..running import LiveRun
from ..tasks import Tasks
from .chart import Chart
from .parts import WIDE, button, note, row, say

STYLE = {"description_width": "60px"}
KINDS = [("attached: GPUs, else CPU", "auto"), ("GPUs", "gpu"), ("CPU (logical devices)", "cpu")]


class RunPanel:
    """Choose devices and steps, start, watch, stop."""

    def __init__(self, tasks: Tasks):
        self.tasks, self.model = tasks, tasks.model
        self.kind = ipywidgets.Dropdown(description="devices", options=KINDS, style=STYLE)
        self.steps = ipywidgets.BoundedIntText(value=20, min=1, max=10_000, description="steps", style=STYLE)
        self.steps.layout.width = "150px"
        self.native = ipywidgets.Checkbox(
            value=False, description="and as the framework runs it", indent=False, layout={"width": "220px"},
            tooltip="also the undivided step, as tf.function, Keras or PyTorch runs it on one device",
        )  # fmt: skip
        self.start = button("Start", "run the current placement for real", self._start, style="primary")
        self.stop = button("Stop", "end the run; what was measured is kept", self._stop)
        self.stop.disabled = True
        self.state = note()
        self.numbers = ipywidgets.HTML(layout=WIDE)
        self.chart = Chart()
        self.widget = ipywidgets.VBox(
            [
                row(self.kind, self.steps, self.native, self.start, self.stop),
                self.state,
                self.numbers,
                self.chart.widget,
            ],
            layout=WIDE,
        )
        self.model.on("live", self.show)
        self.model.on("run", self._done)
        self.model.on("outcome", lambda _: self._ready())
        self.model.on("problem", lambda problem: self._failed() if problem else None)
        self._ready()

    def _ready(self) -> None:
        outcome = self.model.outcome
        runnable = outcome is not None and outcome.step is not None
        running = self._running
        self.start.disabled = not runnable or running
        if running:
            return
        if not runnable:
            say(
                self.state,
                "A stored graph cannot be run: choose a model in Setting, or open with a step.",
            )
        elif self.tasks.run_of(outcome) is None:
            say(self.state, f"Simulated: {format_us(outcome.timeline.makespan_us)}. Not run yet.")  # type: ignore[union-attr]

    @property
    def _running(self) -> bool:
        return self.tasks.running

    def _start(self) -> None:
        with Guard(self.model.fail) as guard:
            self.tasks.run(self.steps.value, kind=self.kind.value, native=self.native.value)
        if not guard.failed:
            self.start.disabled, self.stop.disabled = True, False
            say(self.state, "Starting TensorFlow in a process of its own ...")
            self.numbers.value = ""

    def _stop(self) -> None:
        self.tasks.runner.stop()
        say(self.state, "Stopping ...")

    def _failed(self) -> None:
        if not self._running:
            self.stop.disabled = True
            self._ready()

    def show(self, live: LiveRun) -> None:
        """Step times so far."""
        low, high = live.interval()
        count = len(live.seconds)
        facts = [
            ("median", f"{format_us(live.median * 1e6)}" if count else "..."),
            ("95% interval", f"{format_us(low * 1e6)} to {format_us(high * 1e6)}" if count else "..."),
            ("simulated", format_us(live.simulated_seconds * 1e6)),
            ("measured / simulated", f"{live.median / live.simulated_seconds:.2f}" if count else "..."),
            ("steps", str(count)),
        ]
        for own in live.native:
            facts.append((own.name, format_us(own.median_seconds * 1e6) if len(own.step_seconds) else own.message))
        if live.run is not None and live.run.native_ratio == live.run.native_ratio:
            facts.append(("measured / native", f"{live.run.native_ratio:.2f}"))
        shown = "".join(f"<span>{k} <b>{html.escape(v)}</b></span>" for k, v in facts)
        self.numbers.value = f'<div class="bl-facts">{shown}</div>'
        if live.run is None:
            say(self.state, f"Running: {live.phase} steps" if live.phase != "starting" else "Starting TensorFlow ...")
        self.chart.show(run_figure(live))

    def _done(self, finished: tuple[Outcome, Run]) -> None:
        _, run = finished
        self.stop.disabled = True
        self._ready()
        moved = f" {len(run.moved_ops)} ops ran elsewhere than placed." if run.moved_ops else ""
        why = f" {run.message}" if run.message and run.status != "ok" else ""
        ended: Any = {"ok": "Done.", "cancelled": "Stopped."}.get(run.status, f"Ended: {run.status}.")
        say(self.state, f"{ended}{moved}{why} The measured timeline is below the simulated one.")
