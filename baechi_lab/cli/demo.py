"""Do the main job from end to end, and print the result of each stage.

A model's training step is traced, profiled on the attached devices, optimized, placed on several devices with m-TOPO, m-ETF
and m-SCT, and simulated. A table compares the placements with the lower bound. The best placement then runs on attached GPUs,
or without them on logical CPU devices, and its measured step time is printed beside the simulated one. Last, a training
script is exported.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from ..errors import ExecutionError, InfeasiblePlacement
from ..exporters.folder import check_place
from ..graph import Cluster
from ..graph.device import device_count
from ..graph.units import format_us, parse_bytes
from ..passes.optimize import PASSES
from ..passes.registry import make_pass
from ..placers.registry import make_placer
from ..step_summary import below_bound
from ..workers.executors import cores
from . import console, options, output, steps

if TYPE_CHECKING:
    from ..graph import Placement, Timeline

PASSES_OF_MODEL = {"inception_v3": "colocation,fusion"}
"""Jeon et al. 2020, section 5.4: on Inception-V3 co-placement makes one massive group, so it was switched off."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--model", default="inception_v3", help="benchmark model or FILE.py:FUNCTION (%(default)s)")
    parser.add_argument(
        "--batch-size", default=None, metavar="N", help="samples of a step (2 for inception_v3, else the model's own)"
    )
    options.add_parameters(parser, "model")
    parser.add_argument("--devices", default="4", metavar="N", help="devices to place on (4)")
    parser.add_argument("--memory", metavar="SIZE", help="memory per device (what the attached devices have)")
    parser.add_argument(
        "--passes",
        metavar="NAME[,NAME...]",
        help=f"passes that make groups of ops ({','.join(PASSES)}; Inception-V3 without coplacement)",
    )
    parser.add_argument(
        "--placers", default="m-topo,m-etf,m-sct", metavar="NAME[,NAME...]", help="placers to compare (%(default)s)"
    )
    parser.add_argument("--steps", default="10", metavar="N", help="measured steps of the real run (10)")
    parser.add_argument(
        "-o",
        "--output",
        default="placed_training",
        metavar="FOLDER",
        help="folder for the exported script (%(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs all stages in the order of the pipeline."""
    from .. import bounds, compare, execute, export, profile
    from ..pipeline import Pipeline
    from ..stages import Optimize, Place, Simulate

    count = options.whole_number(arguments.steps, "--steps", lowest=1)
    devices = device_count(options.whole_number(arguments.devices, "--devices", lowest=1), "--devices")
    placers = options.distinct(arguments.placers, "--placers")
    for name in placers:
        make_placer(name)
    default_passes = PASSES_OF_MODEL.get(arguments.model, ",".join(PASSES))
    passes = options.names(default_passes if arguments.passes is None else arguments.passes, "--passes")
    for name in passes:
        make_pass(name)
    if arguments.memory is not None:
        parse_bytes(arguments.memory, "--memory")
    check_place(arguments.output)
    steps.check_model(arguments.model)
    if arguments.batch_size is None and arguments.model == "inception_v3":
        arguments.batch_size = "2"  # a step of about a second on two CPU cores
    steps.check_parameters(arguments)
    narrator, shows_bars = _Narrator(quiet=arguments.json), console.shows_progress() and not arguments.json

    with narrator(f"tracing the training step of {arguments.model}"):
        step = steps.step_from(arguments)
    with narrator("profiling it here, operator by operator"):
        graph = profile(step, mode="measured", progress=shows_bars)
    with narrator(f"asking TensorFlow for {devices} devices and timing transfers between them"):
        cluster = attached_cluster(devices, arguments.memory)
    optimize = Pipeline(optimize=Optimize(tuple(passes)))
    with narrator(f"optimizing the graph ({', '.join(passes)})"):
        groups = optimize.run(graph, cluster).coarse.n
    narrator.line(f"{graph.n} operators in {groups} groups, {format_us(float(graph.duration_us.sum()))} of work")
    with narrator(f"placing on {', '.join(cluster.names)} and simulating"):
        table = compare(graph, cluster, placers, passes=passes, progress=shows_bars)
    if not arguments.json:
        output.print_comparison(table)
    feasible = table[table["feasible"].astype(bool)]
    if feasible.empty:
        reasons = "; ".join(f"{row['placer']}: {row['error']}" for _, row in table.iterrows())
        raise InfeasiblePlacement(f"no placer found a placement that fits: {reasons}")
    best = str(feasible.loc[feasible["makespan_us"].astype(float).idxmin(), "placer"])
    result = optimize.replace(place=Place(best), simulate=Simulate()).run(graph, cluster)
    placement, timeline = cast("Placement", result.placement), cast("Timeline", result.timeline)
    with narrator(f"running the placement of {best} for real, {count} steps"):
        measured_run = execute(step, placement, steps=count, cluster=cluster, graph=graph)
    if measured_run.status != "ok":
        raise ExecutionError(f"the run ended with status {measured_run.status!r}: {measured_run.message}")
    measured_us = measured_run.median_seconds * 1e6
    narrator.line(f"step time: simulated {format_us(timeline.makespan_us)}, measured {format_us(measured_us)} (median)")
    narrator.line(below_bound(measured_us, bounds(graph, cluster).best, graph))
    narrator.line(sharing(cluster, cores()))
    with narrator(f"exporting to {arguments.output}/"):
        export(step, placement, arguments.output, graph=graph)
    narrator.line(f"train under this placement with: python {arguments.output}/train.py")
    if arguments.json:
        output.print_json(
            {
                "model": arguments.model,
                "ops": graph.n,
                "groups": result.coarse.n,
                "devices": list(cluster.names),
                "comparison": output.rows_of(table),
                "best": best,
                "simulated_us": timeline.makespan_us,
                "measured_us": measured_us,
                "steps": len(measured_run.step_seconds),
                "folder": arguments.output,
            }
        )
    return 0


def attached_cluster(devices: int, memory: str | None) -> Cluster:
    """Returns `devices` devices of this machine, with the link measured between the first two.

    Parts of one GPU have no link of their own to measure; they keep the default one.
    """
    from ..executors import measure_link

    cluster = Cluster.from_tensorflow(virtual=devices)
    if memory is not None:
        cluster = cluster.with_memory(memory)
    if cluster.n == 1 or "/" in "".join(cluster.names[:2]):
        return cluster
    first, second = (f"/device:{name.upper()}" for name in cluster.names[:2])
    return cluster.replace(link=measure_link(first, second, progress=console.shows_progress()).link)


def sharing(cluster: Cluster, cores: int) -> str:
    """Returns a remark on the comparison of simulated and measured time if devices share cores, else an empty text."""
    if cluster.devices[0].family == "cpu" and cores < cluster.n:
        return f"(the {cluster.n} logical CPU devices share {cores} cores here; the simulation gives each its own)"
    return ""


class _Narrator:
    """Prints each stage and its duration; prints nothing for `--json`."""

    def __init__(self, quiet: bool):
        self.quiet = quiet

    def line(self, text: str) -> None:
        """Prints a line, unless it is empty."""
        if text and not self.quiet:
            print(text, flush=True)

    @contextmanager
    def __call__(self, text: str) -> Iterator[None]:
        """Prints a stage before it starts and its seconds after it ends."""
        self.line(f"- {text}")
        start_seconds = time.perf_counter()
        yield
        if not self.quiet:
            print(f"  ({time.perf_counter() - start_seconds:.1f} s)", file=sys.stderr, flush=True)
