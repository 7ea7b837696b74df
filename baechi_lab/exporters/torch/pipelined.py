"""Exports a placed PyTorch step of several micro-batches as a pipeline: the files of a script for torchrun."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from textwrap import indent

import torch
from torch import fx, nn
from torch.fx.graph_module import _format_import_block
from torch.package import sys_importer

from ...errors import InvalidInput
from ...executors.torch.execution import StepDivision
from ...executors.torch.pipelined import PipelinedStep
from ...torch_runtime.tree import tensors
from ...torch_steps.pipelines import worker
from ...torch_steps.step import TorchStep
from .script import PIPELINE, PIPELINE_README, fill
from .sources import Sources, flat, runtime_files, saved_bytes


def pipeline_files(
    step: TorchStep,
    model: nn.Module,
    division: StepDivision,
    pipelined_step: PipelinedStep,
    devices: tuple[str, ...],
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
