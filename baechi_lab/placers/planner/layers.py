"""The layers of the planner's networks with their derivatives: an LSTM over all steps, content attention, plain products.

`tf` is the TensorFlow module, which is imported only where a network is made.
"""

from __future__ import annotations

from typing import Any


def times(tf: Any, x: Any, weights: Any) -> Any:
    """`x[..., a] @ weights[a, b]` as one product of two matrices: TensorFlow 2.21 with oneDNN writes beyond the result of
    [5, 1, 4, 8] @ [8, 8], as it was found to do with a batch against a single matrix where a batch dimension is 1."""
    return tf.reshape(tf.reshape(x, [-1, x.shape[-1]]) @ weights, [*x.shape[:-1], weights.shape[-1]])


def lstm_cell(tf: Any, gates: Any, memory: Any) -> tuple[Any, Any]:
    """One LSTM step (Hochreiter and Schmidhuber 1997): output and memory cell."""
    i, f, g, o = tf.split(gates, 4, axis=-1)
    memory = tf.sigmoid(f) * memory + tf.sigmoid(i) * tf.tanh(g)
    return tf.sigmoid(o) * tf.tanh(memory), memory


def make_lstm(tf: Any) -> Any:
    """`(inputs[T, ..., b, 4h], weights[..., h, 4h], out[..., b, h], memory[..., b, h]) -> outputs, cells [T, ..., b, h]`.

    The derivative is written out: that of the weights is one product over all steps, not a sum of small ones.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def lstm(inputs: Any, weights: Any, out: Any, memory: Any) -> Any:
        def forward(state: Any, x: Any) -> tuple[Any, Any, Any]:
            gates = x + state[0] @ weights
            return *lstm_cell(tf, gates, state[1]), gates

        outs, cells, gates = tf.scan(forward, inputs, (out, memory, tf.zeros_like(inputs[0])))
        outs_before, cells_before = (tf.concat([a[None], b[:-1]], 0) for a, b in ((out, outs), (memory, cells)))

        def back(by_outs: Any, by_cells: Any) -> tuple[Any, Any, Any, Any]:
            i, f, g, o = tf.split(gates, 4, axis=-1)
            i, f, g, o, bent = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o), tf.tanh(cells)
            to_cell = o * (1.0 - bent * bent)
            slopes = tf.concat([g * i * (1.0 - i), cells_before * f * (1.0 - f), i * (1.0 - g * g)], -1)
            slope_o = bent * o * (1.0 - o)

            def step(state: Any, x: Any) -> tuple[Any, Any, Any]:
                by_out, by_cell = state[0] + x[0], state[1] + x[1]
                by_cell += by_out * x[2]
                by_gates = tf.concat([tf.concat([by_cell] * 3, -1) * x[3], by_out * x[4]], -1)
                return tf.linalg.matmul(by_gates, weights, transpose_b=True), by_cell * x[5], by_gates

            zero = tf.zeros_like(out)
            steps = (by_outs, by_cells, to_cell, slopes, slope_o, f)
            by_out, by_cell, by_gates = tf.scan(step, steps, (zero, zero, tf.zeros_like(gates[0])), reverse=True)
            by_weights = tf.einsum("t...bh,t...bg->...hg", outs_before, by_gates)
            return by_gates, by_weights, by_out[0], by_cell[0]

        return (outs, cells), back

    return lstm


def make_scores(tf: Any) -> Any:
    """Content attention, `(keys[m, 1, M, h], query[m, k, 1, h], score[h, 1]) -> [m, k, M]`: `tanh(keys + query) @ score`.

    Most of an update is spent here: both directions are compiled as a whole, and nothing of size M x h is kept between.
    """

    @tf.function(autograph=False, jit_compile=True)  # type: ignore[untyped-decorator]
    def ahead(keys: Any, query: Any, score: Any) -> Any:
        return tf.reduce_sum(tf.tanh(keys + query) * score[:, 0], axis=-1)

    @tf.function(autograph=False, jit_compile=True)  # type: ignore[untyped-decorator]
    def slopes(keys: Any, query: Any, score: Any, upstream: Any) -> tuple[Any, Any, Any]:
        bent, by = tf.tanh(keys + query), upstream[..., None]
        slope = by * (1.0 - bent * bent)
        by_keys = tf.reduce_sum(slope, axis=1, keepdims=True) * score[:, 0]
        by_query = tf.reduce_sum(slope, axis=2, keepdims=True) * score[:, 0]
        return by_keys, by_query, tf.reduce_sum(by * bent, axis=[0, 1, 2])[:, None]

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def scores(keys: Any, query: Any, score: Any) -> Any:
        return ahead(keys, query, score), lambda upstream: slopes(keys, query, score, upstream)

    return scores
