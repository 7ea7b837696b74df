"""Run a training step under a placement on the attached devices (GPUs, else logical CPU devices); print step times.

The placement comes from --placement, or is made here by --placer after profiling the step. With --micro-batches, what is
profiled and placed is one micro-batch, and the step runs all of them in the order of --schedule. The batches of benchmark
models and of PyTorch steps are cut. A TensorFlow step of FILE.py is one micro-batch already.
"""

from __future__ import annotations

import argparse
import math

from ..comparison_runs import device_memory
from ..graph.units import format_bytes, format_us
from . import console, options, output, step_placement


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    step_placement.add_placing(parser)
    parser.add_argument("--steps", default="20", metavar="N", help="measured steps, after the warm-up (20)")
    parser.add_argument(
        "--native", action="store_true", help="also run the step undivided, as its framework itself runs it"
    )
    parser.add_argument("--trace", metavar="FILE", help="write a Chrome trace of the measured timeline (.json)")


def run(arguments: argparse.Namespace) -> int:
    """Places, executes and prints."""
    from ..errors import ExecutionError
    from ..executors import execute
    from ..simulator import simulate

    options.check_output(arguments.trace, (".json", ".json.gz"))
    options.check_apart([arguments.model, arguments.placement, arguments.cluster], [arguments.trace])
    steps = options.whole_number(arguments.steps, "--steps", lowest=1)
    pipeline = options.pipeline_from(arguments)
    step, placement, cluster, graph = step_placement.placed_step(arguments)
    simulated_us = None if graph is None else simulate(graph, cluster, placement, **pipeline).makespan_us
    with console.progress("running"):
        measured_run = execute(
            step, placement, steps=steps, graph=graph, native=arguments.native, progress=False, **pipeline
        )
    if measured_run.status != "ok":
        raise ExecutionError(f"the run ended with status {measured_run.status!r}: {measured_run.message}")
    if arguments.trace and measured_run.timeline is not None:
        measured_run.timeline.to_chrome_trace(arguments.trace)
    facts = {
        "status": measured_run.status,
        "steps": len(measured_run.step_seconds),
        "measured_us": measured_run.median_seconds * 1e6,
        "simulated_us": simulated_us,
        "moved_ops": list(measured_run.moved_ops),
        "step_seconds": measured_run.step_seconds,
    }
    memory_rows = [] if measured_run.timeline is None else device_memory(measured_run.timeline)
    facts["measured_memory"] = memory_rows
    if measured_run.native:
        native_facts = {
            name: {"measured_us": native_run.median_seconds * 1e6, "message": native_run.message, **native_run.info}
            for name, native_run in measured_run.native.items()
        }
        facts |= {"native": native_facts, "native_ratio": measured_run.native_ratio}
    if arguments.json:
        output.print_json(facts)
        return 0
    lines = {"steps": str(facts["steps"]), "step, measured": format_us(measured_run.median_seconds * 1e6) + " (median)"}
    if simulated_us is not None:
        lines["step, simulated"] = format_us(simulated_us)
    for memory_row in memory_rows:
        name = str(memory_row["device"]).removeprefix("/job:localhost/replica:0/task:0/device:").lower()
        lines[f"peak of {name}, measured"] = format_bytes(memory_row["peak_bytes"])
    for native_run in measured_run.native.values():
        lines[f"step, {native_run.name}"] = (
            native_run.message or format_us(native_run.median_seconds * 1e6) + " (median, undivided)"
        )
    if not math.isnan(measured_run.native_ratio):
        lines["measured / native"] = f"{measured_run.native_ratio:.2f}"
    if measured_run.moved_ops:
        lines["moved by TensorFlow"] = f"{len(measured_run.moved_ops)} ops, first {measured_run.moved_ops[0]}"
    output.print_facts(lines)
    return 0
