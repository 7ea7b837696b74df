"""PyTorch backend of `bl.execute`: runs a placed `TorchStep` and measures it. PyTorch is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .execution import execute
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["execute"]
