"""Transformer: encoder and decoder of attention layers (Vaswani et al. 2017, arXiv:1706.03762)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..graph import OpGraph
from .base import Model
from .scopes import assign_by_scope, layer_count, layered_rule

if TYPE_CHECKING:
    from .training import TrainingStep


@dataclass(frozen=True)
class Transformer(Model):
    """Translation: encoder-decoder Transformer, by default the "base" model of its paper, with Adam as there.

    6 + 6 layers of 512 units, 8 heads, 2048 inner units, normalization after each residual sum, 37,000 words.
    The tables of source, target and output are three, where the paper shares one: shared, embedding and projection
    could not be placed apart. Left out: dropout, label smoothing, padding.
    """

    name: ClassVar[str] = "transformer"
    layers: int = 6
    units: int = 512
    heads: int = 8
    inner: int = 2048
    vocabulary: int = 37000
    sequence_length: int = 64
    batch_size: int = 32
    optimizer: str = "adam"
    seed: int = 0

    def validate(self) -> None:
        for field in ("layers", "units", "heads", "inner", "sequence_length"):
            self.check_whole(field)
        self.check_whole("vocabulary", low=2)
        self.check_common()
        if self.units % self.heads or self.units % 2:
            raise InvalidInput(
                f"units of model 'transformer' is {self.units}; "
                f"it must be even and a multiple of the {self.heads} heads"
            )

    def training_step(self) -> TrainingStep:
        from .attention_layers import Network
        from .recurrent import random_words
        from .training import make_step

        self.validate()
        net = Network(self)
        sizes = self.vocabulary, self.sequence_length, self.batch_size
        source, target = (random_words(self.seed + k, *sizes).T.copy() for k in (0, 1))
        inputs = source, np.roll(target, 1, axis=1), target
        names = "source", "target_in", "target_out"
        return make_step(self.name, net.loss, net.weights.variables, inputs, names, self.optimizer)

    @classmethod
    def expert(cls, graph: OpGraph, devices: int, attention: str = "last") -> NDArray[np.int32]:
        """Places encoder and decoder layer k on one device, embedding with the first, projection with the last.

        Jeon et al. 2020 and Mirhoseini et al. 2018 have no Transformer; this is their rule for layered models.
        """
        rule = layered_rule(layer_count(graph), devices, ("embedding",), ("projection",))
        return assign_by_scope(graph, devices, rule)
