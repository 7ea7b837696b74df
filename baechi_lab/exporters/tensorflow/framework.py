"""TensorFlow's implementation of the protocol `baechi_lab.exporters.Exporter`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InvalidInput
from ...executors.tensorflow.pipelined_step import pipelined_step
from ...executors.tensorflow.recomputed_step import step_to_run
from ...graph import Cluster, OpGraph, Placement, Step
from ..folder import write_folder
from .export import folder_files

if TYPE_CHECKING:
    from ...executors.tensorflow.cluster import LocalCluster
    from ...simulator.schedules import ScheduleOption


def export(
    step: Step,
    placement: Placement,
    folder: str | os.PathLike[str],
    *,
    cluster: Cluster | LocalCluster | None,
    graph: OpGraph | None,
    micro_batches: int | None,
    schedule: ScheduleOption | None,
    reduction: str | None,
    workers: Sequence[str] = (),
) -> Path:
    """Writes the placed TensorFlow step; arguments, options and errors as of `bl.export`."""
    if not isinstance(step, Step):
        raise InvalidInput(f"step is a {type(step).__name__}; give what bl.trace returns, or a bl.torch.TorchStep")
    if not isinstance(cluster, Cluster) and cluster is not None:  # a LocalCluster: the script uses its workers
        if cluster.network is not None:
            raise InvalidInput(
                f"cluster is {cluster!r}, whose network no script reaches; export for bl.LocalCluster(n, trusted_users=True), or "
                "give the addresses of servers as workers"
            )
        workers, cluster = cluster.addresses, cluster.cluster
    pipelined = None
    if micro_batches is None and schedule is None:
        step, graph, op_placement = step_to_run(step, placement, graph, cluster, "bl.export")
    else:
        pipelined = pipelined_step(step, placement, cluster, graph, micro_batches, schedule, reduction)
        step, graph, op_placement = pipelined.step, pipelined.graph, pipelined.placement
    device_count = int(op_placement.device.max(initial=0)) + 1
    if workers and device_count > len(workers):
        raise InvalidInput(f"the placement uses {device_count} devices; workers has {len(workers)} addresses")
    if workers:
        names = [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(len(workers))]
    else:
        names = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(device_count)]
    return write_folder(folder, folder_files(step, graph.names, op_placement, names, tuple(workers), pipelined))


def script(step: Step, placement: Placement, **options: object) -> str:
    """Returns the `train.py` that `export` writes, the same for every step. It is read, not imported: it imports TensorFlow."""
    return Path(__file__).with_name("script.py").read_text(encoding="utf-8")
