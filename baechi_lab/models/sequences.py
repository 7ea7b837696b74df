"""Common parts of models of word sequences: their parameters, and the step of a translation model."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph
from .base import PROJECTIONS, Model
from .scopes import assign_by_scope, layer_count, translation_rule

if TYPE_CHECKING:
    from .training import TrainingStep


@dataclass(frozen=True)
class SequenceModel(Model):
    """Parameters of an unrolled recurrent model; subclasses set their own defaults."""

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


@dataclass(frozen=True)
class TranslationModel(SequenceModel):
    """An encoder-decoder model, given by its `network`."""

    @abstractmethod
    def network(self) -> Any:
        """Returns an object with `weights` and `loss(source, target_in, target_out)`, all int32[steps, batch]."""

    def training_step(self) -> TrainingStep:
        from .recurrent import random_words
        from .training import make_step

        self.validate()
        net = self.network()
        sizes = self.vocabulary, self.sequence_length, self.batch_size
        source, target = random_words(self.seed, *sizes), random_words(self.seed + 1, *sizes)
        inputs = source, np.roll(target, 1, axis=0), target
        names = "source", "target_in", "target_out"
        return make_step(self.name, net.loss, net.weights.variables, inputs, names, self.optimizer, 5.0)

    @classmethod
    def expert(cls, graph: OpGraph, devices: int, attention: str = "last") -> NDArray[np.int32]:
        """Places encoder and decoder layer k on device k, embedding with the first, projection with the last.

        The attention is with the last layer (Mirhoseini et al. 2018, section 4), or with the first (Jeon et al. 2020,
        section 5.3).
        """
        return assign_by_scope(graph, devices, translation_rule(layer_count(graph), devices, attention))
