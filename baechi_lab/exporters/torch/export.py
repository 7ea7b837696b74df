"""Exports a placed PyTorch step: a folder whose `train.py` imports only torch.

The folder has the model's own source, its initial parameters and one batch, the plan as JSON, and a copy of the runtime of
the distributed model. So the exported training computes and waits exactly as it does here.

A step of several micro-batches is exported as a pipeline: a script for torchrun.
"""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from textwrap import indent

import torch
from torch import fx, nn
from torch.fx.graph_module import _format_import_block
from torch.package import sys_importer

from ...errors import InvalidInput
from ...executors.torch.execution import StepDivision, divide, unroll_micro_batches
from ...executors.torch.pipelined import PipelinedStep
from ...executors.torch.placed_model import place_model
from ...executors.torch.reduction import Reduction
from ...graph import Cluster, OpGraph, Placement
from ...graph.arguments import check_placed_step, refuse_replicas
from ...internal_warnings import warn
from ...simulator.schedules import ScheduleOption
from ...torch_runtime.tree import tensors
from ...torch_steps.optimizer_trial import try_optimizer
from ...torch_steps.pipelines import worker
from ...torch_steps.plan import make_plan, torch_devices
from ...torch_steps.step import TorchStep
from ...torch_steps.tracing import trace
from ..folder import write_folder
from .script import COUNTING, OFFLOAD, OFFLOAD_IMPORT, PIPELINE, PIPELINE_README, README, SCRIPT, fill
from .sources import Sources, batch_bytes, flat, runtime_files, saved_bytes


def pipeline_files(
    step: TorchStep, model: nn.Module, division: StepDivision, pipelined_step: PipelinedStep, devices: tuple[str, ...]
) -> dict[str, str | bytes]:
    """Returns the files of the export: name -> text or bytes. `pipelined_step` is that of the `division`."""
    sources = Sources()
    values = sources.of_step(step, model)
    values["OPTIMIZER"] = values["OPTIMIZER"].replace("model.parameters()", "parameters")
    script = fill(PIPELINE.replace("# IMPORTS", "\n".join(sources.imports())), values)
    process_count = str(len(pipelined_step.processes))
    readme = fill(PIPELINE_README, {"NAME": step.name, "NEEDS": sources.needs(), "PROCESSES": process_count})
    args, kwargs = step.arguments(model)
    # Per input tensor, the argument that it is or is a part of, by position or name.
    inputs_by_name = [*((str(k), value) for k, value in enumerate(args)), *kwargs.items()]
    kinds = {torch.device(devices[d]).type for d in pipelined_step.processes}
    if len(kinds) > 1:
        raise InvalidInput("the placement uses CPUs and GPUs; an exported pipeline has processes of one kind")
    stages = [
        {**stage_module.spec, "processes": ranks, "uses": _used_names(stage_module.module.graph)}
        for stage_module, ranks in zip(pipelined_step.stage_modules, pipelined_step.stage_ranks, strict=True)
    ]
    return {
        "train.py": script,
        "README.md": readme,
        "stages.py": _stages(pipelined_step),
        "pipeline.json": json.dumps(
            {
                "inputs": [name for name, value in inputs_by_name for _ in tensors(value)],
                "schedule": str(pipelined_step.schedule),
                "micro_batches": pipelined_step.micro_batches,
                "mean": division.adding.mean,
                "device": kinds.pop(),
                "template": pipelined_step.program.template,
                "stages": stages,
                "tied": pipelined_step.tied,
                "batch_shapes": division.adding.shapes if division.counts else [],
            },
            indent=1,
        ),
        "weights.pt": saved_bytes(model.state_dict()),
        "constants.pt": saved_bytes(pipelined_step.program.constants),
        "batch.pt": saved_bytes({"inputs": list(tensors(step.arguments(model))), "targets": list(step.targets)}),
        "placed_pipeline.py": flat(Path(inspect.getfile(worker)).read_text()),
        **sources.files,
        **runtime_files(),
    }


def _used_names(graph: fx.Graph) -> list[str]:
    """Returns the names of the layers, parameters and buffers that a stage uses."""
    targets = (str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr"))
    return [name for name in dict.fromkeys(targets) if name != "device"]


def _stages(pipelined_step: PipelinedStep) -> str:
    """Returns the source of one class per stage, with its forward written out."""
    classes = []
    imports = dict.fromkeys(["import torch", "from torch import nn", "from placed_pipeline import StageBase"])
    for s, stage_module in enumerate(pipelined_step.stage_modules):
        code = stage_module.module.graph.python_code("self")
        imports.update(dict.fromkeys(_format_import_block(code.globals, sys_importer).splitlines()))
        body = indent(code.src.strip(), "    ")
        classes.append(f"class Stage{s}(StageBase):\n{body}\n")
    text = '"""The stages of the model: what each process runs on a micro-batch."""\n\n'
    return text + "\n".join(imports) + "\n\n\n" + "\n\n".join(classes)


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
                "batch"
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
