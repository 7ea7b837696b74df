"""Benchmark models by name, one file each."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import UnknownNameError
from .base import Model

BUILT_IN = {
    "gnmt": "gnmt:Gnmt",
    "inception_v3": "inception_v3:InceptionV3",
    "mlp": "mlp:Mlp",
    "nmt": "nmt:Nmt",
    "resnet": "resnet:ResNet",
    "rnnlm": "rnnlm:RnnLm",
    "transformer": "transformer:Transformer",
}
"""Name -> module:class below `baechi_lab.models`; imported on first use, TensorFlow only when a step is made."""


def model_names() -> list[str]:
    """All model names."""
    return sorted(BUILT_IN)


def model_class(name: str) -> type[Model]:
    """The parameter class of a model; `UnknownNameError` suggests the nearest name."""
    if name not in BUILT_IN:
        raise UnknownNameError.of("model", name, BUILT_IN)
    module, _, attribute = BUILT_IN[name].partition(":")
    found: type[Model] = getattr(importlib.import_module(f"baechi_lab.models.{module}"), attribute)
    return found


def make_model(name: str, **params: Any) -> Model:
    """The validated parameter object of a model.

    >>> make_model("gnmt", layers=2).get_params()["units"]
    512
    """
    cls = model_class(name)
    for key in params:
        if key not in cls.__dataclass_fields__:
            raise UnknownNameError.of(f"parameter of model {name!r}:", key, cls.__dataclass_fields__)
    made = cls(**params)
    made.validate()
    return made
