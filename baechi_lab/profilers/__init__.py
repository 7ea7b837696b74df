"""Stage 1: a training step -> `Step` (traced) -> `OpGraph` with costs, measured or estimated; and the fit of links."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "trace": "tensorflow.tracing",
    "profile": "tensorflow.profiling",
    "profile_with_report": "tensorflow.profiling",
    "Report": "tensorflow.profiling",
    "LinkFit": "links",
    "Hardware": "hardware",
    "paired_share": "tensorflow.pairing",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'baechi_lab.profilers' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value
