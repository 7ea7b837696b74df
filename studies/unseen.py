"""Steps of other people's models.

DenseNet121 and the encoder helped to choose how the calibration works; traces of the encoder, Xception, VGG16 and the GPT
showed in which order ops and messages are taken; those of VGG16 and of the project's Inception, how tensors that come at once
share a core and what a step begins with. From EfficientNet and MobileNet nothing was chosen.

Named on the command line as steps of one's own: `baechi-lab fidelity --models studies/unseen.py:densenet121,...`.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from baechi_lab.graph import Step
from baechi_lab.profilers import trace
from studies.pipelines.gpt import gpt_step

CLASSES, WORDS, VOCABULARY, UNITS = 10, 32, 2000, 256


def densenet121() -> Step:
    """Four pictures of 64 x 64."""
    return _pictures("DenseNet121", 4, 64)


def efficientnet_v2_b0() -> Step:
    """Four pictures of 96 x 96."""
    return _pictures("EfficientNetV2B0", 4, 96)


def mobilenet_v2() -> Step:
    """Eight pictures of 96 x 96."""
    return _pictures("MobileNetV2", 8, 96)


def xception() -> Step:
    """Four pictures of 96 x 96."""
    return _pictures("Xception", 4, 96)


def vgg16() -> Step:
    """Four pictures of 64 x 64."""
    return _pictures("VGG16", 4, 64)


def encoder() -> Step:
    """Four layers of attention in Keras, 32 sentences of 32 words."""
    words = keras.Input((WORDS,), dtype="int32")
    value = keras.layers.Embedding(VOCABULARY, UNITS)(words)
    for _ in range(4):
        mixed = keras.layers.MultiHeadAttention(4, UNITS // 4)(value, value)
        value = keras.layers.LayerNormalization()(value + mixed)
        inner = keras.layers.Dense(UNITS)(keras.layers.Dense(4 * UNITS, activation="gelu")(value))
        value = keras.layers.LayerNormalization()(value + inner)
    pooled = keras.layers.GlobalAveragePooling1D()(value)
    model = keras.Model(words, keras.layers.Dense(CLASSES, activation="softmax")(pooled))
    drawn = np.random.default_rng(0).integers(0, VOCABULARY, (32, WORDS)).astype(np.int32)
    return _training(model, drawn, keras.optimizers.Adam(1e-3))


def gpt() -> Step:
    """Four layers of causal attention, 8 sentences of 64 words."""
    return gpt_step(batch_size=8, layers=4, units=256)


def _pictures(name: str, batch: int, size: int) -> Step:
    model = getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=CLASSES)
    drawn = np.random.default_rng(0).random((batch, size, size, 3), dtype=np.float32)
    return _training(model, drawn, keras.optimizers.SGD(0.01, momentum=0.9))


def _training(model: Any, inputs: np.ndarray, optimizer: Any) -> Step:
    """Mean cross entropy of random labels, its gradient and the update."""
    labels = np.random.default_rng(1).integers(0, CLASSES, len(inputs))
    entropy = keras.losses.SparseCategoricalCrossentropy()
    optimizer.build(model.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = entropy(y, model(x, training=True))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    return trace(step, inputs, labels)
