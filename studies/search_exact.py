"""How often `search` finds the proven optimum of small random instances, half of them with tight memory.

    python -m studies.search_exact --instances 100 --store result.json

4 to 14 ops on 2 or 3 devices; every second instance has 0.5 to 0.8 of the memory that one device would need per device.
`exact` proves the optimum (or that nothing fits), `search` gets one second.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from baechi_lab.errors import InfeasiblePlacement
from baechi_lab.graph import Cluster, Link, OpGraph, Placement
from baechi_lab.graph.cluster import COMMUNICATION_MODES
from baechi_lab.graph.generators import random_dag
from baechi_lab.placers import place
from baechi_lab.simulator import simulate
from studies.results import store

CLOSE = 1e-9


def small_instance(seed: int) -> tuple[OpGraph, Cluster]:
    """The instance of that seed; odd seeds have tight memory.

    >>> graph, cluster = small_instance(5)
    >>> graph.n, cluster.n, cluster.comm
    (11, 3, 'duplex')
    """
    rng = np.random.default_rng(seed)
    n, devices = int(rng.integers(4, 15)), int(rng.integers(2, 4))
    graph = random_dag(
        n,
        degree=float(rng.uniform(0.8, 2.0)),
        second_output=0.3,
        duration_us=(1, 20),
        size_bytes=(10, 100),
        temp_bytes=(1, 50),
        persistent_bytes=(1, 100),
        colocation_groups=seed % 3,
        seed=seed,
    )
    graph = graph.replace(duration_us=np.round(graph.duration_us))
    link = Link(float(rng.integers(0, 12)), 0.1)
    memory = 1 << 40
    if seed % 2:
        alone = simulate(graph, Cluster.uniform(1), Placement(device=np.zeros(n, dtype=np.int32)))
        memory = int(rng.uniform(0.5, 0.8) * int(alone.peak_bytes[0]))
    return graph, Cluster.uniform(devices, memory_bytes=memory, link=link, comm=COMMUNICATION_MODES[seed % 3])


def _makespan(graph: OpGraph, cluster: Cluster, placer: str, **params: Any) -> tuple[float, str]:
    """Microseconds (infinite: nothing fits) and what the placer says of it."""
    try:
        placement = place(graph, cluster, placer, **params)
    except InfeasiblePlacement:
        return float("inf"), "INFEASIBLE"
    return simulate(graph, cluster, placement).makespan_us, str(placement.info.get("status", ""))


def against_exact(seed: int, seconds: float = 1.0, exact_seconds: float = 60.0) -> dict[str, Any]:
    """One row: makespans in microseconds, the exact placer's status, and whether `search` equals it."""
    graph, cluster = small_instance(seed)
    best, status = _makespan(graph, cluster, "exact", time_limit=exact_seconds)
    search_us, _ = _makespan(graph, cluster, "search", time_limit=seconds)
    equal = search_us <= best * (1.0 + CLOSE) or search_us == best
    row = {"seed": seed, "ops": graph.n, "devices": cluster.n, "comm": cluster.comm, "tight": bool(seed % 2)}
    return {**row, "status": status, "exact_us": best, "search_us": search_us, "equal": bool(equal)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what differs and the counts; `--store` keeps them with command, seeds, date and seconds."""
    parser = argparse.ArgumentParser(prog="python -m studies.search_exact", description=__doc__)
    parser.add_argument("--instances", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="seed of the first instance")
    parser.add_argument("--seconds", type=float, default=1.0, help="for search")
    parser.add_argument("--store", type=Path)
    options = parser.parse_args(arguments)
    began, rows = time.perf_counter(), []
    _makespan(*small_instance(0), "search", time_limit=0.1)  # compiles the kernels
    for seed in range(options.first, options.first + options.instances):
        rows.append(against_exact(seed, options.seconds))
        if not rows[-1]["equal"]:
            print(rows[-1], flush=True)
    counts = {
        "instances": len(rows),
        "equal": sum(r["equal"] for r in rows),
        "proven": sum(r["status"] != "FEASIBLE" for r in rows),
        "nothing fits": sum(r["status"] == "INFEASIBLE" for r in rows),
    }
    print(json.dumps(counts))
    if options.store is not None:
        command = "python -m studies.search_exact " + " ".join(arguments or sys.argv[1:])
        seeds = [options.first, options.first + options.instances - 1]
        took = round(time.perf_counter() - began, 1)
        store(options.store, command, seeds=seeds, seconds=took, **counts, rows=rows)


if __name__ == "__main__":
    main()
