"""Search for small instances on which one placer is far worse than another: python -m studies.attack

Idea: an instance is a graph of a few ops and a small cluster. Starting from random ones, one thing is changed at a time (an op's
duration, a tensor's size, an edge, a device's speed, the link) and a change is kept when it makes the ratio
`time with the attacked placer / time with the other` larger, or, less and less often, when it does not (simulated
annealing; the idea is PISA's, Coleman and Krishnamachari 2024, arXiv:2403.07120). Each step costs two placements. The times
are simulated with the default scheduler of each placement, for `critical-path` with `pct`.

`--store` keeps seed, steps and, for every ordered pair, the worst instance as plain numbers; `08_attack.ipynb` shows them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from baechi_lab.errors import InvalidInput
from baechi_lab.lessons.worst_cases import Instance, ratio
from studies.results import store

PLACERS = ("m-etf", "m-sct", "heft", "critical-path")
# Durations and sizes are kept within a factor of five: with free choice the search only makes transfers ever dearer.
OPS, SHORTEST, LONGEST, LARGEST = (4, 9), 4, 20, 20
SPEEDS, US_PER_BYTE = (1.0, 2.0, 4.0), (0.25, 0.5, 1.0)


def random_instance(rng: np.random.Generator) -> Instance:
    """A drawn instance: 4 to 9 ops, two edges per op on average, 2 to 4 devices."""
    n = int(rng.integers(OPS[0], OPS[1] + 1))
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n) if rng.random() < 2.0 / n]
    return Instance(
        tuple(int(x) for x in rng.integers(SHORTEST, LONGEST + 1, n)),
        tuple((i, j, int(rng.integers(0, LARGEST + 1))) for i, j in pairs),
        tuple(float(rng.choice(SPEEDS)) for _ in range(int(rng.integers(2, 5)))),
        float(rng.choice(US_PER_BYTE)),
    )


def neighbour(now: Instance, rng: np.random.Generator) -> Instance:
    """`now` with one thing changed."""
    what, n = int(rng.integers(0, 8)), len(now.durations)
    if what <= 1:
        values = list(now.durations)
        values[int(rng.integers(0, n))] = int(rng.integers(SHORTEST, LONGEST + 1))
        return replace(now, durations=tuple(values))
    if what <= 3 and now.edges:
        k = int(rng.integers(0, len(now.edges)))
        i, j, _ = now.edges[k]
        return replace(now, edges=(*now.edges[:k], (i, j, int(rng.integers(0, LARGEST + 1))), *now.edges[k + 1 :]))
    if what == 4 and now.edges:
        k = int(rng.integers(0, len(now.edges)))
        return replace(now, edges=now.edges[:k] + now.edges[k + 1 :])
    if what <= 5:
        i, j = sorted(rng.choice(n, 2, replace=False).tolist())
        kept = tuple(e for e in now.edges if e[:2] != (i, j))
        return replace(now, edges=tuple(sorted((*kept, (i, j, int(rng.integers(0, LARGEST + 1)))))))
    if what == 6:
        speeds = list(now.speeds)
        speeds[int(rng.integers(0, len(speeds)))] = float(rng.choice(SPEEDS))
        return replace(now, speeds=tuple(speeds))
    return replace(now, us_per_byte=float(rng.choice(US_PER_BYTE)))


def search(attacked: str, other: str, steps: int, seed: int, restarts: int = 3) -> tuple[float, Instance]:
    """The worst instance found for `attacked` against `other`, with its ratio."""
    best, worst = 0.0, None
    for turn in range(restarts):
        rng = np.random.default_rng([seed, PLACERS.index(attacked), PLACERS.index(other), turn])
        now = random_instance(rng)
        value = ratio(now, attacked, other)
        for step in range(steps // restarts):
            tried = neighbour(now, rng)
            new = ratio(tried, attacked, other)
            heat = 0.15 * (1 - step * restarts / steps) + 1e-6
            if new >= value or rng.random() < math.exp((new - value) / heat):
                now, value = tried, new
            if value > best:
                best, worst = value, now
    if worst is None:
        raise InvalidInput(f"steps is {steps}; the search needs at least one step per restart ({restarts})")
    return best, worst


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the worst ratio of every pair; `--store` keeps the instances."""
    parser = argparse.ArgumentParser(prog="python -m studies.attack", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1500, help="placements of both placers per pair")
    parser.add_argument("--store", type=Path, help="JSON file to write")
    given = parser.parse_args(arguments)
    found = []
    for attacked in PLACERS:
        for other in PLACERS:
            if attacked != other:
                value, worst = search(attacked, other, given.steps, given.seed)
                found.append({
                    "attacked": attacked, "other": other, "ratio": value, "durations": worst.durations,
                    "edges": worst.edges, "speeds": worst.speeds, "us_per_byte": worst.us_per_byte,
                })  # fmt: skip
                print(f"{attacked} is {value:.2f} times as long as {other}")
    if given.store is not None:
        command = f"python -m studies.attack --seed {given.seed} --steps {given.steps} --store FILE"
        store(given.store, command, seed=given.seed, steps=given.steps, pairs=found)


if __name__ == "__main__":
    main()
