"""Which operator of my training graph should run on which device, and what will a step cost?

Every public name is loaded on first use, so that `import baechi_lab` stays fast and loads no framework.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_MODULES = {"models", "torch", "generators"}

_HOME = {
    "errors": (
        "BaechiLabError InvalidInput CycleError CostError UnknownOpError DuplicateNameError ColocationError "
        "FormatError UnknownNameError InfeasiblePlacement ExecutionError MissingPackage"
    ),
    "graph": "OpGraph Device Link Cluster Placement Timeline Transfers Violation Step TensorSpec Run load_graph save_graph "
    "load_cluster save_cluster",
    "profilers": "profile trace",
    "passes": "optimize list_passes",
    "placers": "place list_placers ListScheduler",
    "simulator": "simulate check throughput robustness upward_rank downward_rank total_rank critical_path ratios",
    "simulator.bounds": "bounds",
    "executors": "execute apply LocalCluster measure_link measure_cluster",
    "exporters": "export",
    "pipeline": "Pipeline Profile Optimize Place Simulate Execute Result",
    "comparison": "compare",
    "sweeps": "sweep",
    "widgets": "Workbench move",
}
_NAMES = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = sorted([*_NAMES, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name == "generators":
        return importlib.import_module("baechi_lab.graph.generators")
    if name in _MODULES:
        return importlib.import_module(f"baechi_lab.{name}")
    if name not in _NAMES:
        raise AttributeError(f"module 'baechi_lab' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"baechi_lab.{_NAMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
