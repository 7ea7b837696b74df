"""The four update rules of the benchmark models, one fused op per variable as in TensorFlow 1. Needs TensorFlow.

Keras' optimizers write each update as several element-wise ops behind one `IdentityN` that waits for all gradients.
Jeon et al.'s graphs have `Apply...` ops that run as soon as their own gradient is there, so these call the same kernels.
Hyper-parameters are those of the paper that trains each model; the step's cost does not depend on them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

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
