"""PyTorch: profile a model, distribute it over devices in three lines, run and measure it (paper P).

    import baechi_lab as bl
    cluster = bl.Cluster.uniform(4, memory_bytes="16GB")
    model = bl.torch.distribute(model, sample_inputs, cluster, placer="m-sct")

PyTorch itself is loaded on first use of a name.

This room keeps what distributes a model (plan, runtime, models, tracing), because profiler, executor and export all build
on it: each points here once, and only `distribute`, which profiles and places, points back. Mirrored into their rooms it
would need as many arrows, and two that imports must not have: profilers to executors, and executors to placers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from ..executors.torch import execute
    from ..exporters.torch.export import export
    from ..profilers.torch.autograd import autograd_edges
    from ..profilers.torch.hugging_face import hugging_face
    from ..profilers.torch.layer_estimate import estimate_layers
    from ..profilers.torch.layers import profile_layers
    from ..profilers.torch.profile import profile
    from . import models, references
    from .assigner import distribution, gather
    from .distribute_model import distribute
    from .optimizer_offload import lend_state, offload_optimizer_state
    from .step import TorchStep
    from .tracing import trace
else:
    __getattr__, __dir__ = lazy_names(__name__, needs=("torch",), extra="torch")

__all__ = [
    "TorchStep",
    "autograd_edges",
    "distribute",
    "distribution",
    "estimate_layers",
    "execute",
    "export",
    "gather",
    "hugging_face",
    "lend_state",
    "models",
    "offload_optimizer_state",
    "profile",
    "profile_layers",
    "references",
    "trace",
]
