"""The Grouper and the Placer of paper H as TensorFlow functions of their weights (sections 2 and 3).

Grouper: unit features and a learned type embedding -> one hidden layer -> a softmax over groups, units independent.
Placer: group embeddings -> bi-directional LSTM encoder -> LSTM decoder with content attention (Bahdanau et al. 2014,
arXiv:1409.0473) -> a softmax over devices per group, `softmax(C tanh(l / T))` (H, equation 1); the embedding of the
device chosen is the decoder's next input.

Weights are NumPy arrays by name and noise is an argument: a function's value depends on nothing else, which is what
makes runs repeatable and resumable. Dense products replace gathers, whose gradients add up in no fixed order.
Complexity per sample: O(units x hidden x groups) and O(groups x hidden x (hidden + groups)).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import MissingPackage

Weights = dict[str, NDArray[np.float32]]

INITIAL_RANGE = 0.08
"""Weights start uniformly in +-0.08, as in Sutskever et al. 2014, whose sequence-to-sequence model H builds on."""


def tensorflow() -> Any:
    """The module, or one sentence about how to install it."""
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingPackage(
            "the Hierarchical Planner needs the package 'tensorflow': pip install tensorflow"
        ) from error
    return tf


def grouper_weights(
    rng: np.random.Generator, features: int, types: int, groups: int, hidden: int, embedding: int
) -> Weights:
    """Random weights of the Grouper."""
    shapes = {
        "grouper/types": (types, embedding), "grouper/hidden": (embedding + features, hidden),
        "grouper/hidden_bias": (hidden,), "grouper/output": (hidden, groups), "grouper/output_bias": (groups,),
    }  # fmt: skip
    return _draw(rng, shapes)


def placer_weights(rng: np.random.Generator, embedding: int, devices: int, hidden: int) -> Weights:
    """Random weights of the Placer; `h` is the LSTM size and the size of a device embedding."""
    h = hidden
    shapes = {
        "placer/encoder_input": (2, embedding, 4 * h), "placer/encoder_state": (2, h, 4 * h),
        "placer/encoder_bias": (2, 1, 4 * h), "placer/bridge": (2, 2 * h, h), "placer/devices": (devices, h),
        "placer/begin": (1, h), "placer/decoder": (2 * h, 4 * h), "placer/decoder_bias": (4 * h,),
        "placer/memory": (2 * h, h), "placer/query": (h, h), "placer/score": (h, 1),
        "placer/output": (3 * h, devices),
    }  # fmt: skip
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


@cache
def functions() -> tuple[Any, Any]:
    """`(group, place)`: the two networks, compiled once per shape.

    `group(weights, types[U, V], features[U, F], noise[U, G], uniform[m, U])` -> groups int32[m, U], log p float32[m],
    mean entropy. `place(weights, embedding[M, m, E], noise[M, m, k, D], gumbel[M, m, k, D], temperature, tanh_constant)`
    -> devices int32[M, m, k], log p float32[m, k], mean entropy.
    """
    tf = tensorflow()
    return (
        tf.function(_group, autograph=False, reduce_retracing=False),
        tf.function(_place, autograph=False, reduce_retracing=False),
    )


def _group(weights: Any, types: Any, features: Any, noise: Any, uniform: Any) -> Any:
    tf = tensorflow()
    inputs = tf.concat([types @ weights["grouper/types"], features], axis=1)
    hidden = tf.tanh(inputs @ weights["grouper/hidden"] + weights["grouper/hidden_bias"])
    logits = hidden @ weights["grouper/output"] + weights["grouper/output_bias"] + noise
    log_p = tf.nn.log_softmax(logits)
    p = tf.exp(log_p)
    below = tf.cumsum(p, axis=1)[:, :-1]  # inverse transform sampling: one uniform number per unit and sample
    chosen = tf.map_fn(
        lambda u: tf.reduce_sum(tf.cast(below < u[:, None], tf.int32), axis=1), uniform, fn_output_signature=tf.int32
    )
    picked = tf.map_fn(
        lambda c: tf.reduce_sum(tf.gather(log_p, c, batch_dims=1)), chosen, fn_output_signature=tf.float32
    )  # fmt: skip
    return chosen, picked, -tf.reduce_mean(tf.reduce_sum(p * log_p, axis=1))


def _cell(tf: Any, gates: Any, memory: Any) -> tuple[Any, Any]:
    """One LSTM step (Hochreiter and Schmidhuber 1997): output and memory cell."""
    i, f, g, o = tf.split(gates, 4, axis=-1)
    memory = tf.sigmoid(f) * memory + tf.sigmoid(i) * tf.tanh(g)
    return tf.sigmoid(o) * tf.tanh(memory), memory


def _encode(tf: Any, w: Any, embedding: Any) -> tuple[Any, Any]:
    """Encoder states [M, m, 2h] and both final states [2, m, 2h] of a bi-directional LSTM."""
    both = tf.stack([embedding, embedding[::-1]], axis=0)
    count, m, width = embedding.shape
    h = w["placer/encoder_state"].shape[1]
    flat = tf.reshape(both, [2, count * m, width]) @ w["placer/encoder_input"] + w["placer/encoder_bias"]
    steps = tf.transpose(tf.reshape(flat, [2, count, m, 4 * h]), [1, 0, 2, 3])
    zero = tf.zeros([2, m, h])
    out, cell = tf.scan(
        lambda state, x: _cell(tf, x + state[0] @ w["placer/encoder_state"], state[1]), steps, (zero, zero)
    )
    last = tf.stack([tf.concat([s[-1, 0], s[-1, 1]], axis=-1) for s in (out, cell)])
    return tf.concat([out[:, 0], out[::-1, 1]], axis=-1), last


def _place(weights: Any, embedding: Any, noise: Any, gumbel: Any, temperature: Any, tanh_constant: Any) -> Any:
    tf = tensorflow()
    w = weights
    _, m, k, devices = noise.shape
    states, last = _encode(tf, w, embedding)
    memory = tf.transpose(states, [1, 0, 2])  # [m, M, 2h]
    keys = (memory @ w["placer/memory"])[:, None]  # [m, 1, M, h]
    first = tf.repeat(last @ w["placer/bridge"], k, axis=1)  # [2, m * k, h]
    h = first.shape[-1]

    def step(state: Any, x: Any) -> Any:
        out, cell, device, _, _ = state
        out, cell = _cell(tf, tf.concat([device, out], axis=1) @ w["placer/decoder"] + w["placer/decoder_bias"], cell)
        query = tf.reshape(out @ w["placer/query"], [m, k, 1, h])
        score = tf.tanh(keys + query) @ w["placer/score"]  # [m, k, M, 1]
        context = tf.linalg.matmul(tf.nn.softmax(score[..., 0]), memory)  # [m, k, 2h]
        logits = tf.concat([context, tf.reshape(out, [m, k, h])], axis=-1) @ w["placer/output"]
        log_p = tf.nn.log_softmax(tanh_constant * tf.tanh(logits / temperature) + x[0])
        chosen = tf.argmax(log_p + x[1], axis=-1, output_type=tf.int32)  # a sample, by the Gumbel trick
        picked = tf.one_hot(chosen, devices)
        device = tf.reshape(picked, [m * k, devices]) @ w["placer/devices"]
        entropy = -tf.reduce_sum(tf.exp(log_p) * log_p, axis=-1)
        return out, cell, device, chosen, tf.stack([tf.reduce_sum(picked * log_p, axis=-1), entropy])

    begin = tf.repeat(w["placer/begin"], m * k, axis=0)
    start = (first[0], first[1], begin, tf.zeros([m, k], tf.int32), tf.zeros([2, m, k]))
    _, _, _, chosen, told = tf.scan(step, (noise, gumbel), start)
    return chosen, tf.reduce_sum(told[:, 0], axis=0), tf.reduce_mean(told[:, 1])
