"""Measure how placing and simulating grow with ops and devices: python -m studies.growth

`--store` keeps date, seed, processor and, per size and number of devices, the processor seconds of m-ETF and of the
simulation of its placement. One warm-up on a small graph compiles the kernels, then every case runs once (three times
below 100,000 ops, the least counts). Processor seconds, so that other programs on the machine disturb little.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from baechi_lab.graph import Cluster, Link, OpGraph
from baechi_lab.graph.generators import layered_dag
from baechi_lab.placers import place
from baechi_lab.simulator import simulate
from studies.results import store

SIZES, DEVICES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000), (2, 4, 8, 16, 32, 64)


def measure(graph: OpGraph, devices: int) -> tuple[float, float]:
    """Processor seconds of placing and of simulating."""
    cluster = Cluster.uniform(devices, memory_bytes=1 << 40, link=Link(134.0, 0.0001754), comm="sequential")
    began = time.process_time()
    placement = place(graph, cluster, "m-etf")
    between = time.process_time()
    simulate(graph, cluster, placement)
    return between - began, time.process_time() - between


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per case; `--store` keeps them, after every case: what was measured survives an interruption."""
    parser = argparse.ArgumentParser(prog="python -m studies.growth", description=__doc__)
    parser.add_argument("--largest", type=int, default=max(SIZES), help="ops of the largest graph")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    measure(layered_dag(100), 2)
    rows = []
    for ops in [n for n in SIZES if n <= options.largest]:
        graph = layered_dag(ops, seed=options.seed)
        measure(graph.replace(name="views"), 2)
        for devices in DEVICES:
            place_seconds, simulate_seconds = (
                min(s) for s in zip(*(measure(graph, devices) for _ in range(3 if ops < 100_000 else 1)), strict=True)
            )
            row = {
                "ops": ops,
                "edges": graph.edge_count,
                "devices": devices,
                "place_s": round(place_seconds, 6),
                "simulate_s": round(simulate_seconds, 6),
            }
            rows.append(row)
            print(row, flush=True)
            if options.store is not None:
                _store(options.store, options.seed, rows)


def _store(path: Path, seed: int, rows: list[dict[str, Any]]) -> None:
    about = {"clock": "time.process_time", "machine": platform.machine(), "python": platform.python_version()}
    command = f"python -m studies.growth --seed {seed} --store FILE"
    store(path, command, **about, seed=seed, rows=rows)


if __name__ == "__main__":
    main()
