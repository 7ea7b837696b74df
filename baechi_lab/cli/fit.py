"""Say whether a step fits the devices' memory; if not, what is missing and the options that make it fit, each simulated.

Options: more devices, a smaller batch, micro-batches, recomputation, offloading to a host. Another batch needs --model, the
name of a benchmark model, in place of a graph file. With --json, the answer and one object per option. The exit code is 1 if
no option that was tried fits.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ..errors import InvalidInput
from ..graph.hardware import DEFAULT_HARDWARE
from ..graph.units import format_bytes, parse_bytes
from . import console, options, output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("graph", nargs="?", metavar="GRAPH", help=options.GRAPH)
    parser.add_argument("--model", metavar="NAME", help="a benchmark model in place of a graph; it needs TensorFlow")
    parser.add_argument(
        "--hardware", metavar="NAME", help="hardware that the costs of --model are estimated for (rtx2080)"
    )
    parser.add_argument(
        "--batch-size", metavar="N", help="samples of a step, for time per sample and other batch sizes"
    )
    parser.add_argument(
        "--host-memory", metavar="SIZE", help="add a host of that size behind the devices' link, to offload to"
    )
    parser.add_argument("--placers", metavar="NAME[,NAME...]", help="placers to ask (single,m-topo,m-etf,contiguous)")
    parser.add_argument(
        "--time-limit", default="0", metavar="S", help="seconds of search for every option that fits (0)"
    )
    parser.add_argument(
        "--give-up",
        metavar="NAME[,NAME...]",
        help="what may be given up (devices,batch,micro-batches,recompute,offload)",
    )
    parser.add_argument("--all", action="store_true", help="try all options even if the step fits as it is")
    options.add_cluster(parser, devices=1)


def run(arguments: argparse.Namespace) -> int:
    """Prints the answer and the table; returns the exit code."""
    from ..fitting.fit import GIVE_UP, fit
    from ..placers.memory_trades.memory_ladder import FAST_PLACERS

    if (arguments.graph is None) == (arguments.model is None):
        raise InvalidInput("give a graph file or --model NAME, one of the two")
    graph = None if arguments.graph is None else options.graph_from(arguments.graph)
    cluster = without_host = options.cluster_from(arguments, graph)
    if arguments.host_memory is not None:
        cluster = cluster.with_host(parse_bytes(arguments.host_memory, "--host-memory"))
    every = tuple(GIVE_UP)
    names = every if arguments.give_up is None else options.names(arguments.give_up, "--give-up")
    for name in names:
        if name not in every:
            raise InvalidInput(f"--give-up is {arguments.give_up!r}; it must be names among {', '.join(every)}")
    settings: dict[str, Any] = {
        "batch_size": options.batch_size_from(arguments),
        "hardware": arguments.hardware or DEFAULT_HARDWARE,
        "every_option": arguments.all,
        "placers": FAST_PLACERS if arguments.placers is None else options.distinct(arguments.placers, "--placers"),
        "time_limit": options.seconds(arguments.time_limit, "--time-limit"),
        "give_up": names,
    }
    subject = arguments.model if graph is None else graph
    with console.progress("fitting") as status:
        answer = fit(
            subject, cluster, callback=lambda option: setattr(status, "detail", f"trying {option}"), **settings
        )
    host = "" if arguments.host_memory is None else f".with_host({arguments.host_memory!r})"
    graph_lines = [] if arguments.graph is None else [f"graph = bl.load_graph({arguments.graph!r})"]
    setup = [*graph_lines, f"cluster = {options.cluster_code(arguments, without_host)}{host}"]
    if arguments.json:
        facts: dict[str, object] = {
            "fits": answer.fits,
            "missing_bytes": answer.missing_bytes,
            "answer": answer.answer,
            "caveat": answer.caveat,
        }
        if answer.proof is not None:
            facts |= {"proof": str(answer.proof), "least_bytes": answer.proof.least_bytes}
        output.print_json({**facts, "setup": setup, "ways": [option.row() for option in answer.options]})
    else:
        print(answer.answer, *([answer.caveat] if answer.caveat else []), sep="\n", end="\n\n")
        output.print_rows(
            ["option", "choice", "fits", "step", "samples/s", "peak memory"],
            [[*option.texts()[:5], _peaks(option.peaks_of_devices_and_hosts[0])] for option in answer.options],
        )
        remarks = {
            option.kind: option.texts()[-1] for option in answer.options if option.texts()[-1] not in ("", "nothing")
        }
        if remarks:
            print()
            output.print_descriptions(remarks)
        if answer.proof is not None and answer.best is not None:
            print("", answer.proof, sep="\n")
        print(*([""] if answer.commands else []), *answer.commands, "", sep="\n")
        print(*setup, sep="\n")
    if answer.best is not None:
        return 0
    print(f"baechi-lab fit: no option that was tried fits ({len(answer.options)} were)", file=sys.stderr)
    return 1


def _peaks(peak_bytes: list[int]) -> str:
    """Returns the peaks of up to two devices; of more devices, the largest."""
    if len(peak_bytes) > 2:
        return f"{format_bytes(max(peak_bytes))} at most"
    return ", ".join(map(format_bytes, peak_bytes)) or "-"
