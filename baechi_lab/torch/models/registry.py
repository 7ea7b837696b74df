"""Models by name, as training steps."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from ...checks import check_whole
from ...errors import InvalidInput, UnknownNameError
from ...registry import Registry
from ...torch_steps.step import TorchStep
from .bert import BERT
from .gnmt import GNMT
from .inception import InceptionV3
from .losses import class_loss, pretraining_loss, token_loss
from .resnet import ResNet
from .transformer import Transformer


def build(
    name: str, *, batch_size: int = 32, seed: int = 0, optimizer: str | None = "sgd", **config: object
) -> TorchStep:
    """Returns the training step of a benchmark model with random data.

    `names()` lists the models. `config` changes the size: keywords of the model's class, and `image_size`
    (inception_v3, resnet50) or `length` (tokens per sentence; transformer, gnmt, bert). `optimizer` is "sgd" or None.

    Raises:
        UnknownNameError: no such model.
        InvalidInput: a keyword that it does not know, or a batch below 1.

    >>> build("resnet50", batch_size=2, image_size=32, width=4, blocks=(1, 1), classes=5)
    <TorchStep 'resnet50': inputs [2, 3, 32, 32]>
    """
    build_model = MODELS.find(name)
    batch_size = check_whole("batch_size", batch_size)
    if optimizer not in ("sgd", None):
        raise InvalidInput(f"optimizer is {optimizer!r}; it must be 'sgd' or None")
    generator = torch.Generator().manual_seed(seed)
    build_module, inputs, loss, targets = build_model(batch_size, generator, dict(config))
    return TorchStep(
        name=name,
        build=build_module,
        inputs=inputs,
        loss=loss,
        targets=targets,
        optimizer=partial(torch.optim.SGD, lr=0.01) if optimizer == "sgd" else None,
        seed=seed,
        config={"batch_size": batch_size, **config},
    )


def names() -> list[str]:
    """Returns the names of all models."""
    return sorted(MODELS.names())


ModelParts = tuple[
    Callable[[], nn.Module], tuple[torch.Tensor, ...], Callable[..., torch.Tensor], tuple[torch.Tensor, ...]
]
"""A function that builds a model, its inputs, its loss, and the targets of the loss."""

ModelBuilder = Callable[[int, torch.Generator, dict[str, object]], ModelParts]
"""Builds the parts of a step from its batch size, a generator of random data and keywords."""


def _image_model(model: type[nn.Module], size: int) -> ModelBuilder:
    """Returns the builder of a classifier of square images; `size` is the default side in pixels."""

    def make_step(batch: int, generator: torch.Generator, config: dict[str, object]) -> ModelParts:
        side, classes = config.pop("image_size", size), config.get("classes", 1000)
        images = torch.randn(batch, 3, side, side, generator=generator)
        labels = torch.randint(classes, (batch,), generator=generator)
        return _bind_config(model, config), (images,), class_loss, (labels,)

    return make_step


def _translation_model(model: type[nn.Module], words: int, size: int) -> ModelBuilder:
    """Returns the builder of a translator; `words` and `size` are the default vocabulary and tokens per sentence."""

    def make_step(batch: int, generator: torch.Generator, config: dict[str, object]) -> ModelParts:
        length, vocabulary = config.pop("length", size), config.get("vocabulary", words)
        source, target, labels = (torch.randint(1, vocabulary, (batch, length), generator=generator) for _ in range(3))
        return _bind_config(model, config), (source, target), token_loss, (labels,)

    return make_step


def _bert_model(batch: int, generator: torch.Generator, config: dict[str, Any]) -> ModelParts:
    length, vocabulary = config.pop("length", 128), config.get("vocabulary", 30522)
    config["length"] = max(length, 1)
    tokens, labels = (torch.randint(1, vocabulary, (batch, length), generator=generator) for _ in range(2))
    segments = (torch.arange(length) >= length // 2).long().expand(batch, length).contiguous()
    follows = torch.randint(2, (batch,), generator=generator)
    return _bind_config(BERT, config), (tokens, segments), pretraining_loss, (labels, follows)


def _bind_config(model: Callable[..., nn.Module], config: dict[str, object]) -> Callable[[], nn.Module]:
    """Returns a function that builds the model. Raises `UnknownNameError` for a keyword that it does not know."""
    parameters = list(inspect.signature(model).parameters)
    for key in config:
        if key not in parameters:
            raise UnknownNameError.of(f"parameter of {model.__name__}:", key, parameters)
    return partial(model, **config)


MODELS: Registry[Any] = Registry(
    "model",
    TorchStep,
    {
        "inception_v3": _image_model(InceptionV3, 299),
        "resnet50": _image_model(ResNet, 224),
        "transformer": _translation_model(Transformer, 32000, 64),
        "gnmt": _translation_model(GNMT, 32000, 40),
        "bert": _bert_model,
    },
)
