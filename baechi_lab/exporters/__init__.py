"""Exports a placement as a folder with a training script that does not need baechi_lab."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput
from ..graph.cluster import Cluster
from ..graph.opgraph import OpGraph
from ..graph.placement import Placement
from ..graph.step import Step

if TYPE_CHECKING:
    from ..executors.tensorflow.cluster import LocalCluster
    from ..torch_steps.step import TorchStep

__all__ = ["export"]


def export(
    step: Step | TorchStep,
    placement: Placement,
    folder: str | os.PathLike[str],
    *,
    cluster: Cluster | LocalCluster | None = None,
    graph: OpGraph | None = None,
    workers: Sequence[str] = (),
    micro_batches: int | None = None,
    schedule: Any = None,
    reduction: str | None = None,
) -> Path:
    """Write a folder with the placed step and a `train.py` that imports only TensorFlow and NumPy, or only PyTorch.

    Args:
        step: what `bl.trace` returned; its variables' values are where the script starts. Or a `bl.torch.TorchStep`, which
            `bl.torch.export` writes.
        placement: of the step's graph, or of a coarse graph of it.
        folder: where to write; may be new, empty, or hold exactly what an earlier export wrote, which is replaced.
        cluster: a `bl.LocalCluster` with `trusted_users=True`, whose workers the script is to use; a Cluster only checks
            the device indices.
        graph: the graph that the placement was made for, when it is not the one that `bl.profile(step)` makes.
        workers: addresses (host:port) of a TensorFlow cluster, one per device; the README says how to start each.
        micro_batches, schedule, reduction: as in `bl.execute`: the script runs the step of so many micro-batches, in the
            schedule's order, and cuts its batches itself.

    Returns:
        the folder's absolute path.

    Raises:
        InvalidInput: a placement for another graph, pipeline stages that form no chain for the schedule, a `bl.LocalCluster` with
            a network of its own, a folder that holds something else, edited scripts and trained values included.
        ExecutionError: the disk is full or not writable; no half-written folder is left.

    >>> export(step, placement, "placed_training/")  # doctest: +SKIP
    PosixPath('.../placed_training')
    """
    from ..executors.tensorflow.recomputed_step import step_to_run
    from .folder import write_folder
    from .tensorflow.export import folder_files

    if getattr(step, "framework", "") == "torch":
        return _export_torch(step, placement, folder, cluster, graph, workers, micro_batches, schedule, reduction)
    if not isinstance(step, Step):
        raise InvalidInput(f"step is a {type(step).__name__}; give what bl.trace returns, or a bl.torch.TorchStep")
    if not isinstance(cluster, Cluster) and cluster is not None:
        if cluster.network is not None:
            raise InvalidInput(
                f"cluster is {cluster!r}, whose network no script reaches; export for bl.LocalCluster(n, trusted_users=True), or "
                "give the addresses of servers as workers"
            )
        workers, cluster = cluster.addresses, cluster.cluster
    cut = None
    if micro_batches is None and schedule is None:
        step, graph, placed = step_to_run(step, placement, graph, cluster, "bl.export")
    else:
        from ..executors.tensorflow.pipelined_step import pipelined_step

        cut = pipelined_step(step, placement, cluster, graph, micro_batches, schedule, reduction)
        step, graph, placed = cut.step, cut.graph, cut.placement
    needed = int(placed.device.max(initial=0)) + 1
    if workers and needed > len(workers):
        raise InvalidInput(f"the placement uses {needed} devices; workers has {len(workers)} addresses")
    if workers:
        names = [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(len(workers))]
    else:
        names = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(needed)]
    return write_folder(folder, folder_files(step, graph.names, placed, names, tuple(workers), cut))


def _export_torch(
    step: Any,
    placement: Placement,
    folder: str | os.PathLike[str],
    cluster: Any,
    graph: OpGraph | None,
    workers: Sequence[str],
    micro_batches: int | None,
    schedule: Any,
    reduction: str | None,
) -> Path:
    from .torch.export import export as export_torch

    if workers or not (cluster is None or isinstance(cluster, Cluster)):
        raise InvalidInput(
            "workers are TensorFlow servers; the script of a PyTorch step runs on the devices of a bl.Cluster"
        )
    return export_torch(
        step,
        placement,
        folder,
        cluster=cluster,
        graph=graph,
        micro_batches=micro_batches,
        schedule=schedule,
        reduction=reduction,
    )
