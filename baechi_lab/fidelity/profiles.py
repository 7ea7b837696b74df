"""Kernel times of a step on workers of a cluster: while the other workers are idle, and while they run the same step.

Workers share caches and memory bandwidth, so kernels that stream through memory take longer at the same time. Neither profile
uses a placement that is predicted. Cores change their speed (see `pipelines.tensorflow`), so a study that takes minutes profiles
the step several times (`mean_graph`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import ExecutionError, InvalidInput
from ..executors import LocalCluster, Worker, execute
from ..executors.tensorflow.pipelined_step import pipelined_step
from ..graph import MEMORY_CATEGORIES, OpGraph, Placement, Run, Step, Timeline
from ..passes.unroll import ACCUMULATE
from ..profilers import profile

SETTLED = 6
"""Warm-up steps: during the first steps allocators request memory from the system, and connections become faster."""
SETTLED_BEFORE = 2
"""Warm-up steps for workers that have run the step before."""
TRACES = 5  # traced steps of a profile


def measured_graph(
    step: Step, local: LocalCluster, worker: Worker, traces: int = TRACES, warmup: int = SETTLED
) -> OpGraph:
    """Returns the step's graph with durations, temporary bytes and op types on worker 0 alone; `warmup` steps before each trace.

    Op types are those that ran: TensorFlow replaces some ops by oneDNN ops.

    Raises `ExecutionError` when the step does not run.
    """
    shape = profile(step, mode="estimated", hardware="cpu-core")
    alone = Placement(device=np.zeros(shape.n, dtype=np.int32))
    traced_us, temporary = np.zeros((traces, shape.n)), np.zeros(shape.n, dtype=np.int64)
    types = shape.op_types
    for row in traced_us:
        timeline, replacing_types = traced_step(step, alone, local, worker, shape, warmup)
        row[timeline.op] = timeline.end_us - timeline.start_us
        types = tuple(replacing_types.get(name, kind) for name, kind in zip(shape.names, shape.op_types, strict=True))
        temporary = np.maximum(temporary, temporary_bytes(timeline, shape.n))
    return shape.replace(
        duration_us=_typical_durations(traced_us), duration_by_kind={}, temp_bytes=temporary, op_types=types
    )


def mean_graph(profiles: Sequence[OpGraph]) -> OpGraph:
    """Combines profiles of one step: mean durations and largest temporary bytes.

    >>> a, b = (OpGraph.from_edges([us], temp_bytes=[most]) for us, most in ((10.0, 8), (14.0, 4)))
    >>> mean = mean_graph([a, b])
    >>> mean.duration_us.tolist(), mean.temp_bytes.tolist()
    ([12.0], [8])
    """
    return profiles[0].replace(
        duration_us=np.mean([graph.duration_us for graph in profiles], axis=0),
        temp_bytes=np.max([graph.temp_bytes for graph in profiles], axis=0),
        duration_by_kind={},
    )


def temporary_bytes(timeline: Timeline, count: int) -> NDArray[np.int64]:
    """Returns int64[count]: largest temporary bytes of each op of a measured timeline."""
    live, peak = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    log = timeline.memory
    for row in np.flatnonzero(log.category == MEMORY_CATEGORIES.index("temporary")).tolist():
        op = log.op[row]
        live[op] += log.delta[row]
        peak[op] = max(peak[op], live[op])
    return peak


def busy_graph(step: Step, local: LocalCluster, worker: Worker, traces: int = TRACES, warmup: int = SETTLED) -> OpGraph:
    """Profiles the step as `measured_graph` does, while worker 1 runs it as well: two micro-batches, one per worker.

    Raises `ExecutionError` when the step does not run.
    """
    shape = profile(step, mode="estimated", hardware="cpu-core")
    alone = Placement(device=np.zeros(shape.n, dtype=np.int32))
    twice = pipelined_step(step, alone, local.cluster, shape, 2, None, "mean")
    is_accumulation = np.array([kind == ACCUMULATE for kind in twice.graph.op_types])
    is_second = (np.asarray(twice.graph.micro_batch) == 1) & ~is_accumulation
    split_placement = Placement(device=is_second.astype(np.int32))
    origin = np.asarray(twice.graph.copy_of)
    traced_us = np.zeros((traces, shape.n))
    for row in traced_us:
        timeline, _ = traced_step(twice.step, split_placement, local, worker, twice.graph, warmup)
        of_first = ~is_second[timeline.op] & ~is_accumulation[timeline.op]
        row[origin[timeline.op[of_first]]] = (timeline.end_us - timeline.start_us)[of_first]
    return shape.replace(duration_us=_typical_durations(traced_us), duration_by_kind={})


def beside_us(
    step: Step, local: LocalCluster, worker: Worker, traces: int = TRACES, warmup: int = SETTLED
) -> NDArray[np.float64] | None:
    """Returns durations of `busy_graph`. None for one worker, or with a warning if two copies of the step cannot run at once.

    Raises `ExecutionError` when the step does not run.
    """
    if local.n < 2:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of batch statistics: the results of this step are not used
            return busy_graph(step, local, worker, traces, warmup).duration_us
    except InvalidInput as error:
        warnings.warn(f"kernels of step {step.name!r} count as if the other workers did nothing: {error}", stacklevel=2)
        return None


def _typical_durations(traced_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the scaled median duration of every op, float64[n], from `traced_us[traces, n]`.

    Other work on the machine lengthens single kernels in single traces, which a mean would include. But the sum of medians is
    less than the median of sums, because kernels sometimes take longer and rarely less. So all medians are scaled to that sum.
    """
    medians = np.median(traced_us, axis=0)
    lengthening = float(np.median(traced_us.sum(axis=1))) / max(float(medians.sum()), 1e-9)
    return np.asarray(medians * max(lengthening, 1.0))


def traced_step(
    step: Step, placement: Placement, local: LocalCluster, worker: Worker, graph: OpGraph, warmup: int
) -> tuple[Timeline, dict[str, str]]:
    """Returns one traced step after `warmup` steps, and op name -> type of the ops that TensorFlow replaced.

    Raises `ExecutionError` when it does not run.
    """
    run = run_placed(step, placement, local, worker, 0, graph, warmup)
    if run.timeline is None:
        raise ExecutionError(f"step {step.name!r} gave no trace")
    return run.timeline, run.info["replaced"]


def run_placed(
    step: Step,
    placement: Placement,
    local: LocalCluster,
    worker: Worker,
    steps: int,
    graph: OpGraph,
    warmup: int = SETTLED,
) -> Run:
    """Runs the step on the cluster. Raises `ExecutionError` if it does not end ok."""
    run = execute(
        step, placement, steps, warmup=warmup, traced=1, cluster=local, graph=graph, worker=worker, progress=False
    )
    if run.status != "ok":
        raise ExecutionError(f"step {step.name!r} ended with status {run.status!r}: {run.message}")
    return run


def seconds_of_all_steps(run: Run) -> float:
    """Returns the seconds of the run's steps together: warm-up steps, traced ones and measured ones."""
    return float(sum(run.info["warmup_seconds"]) + sum(run.info["traced_seconds"]) + run.step_seconds.sum())
