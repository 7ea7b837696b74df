"""ResNet-50, -101 and -152 as Keras ships them (He et al. 2016, arXiv:1512.03385)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .base import Model

if TYPE_CHECKING:
    from .training import TrainingStep

DEPTHS = (50, 101, 152)


@dataclass(frozen=True)
class ResNet(Model):
    """Images: Keras' own ResNet in training mode, with SGD and momentum 0.9 as in its paper; depth 50, 101 or 152.

    Mirhoseini et al. 2018 use depth 152 with a batch of 128. Their expert keeps it on one device (section 4).
    """

    name: ClassVar[str] = "resnet"
    depth: int = 50
    batch_size: int = 32
    image_size: int = 224
    classes: int = 1000
    optimizer: str = "momentum"
    seed: int = 0

    def validate(self) -> None:
        self.check_among("depth", DEPTHS)
        self.check_whole("image_size", low=32)  # Keras' own lower limit
        self.check_whole("classes", low=2)
        self.check_common()

    def training_step(self) -> TrainingStep:
        from .keras_step import image_step

        self.validate()
        return image_step(self, f"ResNet{self.depth}")
