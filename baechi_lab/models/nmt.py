"""NMT: neural machine translation with attention, as Mirhoseini et al. 2018 place it (Bahdanau et al. 2015, arXiv:1409.0473)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .sequences import TranslationModel

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True)
class Nmt(TranslationModel):
    """Translation: plain LSTM encoder and decoder, attention from the top decoder layer.

    Mirhoseini et al. 2018 have 2, 4 or 8 layers.

    The context at time t comes from the top decoder layer's state at t - 1 and is an input of the bottom layer, as Bahdanau et
    al. define it; so a time step must end before the next begins, which GNMT avoids. The output layer is unrolled, as
    Mirhoseini et al.'s Figure 2 shows it. SGD with gradients clipped to a global norm of 5 (Sutskever et al. 2014).

    Mirhoseini et al. 2018 give the batch (64), not units, vocabulary or length; the defaults are ours. Their graphs have
    28,044, 46,600 and 83,712 ops for 2, 4 and 8 layers; `sequence_length` scales ours to any of them. No dropout, no padding.
    """

    name: ClassVar[str] = "nmt"

    def network(self) -> _Network:
        return _Network(self)


class _Network:
    """The layers of one NMT and its loss."""

    def __init__(self, model: Nmt):
        from .recurrent import Attention, Embedding, LstmLayer, Projection
        from .training import Weights

        units, layers, vocabulary = model.units, model.layers, model.vocabulary
        self.batch = model.batch_size
        self.weights = make = Weights(model.seed)
        self.source = Embedding(make, "embedding/source", vocabulary, units)
        self.target = Embedding(make, "embedding/target", vocabulary, units)
        self.encoder = [LstmLayer(make, f"encoder/layer{k}", units, units) for k in range(layers)]
        self.decoder = [LstmLayer(make, f"decoder/layer{k}", (1 + (k == 0)) * units, units) for k in range(layers)]
        self.attention = Attention(make, "attention", units, units, units)
        self.projection = Projection(make, "projection", units, vocabulary, model.projection)

    def loss(self, source: tf.Tensor, target_in: tf.Tensor, target_out: tf.Tensor) -> tf.Tensor:
        """Returns the mean cross entropy per word; all inputs int32[steps, batch]."""
        memory, states = self.source(source), []
        for layer in self.encoder:
            memory, state = layer.unroll(memory, self.batch)
            states.append(state)
        self.attention.read_weights(memory)
        for layer in self.decoder:
            layer.read_weights()
        outputs = []
        for t, x in enumerate(self.target(target_in)):
            inputs = [x, self.attention.step(t, states[-1][1])]
            for k, layer in enumerate(self.decoder):
                x, states[k] = layer.step(t, inputs, states[k])
                inputs = [x]
            outputs.append(x)
        return self.projection.loss(outputs, target_out)
