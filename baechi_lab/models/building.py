"""`bl.models.build`: a benchmark model's training step, traced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..graph import Step
from .registry import make_model


def build(name: str, /, **params: Any) -> Step:
    """The traced training step of a benchmark model, with seeded weights and a seeded batch. Needs TensorFlow.

    `params` are the model's own (`bl.models.make_model(name)` shows them with their defaults); `step.name` is `name`
    and `step.info["params"]` holds all of them.

    Raises:
        UnknownNameError: no such model or parameter; InvalidInput: a parameter makes no sense.

    >>> step = build("mlp", batch_size=4)
    >>> step.name, step.inputs[0].shape
    ('mlp', (4, 32))
    """
    from ..profilers import trace
    from ..profilers.tensorflow.loading import load_tensorflow

    model = make_model(name, **params)
    load_tensorflow()
    training = model.training_step()
    step = trace(training.function, *training.inputs, name=name)
    return replace(step, info={**step.info, "model": name, "params": model.get_params()})
