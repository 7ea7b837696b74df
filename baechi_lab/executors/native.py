"""Runs the undivided step as its framework does. This is the baseline for placed runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..errors import InvalidInput, UnknownNameError, in_short
from ..frameworks import framework_of, framework_part
from ..graph import Cluster, NativeRun, Placement, Step

if TYPE_CHECKING:
    from ..torch_steps.step import TorchStep


class NativeRunner(Protocol):
    """Runs a step as its framework does. Compiled code is kept between calls; the state of the step is restored."""

    def __call__(self, steps: int, warmup: int = 3, stop: Stop | None = None) -> NativeRun:
        """Runs `warmup + steps` steps from the step's state. Ends early if `stop` says so."""


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
    """Runs `call(k)`, which returns outputs and seconds, for every step. Exceptions in `failures` end the run with a status."""
    seconds: list[float] = []
    outputs: list[tuple[object, ...]] = []
    status, message = "ok", ""
    for k in range(warmup + steps):
        status, message = (stop or Stop()).status()
        if status != "ok":
            break
        try:
            output, step_seconds = call(k)
        except failures as error:
            status, message = failure(error)
            break
        outputs.append(output)
        seconds.append(step_seconds)
    return NativeRun(name, np.array(seconds[warmup:], dtype=np.float64), tuple(outputs), status, message, info)


def native_runners(
    step: Step | TorchStep,
    native: bool | str | None,
    *,
    placements: Sequence[Placement] = (),
    cluster: Cluster | None = None,
    kind: str = "auto",
    inputs: object = None,
    micro_batches: int | None = None,
) -> Mapping[str, NativeRunner]:
    """Returns name -> runner: how the framework of `step` runs it undivided, on the first device of its placements.

    Args:
        step: what `bl.trace` or `bl.models.build` returned in this process, or a `bl.torch.TorchStep`.
        native: False or None for none, True for all, or the name of one: `tf.function` of a function, `Keras train_step`
            of a model, `eager` or `torch.compile` of a PyTorch step.
        placements, cluster, kind, inputs, micro_batches: as for `bl.execute`.

    Raises:
        InvalidInput: `step` is no step, a TensorFlow step without its function, or one micro-batch of several.
        UnknownNameError: no runner of that name.
    """
    if native is None or native is False:
        return {}
    if not isinstance(native, (bool, str)):
        raise InvalidInput(f"native is {in_short(native)}; it must be True, False or the name of one way")
    if isinstance(step, Step) and micro_batches is not None and micro_batches != 1:
        raise InvalidInput(
            f"native= runs a step undivided, and {step.name!r} is one of {micro_batches} micro-batches; trace the "
            "whole batch and run that"
        )
    widest = max(placements, key=lambda placement: placement.devices, default=None)
    executor = framework_part("executors", framework_of(step))
    runners: Mapping[str, NativeRunner] = executor.native_runners(step, widest, cluster, kind, inputs)
    if native is True:
        return runners
    if native not in runners:
        raise UnknownNameError.of("native way", native, runners)
    return {native: runners[native]}
