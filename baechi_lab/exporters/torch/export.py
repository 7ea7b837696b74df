"""Exports a placed PyTorch step: a folder whose `train.py` imports only torch.

The folder has the model's own source, its initial parameters and one batch, the plan as JSON, and a copy of the runtime of
the distributed model. So the exported training computes and waits exactly as it does here.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from ...errors import InvalidInput
from ...executors.torch.execution import StepDivision, divide, unroll_micro_batches
from ...executors.torch.placed_model import place_model
from ...executors.torch.reduction import Reduction
from ...graph import Cluster, OpGraph, Placement
from ...graph.arguments import check_placed_step, refuse_replicas
from ...internal_warnings import warn
from ...simulator.schedules import ScheduleOption
from ...torch_steps.optimizer_trial import try_optimizer
from ...torch_steps.plan import make_plan, torch_devices
from ...torch_steps.step import TorchStep
from ...torch_steps.tracing import trace
from ..folder import write_folder
from .pipelined import pipeline_files
from .script import COUNTING, OFFLOAD, OFFLOAD_IMPORT, README, SCRIPT, fill
from .sources import Sources, batch_bytes, runtime_files, saved_bytes


def export(
    step: TorchStep,
    placement: Placement,
    folder: str | os.PathLike[str],
    *,
    cluster: Cluster | None = None,
    graph: OpGraph | None = None,
    reorder: str = "gpu",
    devices: list[str] | None = None,
    micro_batches: int | None = None,
    schedule: ScheduleOption | None = None,
    pipeline: bool | None = None,
    reduction: str | None = None,
) -> Path:
    """Writes a folder with the placed step and a `train.py`; returns its path.

    The script imports only torch, and installed packages that the model comes from. With `micro_batches` or a `schedule`, a
    placement that forms a pipeline becomes a script for `torchrun`, one process per device, on one machine or several.

    Other parameters are as in `bl.torch.execute`. The folder may be new, empty, or hold exactly what an earlier export wrote,
    which is replaced.

    Raises:
        InvalidInput: a model, loss or optimizer whose source cannot be written out (it says which and why), a
            placement for another graph, a folder that holds something else. ExecutionError: it cannot be written.
    """
    files = folder_files(
        step, placement, cluster, graph, reorder, devices, micro_batches, schedule, pipeline, reduction
    )
    return write_folder(folder, files)


def folder_files(
    step: TorchStep,
    placement: Placement,
    cluster: Cluster | None = None,
    graph: OpGraph | None = None,
    reorder: str = "gpu",
    devices: list[str] | None = None,
    micro_batches: int | None = None,
    schedule: ScheduleOption | None = None,
    pipeline: bool | None = None,
    reduction: str | None = None,
) -> dict[str, str | bytes]:
    """Returns the files that `export` writes, by name; its parameters and errors."""
    if not isinstance(step, TorchStep):
        raise InvalidInput(f"step is a {type(step).__name__}; the PyTorch export takes a baechi_lab.torch.TorchStep")
    check_placed_step(placement, graph, cluster)
    if graph is None and placement.group_of is not None:
        raise InvalidInput("the placement is of a coarse graph; give graph=, the graph that was optimized")
    if micro_batches is not None or schedule is not None:
        micro_steps = step.micro_batches(1 if micro_batches is None else micro_batches)
        placed_model = place_model(step, micro_steps, placement, graph, cluster, "cpu")
        model = placed_model.model
        order = "1f1b" if schedule is None else schedule
        unroll_micro_batches(placed_model)  # warns of statistics of batches
        division = divide(placed_model, order, pipeline, reduction)
        if not division.counts and (division.adding.keys_of_counts or any(division.adding.divisors)):
            warn(
                f"the loss of step {step.name!r} averages over what counts in a micro-batch, and its model cannot be run "
                "without data: gradients of the exported script are the mean of its micro-batches', not those of the undivided "
                "batch",
            )
        if division.pipelined_step is not None:
            process_devices = torch_devices(placed_model.cluster, devices)
            return pipeline_files(step, model, division, division.pipelined_step, process_devices)
    else:
        refuse_replicas(placement, "bl.export")
        model = step.model()
        try_optimizer(step, model, 1)
        division = StepDivision([step], None, 1, Reduction(True, ({},)))
    model_trace = trace(model, division.micro_steps[0].inputs, atomic=step.atomic)
    op_placement = placement if graph is None else placement.on(graph)
    run_cluster = (
        cluster if cluster is not None else Cluster.uniform(int(op_placement.device.max(initial=0)) + 1, kind="cpu")
    )
    plan = make_plan(model_trace, op_placement, torch_devices(run_cluster, devices), reorder=reorder, graph=graph)
    sources = Sources()
    values = {
        **sources.of_step(step, model),
        "MICRO_BATCHES": repr(len(division.micro_steps)),
        "MAX_IN_FLIGHT": repr(division.in_flight),
        "MEAN": repr(division.adding.mean),
    }
    script = SCRIPT.replace(
        "# IMPORTS", "\n".join([*sources.imports(), *([OFFLOAD_IMPORT] if plan.offloaded_state else [])])
    )
    script = script.replace("    # OFFLOAD\n", OFFLOAD if plan.offloaded_state and step.optimizer is not None else "")
    for plain, counting_code in COUNTING.items():
        script = script.replace(plain, counting_code if division.counts else plain)
    return {
        "train.py": fill(script, values),
        "README.md": fill(README, {"NAME": step.name, "NEEDS": sources.needs()}),
        "placed_plan.json": json.dumps(plan.to_json(), indent=1),
        "weights.pt": saved_bytes(model.state_dict()),
        "batch.pt": batch_bytes(step),
        **sources.files,
        **runtime_files(),
    }
