"""Measure how placing and simulating grow with ops and devices: python notebooks/growth.py

Writes `growth.json`: date, seed, processor and, per size and number of devices, the processor seconds of m-ETF and of the
simulation of its placement. One warm-up on a small graph compiles the kernels, then every case runs once (three times
below 100,000 ops, the least counts). Processor seconds, so that other programs on the machine disturb little.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import platform
import time

import baechi_lab as bl

SIZES, DEVICES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000), (2, 4, 8, 16, 32, 64)
HERE = pathlib.Path(__file__).parent


def measure(graph: bl.OpGraph, devices: int) -> tuple[float, float]:
    """Processor seconds of placing and of simulating."""
    cluster = bl.Cluster.uniform(devices, memory_bytes=1 << 40, link=bl.Link(134.0, 0.0001754), comm="sequential")
    began = time.process_time()
    placed = bl.place(graph, cluster, "m-etf")
    between = time.process_time()
    bl.simulate(graph, cluster, placed)
    return between - began, time.process_time() - between


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=max(SIZES), help="ops of the largest graph")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    measure(bl.generators.layered_dag(100), 2)
    rows = []
    for ops in [n for n in SIZES if n <= arguments.largest]:
        graph = bl.generators.layered_dag(ops, seed=arguments.seed)
        measure(graph.replace(name="views"), 2)
        for devices in DEVICES:
            place, run = (
                min(s) for s in zip(*(measure(graph, devices) for _ in range(3 if ops < 100_000 else 1)), strict=True)
            )
            row = {
                "ops": ops,
                "edges": graph.edge_count,
                "devices": devices,
                "place_s": round(place, 6),
                "simulate_s": round(run, 6),
            }
            rows.append(row)
            write(arguments.seed, rows)  # after every case: what was measured survives an interruption
            print(row, flush=True)


def write(seed: int, rows: list[dict[str, float]]) -> None:
    result = {
        "command": f"python notebooks/growth.py --seed {seed}", "date": datetime.date.today().isoformat(),
        "clock": "time.process_time", "machine": platform.machine(), "python": platform.python_version(), "seed": seed,
        "rows": rows,
    }  # fmt: skip
    (HERE / "growth.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
