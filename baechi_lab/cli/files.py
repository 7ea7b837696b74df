"""`baechi-lab profile FILE`: programs (`.onnx`, `.pt2`) are estimated, traces are read as measured."""

from __future__ import annotations

import argparse
import os
import warnings
from typing import Any

from ..errors import InvalidInput
from ..graph import Cluster, OpGraph, Placement
from ..graph.formats.reading import read_bytes, refuse_model_config
from ..graph.hardware import DEFAULT_HARDWARE
from . import options
from .step_placement import placer_of

PROGRAMS = (".onnx", ".pt2")
TRACES = (".et", ".pb", ".pbtxt", ".json", ".json.gz")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --inference, --optimizer-states, --gradients, --execution-trace."""
    group = parser.add_argument_group("exported programs, models by configuration and traces")
    group.add_argument(
        "--inference", action="store_true", help="profile the forward pass alone (programs, configurations)"
    )
    group.add_argument(
        "--optimizer-states",
        metavar="N",
        help="tensors that the optimizer keeps per parameter, 2 for Adam (0; programs, configurations)",
    )
    group.add_argument(
        "--gradients",
        metavar="NAME",
        help="type of parameters' gradients in mixed precision (fp32 for mixed-bf16; programs, configurations)",
    )
    group.add_argument(
        "--execution-trace",
        metavar="FILE",
        help="for a Kineto trace, what ExecutionTraceObserver wrote in the same run",
    )


def is_file(model: str) -> bool:
    """Whether MODEL names a program or a trace."""
    return model.endswith(PROGRAMS + TRACES)


def refuse_options(arguments: argparse.Namespace) -> None:
    """Raises `InvalidInput` if options of files are given with another MODEL."""
    for option in ("inference", "optimizer_states", "gradients", "execution_trace"):
        if getattr(arguments, option):
            raise InvalidInput(
                f"--{option.replace('_', '-')} is for programs and traces; {arguments.model:.80} is a step"
            )


def profile(arguments: argparse.Namespace, hardware: object) -> tuple[OpGraph, dict[str, Any]]:
    """Returns the graph in the file and facts to print. Warnings become notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        graph_and_facts = _program(arguments, hardware) if arguments.model.endswith(PROGRAMS) else _trace(arguments)
    notes = [str(w.message) for w in caught if type(w.message).__module__.startswith("baechi_lab")]
    graph, facts = graph_and_facts
    notes = [*facts.pop("notes", ()), *notes]
    return graph, {**facts, **{f"note {k}": note for k, note in enumerate(notes, 1)}}


def _program(arguments: argparse.Namespace, hardware: Any) -> tuple[OpGraph, dict[str, Any]]:
    from ..profilers import profile_program

    if arguments.execution_trace:
        raise InvalidInput("--execution-trace goes with a Kineto trace, not with a program")
    if arguments.mode == "measured":
        raise InvalidInput(f"--mode is 'measured'; {arguments.model:.80} is a program, and is estimated")
    hardware = hardware or DEFAULT_HARDWARE
    states = arguments.optimizer_states
    graph = profile_program(
        arguments.model,
        hardware=hardware,
        training=not arguments.inference,
        batch_size=options.batch_size_from(arguments),
        sizes=options.parameters(arguments.param, exact=True),
        optimizer_states=0 if states is None else options.whole_number(states, "--optimizer-states", lowest=0),
        precision=arguments.precision,
        gradients=arguments.gradients,
    )
    return graph, {"mode": "estimated", "device": hardware if isinstance(hardware, str) else ", ".join(hardware)}


def _trace(arguments: argparse.Namespace) -> tuple[OpGraph, dict[str, Any]]:
    from ..graph import load_trace

    rejection = (
        arguments.inference,
        arguments.optimizer_states,
        arguments.batch_size,
        arguments.param,
        arguments.hardware,
        arguments.precision,
        arguments.gradients,
    )
    if any(rejection) or arguments.mode == "estimated":
        name = os.path.basename(arguments.model)
        if os.path.isfile(arguments.model):
            refuse_model_config(arguments.model, read_bytes(arguments.model))
        raise InvalidInput(
            f"{name:.80} is read as a trace, measured as it ran; --execution-trace is its only option "
            f"(hf:{name:.80} would be a model's configuration)"
        )
    trace = load_trace(arguments.model, execution_trace=arguments.execution_trace)
    lanes = ", ".join(trace.cluster.names[:8]) + (" ..." if trace.cluster.n > 8 else "")
    return trace.graph, {
        "mode": "measured",
        "device": lanes,
        "step_us": trace.timeline.makespan_us,
        "notes": trace.notes,
    }


def placed_graph(arguments: argparse.Namespace) -> tuple[OpGraph, Placement, Cluster]:
    """Returns the graph of a program, trace or graph file, and its placement from --placement or --placer."""
    from ..graph.formats.files import load_placement
    from ..pipeline import Pipeline
    from ..profilers import profile_program
    from ..stages import Optimize

    if arguments.model.endswith(PROGRAMS):
        graph = profile_program(
            arguments.model,
            hardware=DEFAULT_HARDWARE if arguments.hardware is None else arguments.hardware,
            batch_size=options.batch_size_from(arguments),
            sizes=options.parameters(arguments.param, exact=True),
            precision=arguments.precision,
        )
    else:
        graph = options.graph_from(arguments.model)
    cluster = options.cluster_from(arguments, graph)
    if arguments.placement:
        return graph, load_placement(arguments.placement).checked(graph, cluster.n), cluster
    place = placer_of(arguments)
    result = Pipeline(optimize=Optimize(), place=place).run(graph, cluster)
    if result.placement is None:
        raise InvalidInput(f"placer {place.placer!r} made no placement")
    return graph, result.placement.on(graph), cluster
