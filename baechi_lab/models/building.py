"""`bl.models.build`: a benchmark model's training step, traced."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ..errors import InvalidInput
from ..graph import Step
from ..graph.step import BuiltFrom, Source
from ..workers.tensorflow_import import load_tensorflow
from .registry import make_model

if TYPE_CHECKING:
    from .base import Model


def build(name: str, /, **params: object) -> Step:
    """Returns the traced training step of a benchmark model, with seeded weights and a seeded batch. Needs TensorFlow.

    `params` are the model's own (`bl.models.make_model(name)` shows them with their defaults); `step.name` is `name`
    and `step.built_from.params` holds all of them.

    Raises:
        UnknownNameError: no such model or parameter; InvalidInput: a parameter makes no sense.

    >>> step = build("mlp", batch_size=4)
    >>> step.name, step.inputs[0].shape
    ('mlp', (4, 32))
    """
    from ..profilers import trace

    model = make_model(name, **params)
    load_tensorflow()
    try:
        training = model.training_step()
    except MemoryError as error:
        reason = f": {error}" if str(error) else ""
        raise InvalidInput(f"the step of model {name!r} takes more memory than there is{reason}") from error
    step = trace(training.function, *training.inputs, name=name)
    built_from = BuiltFrom(name, model.get_params())
    info = {**step.info, "model": name, "params": built_from.params}  # for readers; the package reads `built_from`
    # `source` builds the model again: the step has the weights as data, and should not hold them twice.
    return replace(step, info=info, built_from=built_from, source=partial(_source, model))


def _source(model: Model) -> Source:
    import tensorflow as tf

    training_step = model.training_step()
    concrete = training_step.function.get_concrete_function()
    inputs = tuple(map(tf.constant, training_step.inputs))
    return Source(training_step.function, inputs, tuple(concrete.graph.variables))
