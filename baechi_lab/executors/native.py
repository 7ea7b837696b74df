"""The undivided step as its framework runs it: what a placement has to beat, apart from what tracing costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..errors import InvalidInput, UnknownNameError
from ..graph.cluster import Cluster
from ..graph.placement import Placement
from ..graph.step import Step
from .native_runner import NativeRunner

if TYPE_CHECKING:
    from ..torch.step import TorchStep


def native_ways(
    step: Step | TorchStep,
    native: bool | str | None,
    *,
    placements: Sequence[Placement] = (),
    cluster: Cluster | None = None,
    kind: str = "auto",
    inputs: Any = None,
    micro_batches: int | None = None,
) -> Mapping[str, NativeRunner]:
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
    known: Mapping[str, NativeRunner]
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
