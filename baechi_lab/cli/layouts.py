"""List layouts of a transformer on a cluster: tensor, pipeline, data, expert and context parallelism, each simulated.

MODEL is a configuration, hf:config.json. With --json, one object per layout, the best first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import InvalidInput
from ..graph import Cluster
from ..graph.layout import Layout
from ..graph.units import format_bytes, format_us, parse_bytes
from . import console, options, output

if TYPE_CHECKING:
    from ..parallel.layouts import LayoutRow, Layouts

_FIELDS = ("tp", "pp", "dp", "ep", "cp", "zero", "micro_batch", "schedule", "recompute")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("model", metavar="MODEL", help="hf:config.json, the configuration of a Hugging Face model")
    parser.add_argument("--hardware", default="h100", metavar="NAME", help="hardware of the devices (%(default)s)")
    parser.add_argument("--devices", default="8", metavar="N", help="number of devices (%(default)s)")
    parser.add_argument("--per-machine", default="8", metavar="N", help="devices of one machine (%(default)s)")
    parser.add_argument("--memory", metavar="SIZE", help="memory of a device (what the hardware has)")
    parser.add_argument(
        "--link", default="nvlink", metavar="NAME", help="link between devices of a machine (%(default)s)"
    )
    parser.add_argument(
        "--network", default="infiniband", metavar="NAME", help="link between machines, of each device (%(default)s)"
    )
    parser.add_argument("--global-batch", required=True, metavar="N", help="sequences of a step")
    parser.add_argument("--sequence-length", required=True, metavar="N", help="tokens of a sequence")
    parser.add_argument(
        "--precision", default="mixed-bf16", metavar="NAME", help="mixed-bf16, mixed-fp16 or mixed-fp8 (%(default)s)"
    )
    parser.add_argument(
        "--reduce-precision",
        metavar="NAME",
        help="number format in which gradients are reduced: float32 or half (that in which they are added up)",
    )
    parser.add_argument(
        "--attention", default="flash", metavar="NAME", help="kernels of attention: flash or eager (%(default)s)"
    )
    parser.add_argument(
        "--bucket",
        metavar="SIZE",
        help="bytes of gradients that are reduced together (500MB, or more if a stage would have more than 8 buckets)",
    )
    parser.add_argument(
        "--overlap-products",
        action="store_true",
        help="run products in pieces beside the collectives of sequence parallelism, as with --tp-comm-overlap of Megatron-LM",
    )
    parser.add_argument(
        "--write",
        metavar="FORMAT",
        help="write the best layout for this program: accelerate, deepspeed, megatron (where collectives overlap with "
        "gradients of weights and with the next step's forward pass), torchrun or torchtitan",
    )
    parser.add_argument("-o", "--output", metavar="FOLDER", help="folder for --write (none: the layout is printed)")
    parser.add_argument(
        "--rows", default="15", metavar="N", help="layouts to print (%(default)s); all of them with --json"
    )


def run(arguments: argparse.Namespace) -> int:
    """Lists the layouts and, with --write, writes the files of the best one."""
    rows = options.whole_number(arguments.rows, "--rows", lowest=1)
    if arguments.output is not None and arguments.write is None:
        raise InvalidInput("--output is the folder of --write; say which format to write")
    if arguments.json and arguments.write is not None and arguments.output is None:
        raise InvalidInput("--json prints the table; with --write it needs --output, a folder for the files")
    table = _simulate_layouts(arguments)
    if arguments.json:
        output.print_json(output.rows_of(table.to_pandas()))
    else:
        _print_table(table, rows)
    best = table.best  # raises where no layout fits
    if arguments.write is not None:
        _write_files(best.layout, table, arguments)
    return 0


def _simulate_layouts(arguments: argparse.Namespace) -> Layouts:
    from ..exporters.layouts import check_format
    from ..parallel.layouts import layouts

    cluster = Cluster.machines(
        options.whole_number(arguments.devices, "--devices", lowest=1),
        options.whole_number(arguments.per_machine, "--per-machine", lowest=1),
        kind=arguments.hardware,
        memory_bytes=arguments.memory,
        link=arguments.link,
        network=arguments.network,
    )
    if arguments.write is not None:  # a format that cannot hold the precision is rejected before the simulations
        check_format(arguments.write, arguments.precision)
    with console.progress("layouts") as status:
        return layouts(
            arguments.model,
            cluster,
            global_batch=options.whole_number(arguments.global_batch, "--global-batch", lowest=1),
            sequence_length=options.whole_number(arguments.sequence_length, "--sequence-length", lowest=1),
            precision=arguments.precision,
            reduce_precision=arguments.reduce_precision,
            attention=arguments.attention,
            overlap_gather=arguments.write == "megatron",
            overlap_tensor=arguments.write == "megatron",
            overlap_products=arguments.overlap_products,
            bucket_bytes=None if arguments.bucket is None else parse_bytes(arguments.bucket, "--bucket"),
            callback=lambda text: setattr(status, "detail", text),
        )


def _print_table(table: Layouts, count: int) -> None:
    """Prints `count` layouts, with a column for every axis that one of them uses, and sentences on all layouts."""
    printed_rows, default = table.rows[:count], Layout()
    fields = [key for key in _FIELDS if any(getattr(row.layout, key) != getattr(default, key) for row in printed_rows)]
    output.print_rows((*fields, "step", "peak", "fits", "busy"), [_cells(row, fields) for row in printed_rows])
    reduce_precision = "half precision" if table.reduce_precision == "half" else table.reduce_precision
    print(f"\n{_counts(table)}\nData parallelism reduces gradients in {reduce_precision}.")
    if table.rows[0].fits:
        print(table.accuracy)
        print(f"best: {table.best.layout!r}")


def _write_files(layout: Layout, table: Layouts, arguments: argparse.Namespace) -> None:
    """Writes the files of a layout, or prints them without a folder, and says on stderr what its format cannot hold."""
    from ..exporters.layouts import write_layout

    plan = write_layout(
        layout,
        arguments.write,
        model=arguments.model,
        global_batch=table.global_batch,
        sequence_length=table.sequence_length,
        per_machine=int(arguments.per_machine),
        precision=arguments.precision,
        reduce_precision=table.reduce_precision,
        overlap_products=arguments.overlap_products,
        folder=arguments.output,
    )
    for sentence in plan.unsupported:
        print(f"not written: {sentence}", file=sys.stderr)
    if not arguments.json:
        print(plan.text if arguments.output is None else f"wrote {', '.join(plan.files)} to {arguments.output}")


def _counts(table: Layouts) -> str:
    """Returns a sentence on the numbers of layouts that were simulated, that are slower, and that do not fit."""
    simulated_count = sum(row.fits and row.step_us is not None for row in table.rows)
    slower = sum(row.fits and row.step_us is None for row in table.rows)
    counts = [f"{simulated_count} fit and are simulated"]
    if slower:
        counts.append(f"{slower} are slower than the best by their lower bounds")
    if simulated_count + slower < len(table):
        counts.append(
            f"{len(table) - simulated_count - slower} need more than the {format_bytes(table.memory_bytes)} of a device"
        )
    return f"{len(table)} legal layouts: {', '.join(counts)}."


def _cells(row: LayoutRow, fields: Sequence[str]) -> list[str]:
    step = f">= {format_us(row.lower_bound_us)}" if row.step_us is None else format_us(row.step_us)
    busy = "" if row.step_us is None else f"{row.compute_us / row.step_us:.0%}"
    return [
        *(str(getattr(row.layout, key)) for key in fields),
        step,
        format_bytes(row.peak_bytes),
        "yes" if row.fits else "no",
        busy,
    ]
