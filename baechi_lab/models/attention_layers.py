"""The layers of the Transformer in plain TensorFlow ops, one name scope per layer. Needs TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from .training import Weights

if TYPE_CHECKING:
    from .transformer import Transformer


class Network:
    """Encoder, decoder and loss; hidden vectors are float32[batch * steps, units] between layers."""

    def __init__(self, model: Transformer):
        self.model = model
        self.weights = make = Weights(model.seed)
        shape = model.vocabulary, model.units
        self.tables = {side: make.matrix(f"embedding/{side}", *shape) for side in ("source", "target")}
        self.encoder = [_Layer(make, f"encoder/layer{k}", model, cross=False) for k in range(model.layers)]
        self.decoder = [_Layer(make, f"decoder/layer{k}", model, cross=True) for k in range(model.layers)]
        self.kernel = make.matrix("projection/kernel", model.units, model.vocabulary)

    def loss(self, source: tf.Tensor, target_in: tf.Tensor, target_out: tf.Tensor) -> tf.Tensor:
        """Returns the mean cross entropy per word; all inputs int32[batch, steps]."""
        memory = self._embed("source", source)
        for layer in self.encoder:
            memory = layer(memory)
        x = self._embed("target", target_in)
        for layer in self.decoder:
            x = layer(x, memory)
        with tf.name_scope("projection/all"):
            logits = tf.matmul(x, self.kernel)
            words = tf.reshape(target_out, [-1])
            return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(words, logits))

    def _embed(self, side: str, words: tf.Tensor) -> tf.Tensor:
        units, steps = self.model.units, self.model.sequence_length
        with tf.name_scope(f"embedding/{side}_lookup"):
            vectors = tf.gather(self.tables[side], words) * units**0.5
            return tf.reshape(vectors + positions(steps, units), [-1, units])


def positions(steps: int, units: int) -> NDArray[np.float32]:
    """Returns float32[steps, units]: sines and cosines of wavelengths from 2 pi to 20,000 pi (section 3.5 of the paper)."""
    angle = np.arange(steps)[:, None] / 10000.0 ** (np.arange(0, units, 2) / units)
    return np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(steps, units).astype(np.float32)


class _Layer:
    """Self-attention, in the decoder attention to the encoder's output, and two dense layers; each plus its input."""

    def __init__(self, make: Weights, scope: str, model: Transformer, cross: bool):
        self.self_attention = _Attention(make, f"{scope}/self", model, causal=cross)
        self.cross = _Attention(make, f"{scope}/cross", model, causal=False) if cross else None
        self.scope = f"{scope}/dense"
        units, inner = model.units, model.inner
        self.up = make.matrix(f"{self.scope}/up", units, inner)
        self.up_bias = make.zeros(f"{self.scope}/up_bias", inner)
        self.down = make.matrix(f"{self.scope}/down", inner, units)
        self.down_bias = make.zeros(f"{self.scope}/bias", units)
        self.norm = _Norm(make, self.scope, units)

    def __call__(self, x: tf.Tensor, memory: tf.Tensor | None = None) -> tf.Tensor:
        x = self.self_attention(x, x)
        if self.cross is not None:
            x = self.cross(x, memory)
        with tf.name_scope(f"{self.scope}/forward"):
            inner = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, self.up), self.up_bias))
            return self.norm(x + tf.nn.bias_add(tf.matmul(inner, self.down), self.down_bias))


class _Attention:
    """Attention of several heads: softmax(Q K^T / sqrt(width)) V, joined and projected; plus the input, normalized."""

    def __init__(self, make: Weights, scope: str, model: Transformer, causal: bool):
        self.scope, self.model = scope, model
        self.query, self.key, self.value, self.out = (
            make.matrix(f"{scope}/{role}", model.units, model.units) for role in ("query", "key", "value", "out")
        )
        self.norm = _Norm(make, scope, model.units)
        steps = model.sequence_length
        self.mask = np.triu(np.full((steps, steps), -1e9, np.float32), k=1) if causal else None

    def __call__(self, x: tf.Tensor, memory: tf.Tensor) -> tf.Tensor:
        width = self.model.units // self.model.heads
        with tf.name_scope(f"{self.scope}/forward"):
            query = self._heads(x, self.query)
            key = self._heads(memory, self.key)
            value = self._heads(memory, self.value)
            scores = tf.matmul(query, key, transpose_b=True) * width**-0.5
            scores = scores if self.mask is None else scores + self.mask
            attended = tf.transpose(tf.matmul(tf.nn.softmax(scores), value), [0, 2, 1, 3])
            return self.norm(x + tf.matmul(tf.reshape(attended, [-1, self.model.units]), self.out))

    def _heads(self, x: tf.Tensor, kernel: tf.Variable) -> tf.Tensor:
        """Returns float32[batch, heads, steps, width]."""
        heads, steps = self.model.heads, self.model.sequence_length
        split = tf.reshape(tf.matmul(x, kernel), [-1, steps, heads, self.model.units // heads])
        return tf.transpose(split, [0, 2, 1, 3])


class _Norm:
    """Layer normalization (Ba et al. 2016, arXiv:1607.06450)."""

    def __init__(self, make: Weights, scope: str, units: int):
        self.gain, self.shift = make.ones(f"{scope}/gain", units), make.zeros(f"{scope}/shift", units)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        deviation = x - tf.reduce_mean(x, 1, keepdims=True)
        variance = tf.reduce_mean(tf.square(deviation), 1, keepdims=True)
        return deviation * tf.math.rsqrt(variance + 1e-6) * self.gain + self.shift
