"""Small training steps that the tests of this folder share."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")


@pytest.fixture(scope="session")
def batch():
    """A classification batch: float32[8, 6] and 8 labels of 3 classes."""
    rng = np.random.default_rng(0)
    return rng.random((8, 6), dtype=np.float32), rng.integers(0, 3, 8)


@pytest.fixture(scope="session")
def make_mlp():
    """Compiled two-layer models with equal initial weights; extra layers go between the two."""

    def make(optimizer, *between):
        tf.keras.utils.set_random_seed(1)
        layers = tf.keras.layers
        hidden = layers.Dense(5, activation="relu", name="hidden")
        model = tf.keras.Sequential(
            [tf.keras.Input((6,)), hidden, *between, layers.Dense(3, activation="softmax", name="answer")], name="mlp"
        )
        model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=False)
        return model

    return make
