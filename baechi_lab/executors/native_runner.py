"""Time an undivided step as its framework runs it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..graph.step import NativeRun


class NativeRunner(Protocol):
    """Runs a step as its framework does. Compiled code is kept between calls; the state of the step is restored."""

    def __call__(self, steps: int, warmup: int = 3, stop: Stop | None = None) -> NativeRun:
        """Run `warmup + steps` steps from the step's state. Ends early if `stop` says so."""


@dataclass(frozen=True)
class Stop:
    """Condition for starting no further step: `cancel` is set, or `time.monotonic()` is past `deadline`."""

    cancel: threading.Event | None = None
    deadline: float | None = None

    def status(self) -> tuple[str, str]:
        """Status and message as in `Run`; `ok` to go on."""
        if self.cancel is not None and self.cancel.is_set():
            return "cancelled", "cancelled by the caller"
        if self.deadline is not None and time.monotonic() > self.deadline:
            return "timeout", "the time was over"
        return "ok", ""


def timed_steps(
    name: str,
    call: Callable[[int], tuple[tuple[object, ...], float]],
    steps: int,
    warmup: int,
    stop: Stop | None,
    failure: Callable[[BaseException], tuple[str, str]],
    failures: tuple[type[BaseException], ...],
    info: dict[str, object],
) -> NativeRun:
    """Run `call(k)`, which returns outputs and seconds, for every step. An exception in `failures` ends the run with a status."""
    seconds: list[float] = []
    outputs: list[tuple[Any, ...]] = []
    status, message = "ok", ""
    for k in range(warmup + steps):
        status, message = (stop or Stop()).status()
        if status != "ok":
            break
        try:
            returned, step_seconds = call(k)
        except failures as error:
            status, message = failure(error)
            break
        outputs.append(returned)
        seconds.append(step_seconds)
    return NativeRun(name, np.array(seconds[warmup:], dtype=np.float64), tuple(outputs), status, message, info)
