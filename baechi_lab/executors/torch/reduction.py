"""How the loss of a batch follows from those of its micro-batches: as their mean or as their sum."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from ...profilers.torch.profile import in_mode
from ...torch.runtime.tree import map_tensors, tensors
from ...torch.snapshot import untouched
from ...torch.step import TorchStep

NEAR = 1e-3
"""Relative difference up to which two losses count as the same; rounding stays far below."""


def is_mean(step: TorchStep, model: nn.Module, parts: Sequence[TorchStep]) -> bool:
    """Whether the loss of two micro-batches together is the mean of theirs, else their sum; the model is left as it was.

    The model runs in evaluation, where nothing is drawn at random and no batch statistics are taken. Where the loss is
    neither (words that are left out count as none, say), it is taken for a mean, with a warning.
    """
    if len(parts) < 2:
        return True
    first, second = ((part.inputs, part.targets) for part in parts[:2])
    others = tensors(second)
    both = map_tensors(first, lambda t: torch.cat((t, next(others))))
    with torch.no_grad(), in_mode(model, False), untouched(model, step.inputs):
        one, two, whole = (
            float(_loss(replace(step, inputs=x, targets=y), model)) for x, y in (first, second, both)
        )  # fmt: skip
    off_mean, off_sum = abs(whole - (one + two) / 2), abs(whole - one - two)
    if min(off_mean, off_sum) > NEAR * max(abs(whole), 1e-12):
        warnings.warn(
            f"the loss of step {step.name!r} is neither the mean nor the sum of its micro-batches' losses: gradients are "
            "those of the mean, not those of the undivided batch",
            stacklevel=3,
        )
        return True
    return off_mean <= off_sum


def _loss(step: TorchStep, model: nn.Module) -> torch.Tensor:
    args, kwargs = step.arguments(model)
    return step.loss_of(model(*args, **kwargs))
