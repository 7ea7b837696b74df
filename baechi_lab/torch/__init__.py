"""PyTorch: profile a model, distribute it over devices in three lines, run and measure it (Shetty 2022).

    import baechi_lab as bl
    cluster = bl.Cluster.uniform(4, memory_bytes="16GB")
    model = bl.torch.distribute(model, sample_inputs, cluster, placer="m-sct")

PyTorch itself is loaded on first use of a name.

This package exports all public names for PyTorch, wherever they are defined. It also has what builds on all stages:
`distribute` profiles a model, places its layers and assigns them to devices; `references` compares with PyTorch's own tools.
Profiling, running and exporting build on the packages `torch_steps` and `torch_runtime`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from ..executors.torch import execute
    from ..exporters.torch.export import export
    from ..profilers.torch.autograd import autograd_edges
    from ..profilers.torch.collective_times import measure_collective
    from ..profilers.torch.hugging_face import hugging_face
    from ..profilers.torch.layer_estimate import estimate_layers
    from ..profilers.torch.layers import profile_layers
    from ..profilers.torch.profile import profile
    from ..torch_steps.assigner import distribution, gather
    from ..torch_steps.optimizer_offload import lend_state, offload_optimizer_state
    from ..torch_steps.step import TorchStep
    from ..torch_steps.tracing import trace
    from . import models, references
    from .distribute_model import distribute
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
    "measure_collective",
    "models",
    "offload_optimizer_state",
    "profile",
    "profile_layers",
    "references",
    "trace",
]
