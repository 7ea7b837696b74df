"""How the loss of a batch follows from those of its micro-batches: as their mean or as their sum."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from ...profilers.torch.profile import in_mode
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
    both = [
        tuple(map(torch.cat, zip(*pair, strict=True)))
        for pair in ((p.inputs for p in parts[:2]), (p.targets for p in parts[:2]))
    ]
    inputs = [parts[0].inputs, parts[1].inputs, both[0]]
    targets = [parts[0].targets, parts[1].targets, both[1]]
    with torch.no_grad(), in_mode(model, False), untouched(model, step.inputs):
        one, two, whole = (
            float(replace(step, inputs=x, targets=y).loss_of(model(*x))) for x, y in zip(inputs, targets, strict=True)
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
