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
# Durations and sizes are kept within a factor of five: with free choice the search makes transfers longer and longer.
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


def neighbour(instance: Instance, rng: np.random.Generator) -> Instance:
    """`instance` with one thing changed."""
    change, n = int(rng.integers(0, 8)), len(instance.durations)
    if change <= 1:
        values = list(instance.durations)
        values[int(rng.integers(0, n))] = int(rng.integers(SHORTEST, LONGEST + 1))
        return replace(instance, durations=tuple(values))
    if change <= 3 and instance.edges:
        k = int(rng.integers(0, len(instance.edges)))
        i, j, _ = instance.edges[k]
        return replace(
            instance, edges=(*instance.edges[:k], (i, j, int(rng.integers(0, LARGEST + 1))), *instance.edges[k + 1 :])
        )
    if change == 4 and instance.edges:
        k = int(rng.integers(0, len(instance.edges)))
        return replace(instance, edges=instance.edges[:k] + instance.edges[k + 1 :])
    if change <= 5:
        i, j = sorted(rng.choice(n, 2, replace=False).tolist())
        other_edges = tuple(e for e in instance.edges if e[:2] != (i, j))
        return replace(instance, edges=tuple(sorted((*other_edges, (i, j, int(rng.integers(0, LARGEST + 1)))))))
    if change == 6:
        speeds = list(instance.speeds)
        speeds[int(rng.integers(0, len(speeds)))] = float(rng.choice(SPEEDS))
        return replace(instance, speeds=tuple(speeds))
    return replace(instance, us_per_byte=float(rng.choice(US_PER_BYTE)))


def search(attacked_placer: str, other_placer: str, steps: int, seed: int, restarts: int = 3) -> tuple[float, Instance]:
    """The worst instance found for `attacked_placer` against `other_placer`, with its ratio."""
    best, worst = 0.0, None
    for restart in range(restarts):
        rng = np.random.default_rng([seed, PLACERS.index(attacked_placer), PLACERS.index(other_placer), restart])
        instance = random_instance(rng)
        value = ratio(instance, attacked_placer, other_placer)
        for step in range(steps // restarts):
            candidate = neighbour(instance, rng)
            new_value = ratio(candidate, attacked_placer, other_placer)
            heat = 0.15 * (1 - step * restarts / steps) + 1e-6
            if new_value >= value or rng.random() < math.exp((new_value - value) / heat):
                instance, value = candidate, new_value
            if value > best:
                best, worst = value, instance
    if worst is None:
        raise InvalidInput(f"steps is {steps}; the search needs at least one step per restart ({restarts})")
    return best, worst


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the worst ratio of every pair; `--store` keeps the instances."""
    parser = argparse.ArgumentParser(prog="python -m studies.attack", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1500, help="placements of both placers per pair")
    parser.add_argument("--store", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    pairs = []
    for attacked_placer in PLACERS:
        for other_placer in PLACERS:
            if attacked_placer != other_placer:
                value, worst = search(attacked_placer, other_placer, options.steps, options.seed)
                pairs.append(
                    {
                        "attacked": attacked_placer,
                        "other": other_placer,
                        "ratio": value,
                        "durations": worst.durations,
                        "edges": worst.edges,
                        "speeds": worst.speeds,
                        "us_per_byte": worst.us_per_byte,
                    }
                )
                print(f"{attacked_placer} is {value:.2f} times as long as {other_placer}")
    if options.store is not None:
        command = f"python -m studies.attack --seed {options.seed} --steps {options.steps} --store FILE"
        store(options.store, command, seed=options.seed, steps=options.steps, pairs=pairs)


if __name__ == "__main__":
    main()
