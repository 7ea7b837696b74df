"""A small GPT in plain TensorFlow ops: causal attention and two dense layers, normalized before each. Needs TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from baechi_lab.graph.step import Step
from baechi_lab.models.training import Weights, make_step
from baechi_lab.profilers import trace


def gpt_step(
    *,
    batch_size: int,
    layers: int = 4,
    units: int = 128,
    heads: int = 4,
    words: int = 64,
    vocabulary: int = 1000,
    seed: int = 0,
    causal: bool = True,
) -> Step:
    """The traced training step: mean cross entropy of the next word, SGD; words also see later ones where not `causal`."""
    make = Weights(seed)
    table, places = make.matrix("embedding/table", vocabulary, units), make.matrix("embedding/places", words, units)
    shapes = {"qkv": (units, 3 * units), "out": (units, units), "up": (units, 4 * units), "down": (4 * units, units)}
    kernels = [{k: make.matrix(f"layer{i}/{k}", *shape) for k, shape in shapes.items()} for i in range(layers)]
    head = make.matrix("projection/kernel", units, vocabulary)
    mask = np.triu(np.full((words, words), -1e9 if causal else 0.0, np.float32), k=1)

    def attention(x: Any, kernel: dict[str, Any]) -> Any:
        parts = tf.reshape(tf.matmul(x, kernel["qkv"]), [batch_size, words, 3, heads, units // heads])
        query, key, value = tf.unstack(tf.transpose(parts, [2, 0, 3, 1, 4]))
        scores = tf.matmul(query, key, transpose_b=True) * (units // heads) ** -0.5 + mask
        attended = tf.transpose(tf.matmul(tf.nn.softmax(scores), value), [0, 2, 1, 3])
        return tf.matmul(tf.reshape(attended, [-1, units]), kernel["out"])

    def loss(given: Any, wanted: Any) -> Any:
        with tf.name_scope("embedding/lookup"):
            x = tf.reshape(tf.gather(table, given) + places, [-1, units])
        for i, kernel in enumerate(kernels):
            with tf.name_scope(f"layer{i}/attention"):
                x = x + attention(_normal(x), kernel)
            with tf.name_scope(f"layer{i}/dense"):
                x = x + tf.matmul(tf.nn.relu(tf.matmul(_normal(x), kernel["up"])), kernel["down"])
        with tf.name_scope("projection/all"):
            logits = tf.matmul(_normal(x), head)
            return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(wanted, [-1]), logits))

    text = np.random.default_rng(seed + 1).integers(0, vocabulary, (batch_size, words + 1), dtype=np.int32)
    step = make_step("gpt", loss, make.variables, (text[:, :-1].copy(), text[:, 1:].copy()), ("given", "wanted"), "sgd")
    return trace(step.function, *step.inputs, name="gpt" if causal else "bert")


def _normal(x: Any) -> Any:
    deviation = x - tf.reduce_mean(x, 1, keepdims=True)
    return deviation * tf.math.rsqrt(tf.reduce_mean(tf.square(deviation), 1, keepdims=True) + 1e-6)
