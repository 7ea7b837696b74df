"""How long a step takes under placement after placement, each run on real devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..graph import Cluster, Placement, Step
from ..workers.client import Worker
from .dispatch import execute


def step_timer(step: Step, cluster: Cluster, steps: int, warmup: int) -> Callable[[Placement], float]:
    """A function that runs placements of `step` and returns seconds: the median of `steps` steps after `warmup` discarded ones.

    Infinite where a run ends otherwise than well, for example out of memory. A worker process is kept between runs.
    """
    workers: list[Any] = []

    def run(placement: Placement) -> float:
        if not workers or not workers[0].alive:
            workers[:] = [Worker()]  # starting TensorFlow takes seconds
        run_record = execute(
            step, placement, steps, warmup=warmup, traced=0, cluster=cluster, progress=False, worker=workers[0]
        )
        return run_record.median_seconds if run_record.status == "ok" else float("inf")

    return run
