"""The undivided step as its framework runs it: what a placement has to beat, apart from what tracing costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from ..errors import InvalidInput, UnknownNameError
from ..graph.cluster import Cluster
from ..graph.placement import Placement
from ..graph.step import NativeRun, Step

if TYPE_CHECKING:
    from ..torch.step import TorchStep


class Way(Protocol):
    """One way of the framework to run one step; what it compiles is kept, and the step's state is put back."""

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


def native_ways(
    step: Step | TorchStep,
    native: bool | str | None,
    *,
    placements: Sequence[Placement] = (),
    cluster: Cluster | None = None,
    kind: str = "auto",
    inputs: Any = None,
    micro_batches: int | None = None,
) -> Mapping[str, Way]:
    """The ways in which the framework of `step` runs it whole, on the first device that its placements would use.

    Args:
        step: what `bl.trace` or `bl.models.build` returned in this process, or a `bl.torch.TorchStep`.
        native: False or None for none, True for all, or the name of one: `tf.function` of a function, `Keras train_step`
            of a model, `eager` or `torch.compile` of a PyTorch step.
        placements, cluster, kind, inputs, micro_batches: as for `bl.execute`.

    Raises:
        InvalidInput: something that is no step, a TensorFlow step without what it was traced from, a part of a batch.
        UnknownNameError: no such way.
    """
    if native is None or native is False:
        return {}
    if not isinstance(native, (bool, str)):
        raise InvalidInput(f"native is {native!r:.60}; it must be True, False or the name of one way")
    known: Mapping[str, Way]
    if getattr(step, "framework", "tensorflow") == "torch":
        from .torch.native import torch_ways

        widest = max(placements, key=lambda placement: placement.devices, default=None)
        known = torch_ways(cast("TorchStep", step), widest, cluster)
    else:
        if not isinstance(step, Step):
            raise InvalidInput(
                f"step is a {type(step).__name__}; native= runs what bl.trace or bl.models.build returned"
            )
        if micro_batches is not None and micro_batches != 1:
            raise InvalidInput(
                f"native= runs a step undivided, and {step.name!r} is one of {micro_batches} micro-batches; trace the "
                "whole batch and run that"
            )
        from .tensorflow.native import tensorflow_ways

        known = tensorflow_ways(step, inputs, kind)
    if native is True:
        return known
    if native not in known:
        raise UnknownNameError.of("native way", native, known)
    return {native: known[native]}


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
