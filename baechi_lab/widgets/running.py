"""Running the current placement on real devices, live: step times as they come, and the measured timeline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import InvalidInput
from ..graph import NativeRun, Run
from .background import Background, Ticket
from .compute import Outcome


@dataclass
class LiveRun:
    """Step times so far, in seconds, and the Run once it is over; `simulated_seconds` is what was promised.

    `costs` names other hardware that the promise was made for; empty if it was measured here.
    """

    simulated_seconds: float
    seconds: list[float] = field(default_factory=list)
    phase: str = "starting"
    run: Run | None = None
    costs: str = ""

    def add(self, step: Any) -> None:
        """Take in a step's result; only measured steps count."""
        self.phase = step.phase
        if step.phase == "measured":
            self.seconds.append(float(step.seconds))

    @property
    def native(self) -> tuple[NativeRun, ...]:
        """The undivided step as its framework ran it, where that was asked for."""
        return tuple(self.run.native.values()) if self.run is not None else ()

    @property
    def median(self) -> float:
        """Median of the measured steps, NaN before the first."""
        return float(np.median(self.seconds)) if self.seconds else float("nan")

    def interval(self) -> tuple[float, float]:
        """The bootstrap interval of the median (`baechi_lab.executors.summarize`), NaN before the first step."""
        if not self.seconds:
            return float("nan"), float("nan")
        from ..executors import summarize

        found = summarize(self.seconds, resamples=500)
        return found.low, found.high


def _other_costs(outcome: Outcome) -> str:
    return "" if outcome.setting.profile == "measured" else outcome.setting.hardware


class Runner:
    """Runs an outcome beside the interface; `changed(live)` is called on the interface's thread after every step."""

    def __init__(self, worker: Background, changed: Callable[[LiveRun], None]):
        self.worker, self.changed = worker, changed
        self.live: LiveRun | None = None
        self._stop = threading.Event()

    def start(self, outcome: Outcome, steps: int, warmup: int, done: Callable[[Run], None], **options: Any) -> None:
        """Run `outcome.placement`; `options` go to `bl.execute`.

        Raises:
            InvalidInput: there is no step to run, or the placement does not fit.
        """
        step_to_run = outcome.step
        if step_to_run is None:
            raise InvalidInput("a stored graph cannot be run: choose a model, or open the workbench with a step")
        self._stop = stop = threading.Event()
        self.live = live = LiveRun(outcome.timeline.makespan_us / 1e6, costs=_other_costs(outcome))

        def arrived(step: Any) -> None:
            self.worker.deliver(lambda: self._arrived(live, step))

        def work(ticket: Ticket) -> Run:
            from ..executors import execute

            ticket.report("starting TensorFlow in a process of its own")
            return execute(
                step_to_run, outcome.placement, steps, warmup=warmup, graph=outcome.graph, on_step=arrived,
                cancel=stop, **options,
            )  # fmt: skip

        def ended(run: Run) -> None:
            live.run, live.phase = run, "done"
            live.seconds = [float(x) for x in run.step_seconds]
            self.changed(live)
            done(run)

        self.worker.submit(work, ended)

    def _arrived(self, live: LiveRun, step: Any) -> None:
        if live is self.live and live.run is None:
            live.add(step)
            self.changed(live)

    def stop(self) -> None:
        """End the run; what was measured so far is kept."""
        self._stop.set()
