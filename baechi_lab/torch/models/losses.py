"""Losses of the benchmark models; outputs may lie on several devices.

An exported script has a copy of this file, so it imports torch alone.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F


def class_loss(outputs: object, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of logits, plus 0.4 of the auxiliary head's if there is one."""
    if isinstance(outputs, tuple):
        return F.cross_entropy(outputs[0], labels) + 0.4 * F.cross_entropy(outputs[1].to(outputs[0].device), labels)
    return F.cross_entropy(outputs, labels)


def token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy per token."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def pretraining_loss(
    outputs: tuple[torch.Tensor, torch.Tensor], labels: torch.Tensor, follows: torch.Tensor
) -> torch.Tensor:
    """Returns the masked-token and next-sentence cross entropy."""
    return token_loss(outputs[0], labels) + F.cross_entropy(outputs[1].to(outputs[0].device), follows)
