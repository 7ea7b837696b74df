"""PyTorch backend of `bl.execute`: runs a placed `TorchStep` and measures it. PyTorch is loaded on first use."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["execute"]


def __getattr__(name: str) -> Any:
    if name != "execute":
        raise AttributeError(f"module 'baechi_lab.executors.torch' has no attribute {name!r}")
    return importlib.import_module(".execution", __name__).execute
