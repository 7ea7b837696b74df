"""How good `search` and the bounds are: search over best rule, search over bound, per graph and number of devices.

    python -m studies.search_quality --graphs FOLDER --seconds 10 --seeds 3 --store result.json

`--graphs` (or the environment's BAECHI_LAB_GRAPHS) is a folder of dnn-partitioning graphs, read from where it is; the
project's own profiles come from `--data`, with Jeon et al.'s link. The graphs of Mayer et al. 2017, whose stored costs are
placeholders, get costs drawn as in its section 5.1 (1 to 100 operations and bytes; speed and bandwidth at their means, 55
and 35). Graphs that `generators` makes, as other tests use them, join these; their means are also given apart. `--quick`:
the small graphs, 2 s, one seed.

Definitions. *Best rule*: the fastest feasible row of `auto`'s table (under FIFO alone: of its rows with that scheduler).
*Search*: the median makespan over the seeds. *Bound*: the largest of `bounds(effort="high")`. *Transfers dominate* where
moving every tensor once takes longer than all ops together. Means are geometric, over graphs x devices.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from baechi_lab.graph import Cluster, Link, OpGraph, generators, load_graph
from baechi_lab.graph.generators.backward import with_backward
from baechi_lab.placers import place
from baechi_lab.simulator import simulate
from baechi_lab.simulator.bounds import bounds
from studies.results import store

SHARED = ("bert_l-3_training.json", "inceptionv3_training.json")
STORED_GRAPHS = (
    "inception_v3-batch32.json.gz",
    "inception_v3-batch128.json.gz",
    "gnmt-length40-batch128.json.gz",
    "gnmt-length50-batch256.json.gz",
)
DRAWN = ("tf-examples/recurrent_network.json.gz", "tf-examples/dynamic_rnn.json.gz")
GENERATED = "generated "
SIMPLE = ("critical-path", "work", "restricted-work", "group")
DEVICES = (2, 4)
PLENTY = 1 << 44
QUICK_OPS = 5000


def graphs(
    folder: str | Path | None, data: str | Path, quick: bool = False
) -> Iterator[tuple[OpGraph, dict[str, Any]]]:
    """The graphs of the bars and what their clusters need: those of dnn-partitioning in `folder` (None: left out), stored
    profiles in `data`, generated ones, and Mayer et al.'s with drawn costs."""
    paths = [] if folder is None else [Path(folder) / name for name in SHARED]
    measured = (load_graph(path) for path in [*paths, *(Path(data) / name for name in STORED_GRAPHS)])
    generated_graphs = (
        generators.gnmt(ops=10_000),
        generators.unrolled_rnn(),
        with_backward(generators.layered_dag(1000)),
    )
    for graph in chain(measured, (graph.replace(name=f"{GENERATED}{graph.name}") for graph in generated_graphs)):
        if not quick or graph.n <= QUICK_OPS:
            yield graph, {"link": Link(134.0, 0.0001754)}
    for path in (Path(data) / name for name in DRAWN):
        graph = load_graph(path)
        if not quick or graph.n <= QUICK_OPS:
            yield drawn(graph), {"link": Link(0.0, 1.0 / 35.0), "speed": 55.0}


def drawn(graph: OpGraph, seed: int = 0) -> OpGraph:
    """`graph` with durations and sizes drawn uniformly from 1 to 100 (Mayer et al. 2017, section 5.1)."""
    rng = np.random.default_rng(seed)
    size = rng.integers(1, 101, graph.tensor_count)
    return graph.replace(duration_us=rng.uniform(1.0, 100.0, graph.n), tensor_bytes=size)


def transfers_dominate(graph: OpGraph, cluster: Cluster) -> bool:
    """Whether moving every tensor once takes longer than computing everything.

    >>> from baechi_lab import Link
    >>> graph = OpGraph.from_edges([5.0, 5.0], [(0, 1, 1)])
    >>> [transfers_dominate(graph, Cluster.uniform(2, link=Link(us, 0.0))) for us in (9.0, 11.0)]
    [False, True]
    """
    if cluster.n < 2:
        return False
    transfer_us = cluster.latency_us[0, 1] + cluster.us_per_byte[0, 1] * graph.tensor_bytes
    return bool(transfer_us.sum() > graph.duration_us.sum() / cluster.speed.max())


