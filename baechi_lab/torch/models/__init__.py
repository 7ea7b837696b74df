"""Benchmark models in PyTorch, written for this project, each as a training step with an expert's placement.

    step = bl.torch.models.build("resnet50", batch_size=32)
    model = step.model()

The files of the models import only torch, so that an export can carry them along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .experts import expert
    from .registry import build, names
else:
    __getattr__, __dir__ = lazy_names(__name__, needs=("torch",), extra="torch")

__all__ = ["build", "expert", "names"]
