"""The loss of a step that has none of its own; outputs may lie on several devices."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def own_loss(outputs: object) -> torch.Tensor:
    """The `loss` among the outputs (models of Hugging Face compute it if the batch has labels); otherwise `mean_square`."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else getattr(outputs, "loss", None)
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        return loss.reshape(())
    return mean_square(tuple(outputs.values()) if isinstance(outputs, dict) else outputs)


def mean_square(outputs: torch.Tensor | Iterable[object]) -> torch.Tensor:
    """A loss for any tensor or tuple of tensors: the sum of their mean squares."""
    candidates = [outputs] if isinstance(outputs, torch.Tensor) else outputs
    flat = [t for t in candidates if isinstance(t, torch.Tensor) and t.is_floating_point()]
    if not flat:
        raise ValueError("no output is a tensor of real numbers; give the step a loss")
    return torch.stack([t.float().square().mean().to(flat[0].device) for t in flat]).sum()
