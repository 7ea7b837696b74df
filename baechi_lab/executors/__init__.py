"""Stage 5: a placed step -> what it really costs. Nothing here loads TensorFlow until it is used."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "execute": ".dispatch",
    "apply": ".tensorflow.applied",
    "PlacedStep": ".tensorflow.applied",
    "LocalCluster": ".tensorflow.cluster",
    "measure_link": ".tensorflow.links",
    "measure_cluster": ".tensorflow.links",
    "measure_links": ".tensorflow.links",
    "Worker": "..workers.client",
    "StepResult": ".tensorflow.execution",
    "summarize": ".statistics",
    "compare_rounds": ".statistics",
    "interleaved": ".statistics",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'baechi_lab.executors' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value
