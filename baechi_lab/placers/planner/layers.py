"""The layers of the planner's networks: an LSTM over all steps, content attention, plain products.

Derivatives are TensorFlow's. They take 1.15 times as long per gradient as ones written out by hand did with the paper's
parameters on 22,800 ops (0.96 against 0.83 s; 1.26 times the processor time), 1.10 times with those for simulated rewards
on 543 ops (32 against 29 ms), in the same memory and 50 lines fewer: medians of five on two cores.

`tf` is the TensorFlow module, which is imported only where a network is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from tensorflow import Tensor


def times(tf: ModuleType, x: Tensor, weights: Tensor) -> Tensor:
    """`x[..., a] @ weights[a, b]` as one product of two matrices: TensorFlow 2.21 with oneDNN writes beyond the result of
    [5, 1, 4, 8] @ [8, 8], as it was found to do with a batch against a single matrix where a batch dimension is 1."""
    return tf.reshape(tf.reshape(x, [-1, x.shape[-1]]) @ weights, [*x.shape[:-1], weights.shape[-1]])


def lstm_cell(tf: ModuleType, gates: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """One LSTM step (Hochreiter and Schmidhuber 1997): output and memory cell."""
    i, f, g, o = tf.split(gates, 4, axis=-1)
    memory = tf.sigmoid(f) * memory + tf.sigmoid(i) * tf.tanh(g)
    return tf.sigmoid(o) * tf.tanh(memory), memory


def lstm(tf: ModuleType, inputs: Tensor, weights: Tensor, out: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """All steps of `inputs[T, ..., b, 4h]` from `out`, `memory` [..., b, h], with `weights[..., h, 4h]` of the state: outputs
    and cells [T, ..., b, h]."""

    def step(state: tuple[Tensor, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        return lstm_cell(tf, x + state[0] @ weights, state[1])

    outs, cells = tf.scan(step, inputs, (out, memory))
    return outs, cells


def make_scores(tf: ModuleType) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Content attention, `(keys[m, 1, M, h], query[m, k, 1, h], score[h, 1]) -> [m, k, M]`: `tanh(keys + query) @ score`.

    Most of an update is spent here: it is compiled as a whole, and computed again for its derivative, so that nothing of
    size M x h is kept between.
    """

    @tf.function(autograph=False, jit_compile=True)  # type: ignore[untyped-decorator]
    def scores(keys: Tensor, query: Tensor, score: Tensor) -> Tensor:
        return tf.reduce_sum(tf.tanh(keys + query) * score[:, 0], axis=-1)

    return tf.recompute_grad(scores)
