"""Profile a training step: -o writes a graph with the cost of every operator.

MODEL is a benchmark model, FILE.py:FUNCTION, a program (model.onnx, or model.pt2 of torch.export), or a trace of a step
that ran elsewhere: of PyTorch (kineto.json with --execution-trace), Chakra (.et), TensorFlow (.xplane.pb, run.pb, .pbtxt).

--mode measured runs the step on the attached devices; --mode estimated computes a roofline for --hardware (rtx2080,
k40, v100, a100, h100, h200, cpu-core) and runs nothing.
"""

from __future__ import annotations

import argparse
from typing import Any

from ..graph import OpGraph
from . import console, files, options, output, steps


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    steps.add_step(parser)
    parser.add_argument("--mode", default="measured", help="measured or estimated (measured)")
    parser.add_argument("--hardware", metavar="NAME[,NAME...]", help="for estimated: the device, or several kinds")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the graph (.json, .json.gz)")
    files.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Trace, profile, print, write."""
    from ..graph import save_graph
    from ..profilers.tensorflow.profiling import profile_with_report

    options.check_output(arguments.output, (".json", ".json.gz"))
    if files.is_file(arguments.model):
        return _file(arguments)
    files.refuse_options(arguments)
    options.one_of(arguments.mode, "--mode", ("measured", "estimated"))
    steps.check_model(arguments.model)
    chosen: dict[str, Any] = {"progress": console.shows_progress()}
    if arguments.hardware is not None:
        chosen["hardware"] = hardware(arguments.hardware)
    graph, report = profile_with_report(steps.step_from(arguments), mode=arguments.mode, **chosen)
    facts = {
        **graph_facts(graph), "mode": report.mode, "device": report.device, "paired_share": report.paired_share,
        "unmeasured_ops": report.unmeasured_ops, "seconds": report.seconds,
    }  # fmt: skip
    if arguments.output:
        save_graph(graph, arguments.output)
        facts["file"] = arguments.output
    output.print_json(facts) if arguments.json else output.print_facts(facts)
    return 0


def _file(arguments: argparse.Namespace) -> int:
    """A program or a trace: read, print, write."""
    from ..graph import save_graph

    graph, facts = files.profile(arguments, None if arguments.hardware is None else hardware(arguments.hardware))
    facts = {**graph_facts(graph), **facts}
    if arguments.output:
        save_graph(graph, arguments.output)
        facts["file"] = arguments.output
    output.print_json(facts) if arguments.json else output.print_facts(facts)
    return 0


def hardware(text: str) -> str | list[str]:
    """One name, or several, each of which becomes a device kind."""
    found = options.names(text, "--hardware")
    return found[0] if len(found) == 1 else found


def graph_facts(graph: OpGraph) -> dict[str, object]:
    """What a graph holds, for people and machines."""
    return {
        "graph": graph.name,
        "ops": graph.n,
        "tensors": graph.tensor_count,
        "edges": graph.edge_count,
        "work_us": float(graph.duration_us.sum()),
        "persistent_bytes": int(graph.persistent_bytes.sum()),
        "colocation_groups": len(graph.colocation_names),
    }
