"""Profile a training step: -o writes a graph with the cost of every operator.

MODEL is a benchmark model, FILE.py:FUNCTION, a program (model.onnx, or model.pt2 of torch.export), or a trace of a step
that ran elsewhere: of PyTorch (kineto.json with --execution-trace), Chakra (.et), TensorFlow (.xplane.pb, run.pb, .pbtxt).

A step is measured on the attached devices. With --hardware (rtx2080, rtx4090, a100, h100, b200, mi300x, cpu-core, ...), it is
estimated for that hardware by a model of kernels, and nothing runs; docs/estimate-errors.md says how far off it is. Float32
products are estimated in full float32, unless --precision says otherwise. hf:config.json is a Hugging Face model by its
configuration: no weights, no download, always estimated.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ..graph import OpGraph
from ..graph.hardware import DEFAULT_HARDWARE, Hardware
from ..graph.units import format_bytes, format_us
from ..profilers.estimate_record import describe_estimate
from ..profilers.machine_load import describe_load, describe_range
from ..profilers.precision import MODES, NAMES, Precision, profile_mode
from . import console, files, hugging_face, options, output, steps


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    steps.add_step(parser)
    parser.add_argument(
        "--mode", help="measured or estimated (estimated with --hardware or --precision, else measured)"
    )
    parser.add_argument(
        "--hardware",
        metavar="NAME[,NAME...]",
        help="estimate for this hardware, or for several kinds (rtx2080 for programs and configurations)",
    )
    parser.add_argument(
        "--precision",
        metavar="NAME",
        help=f"precision of an estimate: {', '.join(NAMES)} (the types that the model has)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the graph (.json, .json.gz)")
    files.add_arguments(parser)
    hugging_face.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Traces, profiles, prints, writes."""
    from ..graph import save_graph

    options.check_output(arguments.output, (".json", ".json.gz"))
    if arguments.mode is not None:
        options.one_of(arguments.mode, "--mode", MODES)
    Precision.of(arguments.precision, arguments.gradients)  # raises for a name that is not known
    hardware_names = None if arguments.hardware is None else hardware(arguments.hardware)
    if arguments.model.startswith(hugging_face.PREFIX):
        with console.progress("estimating"):
            graph, facts = hugging_face.profile(arguments, hardware_names or DEFAULT_HARDWARE)
    else:
        hugging_face.refuse_options(arguments)
        with console.progress("reading" if files.is_file(arguments.model) else "profiling"):
            graph, facts = (files.profile if files.is_file(arguments.model) else _profile_step)(
                arguments, hardware_names
            )
    facts = {
        "graph": graph.name,
        "ops": graph.n,
        "tensors": graph.tensor_count,
        "edges": graph.edge_count,
        "work_us": float(graph.duration_us.sum()),
        "persistent_bytes": int(graph.persistent_bytes.sum()),
        "colocation_groups": len(graph.colocation_names),
        **{key: graph.info[key] for key in ("measured", "estimate") if key in graph.info},
        **facts,
    }
    if arguments.output:
        save_graph(graph, arguments.output)
        facts["file"] = arguments.output
    output.print_json(facts) if arguments.json else output.print_facts(in_words(facts))
    return 0


def _profile_step(arguments: argparse.Namespace, hardware_names: Any) -> tuple[OpGraph, dict[str, object]]:
    from ..profilers.dispatch import profile_with_report

    files.refuse_options(arguments)
    steps.check_model(arguments.model)
    mode = profile_mode(arguments.mode, hardware_names, arguments.precision)
    step = steps.step_from(arguments)
    graph, report = profile_with_report(
        step, mode=mode, hardware=hardware_names, precision=arguments.precision, progress=False
    )
    return graph, {
        "mode": report.mode,
        "device": report.device,
        "paired_share": report.paired_share,
        "unmeasured_ops": report.unmeasured_ops,
        "seconds": report.seconds,
    }


def hardware(text: str) -> str | list[str]:
    """Parses one or several names of hardware. Each of several becomes a device kind.

    Raises `UnknownNameError` here: building the step first takes many seconds.
    """
    kinds = options.names(text, "--hardware")
    for kind in kinds:
        Hardware.named(kind)
    return kinds[0] if len(kinds) == 1 else kinds


def in_words(facts: Mapping[str, Any]) -> dict[str, object]:
    """Formats facts as text: bytes, microseconds, seconds and shares get units.

    >>> in_words({"ops": 2, "work_us": 1500.0, "persistent_bytes": 2_000_000})
    {'ops': 2, 'work': '1.50 ms', 'persistent': '2.00 MB'}
    """
    lines: dict[str, object] = {}
    for name, value in facts.items():
        if name == "measured":
            lines |= {"measured": describe_range(value), "meanwhile": describe_load(value)}
        elif name == "estimate":
            lines |= describe_estimate(value)
        elif name.endswith("_us"):
            lines[name.removesuffix("_us")] = format_us(value)
        elif name.endswith("_bytes"):
            lines[name.removesuffix("_bytes")] = format_bytes(value)
        elif name == "seconds":
            lines["profiled in"] = f"{value:.1f} s"
        elif name == "unmeasured_ops":
            lines["ops without a time"] = value
        elif name == "parameters":
            lines[name] = f"{value:,}"
        elif name == "paired_share":
            lines["backward ops with their forward op"] = f"{value:.0%}"
        else:
            lines[name.replace("_", " ")] = value
    return lines
