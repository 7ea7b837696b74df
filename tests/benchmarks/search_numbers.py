"""What each mechanism of the search is worth: the objective with the mechanism off over that with it on.

    python tests/benchmarks/search_numbers.py --evaluations 12000 --seeds 2

A variant changes some of the search's numbers so that one mechanism does nothing. Every search gets the same count of simulations
and one worker, so that the times of the placements do not depend on the machine; processor seconds are printed beside them.
So what chains share is not measured here. *Noise*: the standard deviation over seeds of the logarithm of the makespan, mean over
the graphs, divided by the square root of the number of searches. search_numbers.json has the figures, and those of mechanisms
that were dropped because their figure was within the noise.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np

import baechi_lab as bl
from baechi_lab.graph.generators.backward import with_backward
from baechi_lab.placers.search.parameters import SEARCH, SearchParameters

FILE = Path(__file__).with_suffix(".json")
DATA = Path(__file__).parents[2] / "data"
NEVER = 10**9
VARIANTS: dict[str, dict[str, object]] = {
    "all on": {},
    "combine_share 0": {"combine_share": 0.0},
    "soft_share 0": {"soft_share": 0.0},
    "heats 1": {"heats": (1.0, 1.0)},
    "late_levels as levels": {"late_levels": SEARCH.levels},
    "coarse_labels 0": {"coarse_labels": 0},
    "fewest_layers 0": {"fewest_layers": 0},
    "nearest_share 1": {"nearest_share": 1.0},
    "unit_work infinite": {"unit_work": 1e9},
    "runs_from_ops never": {"runs_from_ops": NEVER},
    "readers_seen 0": {"readers_seen": 0},
    "contract_from_ops never": {"contract_from_ops": NEVER},
    "restart_ranked 1": {"restart_ranked": 1.0},
    "restart_ops 0": {"restart_ops": 0},
    "run_share 0": {"run_share": 0.0},
    "anywhere_share 0": {"anywhere_share": 0.0},
    "whole_share 0": {"whole_share": 0.0},
}


def cases() -> Iterator[tuple[bl.OpGraph, bl.Cluster]]:
    """Stored profiles and generated graphs on four devices, one of them with little memory, and one that is small."""
    link = bl.Link(134.0, 0.0001754)
    profiles = [bl.load_graph(DATA / f"{name}.json.gz") for name in ("gnmt-length40-batch128", "inception_v3-batch32")]
    layered = with_backward(bl.generators.layered_dag(400))
    for graph in (*profiles, bl.generators.unrolled_rnn(), layered):
        yield graph, bl.Cluster.uniform(4, memory_bytes=1 << 44, comm="sequential", link=link)
    alone = bl.Cluster.uniform(1, memory_bytes=1 << 44)
    peak_bytes = bl.simulate(layered, alone, bl.Placement(device=[0] * layered.n)).peak_bytes[0]
    yield layered, bl.Cluster.uniform(4, memory_bytes=int(0.4 * peak_bytes), comm="sequential", link=link)
    small = bl.generators.random_dag(30, degree=1.5, duration_us=(1, 20), size_bytes=4, seed=0)
    yield small, bl.Cluster.uniform(2, memory_bytes=1 << 40, link=bl.Link(5.0, 0.0))


def measure(numbers: SearchParameters, evaluations: int, seeds: int) -> tuple[np.ndarray, float]:
    """Makespans in us float64[cases, seeds], and processor seconds of all searches."""
    began = time.process_time()
    rows = []
    for graph, cluster in cases():
        options = {"time_limit": None, "evaluations": evaluations, "workers": 1, "numbers": numbers}
        placements = [bl.place(graph, cluster, "search", seed=seed, **options) for seed in range(seeds)]
        rows.append([bl.simulate(graph, cluster, placement).makespan_us for placement in placements])
    return np.array(rows), time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluations", type=int, default=12_000)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    report = {
        "command": f"python tests/benchmarks/search_numbers.py --evaluations {options.evaluations} --seeds {options.seeds}",
        "seeds": list(range(options.seeds)),
        "date": date.today().isoformat(),
        "cases": [f"{graph.name}, {graph.n} ops, {cluster.memory_bytes[0]} bytes" for graph, cluster in cases()],
        "mechanisms_that_were_dropped": json.loads(FILE.read_text())["mechanisms_that_were_dropped"],
        "variants": {},
    }
    all_on = None
    for name, changes in VARIANTS.items():
        makespans, seconds = measure(replace(SEARCH, **changes), options.evaluations, options.seeds)
        all_on = makespans if all_on is None else all_on
        logarithms = np.log(makespans / all_on)
        report["variants"][name] = {
            "over_all_on": round(float(np.exp(logarithms.mean())), 4),
            "per_case": [round(float(x), 4) for x in np.exp(logarithms.mean(axis=1))],
            "processor_s": round(seconds, 1),
        }
        report["noise"] = round(float(np.log(all_on).std(axis=1, ddof=1).mean() / np.sqrt(all_on.size)), 4)
        print(name, report["variants"][name], report["noise"], flush=True)
        FILE.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