def quality(
    graph: OpGraph,
    cluster: Cluster,
    seconds: float,
    seeds: Sequence[int],
    fifo: bool = False,
    effort_seconds: float = 10.0,
) -> dict[str, Any]:
    """One row: best rule, search and bounds in microseconds, and their ratios."""
    table = place(graph, cluster, "auto").info["table"]
    fits = [r["makespan_us"] for r in table if r["feasible"] and (not fifo or r["scheduler"] == "fifo")]
    schedulers = ("fifo",) if fifo else ("fifo", "planned")
    step_us = []
    for seed in seeds:
        placement = place(graph, cluster, "search", time_limit=seconds, seed=seed, schedulers=schedulers)
        step_us.append(simulate(graph, cluster, placement).makespan_us)
    known_bounds = (
        bounds(graph, cluster, effort="high", time_limit=effort_seconds)
        if effort_seconds > 0
        else bounds(graph, cluster)
    )
    best, searched = min(fits), float(np.median(step_us))
    return {
        "graph": graph.name,
        "ops": graph.n,
        "devices": cluster.n,
        "transfers_dominate": transfers_dominate(graph, cluster),
        "one_device_us": float(graph.duration_us.sum() / cluster.speed.max()),
        "best_rule_us": best,
        "search_us": step_us,
        "search_over_rule": searched / best,
        "search_over_bound": searched / known_bounds.best,
        "search_over_simple_bound": searched / max(known_bounds[name] for name in SIMPLE),
        "bounds_us": dict(known_bounds),
    }


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean; not a number for none.

    >>> round(geometric_mean([0.5, 2.0]), 12)
    1.0
    """
    logs = np.log(list(values))
    return float(np.exp(logs.mean())) if len(logs) else float("nan")


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Geometric means of the ratios over all rows, over those of profiles and of generated graphs, and of search over bound
    where transfers dominate."""
    keys = ("search_over_rule", "search_over_bound", "search_over_simple_bound")
    means = {key: geometric_mean(row[key] for row in rows) for key in keys}
    for kind, is_generated in (("profiles", False), ("generated", True)):
        rows_of_kind = [row for row in rows if row["graph"].startswith(GENERATED) == is_generated]
        means |= {f"{key}_{kind}": geometric_mean(row[key] for row in rows_of_kind) for key in keys[:2]}
    heavy = [row["search_over_bound"] for row in rows if row["transfers_dominate"]]
    return {**means, "search_over_bound_where_transfers_dominate": geometric_mean(heavy)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per case and the summary; `--store` keeps both with command, seeds, date and seconds."""
    parser = argparse.ArgumentParser(prog="python -m studies.search_quality", description=__doc__)
    parser.add_argument(
        "--graphs", default=os.environ.get("BAECHI_LAB_GRAPHS"), help="folder of dnn-partitioning graphs"
    )
    parser.add_argument("--data", default="data", help="folder of the stored profiles")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--bound-seconds", type=float, default=10.0, help="0: only bounds that take milliseconds")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, ... per case")
    parser.add_argument("--fifo", action="store_true", help="first in first out alone")
    parser.add_argument("--quick", action="store_true", help="small graphs, 2 s, one seed")
    parser.add_argument("--store", type=Path)
    options = parser.parse_args(arguments)
    seconds, seeds = (2.0, 1) if options.quick else (options.seconds, options.seeds)
    began, rows = time.perf_counter(), []
    for graph, costs in graphs(options.graphs, options.data, options.quick):
        for devices in DEVICES:
            cluster = Cluster.uniform(devices, memory_bytes=PLENTY, comm="sequential", **costs)
            rows.append(quality(graph, cluster, seconds, range(seeds), options.fifo, options.bound_seconds))
            row = rows[-1]
            ratios = " ".join(f"{key} {row[key]:.3f}" for key in row if key.startswith("search_over"))
            print(f"{row['graph']:28} {row['ops']:6} ops {devices} devices: {ratios}", flush=True)
    print(json.dumps(summary(rows), indent=2))
    if options.store is not None:
        command = "python -m studies.search_quality " + " ".join(arguments or sys.argv[1:])
        took = round(time.perf_counter() - began, 1)
        store(options.store, command, seeds=list(range(seeds)), seconds=took, summary=summary(rows), rows=rows)


if __name__ == "__main__":
    main()
