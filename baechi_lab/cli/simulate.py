"""Simulate one step of a graph under a placement file.

--trace writes a trace for Perfetto (https://ui.perfetto.dev) or chrome://tracing; -o writes the timeline itself;
--figure writes the Gantt chart as a page. The exit code is 1 if the placement exceeds the memory of a device or breaks another
rule.
"""

from __future__ import annotations

import argparse
import sys

from . import console, options, output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("graph", metavar="GRAPH", help=options.GRAPH)
    parser.add_argument("placement", metavar="PLACEMENT", help="placement file, as `baechi-lab place -o` writes it")
    parser.add_argument("--scheduler", help="how devices choose among ready ops: planned, fifo, pct or msr")
    parser.add_argument("--trace", metavar="FILE", help="write a Chrome trace (.json)")
    parser.add_argument("--figure", metavar="FILE", help="write the Gantt chart (.html)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the timeline (.json, .json.gz)")
    options.add_pipeline(parser)
    options.add_cluster(parser)


def run(arguments: argparse.Namespace) -> int:
    """Simulates, prints and writes; returns the exit status."""
    from ..graph.formats.files import load_placement, save
    from ..simulator import simulate
    from ..simulator.bounds import bounds

    options.check_output(arguments.output, (".json", ".json.gz"))
    options.check_output(arguments.trace, (".json", ".json.gz"))
    options.check_output(arguments.figure, (".html",))
    outputs = [arguments.output, arguments.trace, arguments.figure]
    options.check_apart([arguments.graph, arguments.placement, arguments.cluster], outputs)
    graph = options.graph_from(arguments.graph)
    cluster = options.cluster_from(arguments, graph)
    pipeline = options.pipeline_from(arguments)
    micro_batches = pipeline.get("micro_batches")
    batch_size = options.batch_size_from(arguments, micro_batches or 1)
    placement = load_placement(arguments.placement)
    with console.progress("simulating"):
        timeline = simulate(graph, cluster, placement, arguments.scheduler, **pipeline)
        bound = bounds(graph, cluster, micro_batches=micro_batches).best
    facts = output.timeline_facts(timeline, bound, batch_size)
    if arguments.trace:
        timeline.to_chrome_trace(arguments.trace)
    if arguments.figure:
        from ..graph.formats.files import write_atomically
        from ..viz import gantt

        figure = gantt(timeline, color_by="device" if "schedule" not in pipeline else "micro-batch")
        write_atomically(arguments.figure, figure.to_html(include_plotlyjs=True, full_html=True).encode())
    if arguments.output:
        save(timeline, arguments.output)
    output.print_json(facts) if arguments.json else output.print_timeline(facts)
    if timeline.feasible:
        return 0
    print(f"baechi-lab simulate: the placement is not feasible: {timeline.violations[0].message}", file=sys.stderr)
    return 1
