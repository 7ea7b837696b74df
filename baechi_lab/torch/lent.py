"""Optimizer state that lies on a host between steps (`bl.offload(..., state=True)`), for optimizers of one's own."""

from __future__ import annotations

import torch
from torch import nn

from ..errors import InvalidInput
from .assigner import distribution
from .runtime.lending import lend


def lend_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """Keep an optimizer's state on the host between steps where the graph says so that `model` was distributed with.

    Args:
        optimizer: of the model's parameters; its `step` brings the state of a layer to its GPU, updates it and sends it back,
            layer by layer. Optimizers that are not torch's, hooks and closures get all of it at once, which takes more memory.
        model: distributed by `bl.torch.distribute(..., graph=graph)`, `graph` from `bl.offload(..., state=True)`.

    Returns:
        The optimizer, the same object. Results are as without; on CPU devices, which have the host's memory, nothing moves.

    Raises:
        InvalidInput: a model that is not distributed, a graph with no state on a host, state that is lent already.

    Source: Ren et al. 2021 (ZeRO-Offload, arXiv:2101.06840), without its optimizer on the CPU.

    >>> import baechi_lab as bl
    >>> cluster, x = bl.Cluster.uniform(1, kind="cpu").with_host("1GB"), torch.ones(2, 4)
    >>> model = nn.Linear(4, 4)
    >>> step = bl.torch.TorchStep("tiny", lambda: nn.Sequential(model), (x,), optimizer=torch.optim.Adam)
    >>> graph = bl.offload(bl.torch.profile(step, warmup=0, runs=1), cluster, share=0.0, state=True)
    >>> placed = bl.torch.distribute(nn.Sequential(model), x, cluster, "single", graph=graph)
    >>> optimizer = lend_state(torch.optim.Adam(placed.parameters()), placed)
    """
    plan = distribution(model).plan
    if not plan.lent:
        raise InvalidInput(
            f"the {type(model).__name__} is distributed with all optimizer state on its devices; to have it on a host, give "
            "graph=bl.offload(graph, cluster, state=True), of the profile of a step with its optimizer"
        )
    lend(optimizer, model, plan.lent)
    return optimizer
