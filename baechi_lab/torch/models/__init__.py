"""Benchmark models in PyTorch, written for this project, each as a training step with an expert's placement.

    step = bl.torch.models.build("resnet50", batch_size=32)
    model = step.model()

The modules of this package import only torch, so that an export can carry them along.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {"build": "registry", "names": "registry", "expert": "experts"}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'baechi_lab.torch.models' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value
