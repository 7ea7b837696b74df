"""What learned placement costs and reaches beside algorithms: the shape of H's Tables 1 and 2 and of B's Table 2.

    python -m baechi_lab.placers.planner.experiment GRAPH RESULTS.json --gpus 2 4 --seconds 60 --seed 0

places a graph on 1 CPU and some GPUs with every rival and with the planner under several groupings, everything simulated
and timed on the machine that runs it, and writes one row per placer with the command, seed and time that it took.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from ...errors import BaechiLabError
from ...graph import Cluster, Device, Link, OpGraph, load_graph
from ...graph.units import parse_bytes

RIVALS = ("cpu-only", "gpu-only", "expert", "scotch", "metis", "random", "m-topo", "m-etf", "m-sct")
LEARNED = ("hierarchical", "coloc-rl", "simple-planner")
CPU_SPEED = 1 / 8
"""One Haswell socket beside a K40: about 0.5 of 4.3 TFLOP/s in single precision."""


def machine(gpus: int, memory_bytes: int, link: Link) -> Cluster:
    """1 CPU with ample memory and `gpus` GPUs (H, section 3, "Devices")."""
    host = Device("cpu:0", "cpu", 64 * memory_bytes, CPU_SPEED)
    return Cluster((host, *(Device(f"gpu:{k}", "gpu", memory_bytes) for k in range(gpus))), link)


def rows(
    graph: OpGraph, coarse: OpGraph, cluster: Cluster, seconds: float, seed: int, trials: int, **params: Any
) -> list[dict[str, Any]]:
    """One row per placer: `placer, step_seconds, place_seconds, samples` or `error`; random groupings `trials` times."""
    jobs: list[tuple[str, str, dict[str, Any]]] = [(name, name, {}) for name in RIVALS]
    budget = {"time_limit": seconds, "updates": None, **params}
    jobs += [(name, name, {**budget, "seed": seed}) for name in LEARNED]
    jobs += [
        (f"random grouping {k}", "hierarchical", {**budget, "grouping": "random", "seed": seed + k})
        for k in range(trials)
    ]
    return [_row(label, name, graph if name == "expert" else coarse, cluster, given) for label, name, given in jobs]


def _row(label: str, name: str, graph: OpGraph, cluster: Cluster, params: dict[str, Any]) -> dict[str, Any]:
    from ...simulator import simulate
    from .. import place

    began = time.perf_counter()
    try:
        placed = place(graph, cluster, name, **params)
    except BaechiLabError as error:
        return {"placer": label, "error": str(error), "place_seconds": time.perf_counter() - began}
    timeline = simulate(graph, cluster, placed)
    row = {"placer": label, "step_seconds": timeline.makespan_us * 1e-6, "place_seconds": placed.seconds}
    return {**row, "feasible": timeline.feasible, "samples": placed.info.get("samples", 0)}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; see the module's text."""
    from ...passes import optimize

    parser = argparse.ArgumentParser(prog="python -m baechi_lab.placers.planner.experiment", description=__doc__)
    parser.add_argument("graph", help="a profiled graph")
    parser.add_argument("results", help="JSON file to write")
    parser.add_argument("--gpus", type=int, nargs="+", default=[2, 4, 8], help="one table per number of GPUs")
    parser.add_argument("--memory", default="12GB", help="of a GPU (K40: 12 GB)")
    parser.add_argument("--seconds", type=float, default=60.0, help="training time of every learned placement")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=2, help="random groupings (H: 10)")
    parser.add_argument("--forward-only", action="store_true", help="place forward ops only, backward ops follow")
    parser.add_argument("--params", type=json.loads, default={}, help="further parameters of the planner, as JSON")
    given = parser.parse_args(arguments)
    began = time.perf_counter()
    graph = load_graph(given.graph)
    coarse = optimize(graph, forward_only=given.forward_only)
    tables = {
        str(n): rows(
            graph, coarse, machine(n, parse_bytes(given.memory), Link(134.0, 0.0001754)), given.seconds, given.seed,
            given.trials, **given.params,
        )
        for n in given.gpus
    }  # fmt: skip
    command = [
        "python",
        "-m",
        "baechi_lab.placers.planner.experiment",
        *(sys.argv[1:] if arguments is None else arguments),
    ]
    result = {
        "command": " ".join(command), "seed": given.seed, "took_seconds": time.perf_counter() - began, "ops": graph.n,
        "placed_ops": coarse.n, "origin": "simulated", "tables": tables,
    }  # fmt: skip
    with open(given.results, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
