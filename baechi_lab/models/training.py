"""One training step as a `tf.function`: forward, `tf.GradientTape` backward, update. Needs TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from .optimizers import RULES, clip_by_global_norm


@dataclass(frozen=True, eq=False)
class TrainingStep:
    """A model's step: call it with a batch (by default `inputs`) to train once and get the loss.

    `function` is the `tf.function`; `variables` those that are trained, `slots` the optimizer's: slot name ->
    name of the variable it belongs to.
    """

    name: str
    function: tf.types.experimental.PolymorphicFunction
    inputs: tuple[NDArray[Any], ...]
    variables: tuple[tf.Variable, ...]
    slots: dict[str, str]

    def __call__(self, *batch: NDArray[Any]) -> float:
        return float(self.function(*(tf.constant(b) for b in batch or self.inputs)))


@dataclass
class Weights:
    """Makes the variables of a model, on the host and from one seed, so that tracing takes no accelerator memory."""

    seed: int
    variables: list[tf.Variable] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def matrix(self, name: str, *shape: int) -> tf.Variable:
        """Returns a variable drawn uniformly from Glorot's interval (Glorot and Bengio 2010)."""
        return self.add(name, glorot(self._random, shape))

    def zeros(self, name: str, *shape: int) -> tf.Variable:
        """Returns a variable of zeros: biases."""
        return self.add(name, np.zeros(shape, dtype=np.float32))

    def ones(self, name: str, *shape: int) -> tf.Variable:
        """Returns a variable of ones: the gain of a normalization."""
        return self.add(name, np.ones(shape, dtype=np.float32))

    def add(self, name: str, value: NDArray[np.float32]) -> tf.Variable:
        """Returns a variable of the given value."""
        with tf.device("/CPU:0"):
            variable = tf.Variable(value, name=name)
        self.variables.append(variable)
        return variable


def glorot(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Returns float32 of `shape`: fan-in and fan-out are the last two axes, times the receptive field (the other axes)."""
    field_size = int(np.prod(shape[:-2]))
    limit = np.sqrt(6.0 / (field_size * (shape[-2] + shape[-1])))
    return ((random.random(shape, dtype=np.float32) * 2 - 1) * np.float32(limit)).astype(np.float32)


def make_step(
    name: str,
    loss: Callable[..., tf.Tensor],
    variables: Sequence[tf.Variable],
    inputs: tuple[NDArray[np.generic], ...],
    input_names: Sequence[str],
    optimizer: str,
    clip_norm: float | None = None,
) -> TrainingStep:
    """Wires loss, gradients and update into one `tf.function` of fixed input shapes.

    `loss(*batch)` returns a scalar. `clip_norm` scales all gradients so that their global norm stays below it.
    """
    rule = RULES[optimizer](variables)

    def step(*batch: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss(*batch)
        gradients = tape.gradient(value, list(variables))
        if clip_norm is not None:
            gradients = clip_by_global_norm(gradients, variables, clip_norm)
        rule.apply(gradients)
        return value

    step.__name__ = name
    signature = [tf.TensorSpec(x.shape, x.dtype, name=n) for x, n in zip(inputs, input_names, strict=True)]
    function = tf.function(step, input_signature=signature, autograph=False)
    return TrainingStep(name, function, inputs, tuple(variables), rule.slots)
