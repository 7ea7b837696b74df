"""Compare placers on one graph: simulated step time, memory and the lower bound that no placement can beat.

Groups of ops are placed and the original graph is simulated; --no-optimize places op by op. With --json, one object per
placer, in the order given. The exit code is 1 if no placement fits.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from . import console, options, output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("graph", metavar="GRAPH", help=options.GRAPH)
    parser.add_argument(
        "--placers",
        default="auto,single,m-topo,m-etf,m-sct",
        metavar="NAME[,NAME...]",
        help="placers to compare, see `baechi-lab place --list` (%(default)s)",
    )
    parser.add_argument("--scheduler", help="how devices choose among ready ops: planned, fifo, pct or msr")
    parser.add_argument("--seed", default="0", help="seed of the placers that draw random numbers (0)")
    parser.add_argument("--time-limit", metavar="S", help="seconds for placers that go on improving")
    group = parser.add_argument_group("measured")
    group.add_argument(
        "--step",
        metavar="MODEL",
        help="the step that GRAPH is a profile of, as for `run`; every feasible placement of it runs",
    )
    group.add_argument("--steps", default="20", metavar="N", help="measured steps of each placement (20)")
    group.add_argument(
        "--native", action="store_true", help="also run --step undivided, as its framework itself runs it"
    )
    options.add_parameters(group, "--step, a benchmark model")
    options.add_pipeline(parser)
    options.add_cluster(parser)
    options.add_optimize(parser, default=None)


def run(arguments: argparse.Namespace) -> int:
    """Prints the table."""
    from ..comparison import compare

    graph = options.graph_from(arguments.graph)
    cluster = options.cluster_from(arguments, graph)
    if arguments.optimize is None:  # groups that a pipeline stage cannot split allow no pipeline
        arguments.optimize = arguments.micro_batches is None
    placers = options.distinct(arguments.placers, "--placers")
    common: dict[str, Any] = {"seed": options.whole_number(arguments.seed, "--seed", lowest=0)}
    if arguments.time_limit is not None:
        common["time_limit"] = options.seconds(arguments.time_limit, "--time-limit")
    pipeline = options.pipeline_from(arguments)
    batch_size = options.batch_size_from(arguments, pipeline.get("micro_batches", 1))
    table = compare(
        graph,
        cluster,
        placers,
        scheduler=arguments.scheduler,
        progress=console.shows_progress(),
        **_measurement_options(arguments),
        passes=options.passes_from(arguments),
        batch_size=batch_size,
        **pipeline,
        **common,
    )
    if arguments.json:
        output.print_json(output.rows_of(table))
    else:
        output.print_comparison(table)
    placements = table[: len(placers)]  # steps that a framework itself runs stand behind them
    if placements["feasible"].astype(bool).any():
        return 0
    reason = next((str(text) for text in placements["error"] if text), "")
    print(
        f"baechi-lab compare: none of {len(placements)} placers gave a placement that can run: {reason}",
        file=sys.stderr,
    )
    return 1


def _measurement_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the measurement arguments of `bl.compare`; empty without --step."""
    from ..errors import InvalidInput

    count = options.whole_number(arguments.steps, "--steps", lowest=1)
    if arguments.step is None:
        if arguments.native or arguments.param:
            option = "--native" if arguments.native else "-p"
            raise InvalidInput(f"{option} needs the step that {arguments.graph} is a profile of: give --step MODEL")
        return {}
    from . import steps

    steps.check_model(arguments.step)
    batch = None if ".py:" in arguments.step else arguments.batch_size
    measurement_arguments = argparse.Namespace(**{**vars(arguments), "model": arguments.step, "batch_size": batch})
    return {"step": steps.step_from(measurement_arguments), "measure": True, "steps": count, "native": arguments.native}
