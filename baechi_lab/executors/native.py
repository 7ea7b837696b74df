"""Run the undivided step as its framework does. This is the baseline for placed runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import InvalidInput, UnknownNameError
from ..frameworks import framework_of, framework_part
from ..graph.cluster import Cluster
from ..graph.placement import Placement
from ..graph.step import Step
from .native_runner import NativeRunner

if TYPE_CHECKING:
    from ..torch_steps.step import TorchStep


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
        raise InvalidInput(f"native is {native!r:.60}; it must be True, False or the name of one way")
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
