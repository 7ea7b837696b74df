"""Export a training step under a placement: a folder whose train.py needs its framework only, or a plan.

With --format, MODEL may also be a program (.onnx, .pt2), a trace or a graph file.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput
from ..graph import Cluster, OpGraph, Placement, Step
from . import console, files, options, output, step_placement

if TYPE_CHECKING:
    from ..torch_steps.step import TorchStep

FOLDER = "folder"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    from ..exporters.plans import FORMATS

    step_placement.add_placing(parser)
    formats = ", ".join(FORMATS)
    parser.add_argument(
        "--format",
        default=FOLDER,
        metavar="NAME",
        help=f"{FOLDER}: a script (the default); or a plan as text for another runtime: {formats}",
    )
    parser.add_argument(
        "-o", "--output", metavar="PATH", help="the folder (placed_training), or the plan's file (standard output)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Places and writes."""
    from ..exporters import export
    from ..exporters.folder import check_place
    from ..exporters.plans import FORMATS

    options.one_of(arguments.format, "--format", (FOLDER, *FORMATS))
    pipeline = options.pipeline_from(arguments)
    if files.is_file(arguments.model):
        if arguments.format == FOLDER:
            raise InvalidInput(f"{arguments.model} holds no step that could run; name a --format")
        return _write_plan(arguments, *files.placed_graph(arguments))
    folder = arguments.output or "placed_training"
    if arguments.format == FOLDER:
        check_place(folder)  # before minutes of profiling

    def check_step(step: Step | TorchStep) -> None:
        if arguments.format == "device_map" and isinstance(step, Step):
            raise _no_pytorch_model(arguments.model)

    step, placement, cluster, graph = step_placement.placed_step(arguments, check_step)
    if arguments.format != FOLDER:
        return _write_plan(arguments, _graph_of(step) if graph is None else graph, placement, cluster, step)
    with console.progress("exporting"):
        export(step, placement, folder, graph=graph, **pipeline)
    facts = {"folder": folder, "script": f"{folder.rstrip('/')}/train.py"}
    output.print_json(facts) if arguments.json else output.print_facts(facts)
    if not isinstance(step, Step) and step.optimizer is None:
        print(
            "note: the step has no optimizer, so train.py computes gradients and updates nothing; FUNCTION may return "
            "bl.torch.TorchStep(name, build, inputs, loss=..., optimizer=...)",
            file=sys.stderr,
        )
    return 0


def _graph_of(step: Step | TorchStep) -> OpGraph:
    """Returns the graph of the step, with its ops in the order of its profile; for a PyTorch step, with durations."""
    if isinstance(step, Step):
        from ..executors.structure import graph_of

        return graph_of(step)
    from ..profilers.torch.profile import profile

    return profile(step, warmup=0, runs=1)


def _no_pytorch_model(name: str) -> InvalidInput:
    return InvalidInput(f"--format device_map divides a PyTorch model, which {name:.80} is not")


def _write_plan(
    arguments: argparse.Namespace,
    graph: OpGraph,
    placement: Placement,
    cluster: Cluster,
    step: Step | TorchStep | None = None,
) -> int:
    """Writes the plan to its file or to standard output, and what the format cannot express to standard error."""
    from ..exporters.plans import write_plan
    from ..graph.formats.files import write_atomically
    from ..simulator import simulate

    model: Any = arguments.model if arguments.model.endswith(".onnx") else None
    if step is not None and not isinstance(step, Step):
        model = step.model()
    elif arguments.format == "device_map":
        raise _no_pytorch_model(arguments.model)
    timeline = simulate(graph, cluster, placement) if arguments.format == "chakra" else None
    plan = write_plan(graph, placement, arguments.format, model=model, cluster=cluster, timeline=timeline)
    if arguments.output:
        for ending, data in (plan.files or {"": plan.text.encode()}).items():
            write_atomically(arguments.output + ending, data)
    if arguments.json:
        output.print_json({"format": plan.format, "text": plan.text, "lost": plan.unsupported})
        return 0
    if not arguments.output:
        print(plan.text, end="")
    for sentence in plan.unsupported:
        print(f"lost: {sentence}", file=sys.stderr)
    return 0
