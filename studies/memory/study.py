"""Run placements of the fidelity study's models on a local cluster, and hold measured against simulated peaks.

Every worker of the cluster has an allocator of its own, and tensors between workers are real copies. Peaks are simulated in
the order of TensorFlow's executor (`..fidelity.executor`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from baechi_lab.errors import ExecutionError
from baechi_lab.executors.tensorflow.calibration import Calibration, calibrate
from baechi_lab.executors.tensorflow.cluster import LocalCluster
from baechi_lab.fidelity.peaks import fullest, predicted_timelines
from baechi_lab.fidelity.profiles import SETTLED, SETTLED_BEFORE, beside_us, measured_graph, run_placed
from baechi_lab.fidelity.study import PASSES, Case, cases_of, random_placement
from baechi_lab.graph import OpGraph, Placement, Run, Timeline
from baechi_lab.passes import optimize
from baechi_lab.placers import place
from baechi_lab.workers.client import Worker
from studies.memory.predicting import parts_at_peak
from studies.memory.report import Row

PLACEMENTS = ("single", "m-topo", "m-etf", "random")
SESSIONS = 10
"""How often each placement runs: in which order a worker begins its part, TensorFlow leaves to chance once per session, and
what it holds depends on that. Of ten sessions of DenseNet121 under m-topo the most is 96 to 103 MB, of five 84 to 103."""
WARMUPS = (SETTLED, *(SETTLED_BEFORE,) * (SESSIONS - 1))


def study(
    cases: Iterable[Case] | Mapping[str, Mapping[str, Any]] | None = None,
    placements: Sequence[str] = PLACEMENTS,
    *,
    workers: int = 2,
    seed: int = 0,
    calibration: Calibration | None = None,
    on_model: Callable[[list[Row]], None] | None = None,
) -> list[Row]:
    """One row per device and placement.

    Args:
        cases: traced steps, or names and sizes as in `bl.models.build` (default: those of the fidelity study).
        placements: names of placers, and `random`: each colocation group on a device drawn with `seed`.
        workers: size of the local cluster.
        calibration: what the runtime takes beside kernels, which decides when tensors are sent; by default measured now.
        on_model: called with the rows so far whenever a model is done.

    Raises `ExecutionError` when a step does not run.
    """
    rows: list[Row] = []
    with LocalCluster(workers) as local, Worker(network=local.network) as worker:
        costs = calibration or calibrate(local)
        for case in cases_of(cases):
            graph, beside_kernels_us = measured_graph(case.step, local, worker), beside_us(case.step, local, worker)
            for placement in placements:
                rule_placement = _place(placement, graph, local, seed)
                measured_runs = [
                    run_placed(case.step, rule_placement, local, worker, 0, graph, warmup) for warmup in WARMUPS
                ]
                simulated_timelines = predicted_timelines(
                    graph, local.cluster, rule_placement, costs, beside_kernels_us
                )
                rows += rows_of(case.name, placement, simulated_timelines, measured_runs)
            if on_model is not None:
                on_model(rows)
    return rows


def rows_of(model: str, name: str, simulated_timelines: Sequence[Timeline], runs: Sequence[Run]) -> list[Row]:
    """A row per device that holds anything, by the largest of its simulated and measured peaks.

    Raises `ExecutionError` for a run without a timeline.
    """
    failed_run = next((run for run in runs if run.timeline is None), None)
    if failed_run is not None:
        raise ExecutionError(
            f"placement {name!r} of {model!r} gave no trace: {failed_run.message or failed_run.status}"
        )
    measured_timelines = [run.timeline for run in runs if run.timeline is not None]
    rows = []
    for d, device in enumerate(measured_timelines[0].device_names):
        simulated_timeline, measured_timeline = fullest(simulated_timelines, d), fullest(measured_timelines, d)
        allocator = measured_timeline.info.get("allocator_peak_bytes")
        if measured_timeline.peak_bytes[d]:
            rows.append(
                Row(
                    model,
                    name,
                    device,
                    int(simulated_timeline.peak_bytes[d]),
                    int(measured_timeline.peak_bytes[d]),
                    int(allocator[d]) if allocator else 0,
                    parts_at_peak(simulated_timeline, d),
                    parts_at_peak(measured_timeline, d),
                )
            )
    return rows


def _place(name: str, graph: OpGraph, local: LocalCluster, seed: int) -> Placement:
    if name == "random":
        return random_placement(graph, local, seed)
    if name == "single":
        return Placement(device=np.zeros(graph.n, dtype=np.int32), placer="single", graph_key=graph.key)
    coarse = optimize(graph, passes=PASSES, forward_only=False)
    return place(coarse, local.cluster, name).on(graph)
