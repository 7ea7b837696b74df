"""Options of `run` and `export` for a step and its placement, which is read from a file or computed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import InvalidInput
from ..graph import Cluster, OpGraph, Placement, Step
from ..step_summary import note_on_groups
from . import console, options, steps

if TYPE_CHECKING:
    from ..stages import Place
    from ..torch_steps.step import TorchStep


def add_placing(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the step, its placement, its profile and the cluster."""
    steps.add_step(parser)
    parser.add_argument("--placement", metavar="FILE", help="placement file of `baechi-lab place -o`, for this step")
    parser.add_argument(
        "--placer",
        metavar="NAME",
        help="placer that makes the placement if --placement is not given (m-sct; contiguous for micro-batches)",
    )
    parser.add_argument(
        "--mode", help="how to profile for --placer: measured or estimated (estimated with --hardware, else measured)"
    )
    parser.add_argument(
        "--hardware",
        metavar="NAME",
        help="hardware that costs are estimated for, instead of measured here, for --placer",
    )
    parser.add_argument("--precision", metavar="NAME", help="precision of that estimate, as for `baechi-lab profile`")
    options.add_optimize(parser, default=True)
    options.add_pipeline(parser, batch_size=False)
    options.add_cluster(parser)


def placed_step(
    arguments: argparse.Namespace, check_step: Callable[[Step | TorchStep], None] = lambda step: None
) -> tuple[Step | TorchStep, Placement, Cluster, OpGraph | None]:
    """Returns the step, its placement, the cluster, and the profiled graph if there is one.

    `check_step` may refuse the step before it is profiled. One micro-batch is profiled.
    A PyTorch step is a whole batch and is split; a TensorFlow step is a micro-batch already.
    """
    from ..graph.formats.files import load_placement
    from ..stages import Optimize, Profile

    profile = Profile(mode=arguments.mode, hardware=arguments.hardware, precision=arguments.precision, progress=False)
    steps.check_model(arguments.model)
    cluster = options.cluster_from(arguments)
    if arguments.placement:
        placement = load_placement(arguments.placement)
        device_count = int(placement.device.max(initial=0)) + 1
        if device_count > cluster.n:
            raise InvalidInput(f"{arguments.placement} uses {device_count} devices; --devices is {cluster.n}")
        step = steps.step_from(arguments)
        check_step(step)
        return step, placement, cluster, None
    place = placer_of(arguments)  # refuses an unknown name before TensorFlow starts
    step = steps.step_from(arguments)
    check_step(step)
    count = options.pipeline_from(arguments).get("micro_batches")
    if count is not None and count > 1 and isinstance(step, Step) and ".py:" in arguments.model:
        message = (
            f"the TensorFlow step of {arguments.model} is one micro-batch: what runs has {count} times its samples"
        )
        print(f"note: {message}", file=sys.stderr)
    micro_batch = step if isinstance(step, Step) or count is None else step.micro_batches(count)[0]
    with console.progress("profiling and placing"):
        passes = options.passes_from(arguments)
        pipe = profile | Optimize(passes) | place if passes else profile | place
        result = pipe.run(micro_batch, cluster)
    if result.placement is None:
        raise InvalidInput(f"placer {place.placer!r} made no placement")
    if note := note_on_groups(result.graph, result.coarse, cluster):
        print(f"note: {note}", file=sys.stderr)
    return step, result.placement.on(result.graph), cluster, result.graph


def placer_of(arguments: argparse.Namespace) -> Place:
    """Returns the `Place` stage. With micro-batches, a placer that can minimizes the pipelined step."""
    from ..placers.registry import pipeline_parameters
    from ..stages import Place

    pipeline = options.pipeline_from(arguments)
    name = arguments.placer or ("contiguous" if pipeline else "m-sct")
    return Place(name, **pipeline_parameters(name, pipeline))
