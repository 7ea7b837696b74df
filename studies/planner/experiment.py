"""What learned placement costs and reaches beside algorithms: tables of Mirhoseini and of Jeon et al.

    python -m studies.planner.experiment RESULTS.json --seconds 10 --seed 0

places training steps on 1 CPU and some GPUs with every rival and with the planner under several groupings. Costs are
estimated (a roofline of Mirhoseini et al.'s GPU, the K40), step times simulated on the whole graph, placing times measured
on the machine that runs it, after a first placement that loads and compiles. Written down: one row per placer, with the
command, seed, date and seconds. Mirhoseini et al. 2018 train for hours; `--seconds` is what every learned placement gets
here, which the record says.

    python -m studies.planner.experiment GROUPINGS.json --graph GRAPH --gpus 4 --groupings 600 --seeds 0 1 2

compares learned, random and fixed groupings at equal updates instead (`comparison`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from baechi_lab.errors import BaechiLabError
from baechi_lab.graph import Cluster, Device, Link, OpGraph, load_graph
from baechi_lab.graph.hardware import Hardware
from baechi_lab.graph.units import parse_bytes

RIVALS = ("cpu-only", "gpu-only", "expert", "scotch", "metis", "random", "m-topo", "m-etf", "m-sct")
ON_GPUS = ("expert", "m-topo", "m-etf", "m-sct")
"""Rivals that are given the GPUs alone, as in the papers: experts placed layers on GPUs, and Jeon et al. have GPUs alone."""
LEARNED = ("hierarchical", "coloc-rl", "simple-planner")
CPU_SPEED = 1 / 8
"""One Haswell socket beside a K40: about 0.5 of 4.3 TFLOP/s in single precision."""
LEARNING_RATES = (0.1, 0.01, 0.005, 0.001)


@dataclass(frozen=True)
class Cell:
    """A training step and how many GPUs it gets."""

    name: str
    gpus: int
    model: str
    params: dict[str, Any]


CELLS = (
    Cell("Inception-V3", 2, "inception_v3", {"batch_size": 1}),
    Cell("ResNet", 2, "resnet", {"depth": 152, "batch_size": 128}),
    Cell("RNNLM", 2, "rnnlm", {"batch_size": 64}),
    Cell("NMT (2-layer)", 2, "nmt", {"layers": 2, "batch_size": 64}),
    Cell("NMT (4-layer)", 4, "nmt", {"layers": 4, "batch_size": 64}),
    Cell("NMT (8-layer)", 8, "nmt", {"layers": 8, "batch_size": 64}),
    Cell("GNMT", 4, "gnmt", {"sequence_length": 40, "batch_size": 128}),
)
"""Mirhoseini et al. 2018, section 3, "Models" and Table 1; last, the model of Jeon et al.'s Table 2 on as many GPUs as there."""


def machine(gpus: int, memory_bytes: int, link: Link) -> Cluster:
    """1 CPU with ample memory and `gpus` GPUs (Mirhoseini et al. 2018, section 3, "Devices")."""
    host = Device("cpu:0", "cpu", 64 * memory_bytes, CPU_SPEED)
    return Cluster((host, *(Device(f"gpu:{k}", "gpu", memory_bytes) for k in range(gpus))), link)


def rows(
    graph: OpGraph, coarse: OpGraph, cluster: Cluster, seconds: float, seed: int, trials: int, **params: Any
) -> list[dict[str, Any]]:
    """One row per placer: `placer, step_seconds, place_seconds, samples` or `error`.

    Rivals and planners place the `coarse` graph; "on ops" the planner groups the ops of `graph` themselves, as Mirhoseini et
    al. 2018 do: there the Grouper has work to do, and `trials` random groupings show what it is worth.
    """
    budget = {"time_limit": seconds, "updates": None, **params}
    jobs: list[tuple[str, str, OpGraph, dict[str, Any]]] = [
        (name, name, graph if name == "expert" else coarse, {}) for name in RIVALS
    ]
    jobs += [(name, name, coarse, {**budget, "seed": seed}) for name in LEARNED]
    jobs.append(("hierarchical on ops", "hierarchical", graph, {**budget, "seed": seed}))
    jobs += [
        (f"random grouping {k} on ops", "hierarchical", graph, {**budget, "grouping": "random", "seed": seed + k})
        for k in range(trials)
    ]
    return [_row(label, name, graph, placed_graph, cluster, params) for label, name, placed_graph, params in jobs]


