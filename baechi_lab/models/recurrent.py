"""Building blocks of the recurrent models, unrolled in Python: LSTM layer, attention, projection. Needs TensorFlow.

Every variable is read once per step (as TensorFlow 1's `kernel/read`), so that a device which uses it in forty time
steps receives it once; every time step opens its own name scope, `<layer>/t<k>`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from .training import Weights

State = tuple[tf.Tensor, tf.Tensor]
"""Cell and hidden state of an LSTM, each float32[batch, units]."""


def read_variables(scope: str, *variables: tf.Variable) -> tuple[tf.Tensor, ...]:
    """Returns the values of variables, read once, in their layer's scope."""
    with tf.name_scope(f"{scope}/read"):
        return tuple(tf.convert_to_tensor(v) for v in variables)


class LstmLayer:
    """One LSTM layer (Hochreiter and Schmidhuber 1997) with the ops of TensorFlow's BasicLSTMCell.

    `z = [x, h] W + b`, split into i, j, f, o; `c = c sigmoid(f + 1) + sigmoid(i) tanh(j)`; `h = tanh(c) sigmoid(o)`.
    """

    def __init__(self, weights: Weights, scope: str, inputs: int, units: int):
        self.scope, self.units = scope, units
        self.kernel = weights.matrix(f"{scope}/kernel", inputs + units, 4 * units)
        self.bias = weights.zeros(f"{scope}/bias", 4 * units)

    def read_weights(self) -> None:
        """Reads the weights; call once per training step, inside the tape."""
        self.weights = read_variables(self.scope, self.kernel, self.bias)

    def step(
        self, t: int, inputs: Sequence[tf.Tensor], state: State, residual: bool = False
    ) -> tuple[tf.Tensor, State]:
        """Returns output and new state at time `t`; `residual` adds the first input to the output."""
        kernel, bias = self.weights
        cell, hidden = state
        with tf.name_scope(f"{self.scope}/t{t}"):
            gates = tf.nn.bias_add(tf.matmul(tf.concat([*inputs, hidden], 1), kernel), bias)
            i, j, f, o = tf.split(gates, 4, axis=1)
            cell = cell * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
            hidden = tf.tanh(cell) * tf.sigmoid(o)
            return (hidden + inputs[0] if residual else hidden), (cell, hidden)

    def unroll(self, inputs: Sequence[tf.Tensor], batch: int, residual: bool = False) -> tuple[list[tf.Tensor], State]:
        """Outputs per time step and final state, from a zero state."""
        self.read_weights()
        with tf.name_scope(f"{self.scope}/start"):
            state = tf.zeros([batch, self.units]), tf.zeros([batch, self.units])
        outputs = []
        for t, x in enumerate(inputs):
            output, state = self.step(t, [x], state, residual)
            outputs.append(output)
        return outputs, state


class Embedding:
    """A table of word vectors: one look-up for all time steps, then one vector per step."""

    def __init__(self, weights: Weights, scope: str, vocabulary: int, units: int):
        self.scope = scope
        self.table = weights.matrix(f"{scope}/table", vocabulary, units)

    def __call__(self, words: tf.Tensor) -> list[tf.Tensor]:
        """Returns the vectors of `words` int32[steps, batch]: a tensor float32[batch, units] for every step."""
        with tf.name_scope(f"{self.scope}/lookup"):
            return list(tf.unstack(tf.gather(self.table, words)))


class Attention:
    """Additive attention (Bahdanau et al. 2015): score of position s is `v . tanh(W q + U memory_s)`."""

    def __init__(self, weights: Weights, scope: str, query: int, memory: int, units: int):
        self.scope = scope
        self.query_kernel = weights.matrix(f"{scope}/query", query, units)
        self.memory_kernel = weights.matrix(f"{scope}/memory", memory, units)
        self.vector = weights.matrix(f"{scope}/vector", units, 1)

    def read_weights(self, memory: Sequence[tf.Tensor]) -> None:
        """Reads the weights and computes what all time steps share; `memory`: one float32[batch, units] per position."""
        query, kernel, vector = read_variables(self.scope, self.query_kernel, self.memory_kernel, self.vector)
        with tf.name_scope(f"{self.scope}/keys"):
            self.memory = tf.stack(list(memory), axis=1)
            batch, positions, width = self.memory.shape
            keys = tf.matmul(tf.reshape(self.memory, [batch * positions, width]), kernel)
            self.keys = tf.reshape(keys, [batch, positions, keys.shape[1]])
            self.weights = query, tf.reshape(vector, [-1])

    def step(self, t: int, query: tf.Tensor) -> tf.Tensor:
        """Returns float32[batch, memory]: the memory averaged with the weights that `query` gives each position."""
        kernel, vector = self.weights
        with tf.name_scope(f"{self.scope}/t{t}"):
            hidden = tf.tanh(self.keys + tf.expand_dims(tf.matmul(query, kernel), 1))
            scores = tf.nn.softmax(tf.reduce_sum(vector * hidden, [2]))
            return tf.squeeze(tf.matmul(tf.expand_dims(scores, 1), self.memory), [1])


class Projection:
    """The output layer: words from hidden vectors, and the mean cross entropy with the right words.

    `how="whole"` is one matrix product for all time steps, `"steps"` one per step.
    """

    def __init__(self, weights: Weights, scope: str, units: int, vocabulary: int, how: str):
        self.scope, self.how = scope, how
        self.kernel = weights.matrix(f"{scope}/kernel", units, vocabulary)
        self.bias = weights.zeros(f"{scope}/bias", vocabulary)

    def loss(self, hidden: Sequence[tf.Tensor], words: tf.Tensor) -> tf.Tensor:
        """Returns the mean loss per word; `hidden` has one float32[batch, units] per step, `words` is int32[steps, batch]."""
        self.weights = read_variables(self.scope, self.kernel, self.bias)
        if self.how == "whole":
            with tf.name_scope(f"{self.scope}/all"):
                return tf.reduce_mean(self._losses(tf.concat(list(hidden), 0), tf.reshape(words, [-1])))
        with tf.name_scope(f"{self.scope}/words"):
            right = tf.unstack(words)
        losses = []
        for t, pair in enumerate(zip(hidden, right, strict=True)):
            with tf.name_scope(f"{self.scope}/t{t}"):
                losses.append(self._losses(*pair))
        with tf.name_scope(f"{self.scope}/mean"):
            return tf.reduce_mean(tf.add_n(losses)) / len(losses)

    def _losses(self, hidden: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
        logits = tf.nn.bias_add(tf.matmul(hidden, self.weights[0]), self.weights[1])
        return tf.nn.sparse_softmax_cross_entropy_with_logits(words, logits)


def random_words(seed: int, vocabulary: int, steps: int, batch: int) -> NDArray[np.int32]:
    """Returns int32[steps, batch] of seeded random words."""
    return np.random.default_rng(seed).integers(0, vocabulary, (steps, batch), dtype=np.int32)
