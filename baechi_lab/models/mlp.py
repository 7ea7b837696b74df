"""A tiny multi-layer perceptron, for tests and first steps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from .base import Model

if TYPE_CHECKING:
    import tensorflow as tf

    from .training import TrainingStep


@dataclass(frozen=True)
class Mlp(Model):
    """Classification: dense layers with ReLU, softmax on top; tiny, for tests. SGD, because it needs no slots.

    The expert keeps it on one device.
    """

    name: ClassVar[str] = "mlp"
    layers: int = 2
    units: int = 64
    inputs: int = 32
    classes: int = 10
    batch_size: int = 32
    optimizer: str = "sgd"
    seed: int = 0

    def validate(self) -> None:
        for field in ("layers", "units", "inputs"):
            self.check_whole(field)
        self.check_whole("classes", low=2)
        self.check_common()

    def training_step(self) -> TrainingStep:
        import tensorflow as tf

        from .training import Weights, make_step

        self.validate()
        make = Weights(self.seed)
        widths = [self.inputs, *[self.units] * self.layers, self.classes]
        layers = [
            (make.matrix(f"layer{k}/kernel", a, b), make.zeros(f"layer{k}/bias", b))
            for k, (a, b) in enumerate(pairwise(widths))
        ]

        def loss(x: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            for k, (kernel, bias) in enumerate(layers):
                with tf.name_scope(f"layer{k}/forward"):
                    x = tf.nn.bias_add(tf.matmul(x, kernel), bias)
                    x = tf.nn.relu(x) if k < self.layers else x
            with tf.name_scope("loss"):
                return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x))

        random = np.random.default_rng(self.seed + 1)
        batch = random.standard_normal((self.batch_size, self.inputs), dtype=np.float32)
        labels = random.integers(0, self.classes, self.batch_size, dtype=np.int32)
        return make_step(self.name, loss, make.variables, (batch, labels), ("x", "labels"), self.optimizer)