def _row(
    label: str, name: str, graph: OpGraph, placed_graph: OpGraph, cluster: Cluster, params: dict[str, Any]
) -> dict[str, Any]:
    from baechi_lab.placers import place
    from baechi_lab.simulator import simulate

    began = time.perf_counter()
    gpus = Cluster(cluster.devices[1:], cluster.link_between(1, 1)) if name in ON_GPUS else cluster
    try:
        placement = place(placed_graph, gpus, name, **params)
    except BaechiLabError as error:
        return {"placer": label, "error": str(error), "place_seconds": time.perf_counter() - began}
    if name in ON_GPUS:
        placement = placement.replace(device=placement.device + 1)
    timeline = simulate(graph, cluster, placement)
    row = {"placer": label, "step_seconds": timeline.makespan_us * 1e-6, "place_seconds": placement.seconds}
    row = {**row, "feasible": timeline.feasible, "samples": placement.info.get("samples", 0)}
    return {**row, "updates": placement.info["updates"]} if "updates" in placement.info else row


def warm_up(cluster: Cluster, params: dict[str, Any]) -> None:
    """Place a tiny graph with everything, so that no row pays for loading and compiling."""
    graph = OpGraph.from_edges([1.0, 1.0, 1.0], [(0, 1, 8), (1, 2, 8)])
    rows(graph, graph, cluster, 0.0, 0, 1, **params)


