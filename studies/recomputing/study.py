"""Run training steps with and without recomputation on one CPU device, and hold both against the simulator.

Every choice of a model runs in turns with the others, `rounds` times, so that a drift of the machine meets them all; the step
time is the median of all steps. Which bytes are held does not depend on how fast the machine is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from baechi_lab.errors import ExecutionError, InvalidInput
from baechi_lab.graph import Cluster, OpGraph, Placement, Run, Timeline
from baechi_lab.memory.peak import readiness_peak
from baechi_lab.memory_saving.recompute import recompute
from baechi_lab.simulator import simulate
from studies.memory.predicting import in_both_orders
from studies.recomputing.report import Row

Runner = tuple[OpGraph, Callable[[OpGraph], Run]]
"""The profile of a step, and what runs a graph that was made of it."""

CASES: dict[str, dict[str, dict[str, Any]]] = {
    "tensorflow": {
        "gnmt": {"batch_size": 64, "sequence_length": 5, "layers": 2, "units": 32, "vocabulary": 200},
        "gpt": {"batch_size": 16, "layers": 2, "units": 32, "words": 16, "vocabulary": 100},
        "bert": {"batch_size": 16, "layers": 2, "units": 32, "words": 16, "vocabulary": 100},
        "resnet": {"batch_size": 64, "image_size": 64},
    },
    "torch": {
        "gnmt": {"batch_size": 16, "length": 12, "vocabulary": 200, "width": 64, "layers": 4},
        "gpt": {"batch_size": 8, "words": 32, "vocabulary": 200, "width": 64, "layers": 4},
        "bert": {"batch_size": 8, "length": 32, "vocabulary": 200, "width": 64, "heads": 4, "inner": 256, "layers": 4},
        "resnet50": {"batch_size": 8, "image_size": 32, "width": 16, "blocks": (2, 3, 2), "classes": 10},
    },
}
"""Framework -> model -> sizes small enough for a busy machine; activations outweigh parameters."""

SHARE = 0.5
"""Where the budget lies between the least that a plan was found for and the peak of the plain step."""


def study(
    cases: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None,
    *,
    steps: int = 5,
    rounds: int = 3,
    on_row: Callable[[list[Row]], None] | None = None,
) -> list[Row]:
    """A row per choice: "plain" first, on TensorFlow "ordered", then "sqrt" and "budget".

    Args:
        cases: like `CASES`, which is the default.
        steps, rounds: measured steps of each choice in each round.
        on_row: called with the rows so far whenever a model is done.

    Raises `ExecutionError` when a step does not run, `InvalidInput` for an unknown framework.
    """
    rows: list[Row] = []
    for framework, models in (CASES if cases is None else cases).items():
        for name, sizes in models.items():
            rows += study_model(framework, name, sizes, steps=steps, rounds=rounds)
            if on_row is not None:
                on_row(rows)
    return rows


def study_model(framework: str, name: str, sizes: Mapping[str, Any], *, steps: int, rounds: int) -> list[Row]:
    """The rows of one model."""
    if framework not in RUNNERS:
        raise InvalidInput(f"framework is {framework!r}; it must be 'tensorflow' or 'torch'")
    graph, run = RUNNERS[framework](name, dict(sizes), steps)
    graphs = dict(choices(graph, ordered=framework == "tensorflow"))
    runs_of_choice: dict[str, list[Run]] = {choice: [] for choice in graphs}
    for _ in range(rounds):
        for choice, changed in graphs.items():
            runs_of_choice[choice].append(run(changed))
    losses = _losses(runs_of_choice["plain"][0])
    rows = []
    for choice, changed in graphs.items():
        timeline = _simulated(framework, changed)
        seconds = np.concatenate([one.step_seconds for one in runs_of_choice[choice]])
        rows.append(
            Row(
                framework,
                name,
                choice,
                changed.n - graph.n,
                int(timeline.peak_bytes[0]),
                _peak(runs_of_choice[choice][0]),
                float(timeline.makespan_us),
                float(np.median(seconds)) * 1e6,
                all(_losses(one) == losses for one in runs_of_choice[choice]),
            )
        )
    return rows


def choices(graph: OpGraph, ordered: bool) -> Iterator[tuple[str, OpGraph]]:
    """Names and graphs: as it is, in segments, and within a budget.

    `ordered` for an executor that promises no order: it is kept to the plan's, also once without recomputation, so that
    what is saved is not mixed with what the order does.
    """
    from baechi_lab.memory_saving.budget import plans_for

    yield "plain", graph
    if ordered:
        yield "ordered", recompute(graph, "all", ordered=True)
    yield "sqrt", recompute(graph, "sqrt", ordered=ordered)
    least, peak_bytes = plans_for(graph).least_bytes, readiness_peak(graph)
    yield "budget", recompute(graph, budget=int(least + SHARE * (peak_bytes - least)), ordered=ordered)


def _alone(graph: OpGraph) -> Placement:
    return Placement(device=np.zeros(graph.n, dtype=np.int32), placer="single", graph_key=graph.key)


def _simulated(framework: str, graph: OpGraph) -> Timeline:
    """On one device; TensorFlow promises no order, so the larger peak of two counts."""
    alone = Cluster.uniform(1, kind="cpu")
    if framework == "torch":
        return simulate(graph, alone, _alone(graph))
    return max(in_both_orders(graph, alone, _alone(graph)), key=lambda line: int(line.peak_bytes[0]))


def _tensorflow(name: str, sizes: dict[str, Any], steps: int) -> Runner:
    from baechi_lab.executors.dispatch import execute
    from baechi_lab.models import build
    from baechi_lab.profilers import profile
    from studies.pipelines.gpt import gpt_step

    step = gpt_step(causal=name == "gpt", **sizes) if name in ("gpt", "bert") else build(name, **sizes)
    graph = profile(step, mode="measured")

    def run(changed: OpGraph) -> Run:
        return execute(
            step, _alone(changed), steps, warmup=2, traced=1, graph=changed, kind="cpu", virtual=1, progress=False
        )

    return graph, run


def _torch(name: str, sizes: dict[str, Any], steps: int) -> Runner:
    from baechi_lab.executors.torch import execute
    from baechi_lab.profilers.torch.profile import profile
    from baechi_lab.torch.models import build
    from studies.recomputing.gpt import gpt_step

    step = gpt_step(**sizes) if name == "gpt" else build(name, **sizes)
    graph = profile(step)

    def run(changed: OpGraph) -> Run:
        return execute(step, _alone(changed), steps, warmup=2, graph=changed, cluster=Cluster.uniform(1, kind="cpu"))

    return graph, run


RUNNERS: dict[str, Callable[[str, dict[str, Any], int], Runner]] = {"tensorflow": _tensorflow, "torch": _torch}
"""Framework -> what profiles a model and runs a graph of it."""


def _losses(run: Run) -> list[float]:
    return [float(x[0]) for x in run.outputs]


def _peak(run: Run) -> int:
    if run.timeline is None:
        raise ExecutionError(f"a step gave no timeline: {run.message or run.status}")
    return int(run.timeline.peak_bytes[0])
