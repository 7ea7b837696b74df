"""Place and simulate every combination of batch size, device count, memory and placer.

SUBJECT is a graph file, or the name of a benchmark model, which is profiled anew for every batch size. With -o, every
finished row goes into one SQLite file: a sweep that was interrupted resumes there when it is called again.
Ends with exit code 1 if no combination worked; each row says why.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import InvalidInput
from ..graph import Cluster, OpGraph
from ..graph.device import device_count
from ..graph.units import format_bytes, format_us, parse_bytes
from ..workers.pool import Pool
from . import console, options, output

Row = dict[str, Any]
"""A combination and its results: a row of the table of `bl.sweep`, by column."""

GRAPH_FILES = (".json", ".gz", ".stg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("subject", metavar="SUBJECT", help="graph file, or benchmark model (inception_v3, gnmt, ...)")
    parser.add_argument("--batch-size", metavar="N[,N...]", help="batch sizes of a benchmark model")
    parser.add_argument(
        "--micro-batches", metavar="M[,M...]", help="micro-batches of a step, which must divide the batch"
    )
    parser.add_argument("--schedule", metavar="NAME[,NAME...]", help="orders of micro-batches: gpipe, 1f1b, zb-h1, ...")
    parser.add_argument(
        "--replicas", default="1", metavar="R[,R...]", help="copies of the pipeline side by side (%(default)s)"
    )
    parser.add_argument("--devices", default="1,2,4", metavar="N[,N...]", help="device counts (%(default)s)")
    parser.add_argument("--memory", metavar="SIZE[,SIZE...]", help="memory per device (that of --kind, else 8GB)")
    parser.add_argument(
        "--placers",
        default="m-etf",
        metavar="NAME[,NAME...]",
        help="placers, see `baechi-lab place --list` (%(default)s)",
    )
    parser.add_argument(
        "--mode", default="estimated", help="costs of a benchmark model: estimated or measured (%(default)s)"
    )
    parser.add_argument("--hardware", metavar="NAME", help="hardware for --mode estimated (rtx2080)")
    parser.add_argument("--jobs", metavar="N", help="number of processes (one per core); 1: no further process")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="SQLite file (.sqlite, .db) that keeps the rows, and from which a sweep resumes",
    )
    options.add_time_limit(parser)
    options.add_transfers(parser)
    options.add_optimize(parser, default=True)


def run(arguments: argparse.Namespace) -> int:
    """Sweeps and prints."""
    from ..sweeps import sweep

    sizes = _whole_numbers(arguments.batch_size, "--batch-size")
    options.check_apart([arguments.subject], [arguments.output])
    options.check_output(arguments.output, (".sqlite", ".sqlite3", ".db"))
    from_file = arguments.subject.endswith(GRAPH_FILES) or os.path.isfile(arguments.subject)
    if from_file and sizes is not None:
        raise InvalidInput("--batch-size is for benchmark models; a graph has the batch size that it was profiled with")
    subject = options.graph_from(arguments.subject) if from_file else arguments.subject
    kind, link, comm = options.transfers_from(arguments, subject if isinstance(subject, OpGraph) else None)
    memory = str(options.memory_of(kind)) if arguments.memory is None else arguments.memory
    axes: dict[str, Any] = {
        "batch_size": sizes,
        "devices": [
            device_count(count, "--devices") for count in options.whole_numbers(arguments.devices, "--devices")
        ],
        "memory_bytes": [parse_bytes(m, "--memory") for m in options.distinct(memory, "--memory")],
        "placer": options.distinct(arguments.placers, "--placers"),
        "micro_batches": _whole_numbers(arguments.micro_batches, "--micro-batches"),
        "schedule": arguments.schedule and options.distinct(arguments.schedule, "--schedule"),
        "replicas": _whole_numbers(arguments.replicas, "--replicas"),
        "cluster": Cluster.uniform(1, link=link, comm=comm, kind=kind),
        "passes": options.passes_from(arguments),
        "profile": options.one_of(arguments.mode, "--mode", ("estimated", "measured")),
        "hardware": arguments.hardware,
    }
    if arguments.time_limit is not None:
        from ..placers.registry import placer_class

        placers_with_limit = [
            name for name in axes["placer"] if "time_limit" in placer_class(name).__dataclass_fields__
        ]
        axes["params"] = {  # if no placer has a time limit, the first one refuses it
            name: options.with_time_limit(name, arguments.time_limit, {})
            for name in placers_with_limit or axes["placer"][:1]
        }
    with _executor(arguments.jobs) as executor, console.progress("sweeping") as status:
        row_numbers = itertools.count(1)

        def count_row(_: object) -> None:
            status.detail = f"{next(row_numbers)} new rows"

        table = sweep(subject, path=arguments.output, executor=executor, progress=False, on_row=count_row, **axes)
    rows = output.rows_of(table)
    if arguments.json:
        output.print_json(rows)
    else:
        header = ["placer", "batch", "devices", "memory", "step", "samples/s", "lower bound", "peak memory", "fits"]
        has_steps = any(row["micro_batches"] or row["schedule"] or row["replicas"] > 1 for row in rows)
        header += ["micro-batches", "schedule", "replicas", "bubble"] if has_steps else []
        output.print_rows(header, [[*_cells(row), *(_step_cells(row) if has_steps else [])] for row in rows])
        for row in rows:
            if text := row["error"] or row["finer_groups"]:
                print(f"  {_setting(row)}: {text}")
    if any(row["makespan_us"] is not None for row in rows):
        return 0
    print(f"baechi-lab sweep: none of {len(rows)} combinations worked: {rows[0]['error']}", file=sys.stderr)
    return 1


def _whole_numbers(text: str | None, option: str) -> list[int] | None:
    """Returns the whole numbers of an option, or None if it is not given."""
    return None if text is None else options.whole_numbers(text, option)


MAX_JOBS = 512
"""The most processes at a time."""


@contextmanager
def _executor(jobs: str | None) -> Iterator[Pool | str | None]:
    """Yields a pool of `jobs` processes, "here" for one job, or None: then `bl.sweep` chooses."""
    count = None if jobs is None else min(options.whole_number(jobs, "--jobs", 1), MAX_JOBS)
    if count is None or count == 1:
        yield "here" if count == 1 else None
        return
    pool = Pool(count)
    try:
        yield pool
    finally:
        pool.kill()


def _setting(row: Row) -> str:
    """Returns the setting of a row in words."""
    batch = "" if row["batch_size"] is None else f", batch {row['batch_size']:g}"
    count = "" if row["micro_batches"] is None else f" in {row['micro_batches']:g}"
    return f"{row['placer']}{batch}{count}, {row['devices']} x {format_bytes(row['memory_bytes'])}"


def _cells(row: Row) -> list[str]:
    """Returns the printed columns that every sweep has."""

    def cell(key: str, format_value: Callable[[Any], str]) -> str:
        return "-" if row[key] is None else format_value(row[key])

    return [
        row["placer"],
        cell("batch_size", lambda n: f"{n:g}"),
        str(row["devices"]),
        cell("memory_bytes", format_bytes),
        cell("makespan_us", format_us),
        cell("samples_per_second", lambda s: f"{s:.4g}"),
        cell("lower_bound_us", format_us),
        cell("peak_bytes", format_bytes),
        "yes" if row["feasible"] else "no",
    ]


def _step_cells(row: Row) -> list[str]:
    """Returns the printed columns of a sweep over micro-batches, schedules or replicas."""
    count, bubble = row["micro_batches"], row["bubble"]
    return [
        "-" if count is None else f"{count:g}",
        row["schedule"] or "-",
        str(row["replicas"]),
        "-" if bubble is None else f"{bubble:.1%}",
    ]