def learning_rates(graph: OpGraph, cluster: Cluster, seconds: float, seed: int, **params: Any) -> list[dict[str, Any]]:
    """For each of `LEARNING_RATES`: best step, mean reward and entropy per choice over the last updates."""
    from baechi_lab.placers import place

    rows = []
    for rate in LEARNING_RATES:
        parameters = {**params, "learning_rate": rate, "time_limit": seconds, "updates": None, "seed": seed}
        info = place(graph, cluster, "hierarchical", **parameters).info
        last = slice(-max(1, info["updates"] // 10), None)
        mean = lambda values: sum(values[last]) / len(values[last])  # noqa: E731, B023
        rows.append(
            {
                "learning_rate": rate,
                "updates": info["updates"],
                "best_seconds": info["best_us"] * 1e-6,
                "first_reward": info["rewards"][0],
                "last_reward": mean(info["rewards"]),
                "first_entropy": info["entropy"][0],
                "last_entropy": mean(info["entropy"]),
            }
        )
    return rows


def profiled(cell: Cell, hardware: str) -> OpGraph:
    """The graph of a cell's model; costs by the roofline of `hardware`. Needs TensorFlow."""
    from baechi_lab.models import build
    from baechi_lab.profilers import profile

    return profile(build(cell.model, **cell.params), hardware=Hardware.named(hardware).as_roofline(), progress=False)


def _answer(
    cell: Cell, make: Callable[[Cell], OpGraph], options: argparse.Namespace, params: dict[str, Any]
) -> dict[str, Any]:
    from baechi_lab.passes import optimize

    graph = make(cell)
    cluster = machine(cell.gpus, parse_bytes(options.memory), Link(134.0, 0.0001754))
    began = time.perf_counter()
    coarse = optimize(graph, cluster)
    took = time.perf_counter() - began
    result = {
        **asdict(cell),
        "ops": graph.n,
        "placed_ops": coarse.n,
        "optimize_seconds": took,
        "rows": rows(graph, coarse, cluster, options.seconds, options.seed, options.trials, **params),
    }
    if options.rates and cell.name == options.rates:
        result["learning_rates"] = learning_rates(coarse, cluster, options.seconds, options.seed, **params)
    return result


def _compared(result: dict[str, Any], cell: Cell, graph: OpGraph, options: argparse.Namespace) -> None:
    """Add the comparison of groupings to `result`, and write it down after every row."""
    from baechi_lab.passes import optimize
    from studies.planner.comparison import compare_groupings

    cluster = machine(cell.gpus, parse_bytes(options.memory), Link(134.0, 0.0001754))
    graph_to_place = graph if options.on == "ops" else optimize(graph, cluster)
    rows: list[dict[str, Any]] = []
    result["cells"].append(
        {"name": cell.name, "gpus": cell.gpus, "on": options.on, "ops": graph_to_place.n, "rows": rows}
    )
    for row in compare_groupings(graph_to_place, cluster, options.groupings, options.seeds, **options.params):
        rows.append(row)
        _write(result, options.results)


def _write(result: dict[str, Any], place: str) -> None:
    with open(place, "w", encoding="utf-8") as file:  # again and again: an interrupted run keeps what it has
        json.dump(result, file, indent=1)
        file.write("\n")


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m studies.planner.experiment", description=__doc__)
    parser.add_argument("results", help="JSON file to write")
    parser.add_argument("--cells", nargs="*", help="names of models, as in Mirhoseini et al.'s Table 1 (default: all)")
    parser.add_argument("--graph", help="a profiled graph instead of the models")
    parser.add_argument("--gpus", type=int, nargs="+", default=[2, 4, 8], help="with --graph: numbers of GPUs")
    parser.add_argument("--hardware", default="k40", help="whose roofline the models' costs are")
    parser.add_argument("--memory", default="12GB", help="of a GPU (K40: 12 GB)")
    parser.add_argument("--seconds", type=float, default=10.0, help="training time of every learned placement")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=3, help="random groupings (H: 10)")
    parser.add_argument("--rates", help="name of a cell on which learning rates are compared, too")
    parser.add_argument("--groupings", type=int, metavar="UPDATES", help="compare groupings, at so many updates each")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="with --groupings")
    parser.add_argument(
        "--on", choices=("optimized", "ops"), default="optimized", help="with --groupings: what is grouped"
    )
    parser.add_argument("--params", type=json.loads, default={}, help="further parameters of the planner, as JSON")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; see the module's text."""
    argument_list = list(sys.argv[1:] if arguments is None else arguments)
    options = _arguments(argument_list)
    began, date = time.perf_counter(), datetime.now(timezone.utc).date().isoformat()
    if options.graph:
        graph = load_graph(options.graph)
        cells, make = [Cell(graph.name, gpus, "", {}) for gpus in options.gpus], lambda cell: graph
    else:
        cells = [cell for cell in CELLS if options.cells is None or cell.name in options.cells]
        make = lambda cell: profiled(cell, options.hardware)  # noqa: E731
    warm_up(machine(2, parse_bytes(options.memory), Link(134.0, 0.0001754)), options.params)
    result: dict[str, Any] = {
        "command": " ".join(["python", "-m", "studies.planner.experiment", *argument_list]),
        "seed": options.seeds if options.groupings else options.seed,
        "date": date,
        "step_times": "simulated",
        "place_seconds": "measured",
        "hardware": options.hardware if not options.graph else "as profiled",
        "budget": _budget(options),
        "cells": [],
    }
    for cell in cells:
        if options.groupings:
            _compared(result, cell, make(cell), options)
        else:
            result["cells"].append(_answer(cell, make, options, options.params))
        result["took_seconds"] = time.perf_counter() - began
        _write(result, options.results)
    return 0


def _budget(options: argparse.Namespace) -> str:
    each = f"{options.groupings} updates" if options.groupings else f"{options.seconds:g} s of training"
    return f"{each} per learned placement on a machine shared with other work; the paper: up to 3 h"


if __name__ == "__main__":
    raise SystemExit(main())
