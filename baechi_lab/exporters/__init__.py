"""Exports a placement as a folder with a training script that does not need baechi_lab."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypedDict

from ..frameworks import framework_of, framework_part, options_of
from ..graph import Cluster, OpGraph, Placement, Step
from ..graph.arguments import check_placed_step

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..executors.tensorflow.cluster import LocalCluster
    from ..simulator.schedules import ScheduleOption
    from ..torch_steps.step import TorchStep

__all__ = ["export"]


class TensorFlowOptions(TypedDict, total=False):
    """Options of `bl.export` for a TensorFlow step.

    workers: addresses (host:port) of a TensorFlow cluster, one per device; the README says how to start each.
    """

    workers: Sequence[str]


class TorchOptions(TypedDict, total=False):
    """Options of `bl.export` for a PyTorch step, as `bl.torch.export` explains them."""

    reorder: str
    devices: list[str] | None
    pipeline: bool | None


class ExportOptions(TensorFlowOptions, TorchOptions, total=False):
    """Options of `bl.export` for either framework; each rejects those of the other."""


OPTIONS = {"tensorflow": TensorFlowOptions.__annotations__, "torch": TorchOptions.__annotations__}


class Exporter(Protocol):
    """Protocol of a framework that exports steps: the function of `exporters/FRAMEWORK/framework.py`."""

    def export(self, step: object, placement: Placement, folder: str | os.PathLike[str], **options: object) -> Path:
        """Writes the folder; the options of `bl.export`, and those of the framework."""

    def script(self, step: object, placement: Placement, **options: object) -> str:
        """Returns the `train.py` of that folder."""


def export(
    step: Step | TorchStep,
    placement: Placement,
    folder: str | os.PathLike[str],
    *,
    cluster: Cluster | LocalCluster | None = None,
    graph: OpGraph | None = None,
    micro_batches: int | None = None,
    schedule: ScheduleOption | None = None,
    reduction: str | None = None,
    **options: Unpack[ExportOptions],
) -> Path:
    """Writes a folder with the placed step and a `train.py` that imports only TensorFlow and NumPy, or only PyTorch.

    Args:
        step: what `bl.trace` returned; its variables' values are where the script starts. Or a `bl.torch.TorchStep`, which
            `bl.torch.export` writes.
        placement: of the step's graph, or of a coarse graph of it.
        folder: where to write; may be new, empty, or hold exactly what an earlier export wrote, which is replaced. The
            `trained_values.npz` of its script stays.
        cluster: a `bl.LocalCluster` with `trusted_users=True`, whose workers the script is to use; a Cluster only checks
            the device indices.
        graph: the graph that the placement was made for, when it is not the one that `bl.profile(step)` makes.
        micro_batches, schedule, reduction: as in `bl.execute`: the script runs the step of so many micro-batches, in the
            schedule's order, and cuts its batches itself.
        options: of the step's framework, by keyword: `workers`, the addresses (host:port) of a TensorFlow cluster, one per
            device; or `reorder`, `devices` and `pipeline` of `bl.torch.export`.

    Returns:
        the folder's absolute path.

    Raises:
        InvalidInput: a placement for another graph, pipeline stages that form no chain for the schedule, a `bl.LocalCluster` with
            a network of its own, a folder that holds something else, edited scripts included; an option of the other framework.
        ExecutionError: the disk is full or not writable; no half-written folder is left.

    >>> export(step, placement, "placed_training/")  # doctest: +SKIP
    PosixPath('.../placed_training')
    """
    framework = framework_of(step)
    check_placed_step(placement, graph, cluster)
    exporter: Exporter = framework_part("exporters", framework)
    return exporter.export(
        step,
        placement,
        folder,
        cluster=cluster,
        graph=graph,
        micro_batches=micro_batches,
        schedule=schedule,
        reduction=reduction,
        **options_of(framework, options, OPTIONS, "export"),
    )
