"""The loss of a step that has none of its own; outputs may lie on several devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def own_loss(outputs: Any) -> torch.Tensor:
    """Returns the loss that the model itself computes; otherwise `mean_square`.

    It is the `loss` among the outputs (models of Hugging Face compute it if the batch has labels), or the only scalar, where
    `forward` returns a loss or `(logits, loss)`. Several scalars raise `ValueError`, unless one alone has a gradient.
    """
    loss = outputs.get("loss") if isinstance(outputs, dict) else getattr(outputs, "loss", None)
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        return loss.reshape(())
    candidates = list(
        outputs.values() if isinstance(outputs, dict) else [outputs] if isinstance(outputs, torch.Tensor) else outputs
    )
    scalars = [t for t in candidates if isinstance(t, torch.Tensor) and t.dim() == 0 and t.is_floating_point()]
    losses = [t for t in scalars if t.requires_grad] or scalars
    if len(losses) > 1:
        raise ValueError(f"{len(losses)} outputs are scalars; give the step a loss that says what to minimise")
    return losses[0] if losses else mean_square(candidates)


def mean_square(outputs: Iterable[object]) -> torch.Tensor:
    """Returns a loss for any tensors: the sum of their mean squares."""
    flat = [t for t in outputs if isinstance(t, torch.Tensor) and t.is_floating_point()]
    if not flat:
        raise ValueError("no output is a tensor of real numbers; give the step a loss")
    return torch.stack([t.float().square().mean().to(flat[0].device) for t in flat]).sum()
