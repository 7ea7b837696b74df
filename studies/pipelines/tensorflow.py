"""The TensorFlow half: every schedule that applies, on a `bl.LocalCluster`, simulated and measured.

Durations come from traces of one micro-batch on worker 0 while worker 1 runs another, overheads from the fidelity study's
calibration, and messages from workers that go on computing (see `busy`); nothing is fitted to the steps that are predicted.
Kernels are profiled on workers of one thread, so that their times do not overlap; steps run on workers of two, or tensors
would wait for ops that are ready behind them (see `LocalCluster`).

Cores change their pace: a program of another virtual machine on the same physical core makes them up to twice as slow,
for milliseconds or minutes, and nothing in /proc says so. So each round profiles, measures messages and goes through all
schedules in turns: what is predicted and what is measured are of the same minutes, and are averaged over the same rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baechi_lab.errors import ExecutionError
from baechi_lab.executors import LocalCluster, Worker, execute
from baechi_lab.executors.statistics import summarize
from baechi_lab.executors.tensorflow.calibration import Calibration, calibrate, mean_calibration, process_seconds
from baechi_lab.fidelity.profiles import SETTLED, SETTLED_BEFORE, busy_graph, mean_graph
from baechi_lab.fidelity.quiet_machine import own_processes
from baechi_lab.graph import OpGraph, Placement, Run, Step
from baechi_lab.profilers.machine_load import OtherPrograms
from studies.pipelines.busy import busy_messages, with_busy_messages
from studies.pipelines.plans import Plan, placements, plans
from studies.pipelines.report import Row

MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"batch_size": 64, "layers": 12, "units": 512, "inputs": 512, "classes": 512},
    "gnmt": {"batch_size": 64, "sequence_length": 4, "layers": 2, "units": 192, "vocabulary": 1000},
    "transformer": {
        "batch_size": 4,
        "layers": 2,
        "units": 128,
        "heads": 4,
        "inner": 512,
        "vocabulary": 500,
        "sequence_length": 32,
    },
    "gpt": {"batch_size": 2, "layers": 6, "units": 128},
}
"""Model -> size of one micro-batch, at which it takes some tens of milliseconds on one core."""
TRACES = 3
"""Traces of the micro-batch per round."""


@dataclass
class _Seen:
    """What the rounds of one model have measured; the schedule "" is the whole batch on one worker."""

    profiles: list[OpGraph] = field(default_factory=list)
    messages: list[NDArray[np.float64]] = field(default_factory=list)
    runs: dict[str, list[Run]] = field(default_factory=dict)
    shares: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


def build_step(model: str) -> Step:
    """The traced step of one micro-batch."""
    if model == "gpt":
        from studies.pipelines.gpt import gpt_step

        return gpt_step(**MODELS[model])
    from baechi_lab.models import build

    return build(model, **MODELS[model])


def study(
    models: Sequence[str],
    processes: int,
    *,
    micro_batches: int = 8,
    steps: int = 4,
    rounds: int = 5,
    calibration: Calibration | None = None,
    on_model: Callable[[Sequence[Row], Calibration], None] | None = None,
) -> list[Row]:
    """Rows of all models on a cluster of so many workers. Raises `ExecutionError` when a step does not run."""
    rows: list[Row] = []
    calibrations: list[Calibration] = []
    for model in models:  # workers that have run another model take longer for everything
        step, measurements = build_step(model), _Seen()
        with (
            LocalCluster(processes) as single,
            LocalCluster(processes, threads=2) as local,
            Worker(network=local.network) as worker,
            Worker(network=single.network) as profiler,
        ):
            calibrations.append(calibration or calibrate(single))
            costs = mean_calibration(calibrations)
            profile = partial(busy_graph, step, single, profiler, TRACES)
            plan_of = _rounds(step, profile, local, worker, measurements, costs, (micro_batches, steps, rounds))
            costs = with_busy_messages(costs, measurements.messages)
        placement_of = {name: plan.placement for name, plan in plan_of.items()}
        final = plans(placement_of, mean_graph(measurements.profiles), local.cluster, costs, micro_batches)
        rows += [_row(model, processes, micro_batches, plan, measurements) for plan in final.values()]
        if on_model is not None:
            on_model(rows, costs)
    return rows


def _rounds(
    step: Step,
    profile: Callable[..., OpGraph],
    local: LocalCluster,
    worker: Worker,
    measurements: _Seen,
    costs: Calibration,
    counts: tuple[int, int, int],
) -> dict[str, Plan]:
    """Fill `measurements`; the schedules on the placements that they had in every round."""
    micro_batches, steps, rounds = counts
    placement_of: Mapping[str, Placement] = {}
    plan_of: dict[str, Plan] = {}
    for round_number in range(rounds):
        measurements.profiles.append(profile(warmup=SETTLED_BEFORE if round_number else SETTLED))
        measurements.messages.append(busy_messages(local, worker))
        graph = mean_graph(measurements.profiles)
        placement_of = placement_of or placements(graph, local.n)
        plan_of = plans(
            placement_of, graph, local.cluster, with_busy_messages(costs, measurements.messages), micro_batches
        )
        names = [*plan_of, ""]
        for name in names[:: 1 if round_number % 2 == 0 else -1]:
            _run(name, step, plan_of, graph, local, worker, measurements, micro_batches, steps)
    return plan_of


def _run(
    name: str,
    step: Step,
    plan_of: Mapping[str, Plan],
    graph: OpGraph,
    local: LocalCluster,
    worker: Worker,
    measurements: _Seen,
    micro_batches: int,
    steps: int,
) -> None:
    """One schedule's turn in a round."""
    alone = Placement(device=np.zeros(graph.n, dtype=np.int32), graph_key=graph.key)
    placement, priced_graph = (plan_of[name].placement, plan_of[name].graph) if name else (alone, graph)
    before = [process_seconds(pid) for pid in local.pids]
    other_programs = OtherPrograms(own_processes([*local.pids, worker.pid]))
    run = execute(
        step,
        placement,
        steps,
        warmup=SETTLED_BEFORE if measurements.runs.get(name) else SETTLED,
        traced=0,
        cluster=local,
        graph=priced_graph,
        worker=worker,
        progress=False,
        micro_batches=micro_batches,
        schedule=plan_of[name].timeline.schedule_lines if name else "gpipe",
    )
    if run.status != "ok":
        raise ExecutionError(f"{step.name} under {name or 'gpipe'} ended with status {run.status!r}: {run.message}")
    busy_seconds = max(process_seconds(pid) - b for pid, b in zip(local.pids, before, strict=True))
    run_seconds = sum(run.info["warmup_seconds"]) + float(run.step_seconds.sum())
    measurements.runs.setdefault(name, []).append(run)
    measurements.shares.setdefault(name, []).append((busy_seconds / max(run_seconds, 1e-9), other_programs.share()))


def _row(model: str, processes: int, count: int, plan: Plan, measurements: _Seen) -> Row:
    runs_of_schedule = measurements.runs[plan.schedule]
    seconds = np.concatenate([run.step_seconds for run in runs_of_schedule])
    single = float(np.median(np.concatenate([run.step_seconds for run in measurements.runs[""]]))) * 1e6
    summary = summarize(seconds)
    busy, other_programs = np.median(np.array(measurements.shares[plan.schedule]), axis=0).tolist()
    return Row(
        "tensorflow",
        model,
        processes,
        plan.schedule,
        count,
        len(plan.timeline.stage_device),
        plan.simulated_us,
        summary.median * 1e6,
        summary.low * 1e6,
        summary.high * 1e6,
        float(seconds.min()) * 1e6,
        min(busy, 1.0),
        other_programs,
        single,
        tuple(float(np.median(run.step_seconds)) * 1e6 for run in runs_of_schedule),
    )


def settings_of(costs: Calibration, **extra_settings: Any) -> Mapping[str, Any]:
    """What a stored part says beside its rows."""
    from dataclasses import asdict

    return {"models": MODELS, "calibration": asdict(costs), **extra_settings}
