"""One framework's own run of an undivided step, timed step by step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..graph.step import NativeRun


class NativeRunner(Protocol):
    """Runs one step as its framework does. What it compiles stays compiled, and the state of the step is restored."""

    def __call__(self, steps: int, warmup: int = 3, stop: Stop | None = None) -> NativeRun:
        """Run `warmup + steps` steps from the step's state, unless `stop` says in between that it is over."""


@dataclass(frozen=True)
class Stop:
    """When no further step is begun: `cancel` is set, or the clock of `time.monotonic` is past `deadline`."""

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
    way: str,
    call: Callable[[int], tuple[tuple[Any, ...], float]],
    steps: int,
    warmup: int,
    stop: Stop | None,
    failure: Callable[[BaseException], tuple[str, str]],
    failures: tuple[type[BaseException], ...],
    info: dict[str, Any],
) -> NativeRun:
    """`call(k)` for every step: its outputs and seconds; what it raises of `failures` ends the run with a status."""
    seconds: list[float] = []
    outputs: list[tuple[Any, ...]] = []
    status, message = "ok", ""
    for k in range(warmup + steps):
        status, message = (stop or Stop()).status()
        if status != "ok":
            break
        try:
            returned, taken = call(k)
        except failures as error:
            status, message = failure(error)
            break
        outputs.append(returned)
        seconds.append(taken)
    return NativeRun(way, np.array(seconds[warmup:], dtype=np.float64), tuple(outputs), status, message, info)
