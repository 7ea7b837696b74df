"""The Grouper and the Placer of Mirhoseini et al. 2018 as TensorFlow functions of their weights (sections 2 and 3).

Grouper: unit features and a learned type embedding -> one hidden layer -> a softmax over groups, units independent.
Placer: group embeddings -> bi-directional LSTM encoder -> LSTM decoder with content attention (Bahdanau et al. 2014,
arXiv:1409.0473) -> a softmax over devices per group, `softmax(C tanh(l / T))` (H, equation 1); the embedding of the
device chosen is the decoder's next input.

Weights are NumPy arrays by name and noise is an argument: a function's value depends on nothing else, which is what
makes runs repeatable and resumable. Dense products replace gathers, whose gradients add up in no fixed order.
Complexity per sample: O(units x hidden x groups) and O(groups x hidden x (hidden + groups)).

Derivatives are TensorFlow's, which take about 1.15 times as long as ones written out by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...frameworks import require_framework
from ...workers.tensorflow_import import load_tensorflow

if TYPE_CHECKING:
    from types import ModuleType

    from tensorflow import Tensor

Weights = dict[str, NDArray[np.float32]]

INITIAL_RANGE = 0.08
"""Weights start uniformly in +-0.08, as in Sutskever et al. 2014, whose sequence-to-sequence model H builds on."""


def tensorflow() -> ModuleType:
    """Returns the module; `MissingPackage` says how to install it."""
    require_framework("tensorflow", "the Hierarchical Planner")
    module: ModuleType = load_tensorflow()
    return module


def grouper_weights(
    rng: np.random.Generator, features: int, types: int, groups: int, hidden: int, embedding: int
) -> Weights:
    """Returns random weights of the Grouper."""
    shapes = {
        "grouper/types": (types, embedding),
        "grouper/hidden": (embedding + features, hidden),
        "grouper/hidden_bias": (hidden,),
        "grouper/output": (hidden, groups),
        "grouper/output_bias": (groups,),
    }
    return _draw(rng, shapes)


def placer_weights(rng: np.random.Generator, embedding: int, devices: int, hidden: int) -> Weights:
    """Returns random weights of the Placer; `h` is the LSTM size and the size of a device embedding."""
    h = hidden
    shapes = {
        "placer/encoder_input": (2, embedding, 4 * h),
        "placer/encoder_state": (2, h, 4 * h),
        "placer/encoder_bias": (2, 1, 4 * h),
        "placer/bridge": (2, 2 * h, h),
        "placer/devices": (devices, h),
        "placer/begin": (1, h),
        "placer/decoder": (2 * h, 4 * h),
        "placer/decoder_bias": (4 * h,),
        "placer/memory": (2 * h, h),
        "placer/query": (h, h),
        "placer/score": (h, 1),
        "placer/output": (3 * h, devices),
    }
    return _draw(rng, shapes)


def _draw(rng: np.random.Generator, shapes: dict[str, tuple[int, ...]]) -> Weights:
    def one(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        if not name.endswith("bias"):
            return rng.uniform(-INITIAL_RANGE, INITIAL_RANGE, shape).astype(np.float32)
        zeros = np.zeros(shape, dtype=np.float32)
        if "coder" in name:
            h = shape[-1] // 4
            zeros[..., h : 2 * h] = 1.0  # the forget gate starts open (Jozefowicz et al. 2015)
        return zeros

    return {name: one(name, shape) for name, shape in shapes.items()}


def times(tf: ModuleType, x: Tensor, weights: Tensor) -> Tensor:
    """Returns `x[..., a] @ weights[a, b]`, computed as one product of two matrices.

    TensorFlow 2.21 with oneDNN writes beyond the end of the result when it multiplies a batch by a single matrix and a batch
    dimension is 1, as in [5, 1, 4, 8] @ [8, 8].
    """
    return tf.reshape(tf.reshape(x, [-1, x.shape[-1]]) @ weights, [*x.shape[:-1], weights.shape[-1]])


def lstm_cell(tf: ModuleType, gates: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Runs one LSTM step (Hochreiter and Schmidhuber 1997): output and memory cell."""
    i, f, g, o = tf.split(gates, 4, axis=-1)
    memory = tf.sigmoid(f) * memory + tf.sigmoid(i) * tf.tanh(g)
    return tf.sigmoid(o) * tf.tanh(memory), memory


