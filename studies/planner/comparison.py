"""What learned grouping is worth (Mirhoseini et al.'s Table 2), at equal samples: learned, random and fixed groupings.

`python -m studies.planner.experiment RESULTS.json --groupings 400 --graph GRAPH --gpus 4` stores it. Every
grouping is placed by the same Placer with `SIMULATED` parameters and gets the same number of updates; random placement,
each unit on a device with equal odds, gets as many samples. "metis" is the grouping that "learned" starts from, kept as it
is: what learning adds to it. "learned from uniform" starts as Mirhoseini et al. 2018 do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baechi_lab.graph import Cluster, OpGraph
from baechi_lab.placers.hierarchical import SIMULATED, PlannerProgress

GROUPINGS: dict[str, dict[str, Any]] = {
    "learned": {},
    "random": {"grouping": "random"},
    "metis": {"grouping": "metis"},
    "learned from uniform": {"grouper_start": "uniform"},
}
POINTS = 20
"""Points of a stored curve."""


def compare_groupings(
    graph: OpGraph, cluster: Cluster, updates: int, seeds: Sequence[int], **params: Any
) -> Iterator[dict[str, Any]]:
    """One row per seed and grouping: `best_seconds` of a step, `samples`, `train_seconds`, and `curve`, which holds
    (samples, seconds spent, best seconds) as training goes on; last per seed, random placement."""
    parameters = {**SIMULATED, **params, "updates": updates, "time_limit": None}
    for seed in seeds:
        rows = [
            _trained(graph, cluster, name, {**parameters, **changes, "seed": seed})
            for name, changes in GROUPINGS.items()
        ]
        yield from rows
        yield _random_placement(graph, cluster, rows[0]["samples"], seed)


def _trained(graph: OpGraph, cluster: Cluster, name: str, params: dict[str, Any]) -> dict[str, Any]:
    from baechi_lab.placers import place

    progress_records: list[PlannerProgress] = []
    info = place(
        graph, cluster, "hierarchical", **params, callback=lambda progress: progress_records.append(progress)
    ).info
    sampled_points = _points(len(progress_records))
    last = max(1, len(progress_records) // 10)
    return {
        "grouping": name,
        "seed": params["seed"],
        "updates": info["updates"],
        "samples": info["samples"],
        "best_seconds": info["best_us"] * 1e-6,
        "train_seconds": info["train_seconds"],
        "mean_reward_at_the_end": float(np.mean(info["rewards"][-last:])),
        "groups_used": len(set(info["groups"])),
        "entropy": [round(info["entropy"][i], 3) for i in sampled_points],
        "grouper_entropy": [round(info["grouper_entropy"][i], 3) for i in sampled_points],
        "curve": [
            (
                progress_records[i].samples,
                round(progress_records[i].seconds, 2),
                _finite(progress_records[i].best_seconds),
            )
            for i in sampled_points
        ],
    }


def _random_placement(graph: OpGraph, cluster: Cluster, samples: int, seed: int) -> dict[str, Any]:
    """The best of `samples` placements of every unit on one of its allowed devices, all with equal odds."""
    import time

    from baechi_lab.placers.planner.embeddings import make_units
    from baechi_lab.placers.planner.reward import SimulatedReward

    began, rng = time.perf_counter(), np.random.default_rng([seed, 1])
    units, reward = make_units(graph, cluster, 200, 6, 6), SimulatedReward(graph, cluster, 1)
    best, curve = float("inf"), []
    for samples_of_point in np.array_split(np.arange(samples), min(samples, POINTS)):
        drawn_devices = np.where(units.allowed, rng.random((len(samples_of_point), *units.allowed.shape)), -1.0).argmax(
            axis=2
        )
        best = min(best, float(reward(drawn_devices[:, units.of]).min()))
        curve.append((int(samples_of_point[-1]) + 1, round(time.perf_counter() - began, 2), _finite(best)))
    return {
        "grouping": "random placement",
        "seed": seed,
        "samples": samples,
        "best_seconds": _finite(best),
        "train_seconds": time.perf_counter() - began,
        "curve": curve,
    }


def _points(count: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(int)).tolist()


def _finite(seconds: float) -> float | None:
    """JSON has no infinity: None where nothing valid was seen."""
    return seconds if np.isfinite(seconds) else None


def best_within(row: Mapping[str, Any], column: int, limit: float) -> float:
    """Best step seconds of a row's curve before `limit` samples (`column` 0) or seconds (1); infinite where none.

    >>> best_within({"curve": [(16, 0.5, None), (32, 0.9, 3.0), (48, 1.4, 2.0)]}, 1, 1.0)
    3.0
    """
    best_seconds: NDArray[np.float64] = np.array(
        [point[2] for point in row["curve"] if point[column] <= limit and point[2] is not None], dtype=np.float64
    )
    return float(best_seconds.min()) if best_seconds.size else float("inf")
