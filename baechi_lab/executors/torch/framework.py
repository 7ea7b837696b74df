"""PyTorch's implementation of the protocol `baechi_lab.executors.dispatch.Executor`."""

from __future__ import annotations

from typing import Any

from ...errors import InvalidInput
from ...graph import Cluster, Placement, Run
from ...torch_steps.devices import attached_cluster
from ...torch_steps.step import TorchStep
from ..dispatch import WITHOUT_EFFECT, step_timer
from . import execution
from .native import native_runners
from .placed_model import default_cluster

__all__ = ["attached_cluster", "execute", "native_runners", "step_timer"]


def execute(
    step: TorchStep, placement: Placement, steps: int, *, cluster: Cluster | None, kind: str = "auto", **options: Any
) -> Run:
    """Runs a step by `bl.torch.execute`, which needs no worker process, no trace and no progress bar.

    `kind` counts where no `cluster` is given.
    """
    if not (cluster is None or isinstance(cluster, Cluster)):
        raise InvalidInput(f"cluster is {cluster!r}; a PyTorch step runs on the devices of a bl.Cluster")
    if cluster is None and kind != "auto":
        cluster = default_cluster(placement, kind)
    effective_options = {name: value for name, value in options.items() if name not in WITHOUT_EFFECT}
    return execution.execute(step, placement, steps, cluster=cluster, **effective_options)
