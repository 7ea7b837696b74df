"""Measures whether a step runs faster on two devices than on one, in alternating runs on a `bl.LocalCluster`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from ..executors.statistics import Comparison, interleaved
from ..executors.tensorflow.calibration import Calibration, calibrate
from ..executors.tensorflow.cluster import LocalCluster
from ..graph import Placement, Run
from ..passes.optimize import PASSES
from ..workers.client import Worker
from .gradient_pairs import graph_under_placement, measured_apart
from .message_costs import crossing, predicted_us
from .profiles import TRACES, beside_us, measured_graph, run_placed
from .quiet_machine import own_processes, wait_for_quiet
from .study import WAIT, Case, place_for

SPEED_UP: tuple[str, dict[str, object]] = (
    "gnmt",
    {"batch_size": 256, "sequence_length": 5, "layers": 4, "units": 512, "vocabulary": 2000},
)
"""A GNMT step whose matrix products outweigh its transfers on two loopback workers."""
PLACERS = (("m-etf", ("colocation", "fusion")), ("m-sct", ("colocation", "fusion")), ("m-etf", PASSES))
"""Placers and the passes before them. Co-placement saves most messages, but its larger groups are harder to balance."""


@dataclass(frozen=True)
class SpeedUp:
    """Comparison of a placement on all workers (B) and worker 0 alone (A), in alternating runs.

    `predicted_ratio` is the simulator's B / A; `measured` has the step times of both and their ratio with its interval.
    """

    model: str
    placer: str
    passes: tuple[str, ...]
    ops: int
    transfers: int
    predicted_ratio: float
    measured: Comparison

    @property
    def times_faster(self) -> float:
        """Measured A / B. Above 1 the cluster is faster than one of its devices."""
        return 1.0 / self.measured.ratio

    def to_dict(self) -> dict[str, object]:
        """Returns everything, ready for JSON."""
        return {**asdict(self), "times_faster": self.times_faster}

    def __str__(self) -> str:
        comparison, after = self.measured, ", ".join(self.passes)
        times = f"{comparison.a.median * 1e3:.4g} ms on one device, {comparison.b.median * 1e3:.4g} ms on all"
        return (
            f"{self.model}, {self.placer} after {after}: {times} ({self.transfers} transfers): {self.times_faster:.3f} times "
            f"as fast ({1 / comparison.high:.3f} to {1 / comparison.low:.3f}; simulated {1 / self.predicted_ratio:.3f})"
        )


def speed_up(
    case: Case,
    placers: Sequence[tuple[str, Sequence[str]]] = PLACERS,
    *,
    workers: int = 2,
    steps: int = 5,
    rounds: int = 5,
    calibration: Calibration | None = None,
    wait: float | None = WAIT,
    trusted_users: bool = False,
) -> tuple[tuple[SpeedUp, ...], Calibration]:
    """Compares placements of a step on a local cluster with one of its workers. Returns one `SpeedUp` per placer and passes.

    Each round runs both for `steps` steps, the order turning from round to round. Placers see what a message costs in
    all. `wait`: seconds to wait for a quiet machine, None measures all the same. `trusted_users`: of the cluster.

    Raises `ExecutionError` when a step does not run or the machine stays busy, `InvalidInput` for bad counts.
    """
    with LocalCluster(workers, trusted_users=trusted_users) as local, Worker(network=local.network) as worker:
        if wait is not None:
            wait_for_quiet(own_processes([*local.pids, worker.pid]), wait)
        costs = calibration or calibrate(local)
        graph = measured_graph(case.step, local, worker)
        busy_us = beside_us(case.step, local, worker)
        pairs = measured_apart(case.step, local, worker, graph, TRACES)
        alone = Placement(device=np.zeros(graph.n, dtype=np.int32))
        single_us = predicted_us(graph, alone, costs)

        def run(placement: Placement) -> Run:
            return run_placed(case.step, placement, local, worker, steps, graph)

        speed_ups = []
        for name, passes in placers:
            placement = place_for(name, graph, local, costs, passes=passes)
            run_comparison = interleaved(partial(run, alone), partial(run, placement), rounds)
            placed_graph, placed_on_graph, longer_us = graph_under_placement(graph, placement, pairs, busy_us)
            share = predicted_us(placed_graph, placed_on_graph, costs, longer_us) / single_us
            messages = len(crossing(graph, placement.on(graph).device)[0])
            speed_ups.append(SpeedUp(case.name, name, tuple(passes), graph.n, messages, share, run_comparison))
    return tuple(speed_ups), costs
