"""GNMT: Google's neural machine translation system, unrolled (Wu et al. 2016, arXiv:1609.08144)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..errors import InvalidInput
from .sequences import TranslationModel

if TYPE_CHECKING:
    import tensorflow as tf

    from .recurrent import State


@dataclass(frozen=True)
class Gnmt(TranslationModel):
    """Translation: LSTM encoder and decoder, residual connections, attention into every decoder layer.

    The first encoder layer is bidirectional, `units / 2` each way, so that all layers are `units` wide. Layers from
    the third on add their input to their output. The attention context at time t comes from the bottom decoder
    layer's output at t - 1 and is an input of every decoder layer; the decoder starts from the encoder's final states.
    Gradients are clipped to a global norm of 5 and applied by SGD, the rule that Wu et al. end their training with
    and the cheapest in memory; "adam", which they begin with, can be chosen. Left out: dropout and padding, which
    would make losses incomparable between placements, or shapes dynamic; sequences have their full length.

    TensorFlow 2.21 traces 17,935 ops at length 40 and 22,346 at 50; Jeon et al.'s graphs have 18,050 (-0.6%) and 22,340
    (+0.03%). They are this near because the cells are written with BasicLSTMCell's ops, and because every variable
    is read once per step and has one fused update, as in TensorFlow 1; they differ because TensorFlow 2 knows shapes
    when it traces and has constants where TensorFlow 1 computed them. `bl.trace` drops 97 ops without effect.

    `projection` "whole" multiplies all time steps at once; "steps" does so per step, so that it overlaps with the
    decoder. Jeon et al. 2020 do not say which; the memory of their expert's fullest device (83% of 2.4 GB) fits "whole"
    (simulated: 2.04 GB), not "steps" (1.17 GB).
    """

    name: ClassVar[str] = "gnmt"
    layers: int = 4
    units: int = 512
    batch_size: int = 128
    projection: str = "whole"

    def validate(self) -> None:
        super().validate()
        if self.units % 2:
            raise InvalidInput(
                f"units of model 'gnmt' is {self.units}; it must be even, "
                "because the two directions of the first encoder layer get half of them each"
            )

    def network(self) -> _Network:
        return _Network(self)


class _Network:
    """The layers of one GNMT and its loss."""

    def __init__(self, model: Gnmt):
        from .recurrent import Attention, Embedding, LstmLayer, Projection
        from .training import Weights

        units, layers, vocabulary = model.units, model.layers, model.vocabulary
        self.batch = model.batch_size
        self.weights = make = Weights(model.seed)
        self.source = Embedding(make, "embedding/source", vocabulary, units)
        self.target = Embedding(make, "embedding/target", vocabulary, units)
        self.forward = LstmLayer(make, "encoder/layer0/forward", units, units // 2)
        self.backward = LstmLayer(make, "encoder/layer0/backward", units, units // 2)
        self.encoder = [LstmLayer(make, f"encoder/layer{k}", units, units) for k in range(1, layers)]
        self.decoder = [LstmLayer(make, f"decoder/layer{k}", 2 * units, units) for k in range(layers)]
        self.attention = Attention(make, "attention", units, units, units)
        self.projection = Projection(make, "projection", units, vocabulary, model.projection)

    def loss(self, source: tf.Tensor, target_in: tf.Tensor, target_out: tf.Tensor) -> tf.Tensor:
        """Returns the mean cross entropy per word; all inputs int32[steps, batch]."""
        memory, state = self._bidirectional(self.source(source))
        states = [state]
        for k, layer in enumerate(self.encoder, start=1):
            memory, state = layer.unroll(memory, self.batch, residual=k >= 2)
            states.append(state)
        self.attention.read_weights(memory)
        for layer in self.decoder:
            layer.read_weights()
        outputs = []
        for t, x in enumerate(self.target(target_in)):
            context = self.attention.step(t, states[0][1])
            for k, layer in enumerate(self.decoder):
                x, states[k] = layer.step(t, [x, context], states[k], residual=k >= 2)
            outputs.append(x)
        return self.projection.loss(outputs, target_out)

    def _bidirectional(self, words: list[tf.Tensor]) -> tuple[list[tf.Tensor], State]:
        import tensorflow as tf

        ahead, ahead_state = self.forward.unroll(words, self.batch)
        backward_outputs, back_state = self.backward.unroll(words[::-1], self.batch)
        outputs = []
        for t, pair in enumerate(zip(ahead, backward_outputs[::-1], strict=True)):
            with tf.name_scope(f"encoder/layer0/join/t{t}"):
                outputs.append(tf.concat(pair, 1))
        with tf.name_scope("encoder/layer0/join/state"):
            return outputs, tuple(tf.concat(pair, 1) for pair in zip(ahead_state, back_state, strict=True))
