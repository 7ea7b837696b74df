"""Optimizer state that stays on the host between steps (`bl.offload(..., state=True)`), for optimizers made by the user."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from ..errors import InvalidInput
from ..torch_runtime.optimizer_offload import offload_state_groups
from .assigner import distribution


def offload_optimizer_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """Keeps an optimizer's state on the host between steps, for the parameters for which the model's graph says so.

    Args:
        optimizer: an optimizer of the model's parameters. Its `step` copies the state of one layer to the layer's GPU, updates
            the layer and copies the state back, layer after layer. Optimizers that are not torch's, hooks and closures need
            the whole state at once, which takes more memory.
        model: a model distributed by `bl.torch.distribute(..., graph=graph)`, with a graph from `bl.offload(..., state=True)`.

    Returns:
        The same optimizer. Its results do not change. On CPU devices nothing moves, because they share the host's memory.

    Raises:
        InvalidInput: a model that is not distributed, a graph without state on a host, or state that is offloaded already.

    Source: Ren et al. 2021 (ZeRO-Offload, arXiv:2101.06840), without its optimizer on the CPU.

    >>> import baechi_lab as bl
    >>> cluster, x = bl.Cluster.uniform(1, kind="cpu").with_host("1GB"), torch.ones(2, 4)
    >>> model = nn.Linear(4, 4)
    >>> step = bl.torch.TorchStep("tiny", lambda: nn.Sequential(model), (x,), optimizer=torch.optim.Adam)
    >>> graph = bl.offload(bl.torch.profile(step, warmup=0, runs=1), cluster, share=0.0, state=True)
    >>> distributed = bl.torch.distribute(nn.Sequential(model), x, cluster, "single", graph=graph)
    >>> optimizer = offload_optimizer_state(torch.optim.Adam(distributed.parameters()), distributed)
    """
    plan = distribution(model).plan
    if not plan.offloaded_state:
        raise InvalidInput(
            f"the {type(model).__name__} is distributed with all optimizer state on its devices; to have it on a host, give "
            "graph=bl.offload(graph, cluster, state=True), of the profile of a step with its optimizer"
        )
    offload_state_groups(optimizer, model, plan.offloaded_state)
    return optimizer


def lend_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """Deprecated name of `offload_optimizer_state`."""
    message = "bl.torch.lend_state is deprecated; use bl.torch.offload_optimizer_state"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return offload_optimizer_state(optimizer, model)
