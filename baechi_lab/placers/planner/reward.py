"""Seconds per step of sampled placements: simulated in parallel over cores, or measured by running them.

The simulated reward is the search's fast evaluation, first in first out as TensorFlow runs ready ops, in one thread per
core (compiled code without the interpreter lock): samples / workers simulations of O(ops + edges) each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ExecutionError, InfeasiblePlacement, InvalidInput
from ...graph import Cluster, OpGraph, Placement, Step
from ..search_evaluate import make_model, make_work
from ..search_orders import measure

Reward = Callable[[NDArray[np.int32]], NDArray[np.float64]]
"""Devices int32[samples, n] -> float64[samples] seconds per step, infinite where the placement is not valid."""


class SimulatedReward:
    """Simulated step times on `workers` threads (default: one per core).

    >>> from baechi_lab import Cluster, OpGraph
    >>> reward = SimulatedReward(OpGraph.from_edges([2e6, 3e6]), Cluster.uniform(2, memory_bytes=100))
    >>> reward(np.array([[0, 0], [0, 1]])).tolist()
    [5.0, 3.0]
    """

    def __init__(self, graph: OpGraph, cluster: Cluster, workers: int | None = None):
        self.workers = workers or os.cpu_count() or 1
        self.model = make_model(graph, cluster)
        self.works = [make_work(self.model) for _ in range(self.workers)]

    def __call__(self, devices: NDArray[Any]) -> NDArray[np.float64]:
        rows = np.ascontiguousarray(devices, dtype=np.int32)
        seconds = np.empty(len(rows))
        if self.workers == 1 or len(rows) == 1:
            self._part(0, rows, seconds)
            return seconds
        parts = min(self.workers, len(rows))
        with ThreadPoolExecutor(parts) as pool:
            shares = zip(range(parts), np.array_split(rows, parts), np.array_split(seconds, parts), strict=True)
            list(pool.map(lambda share: self._part(*share), shares))
        return seconds

    def _part(self, worker: int, rows: NDArray[Any], seconds: NDArray[Any]) -> None:
        """Fill `seconds`, a view into the result."""
        for k, row in enumerate(rows):
            found = measure(self.model, self.works[worker], "sample", row, None)
            seconds[k] = found.makespan_us * 1e-6 if found.overflow_bytes == 0 else np.inf


class MeasuredReward:
    """Step times from `run(placement) -> seconds`; infinity, `InfeasiblePlacement` and `ExecutionError` mean invalid."""

    def __init__(self, graph: OpGraph, run: Callable[[Placement], float]):
        self.graph, self.run = graph, run

    def __call__(self, devices: NDArray[Any]) -> NDArray[np.float64]:
        return np.array([self._one(row) for row in devices], dtype=np.float64)

    def _one(self, device: NDArray[Any]) -> float:
        graph = self.graph
        placement = Placement(
            device=device,
            placer="hierarchical",
            graph_key=graph.key,
            group_of=graph.group_of,
            source_key=graph.source_key,
        )
        try:
            seconds = float(self.run(placement))
        except (InfeasiblePlacement, ExecutionError):
            return float("inf")
        if np.isnan(seconds) or seconds < 0:
            raise InvalidInput(f"reward returned {seconds} seconds; it must be a number of at least 0, or infinity")
        return seconds


def executed(step: Step, cluster: Cluster, steps: int, warmup: int) -> Callable[[Placement], float]:
    """A `run` for `MeasuredReward`: `bl.execute`, the median of `steps` steps after `warmup` discarded ones."""
    from ...executors import execute

    def run(placement: Placement) -> float:
        done = execute(step, placement, steps, warmup=warmup, cluster=cluster, progress=False)
        return done.median_seconds if done.status == "ok" else float("inf")

    return run
