"""Place a graph on a cluster and print what a step then costs; -o writes the placement to a file.

With --optimize (the default) groups of ops are placed; the file then holds the placement of the original ops. If no
placement of the groups fits, smaller groups are placed, or single ops, and a note says so.
"""

from __future__ import annotations

import argparse
import sys

from ..errors import InvalidInput
from ..graph.units import format_us, plural
from ..step_summary import note_on_groups
from . import console, options, output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("graph", nargs="?", metavar="GRAPH", help=options.GRAPH)
    parser.add_argument("--placer", default="m-sct", metavar="NAME", help="placer, see --list (%(default)s)")
    parser.add_argument("--list", action="store_true", help="list the placers and exit")
    parser.add_argument("--seed", default="0", help="seed of placers that draw random numbers (0)")
    options.add_time_limit(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="write the placement (.json, .json.gz)")
    options.add_parameters(parser, "placer")
    options.add_cluster(parser)
    options.add_optimize(parser, default=True)


def run(arguments: argparse.Namespace) -> int:
    """Places, simulates, prints and writes; or lists the placers."""
    if arguments.list:
        from ..placers import list_placers

        output.print_json(list_placers()) if arguments.json else output.print_descriptions(list_placers())
        return 0
    if arguments.graph is None:
        raise InvalidInput("GRAPH is missing; give a graph file (see baechi-lab place --help)")
    from ..graph.formats.files import save
    from ..pipeline import Pipeline
    from ..stages import Optimize, Place, Simulate

    options.check_output(arguments.output, (".json", ".json.gz"))
    options.check_apart([arguments.graph, arguments.cluster], [arguments.output])
    seed = options.whole_number(arguments.seed, "--seed", lowest=0)
    params = options.with_time_limit(arguments.placer, arguments.time_limit, options.parameters(arguments.param))
    params = options.with_seed(arguments.placer, seed, params)
    graph = options.graph_from(arguments.graph)
    cluster = options.cluster_from(arguments, graph)
    passes = options.passes_from(arguments)
    pipeline = Pipeline(
        optimize=Optimize(passes) if passes else None,
        place=Place.with_params(arguments.placer, params),
        simulate=Simulate(),
    )
    with console.progress(f"placing with {arguments.placer}"):
        result = pipeline.run(graph, cluster)
    placement = result.placement.on(result.graph)  # type: ignore[union-attr]
    facts = output.timeline_facts(result.timeline, result.bounds.best)  # type: ignore[arg-type]
    facts = {"placer": arguments.placer, "place_seconds": placement.seconds, "groups": result.coarse.n, **facts}
    if placement.finer_groups:
        facts["finer_groups"] = placement.finer_groups
    if "status" in placement.info:
        facts["proof"] = f"{placement.info['status']}, bound {format_us(float(placement.info['bound_us']))}"  # type: ignore[arg-type]
    if arguments.output:
        save(placement, arguments.output)
        facts["file"] = arguments.output
    if arguments.json:
        output.print_json(facts)
    else:
        output.print_facts(
            {
                "placer": facts["placer"],
                "ops": f"{result.graph.n} in {result.coarse.n} {plural('group', result.coarse.n)}",
            }
        )
        output.print_timeline(facts)
        if "proof" in facts:
            output.print_facts({"proof": facts["proof"]})
        for note in filter(None, (placement.finer_groups, note_on_groups(result.graph, result.coarse, cluster))):
            print(f"note: {note}")
    if placement.interrupted:
        print("baechi-lab place: interrupted; the placement is the best so far", file=sys.stderr)
        return 130
    return 0
