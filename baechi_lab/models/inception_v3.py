"""Inception-V3 as Keras ships it (Szegedy et al. 2016, arXiv:1512.00567)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .base import Model

if TYPE_CHECKING:
    from .training import TrainingStep


@dataclass(frozen=True)
class InceptionV3(Model):
    """Images: Keras' own Inception-V3 in training mode, with RMSprop as in its paper and in Jeon et al. 2020, section 5.1.

    Random weights; batch normalization updates its moving averages. The update is TensorFlow's fused
    `ResourceApplyRMSProp`, one op per variable, as in Jeon et al.'s graphs. The expert keeps it on one device
    (Jeon et al. 2020, section 5.3; Mirhoseini et al. 2018, section 4).
    """

    name: ClassVar[str] = "inception_v3"
    batch_size: int = 32
    image_size: int = 299
    classes: int = 1000
    optimizer: str = "rmsprop"
    seed: int = 0

    def validate(self) -> None:
        self.check_whole("image_size", low=75)  # Keras' own lower limit
        self.check_whole("classes", low=2)
        self.check_common()

    def training_step(self) -> TrainingStep:
        from .keras_step import image_step

        self.validate()
        return image_step(self, "InceptionV3")