def lstm(tf: ModuleType, inputs: Tensor, weights: Tensor, out: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the outputs and cells [T, ..., b, h] of all T steps of an LSTM.

    `inputs[T, ..., b, 4h]` are multiplied by their weights already; `weights[..., h, 4h]` are those of the state. `out` and
    `memory` [..., b, h] are the state before the first step.
    """

    def step(state: tuple[Tensor, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        return lstm_cell(tf, x + state[0] @ weights, state[1])

    outs, cells = tf.scan(step, inputs, (out, memory))
    return outs, cells


def make_scores(tf: ModuleType) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Returns the function of the scores of content attention, `tanh(keys + query) @ score`.

    Its shapes are `(keys[m, 1, M, h], query[m, k, 1, h], score[h, 1]) -> [m, k, M]`.

    Most of an update is spent here: it is compiled as a whole, and computed again for its derivative, so that nothing of
    size M x h is kept between.
    """

    @tf.function(autograph=False, jit_compile=True)  # type: ignore[untyped-decorator]
    def scores(keys: Tensor, query: Tensor, score: Tensor) -> Tensor:
        return tf.reduce_sum(tf.tanh(keys + query) * score[:, 0], axis=-1)

    return tf.recompute_grad(scores)


@cache
def functions() -> tuple[Callable[..., tuple[Tensor, Tensor, Tensor]], Callable[..., tuple[Tensor, Tensor, Tensor]]]:
    """Returns `(group, place)`: the two networks, compiled once per shape.

    `group(weights, types[U, V], features[U, F], noise[U, G], uniform[m, U])` -> groups int32[m, U], log p float32[m],
    mean entropy. `place(weights, embedding[M, m, E], noise[M, m, k, D], gumbel[M, m, k, D], temperature, tanh_constant)`
    -> devices int32[M, m, k], log p float32[m, k], mean entropy.
    """
    tf = tensorflow()
    return (
        tf.function(_group, autograph=False, reduce_retracing=False),
        tf.function(_place, autograph=False, reduce_retracing=False),
    )


def _group(
    weights: Mapping[str, Tensor], types: Tensor, features: Tensor, noise: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    tf = tensorflow()
    inputs = tf.concat([types @ weights["grouper/types"], features], axis=1)
    hidden = tf.tanh(inputs @ weights["grouper/hidden"] + weights["grouper/hidden_bias"])
    logits = hidden @ weights["grouper/output"] + weights["grouper/output_bias"] + noise
    log_p = tf.nn.log_softmax(logits)
    p = tf.exp(log_p)
    below = tf.cumsum(p, axis=1)[:, :-1]  # inverse transform sampling: one uniform number per unit and sample
    sampled_groups = tf.map_fn(
        lambda u: tf.reduce_sum(tf.cast(below < u[:, None], tf.int32), axis=1), uniform, fn_output_signature=tf.int32
    )
    log_probability = tf.map_fn(
        lambda c: tf.reduce_sum(tf.gather(log_p, c, batch_dims=1)), sampled_groups, fn_output_signature=tf.float32
    )
    return sampled_groups, log_probability, -tf.reduce_mean(tf.reduce_sum(p * log_p, axis=1))


def _place(
    weights: Mapping[str, Tensor],
    embedding: Tensor,
    noise: Tensor,
    gumbel: Tensor,
    temperature: Tensor,
    tanh_constant: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draws samples, then computes their probabilities in a second pass.

    Only the second pass needs a derivative, and it has no loop but the LSTM's and the attention's.
    """
    tf = tensorflow()
    w = weights
    # Encoder states [m, M, 2h] and both final states [2, m, 2h] of a bi-directional LSTM.
    directions = tf.stack([embedding, embedding[::-1]], axis=0)
    count, m, width = embedding.shape
    h = w["placer/encoder_state"].shape[1]
    flat = tf.reshape(directions, [2, count * m, width]) @ w["placer/encoder_input"] + w["placer/encoder_bias"]
    steps = tf.transpose(tf.reshape(flat, [2, count, m, 4 * h]), [1, 0, 2, 3])
    zero = tf.zeros([2, m, h])
    out, cell = lstm(tf, steps, w["placer/encoder_state"], zero, zero)
    last = tf.stack([tf.concat([s[-1, 0], s[-1, 1]], axis=-1) for s in (out, cell)])
    memory = tf.transpose(tf.concat([out[:, 0], out[::-1, 1]], axis=-1), [1, 0, 2])
    keys = times(tf, memory, w["placer/memory"])[:, None]  # [m, 1, M, h]
    first = tf.repeat(last @ w["placer/bridge"], noise.shape[2], axis=1)  # [2, m * k, h]
    decoder = _Decoder(tf, w, memory, keys, temperature, tanh_constant)
    sampled_devices = decoder.sample(first, noise, gumbel)
    log_p = decoder.log_p(first, noise, sampled_devices)  # [m, M * k, D]
    log_probability = _by_grouping(tf, tf.one_hot(sampled_devices, noise.shape[-1]))
    total = tf.reduce_sum(log_probability * log_p, axis=-1)
    total = tf.reshape(total, [log_p.shape[0], *sampled_devices.shape[::2]])  # [m, M, k]
    return sampled_devices, tf.reduce_sum(total, axis=1), -tf.reduce_mean(tf.reduce_sum(tf.exp(log_p) * log_p, axis=-1))


@dataclass(eq=False)
class _Decoder:
    """The Placer's second half: `memory` [m, M, 2h] encoder states, `keys` [m, 1, M, h] what attention compares."""

    tf: ModuleType
    w: Mapping[str, Tensor]
    memory: Tensor
    keys: Tensor
    temperature: Tensor
    tanh_constant: Tensor

    def __post_init__(self) -> None:
        self.scores = make_scores(self.tf)

    def _attention(self, query: Tensor) -> Tensor:
        """Scores [m, k, M] of `query` [m, k, h]."""
        return self.scores(self.keys, query[:, :, None], self.w["placer/score"])

    def _log_p(self, out: Tensor, score: Tensor, noise: Tensor) -> Tensor:
        """Returns log p [m, k, D] from LSTM outputs [m, k, h] and scores [m, k, M]."""
        tf = self.tf
        context = tf.linalg.matmul(tf.nn.softmax(score), self.memory)
        logits = times(tf, tf.concat([context, out], axis=-1), self.w["placer/output"])
        return tf.nn.log_softmax(self.tanh_constant * tf.tanh(logits / self.temperature) + noise)

    def sample(self, first: Tensor, noise: Tensor, gumbel: Tensor) -> Tensor:
        """Devices int32[M, m, k], by the Gumbel trick."""
        tf, w = self.tf, self.w
        _, m, k, devices = noise.shape

        def step(state: tuple[Tensor, ...], x: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
            out, cell, device, _ = state
            gates = tf.concat([device, out], axis=1) @ w["placer/decoder"] + w["placer/decoder_bias"]
            out, cell = lstm_cell(tf, gates, cell)
            at = tf.reshape(out, [m, k, -1])
            log_p = self._log_p(at, self._attention(times(tf, at, w["placer/query"])), x[0])
            sampled_device = tf.argmax(log_p + x[1], axis=-1, output_type=tf.int32)
            return (
                out,
                cell,
                tf.reshape(tf.one_hot(sampled_device, devices), [m * k, devices]) @ w["placer/devices"],
                sampled_device,
            )

        first_input = tf.repeat(w["placer/begin"], m * k, axis=0)
        return tf.scan(step, (noise, gumbel), (first[0], first[1], first_input, tf.zeros([m, k], tf.int32)))[3]

    def log_p(self, first: Tensor, noise: Tensor, sampled_devices: Tensor) -> Tensor:
        """Returns log p [m, M * k, D] of every device at every step of the samples `sampled_devices`."""
        tf, w = self.tf, self.w
        count, m, k, devices = noise.shape
        before = times(
            tf, tf.reshape(tf.one_hot(sampled_devices[:-1], devices), [count - 1, m * k, devices]), w["placer/devices"]
        )
        first_input = tf.repeat(w["placer/begin"], m * k, axis=0)
        h = first_input.shape[-1]
        inputs = (
            times(tf, tf.concat([first_input[None], before], axis=0), w["placer/decoder"][:h])
            + w["placer/decoder_bias"]
        )
        out, _ = lstm(tf, inputs, w["placer/decoder"][h:], first[0], first[1])
        out = tf.reshape(out, [count, m, k, -1])
        score = tf.map_fn(self._attention, times(tf, out, w["placer/query"]))
        return self._log_p(_by_grouping(tf, out), _by_grouping(tf, score), _by_grouping(tf, noise))


def _by_grouping(tf: ModuleType, x: Tensor) -> Tensor:
    """Returns [m, M * k, ...] of `x` [M, m, k, ...]."""
    count, m, k, width = x.shape
    return tf.reshape(tf.transpose(x, [1, 0, 2, 3]), [m, count * k, width])
