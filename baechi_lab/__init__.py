"""Which operator of my training graph should run on which device, and what will a step cost?

Every public name is loaded on first use, so that `import baechi_lab` stays fast and loads no framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy import lazy_names
from .version import __version__

if TYPE_CHECKING:
    from . import models, torch, viz
    from .comparison import compare
    from .errors import (
        BaechiLabError,
        ColocationError,
        CostError,
        CycleError,
        DuplicateNameError,
        ExecutionError,
        FormatError,
        InfeasiblePlacement,
        InvalidInput,
        MissingPackage,
        UnknownNameError,
        UnknownOpError,
    )
    from .executors import LocalCluster, apply, execute, make_secret, measure_cluster, measure_link
    from .exporters import export
    from .exporters.layouts import write_layout
    from .exporters.plans import WrittenPlan, write_plan
    from .fitting.fit import fit
    from .graph import (
        Cluster,
        Device,
        Link,
        NativeRun,
        OpGraph,
        Placement,
        Recording,
        Run,
        Step,
        TensorSpec,
        Timeline,
        Transfers,
        Violation,
        generators,
        load_cluster,
        load_graph,
        load_trace,
        save_cluster,
        save_graph,
    )
    from .graph.layout import Layout
    from .memory_saving.offload import offload, offloaded_placement
    from .memory_saving.recompute import recompute
    from .parallel.layouts import layouts
    from .passes import list_passes
    from .passes.optimize import optimize
    from .passes.unroll import unroll
    from .pipeline import Pipeline, Result
    from .placers import ListScheduler, list_placers, place
    from .profilers import profile, profile_program, trace
    from .profilers.calibration import calibrate
    from .simulator import check, critical_path, downward_rank, simulate, total_rank, upward_rank
    from .simulator.bounds.bounds import bounds
    from .simulator.ratios import ratios
    from .simulator.robustness import robustness
    from .simulator.throughput import throughput
    from .stages import Execute, Optimize, Place, Profile, Simulate
    from .sweeps import sweep
    from .widgets import Workbench, move
else:
    __getattr__, __dir__ = lazy_names(__name__)


__all__ = [
    "BaechiLabError",
    "Cluster",
    "ColocationError",
    "CostError",
    "CycleError",
    "Device",
    "DuplicateNameError",
    "Execute",
    "ExecutionError",
    "FormatError",
    "InfeasiblePlacement",
    "InvalidInput",
    "Layout",
    "Link",
    "ListScheduler",
    "LocalCluster",
    "MissingPackage",
    "NativeRun",
    "OpGraph",
    "Optimize",
    "Pipeline",
    "Place",
    "Placement",
    "Profile",
    "Recording",
    "Result",
    "Run",
    "Simulate",
    "Step",
    "TensorSpec",
    "Timeline",
    "Transfers",
    "UnknownNameError",
    "UnknownOpError",
    "Violation",
    "Workbench",
    "WrittenPlan",
    "__version__",
    "apply",
    "bounds",
    "calibrate",
    "check",
    "compare",
    "critical_path",
    "downward_rank",
    "execute",
    "export",
    "fit",
    "generators",
    "layouts",
    "list_passes",
    "list_placers",
    "load_cluster",
    "load_graph",
    "load_trace",
    "make_secret",
    "measure_cluster",
    "measure_link",
    "models",
    "move",
    "offload",
    "offloaded_placement",
    "optimize",
    "place",
    "profile",
    "profile_program",
    "ratios",
    "recompute",
    "robustness",
    "save_cluster",
    "save_graph",
    "simulate",
    "sweep",
    "throughput",
    "torch",
    "total_rank",
    "trace",
    "unroll",
    "upward_rank",
    "viz",
    "write_layout",
    "write_plan",
]
