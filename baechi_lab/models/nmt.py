"""NMT: neural machine translation with attention, as paper H places it (Bahdanau et al. 2015, arXiv:1409.0473)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph
from .base import PROJECTIONS, Model
from .scopes import assign_by_scope, layer_count, translation_rule

if TYPE_CHECKING:
    from .training import TrainingStep


@dataclass(frozen=True)
class Nmt(Model):
    """Translation: plain LSTM encoder and decoder (2, 4 or 8 layers in paper H), attention from the top decoder layer.

    The context at time t comes from the top decoder layer's state at t - 1 and is an input of the bottom layer, as
    Bahdanau et al. define it; so a time step must end before the next begins, which GNMT avoids. The output layer is
    unrolled, as H's Figure 2 shows it. SGD with gradients clipped to a global norm of 5 (Sutskever et al. 2014).

    H gives the batch (64), not units, vocabulary or length; the defaults are ours. Its graphs have 28,044, 46,600 and
    83,712 ops for 2, 4 and 8 layers; `sequence_length` scales ours to any of them. No dropout, no padding.
    """

    name: ClassVar[str] = "nmt"
    layers: int = 2
    units: int = 1024
    vocabulary: int = 30000
    sequence_length: int = 40
    batch_size: int = 64
    optimizer: str = "sgd"
    projection: str = "steps"
    seed: int = 0

    def validate(self) -> None:
        for field in ("layers", "units", "sequence_length"):
            self.check_whole(field)
        self.check_whole("vocabulary", low=2)
        self.check_common()
        self.check_among("projection", PROJECTIONS)

    def training_step(self) -> TrainingStep:
        from .recurrent import random_words
        from .training import make_step

        self.validate()
        net = _Network(self)
        sizes = self.vocabulary, self.sequence_length, self.batch_size
        source, target = random_words(self.seed, *sizes), random_words(self.seed + 1, *sizes)
        inputs = source, np.roll(target, 1, axis=0), target
        names = "source", "target_in", "target_out"
        return make_step(self.name, net.loss, net.weights.made, inputs, names, self.optimizer, 5.0)

    @classmethod
    def expert(cls, graph: OpGraph, devices: int, attention: str = "last") -> NDArray[np.int32]:
        """Encoder and decoder layer k on device k, embedding with the first, projection with the last (papers B and H).

        The attention is with the last as in H, or with the first.
        """
        return assign_by_scope(graph, devices, translation_rule(layer_count(graph), devices, attention))


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

    def loss(self, source: Any, target_in: Any, target_out: Any) -> Any:
        """Mean cross entropy per word; all inputs int32[steps, batch]."""
        memory, states = self.source(source), []
        for layer in self.encoder:
            memory, state = layer.unroll(memory, self.batch)
            states.append(state)
        self.attention.begin(memory)
        for layer in self.decoder:
            layer.begin()
        outputs = []
        for t, x in enumerate(self.target(target_in)):
            inputs = [x, self.attention.step(t, states[-1][1])]
            for k, layer in enumerate(self.decoder):
                x, states[k] = layer.step(t, inputs, states[k])
                inputs = [x]
            outputs.append(x)
        return self.projection.loss(outputs, target_out)
