"""The TensorFlow half: every schedule that applies, on a `bl.LocalCluster`, simulated and measured.

Durations come from traces of one micro-batch on worker 0 while worker 1 runs another, overheads and links from the fidelity
study's calibration and from messages of a worker that goes on computing (see `busy`);
nothing is fitted to the steps that are predicted. Kernels are profiled on workers of one thread, so that their times do not
overlap; steps run on workers of two, or tensors would wait for ops that are ready behind them (see `LocalCluster`).
Rounds go through all schedules in turns, so that a drift of the machine meets them all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ExecutionError, InvalidInput
from ...executors import LocalCluster, Worker, execute
from ...executors.statistics import summarize
from ...executors.tensorflow.calibration import Calibration, calibrate, mean_calibration, process_seconds
from ...graph import Cluster, OpGraph, Placement, Run, Step, Timeline
from ...simulator import simulate
from ...simulator.schedules import RULES
from ..fidelity import charged_graph
from ..fidelity.others import Others, own_processes
from ..fidelity.profiles import SETTLED, busy_graph
from .busy import busy_calibration
from .cores import step_us_on_cores
from .layers import layer_stages
from .report import Row

MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"batch_size": 64, "layers": 12, "units": 512, "inputs": 512, "classes": 512},
    "gnmt": {"batch_size": 64, "sequence_length": 4, "layers": 2, "units": 192, "vocabulary": 1000},
    "transformer": {
        "batch_size": 4, "layers": 2, "units": 128, "heads": 4, "inner": 512, "vocabulary": 500, "sequence_length": 32,
    },
    "gpt": {"batch_size": 2, "layers": 6, "units": 128},
}  # fmt: skip
"""Model -> size of one micro-batch, at which it takes some tens of milliseconds on one core."""


@dataclass(frozen=True)
class Plan:
    """One schedule on one placement: the simulated timeline, whose order the real step follows."""

    schedule: str
    graph: OpGraph
    placement: Placement
    timeline: Timeline
    simulated_us: float


def build_step(model: str) -> Step:
    """The traced step of one micro-batch."""
    if model == "gpt":
        from .gpt import gpt_step

        return gpt_step(**MODELS[model])
    from ...models import build

    return build(model, **MODELS[model])


def study(
    models: Sequence[str],
    processes: int,
    *,
    micro_batches: int = 8,
    steps: int = 5,
    rounds: int = 3,
    calibration: Calibration | None = None,
    on_model: Callable[[Sequence[Row], Calibration], None] | None = None,
) -> list[Row]:
    """Rows of all models on a cluster of so many workers. Raises `ExecutionError` when a step does not run."""
    rows: list[Row] = []
    with LocalCluster(processes) as local, Worker() as worker:
        costs = calibration or calibrate(local)
        made = {model: build_step(model) for model in models}
        graphs = {model: busy_graph(step, local, worker) for model, step in made.items()}
    found: list[Calibration] = []
    for model in models:  # workers that have run another model take longer for everything
        with LocalCluster(processes, threads=2) as local, Worker() as worker:
            found.append(busy_calibration(costs, local, worker))
            mean = mean_calibration(found)
            rows += _study_model(model, made[model], graphs[model], local, worker, mean, micro_batches, steps, rounds)
        if on_model is not None:
            on_model(rows, mean)
    return rows


def plans(graph: OpGraph, local: Cluster, costs: Calibration, micro_batches: int) -> list[Plan]:
    """Every schedule on stages that suit it; those that do not apply to this graph are left out."""
    found = []
    for name, rule in RULES.items():
        try:
            placed = placement_for(rule.shape, graph, local.n)
            found.append(planned(name, graph, local, placed, costs, micro_batches))
        except InvalidInput:
            continue  # its stages form no pipeline of this shape
    return found


def planned(
    schedule: str, graph: OpGraph, cluster: Cluster, placed: Placement, costs: Calibration, micro_batches: int
) -> Plan:
    """Simulate the step with the runtime's overheads; wires carry messages independently, workers may share cores."""
    charged = charged_graph(graph, placed, costs)
    there = cluster.replace(link=costs.wire, comm="parallel")
    mine = placed.replace(graph_key=charged.key)
    timeline = simulate(charged, there, mine, micro_batches=micro_batches, schedule=schedule)
    step_us = step_us_on_cores(charged, there, mine, timeline, micro_batches, len(os.sched_getaffinity(0)))
    return Plan(schedule, charged, mine, timeline, step_us + costs.step_us)


def placement_for(shape: str, graph: OpGraph, devices: int) -> Placement:
    """Stages of whole layers: one per device, or two per device that go round or there and back."""
    stages = layer_stages(graph, devices if shape == "chain" else 2 * devices)
    device = {"chain": stages, "loop": stages % devices, "v": np.minimum(stages, 2 * devices - 1 - stages)}[shape]
    return Placement(device=device.astype(np.int32), placer="layers", graph_key=graph.key)


def _study_model(
    model: str, step: Step, graph: OpGraph, local: LocalCluster, worker: Worker, costs: Calibration, count: int, steps: int,
    rounds: int,
) -> list[Row]:  # fmt: skip
    chosen = {plan.schedule: plan for plan in plans(graph, local.cluster, costs, count)}
    alone = Placement(device=np.zeros(graph.n, dtype=np.int32), graph_key=graph.key)
    runs: dict[str, list[Run]] = {name: [] for name in (*chosen, "")}
    shares: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    own = own_processes([*local.pids, worker.pid])
    for turn in range(rounds):
        for name in list(runs)[:: 1 if turn % 2 == 0 else -1]:
            placed, priced = (chosen[name].placement, chosen[name].graph) if name else (alone, graph)
            schedule = chosen[name].timeline.info["schedule"] if name else "gpipe"
            others, before = Others(own), [process_seconds(pid) for pid in local.pids]
            run = execute(
                step, placed, steps, warmup=SETTLED, traced=0, cluster=local, graph=priced, worker=worker, progress=False,
                micro_batches=count, schedule=schedule,
            )  # fmt: skip
            if run.status != "ok":
                raise ExecutionError(f"{model} under {name or 'gpipe'} ended with status {run.status!r}: {run.message}")
            spent = max(process_seconds(pid) - b for pid, b in zip(local.pids, before, strict=True))
            passed = sum(run.info["warmup_seconds"]) + float(run.step_seconds.sum())
            shares[name].append((spent / max(passed, 1e-9), others.share()))
            runs[name].append(run)
    single = float(np.median(np.concatenate([run.step_seconds for run in runs[""]]))) * 1e6
    return [_row(model, local.n, count, chosen[name], runs[name], shares[name], single) for name in chosen]


def _row(
    model: str, processes: int, count: int, plan: Plan, runs: Sequence[Run], shares: Sequence[tuple[float, float]],
    single: float,
) -> Row:  # fmt: skip
    seconds = np.concatenate([run.step_seconds for run in runs])
    measured = summarize(seconds)
    busy, others = np.median(np.array(shares), axis=0).tolist()
    return Row(
        "tensorflow", model, processes, plan.schedule, count, len(plan.timeline.info["stage_device"]), plan.simulated_us,
        measured.median * 1e6, measured.low * 1e6, measured.high * 1e6, float(seconds.min()) * 1e6, min(busy, 1.0), others,
        single, tuple(float(np.median(run.step_seconds)) * 1e6 for run in runs),
    )  # fmt: skip


def settings_of(costs: Calibration, **more: Any) -> Mapping[str, Any]:
    """What a stored part says beside its rows."""
    from dataclasses import asdict

    return {"models": MODELS, "calibration": asdict(costs), **more}
