"""Benchmark models by name, one file each; TensorFlow is imported only when a step is made."""

from __future__ import annotations

from ..registry import Registry
from .base import Model

MODELS: Registry[Model] = Registry(
    "model",
    Model,
    {
        "gnmt": "gnmt:Gnmt",
        "inception_v3": "inception_v3:InceptionV3",
        "mlp": "mlp:Mlp",
        "nmt": "nmt:Nmt",
        "resnet": "resnet:ResNet",
        "rnnlm": "rnnlm:RnnLm",
        "transformer": "transformer:Transformer",
    },
    package="baechi_lab.models",
)

model_class = MODELS.find


def model_names() -> list[str]:
    """Returns the names of all benchmark models.

    >>> "gnmt" in model_names()
    True
    """
    return MODELS.names()


def make_model(name: str, /, **params: object) -> Model:
    """Returns the validated parameter object of a model."""
    return MODELS.make(name, params)
