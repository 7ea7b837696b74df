"""One training step as a `tf.function`: forward, `tf.GradientTape` backward, update. Needs TensorFlow.

The four update rules have one fused op per variable, as in TensorFlow 1. Keras' optimizers write each update as several
element-wise ops behind one `IdentityN` that waits for all gradients. Jeon et al.'s graphs have `Apply...` ops that run as
soon as their own gradient is there, so these call the same kernels. Hyper-parameters are those of the paper that trains each
model; the step's cost does not depend on them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices
"""`tf.IndexedSlices` for the rows of a table that was looked up."""


class Optimizer(ABC):
    """Creates its slot variables once (`<variable>/<slot>`), then updates the variables in place."""

    slot_names: tuple[str, ...] = ()

    def __init__(self, variables: Sequence[tf.Variable]):
        self.variables = tuple(variables)
        self.state: list[tuple[tf.Variable, ...]] = []
        self.slots: dict[str, str] = {}
        for variable in self.variables:
            with tf.device("/CPU:0"):
                slots = tuple(
                    tf.Variable(
                        np.zeros(variable.shape, np.float32), trainable=False, name=f"{plain_name(variable)}/{slot}"
                    )
                    for slot in self.slot_names
                )
            self.state.append(slots)
            self.slots |= {plain_name(slot): plain_name(variable) for slot in slots}

    def apply(self, gradients: Sequence[Gradient]) -> None:
        """Adds the update ops, each in the scope `optimizer/<variable>`."""
        if not tf.executing_eagerly():
            for slot in (s for slots in self.state for s in slots):
                tf.compat.v1.get_default_graph().watch_variable(slot)  # raw ops take handles and would not tell
        self.prepare_step()
        for variable, slots, gradient in zip(self.variables, self.state, gradients, strict=True):
            with tf.name_scope(f"optimizer/{plain_name(variable)}"):
                self.update(variable, slots, gradient)

    def prepare_step(self) -> None:  # noqa: B027 - most rules have none
        """Adds the work that is done once per step."""

    @abstractmethod
    def update(self, variable: tf.Variable, slots: tuple[tf.Variable, ...], gradient: Gradient) -> None:
        """Updates one variable; `gradient` is a tensor or, for a table that was looked up, `tf.IndexedSlices`."""


class Sgd(Optimizer):
    """`w -= rate * g`; a looked-up table changes only in its rows."""

    rate = 0.5

    def update(self, variable: tf.Variable, slots: tuple[tf.Variable, ...], gradient: Gradient) -> None:
        if isinstance(gradient, tf.IndexedSlices):
            step_size = gradient.values * self.rate
            tf.raw_ops.ResourceScatterSub(resource=variable.handle, indices=gradient.indices, updates=step_size)
        else:
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=self.rate, delta=gradient)


class Momentum(Optimizer):
    """`m = 0.9 m + g; w -= rate * m` (He et al. 2016: momentum 0.9)."""

    slot_names = ("momentum",)
    rate = 1e-3

    def update(self, variable: tf.Variable, slots: tuple[tf.Variable, ...], gradient: Gradient) -> None:
        tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle, accum=slots[0].handle, lr=self.rate, grad=dense(gradient), momentum=0.9
        )


class RmsProp(Optimizer):
    """`s = 0.9 s + 0.1 g^2; m = 0.9 m + rate * g / sqrt(s + 1)` (Szegedy et al. 2016: decay 0.9, epsilon 1)."""

    slot_names = ("rms", "momentum")
    rate = 0.01

    def update(self, variable: tf.Variable, slots: tuple[tf.Variable, ...], gradient: Gradient) -> None:
        tf.raw_ops.ResourceApplyRMSProp(
            var=variable.handle,
            ms=slots[0].handle,
            mom=slots[1].handle,
            lr=self.rate,
            rho=0.9,
            momentum=0.9,
            epsilon=1.0,
            grad=dense(gradient),
        )


class Adam(Optimizer):
    """Kingma and Ba 2015 with the betas of Vaswani et al. 2017 (0.9, 0.98, 1e-9); one shared step count."""

    slot_names = ("m", "v")
    rate = 1e-3

    def __init__(self, variables: Sequence[tf.Variable]):
        super().__init__(variables)
        with tf.device("/CPU:0"):
            self.count = tf.Variable(np.float32(0), trainable=False, name="optimizer/steps")

    def prepare_step(self) -> None:
        with tf.name_scope("optimizer/powers"):
            steps = self.count.assign_add(1.0)
            self.powers = tf.pow(0.9, steps), tf.pow(0.98, steps)

    def update(self, variable: tf.Variable, slots: tuple[tf.Variable, ...], gradient: Gradient) -> None:
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=slots[0].handle,
            v=slots[1].handle,
            beta1_power=self.powers[0],
            beta2_power=self.powers[1],
            lr=self.rate,
            beta1=0.9,
            beta2=0.98,
            epsilon=1e-9,
            grad=dense(gradient),
        )


RULES: dict[str, type[Optimizer]] = {"sgd": Sgd, "momentum": Momentum, "rmsprop": RmsProp, "adam": Adam}


def plain_name(variable: tf.Variable) -> str:
    """Returns a variable's name without TensorFlow's output suffix."""
    return str(variable.name).split(":")[0]


def dense(gradient: Gradient) -> tf.Tensor:
    """Returns the gradient as one tensor; rows that were looked up several times are summed."""
    return tf.convert_to_tensor(gradient)


def clip_by_global_norm(
    gradients: Sequence[Gradient], variables: Sequence[tf.Variable], limit: float
) -> list[Gradient]:
    """Scales all gradients by `limit / max(limit, norm)`, norm over all of them (Pascanu et al. 2013).

    As `tf.clip_by_global_norm`, rows of a looked-up table count singly; here every op has its variable's scope.
    """
    halves = []
    for gradient, variable in zip(gradients, variables, strict=True):
        with tf.name_scope(f"optimizer/{plain_name(variable)}/norm"):
            halves.append(tf.nn.l2_loss(gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient))
    with tf.name_scope("optimizer/clip"):
        scale = limit / tf.maximum(tf.sqrt(2.0 * tf.add_n(halves)), limit)
    clipped_gradients: list[Gradient] = []
    for gradient, variable in zip(gradients, variables, strict=True):
        with tf.name_scope(f"optimizer/{plain_name(variable)}/clip"):
            if isinstance(gradient, tf.IndexedSlices):
                rows = gradient.values * scale
                clipped_gradients.append(tf.IndexedSlices(rows, gradient.indices, gradient.dense_shape))
            else:
                clipped_gradients.append(gradient * scale)
    return clipped_gradients


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
