"""PyTorch: profile a model, distribute it over devices in three lines, run and measure it (paper P).

    import baechi_lab as bl
    cluster = bl.Cluster.uniform(4, memory_bytes="16GB")
    model = bl.torch.distribute(model, sample_inputs, cluster, placer="m-sct")

PyTorch itself is loaded on first use of a name.
"""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import MissingPackage

_HOME = {
    "distribute": "baechi_lab.torch.distribute_model",
    "gather": "baechi_lab.torch.assigner",
    "distribution": "baechi_lab.torch.assigner",
    "profile": "baechi_lab.profilers.torch.profile",
    "profile_layers": "baechi_lab.profilers.torch.profile",
    "autograd_edges": "baechi_lab.profilers.torch.autograd",
    "trace": "baechi_lab.torch.tracing",
    "TorchStep": "baechi_lab.torch.step",
    "execute": "baechi_lab.executors.torch",
    "export": "baechi_lab.exporters.torch.export",
}
_MODULES = ("models", "references")

__all__ = sorted([*_HOME, *_MODULES])


def __getattr__(name: str) -> Any:
    if name not in _MODULES and name not in _HOME:
        raise AttributeError(f"module 'baechi_lab.torch' has no attribute {name!r}")
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise MissingPackage.of("torch", "torch", f"bl.torch.{name}") from error
    if name in _MODULES:
        return importlib.import_module(f"baechi_lab.torch.{name}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
