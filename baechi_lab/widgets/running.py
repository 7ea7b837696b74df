"""Runs the current placement on real devices, with live step times and the measured timeline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import InvalidInput
from ..graph import NativeRun, Run
from ..graph.link import FREE
from .background import Background, Ticket
from .compute import Outcome, is_torch_step
from .setting import link_name


@dataclass
class LiveRun:
    """Step times so far, in seconds, and the `Run` after its end; `simulated_seconds` is the simulated step.

    `costs` names the other hardware or link for which the step was simulated; empty if its costs were measured here. `planned`
    is the number of steps to measure.
    """

    simulated_seconds: float
    seconds: list[float] = field(default_factory=list)
    phase: str = "starting"
    run: Run | None = None
    costs: str = ""
    planned: int = 0

    @classmethod
    def of(cls, outcome: Outcome, run: Run) -> LiveRun:
        """Makes the record of a finished run of `outcome`."""
        seconds = [float(x) for x in run.step_seconds]
        return cls(outcome.timeline.makespan_us / 1e6, seconds, "done", run, _other_costs(outcome), len(seconds))

    def add(self, step: Any) -> None:
        """Adds the result of a step; only measured steps count."""
        self.phase = step.phase
        if step.phase == "measured":
            self.seconds.append(float(step.seconds))

    @property
    def native(self) -> tuple[NativeRun, ...]:
        """The run of the undivided step by its framework, if it was requested."""
        return tuple(self.run.native.values()) if self.run is not None else ()

    @property
    def median(self) -> float:
        """The median of the measured steps; NaN before the first."""
        return float(np.median(self.seconds)) if self.seconds else float("nan")

    def interval(self) -> tuple[float, float]:
        """The bootstrap interval of the median (`baechi_lab.executors.summarize`), NaN before the first step."""
        if not self.seconds:
            return float("nan"), float("nan")
        from ..executors import summarize

        summary = summarize(self.seconds, resamples=500)
        return summary.low, summary.high


def _other_costs(outcome: Outcome) -> str:
    if outcome.setting.profile != "measured":
        return outcome.setting.hardware
    return f"a link of {assumed_link(outcome)}" if assumed_link(outcome) else ""


def assumed_link(outcome: Outcome) -> str:
    """Returns the preset with which transfers of the step are simulated; empty without transfers, or for another link.

    Typed and measured links are no presets. Neither is a free link for PyTorch on CPU devices, which share memory.
    """
    if copies_nothing(outcome) and outcome.setting.cluster.link == FREE:
        return ""
    return link_name(outcome.setting.cluster) if len(outcome.timeline.transfers) else ""


def copies_nothing(outcome: Outcome) -> bool:
    """Whether a run here moves no data: PyTorch's CPU devices share the memory of one process, and no GPU is attached."""
    if not is_torch_step(outcome.step):
        return False
    import torch

    return not torch.cuda.is_available()


PAUSE_SECONDS = 0.25
"""Least seconds between two pictures of a run. Faster drawing would keep the interface from handling a click on Stop, and use
processor time that the run measures."""


class Runner:
    """Runs an outcome in the background; `changed(live)` is called on the interface's thread, at most every `pause` s."""

    def __init__(self, worker: Background, changed: Callable[[LiveRun], None], pause: float = PAUSE_SECONDS):
        self.worker, self.changed, self.pause = worker, changed, pause
        self.live: LiveRun | None = None
        self._next = 0.0
        self._stop = threading.Event()

    def start(
        self, outcome: Outcome, steps: int, warmup: int, on_result: Callable[[Run], None], **options: Any
    ) -> None:
        """Runs `outcome.placement`; `options` go to `bl.execute`.

        Raises:
            InvalidInput: there is no step to run, or the placement does not fit.
        """
        step_to_run = outcome.step
        if step_to_run is None:
            raise InvalidInput(
                "a graph alone cannot be run: open the workbench with a training step, or choose a model"
            )
        self._stop = stop = threading.Event()
        simulated_seconds = outcome.timeline.makespan_us / 1e6
        self.live = live = LiveRun(simulated_seconds, costs=_other_costs(outcome), planned=steps)
        self._next = 0.0

        def arrived(step: object) -> None:
            live.add(step)
            if time.monotonic() >= self._next:
                self._next = float("inf")  # until the interface has drawn
                self.worker.deliver(lambda: self._show_live(live))

        def work(ticket: Ticket) -> Run:
            from ..executors import execute

            ticket.report("starting")
            return execute(
                step_to_run,
                outcome.placement,
                steps,
                warmup=warmup,
                graph=outcome.graph,
                on_step=arrived,
                cancel=stop,
                **options,
            )

        def ended(run: Run) -> None:
            self.live = finished = LiveRun.of(outcome, run)
            self.changed(finished)
            on_result(run)

        self.worker.submit(work, ended)

    def _show_live(self, live: LiveRun) -> None:
        if live is not self.live:
            return
        try:
            self.changed(live)
        finally:
            self._next = time.monotonic() + self.pause

    @property
    def stopping(self) -> bool:
        """Whether the run was asked to end."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Ends the run; its measured steps are kept."""
        self._stop.set()
