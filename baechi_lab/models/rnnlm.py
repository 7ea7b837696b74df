"""RNNLM: a recurrent language model (Zaremba et al. 2014, arXiv:1409.2329)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph
from .scopes import assign_by_scope, layer_count, layered_rule
from .sequences import SequenceModel

if TYPE_CHECKING:
    import tensorflow as tf

    from .training import TrainingStep


@dataclass(frozen=True)
class RnnLm(SequenceModel):
    """Language model: stacked LSTM layers that predict the next word.

    Defaults are Zaremba et al.'s large model (2 layers, 1500 units, 10,000 words, 35 steps) with the batch of
    Mirhoseini et al. 2018, 64, whose graph has 9,021 ops. SGD with gradients clipped to a global norm of 10, as Zaremba et al.
    train it. Left out: dropout, and the state that they carry from batch to batch.
    """

    name: ClassVar[str] = "rnnlm"
    units: int = 1500
    vocabulary: int = 10000
    sequence_length: int = 35

    def training_step(self) -> TrainingStep:
        from .recurrent import Embedding, LstmLayer, Projection, random_words
        from .training import Weights, make_step

        self.validate()
        make = Weights(self.seed)
        embedding = Embedding(make, "embedding", self.vocabulary, self.units)
        layers = [LstmLayer(make, f"layer{k}", self.units, self.units) for k in range(self.layers)]
        projection = Projection(make, "projection", self.units, self.vocabulary, self.projection)

        def loss(words: tf.Tensor, following: tf.Tensor) -> tf.Tensor:
            hidden = embedding(words)
            for layer in layers:
                hidden, _ = layer.unroll(hidden, self.batch_size)
            return projection.loss(hidden, following)

        text = random_words(self.seed, self.vocabulary, self.sequence_length + 1, self.batch_size)
        inputs, names = (text[:-1], text[1:]), ("words", "following")
        return make_step(self.name, loss, make.variables, inputs, names, self.optimizer, 10.0)

    @classmethod
    def expert(cls, graph: OpGraph, devices: int, attention: str = "last") -> NDArray[np.int32]:
        """Places layer k on device k, embedding with the first, projection with the last.

        Source: Jeon et al. 2020, section 5.3; Mirhoseini et al. 2018, section 4.
        """
        rule = layered_rule(layer_count(graph), devices, ("embedding",), ("projection",))
        return assign_by_scope(graph, devices, rule)
