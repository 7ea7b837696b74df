"""Random instances with little memory: each placer gives a valid placement or says `InfeasiblePlacement`.

    python -m studies.tight_memory --instances 10000

Any other exception ends the run. The counts say how often a placer gave up although another one succeeded.

Seeds 0 to 9,999, 2026-11-21: none of the three places 2,493 instances, some placer 7,507; in 112 of those at least one
gives up (m-topo 59, m-etf 48, m-sct 54). No placement is invalid, no other exception.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from baechi_lab.errors import InfeasiblePlacement
from baechi_lab.graph import Cluster, Link, OpGraph, Placement
from baechi_lab.graph.generators import layered_dag, random_dag, with_backward
from baechi_lab.placers import place
from baechi_lab.simulator import check, simulate

PLACERS = ("m-topo", "m-etf", "m-sct")
COMM = ("parallel", "sequential", "duplex")


def instance(seed: int) -> tuple[OpGraph, Cluster]:
    """A graph of 1 to 24 ops, and 2 to 4 devices that hold 0.35 to 0.8 of what one device would need.

    >>> graph, cluster = instance(3)
    >>> cluster == instance(3)[1]
    True
    """
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 25))
    heavy: dict[str, Any] = {"temp_bytes": (0, 50), "persistent_bytes": (0, 200), "size_bytes": (0, 100)}
    if rng.random() < 0.3:
        graph = with_backward(layered_dag(n, seed=seed, **heavy))
    else:
        groups = int(rng.integers(0, 4))
        graph = random_dag(n, degree=1.5, second_output=0.3, colocation_groups=groups, seed=seed, **heavy)
    alone = simulate(graph, Cluster.uniform(1), Placement(device=np.zeros(graph.n, dtype=np.int32))).peak_bytes[0]
    share = rng.uniform(0.35, 0.8)
    link = Link(float(rng.integers(0, 20)), float(rng.choice([0.0, 0.1, 1.0])))
    comm = str(rng.choice(COMM))
    memory = max(1, int(share * int(alone)))
    return graph, Cluster.uniform(int(rng.integers(2, 5)), memory_bytes=memory, link=link, comm=comm)


def attempt(graph: OpGraph, cluster: Cluster, placer: str) -> str:
    """What became of it: "placed", "infeasible", or what is wrong with the placement."""
    try:
        placement = place(graph, cluster, placer)
    except InfeasiblePlacement:
        return "infeasible"
    timeline = simulate(graph, cluster, placement)
    broken = check(graph, cluster, placement, timeline) or timeline.violations
    return f"invalid: {broken[0].kind}" if broken else "placed"


def count(seeds: Sequence[int], placers: Sequence[str] = PLACERS) -> dict[str, Any]:
    """How often each placer placed, gave up, gave up although another placed, or broke a rule."""
    counts: dict[str, Counter[str]] = {p: Counter() for p in placers}
    total = Counter[str]()
    for seed in seeds:
        graph, cluster = instance(seed)
        result_of_placer = {p: attempt(graph, cluster, p) for p in placers}
        is_placed_by_some = "placed" in result_of_placer.values()
        total["placed by some" if is_placed_by_some else "placed by none"] += 1
        for p, result in result_of_placer.items():
            counts[p][result] += 1
            counts[p]["infeasible where another placed"] += is_placed_by_some and result == "infeasible"
        total["one failed where another placed"] += is_placed_by_some and "infeasible" in result_of_placer.values()
    return {"instances": len(seeds), **total, "placers": {p: dict(sorted(c.items())) for p, c in counts.items()}}


def main() -> None:
    """Print the counts as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--instances", type=int, default=10000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first instance")
    options = parser.parse_args()
    print(json.dumps(count(range(options.first, options.first + options.instances)), indent=2))


if __name__ == "__main__":
    main()
