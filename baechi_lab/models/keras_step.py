"""The training step of a Keras image classifier, with names and weights that do not depend on what ran before.

Needs TensorFlow.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from .training import TrainingStep, glorot, make_step

if TYPE_CHECKING:
    import keras

    from .inception_v3 import InceptionV3
    from .resnet import ResNet

_AUTOMATIC = re.compile(r"_\d+$")


def image_step(model: InceptionV3 | ResNet, network_name: str) -> TrainingStep:
    """Returns a step of a network of `tf.keras.applications`: forward in training mode, cross entropy, backward and update.

    It returns class probabilities float32[batch, classes]; images are float32[batch, size, size, 3].
    """
    with tf.device("/CPU:0"):
        make_network = getattr(tf.keras.applications, network_name)
        shape = (model.image_size, model.image_size, 3)
        network = _renumber_layers(make_network(weights=None, input_shape=shape, classes=model.classes))
    # Keras' own initializers take their seed from the process.
    random = np.random.default_rng(model.seed)
    for variable in network.trainable_variables:
        if len(variable.shape) >= 2:
            variable.assign(glorot(random, tuple(variable.shape)))

    def loss(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        probabilities = network(images, training=True)
        with tf.name_scope("loss"):
            return tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(labels, probabilities))

    random = np.random.default_rng(model.seed + 1)
    images = random.standard_normal((model.batch_size, *shape), dtype=np.float32)
    labels = random.integers(0, model.classes, model.batch_size, dtype=np.int32)
    variables = [v.value for v in network.trainable_variables]
    return make_step(model.name, loss, variables, (images, labels), ("images", "labels"), model.optimizer)


def _renumber_layers(model: keras.Model) -> keras.Model:
    """Renumbers automatic layer names (`conv2d_94`) from 0, because Keras counts them over the whole process."""
    count_of: Counter[str] = Counter()
    names: dict[str, str] = {}
    for layer in model.layers:
        base = _AUTOMATIC.sub("", layer.name)
        if base == to_snake_case(type(layer).__name__):
            names[layer.name] = f"{base}_{count_of[base]}" if count_of[base] else base
            count_of[base] += 1
    if all(old_name == new_name for old_name, new_name in names.items()):
        return model

    def rename_layer(layer: keras.layers.Layer) -> keras.layers.Layer:
        config = layer.get_config()
        return type(layer).from_config(config | {"name": names.get(layer.name, layer.name)})

    return tf.keras.models.clone_model(model, clone_function=rename_layer)


def to_snake_case(class_name: str) -> str:
    """Returns the name that Keras gives a layer of that class.

    >>> to_snake_case("BatchNormalization"), to_snake_case("Conv2D"), to_snake_case("MaxPooling2D")
    ('batch_normalization', 'conv2d', 'max_pooling2d')
    """
    words = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", class_name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", words).lower()
