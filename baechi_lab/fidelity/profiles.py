"""What kernels of a step take on workers of a cluster: while the others do nothing, and while they run the same step.

Workers share caches and memory bandwidth, so kernels that stream through memory take longer beside each other. Neither
profile looks at a placement that is predicted. Cores change their pace (see `pipelines.tensorflow`), so what is to be held
against steps of some minutes is profiled several times in these minutes (`mean_graph`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import ExecutionError, InvalidInput
from ..executors import LocalCluster, Worker, execute
from ..executors.tensorflow.pipelining import pipelined_step
from ..graph import MEMORY_CATEGORIES, OpGraph, Placement, Run, Step, Timeline
from ..passes.unroll import ACCUMULATE
from ..profilers import profile

SETTLED = 6
"""Steps before one counts: during the first few allocators go on asking the system for memory, and connections widen."""
AGAIN = 2
"""The same for workers that have run the step before."""
TRACES = 5


def measured_graph(
    step: Step, local: LocalCluster, worker: Worker, traces: int = TRACES, warmup: int = SETTLED
) -> OpGraph:
    """The step's graph with durations, temporary bytes and types of ops as on worker 0 alone; `warmup` steps before each trace.

    Types are those that ran: TensorFlow replaces some ops where oneDNN has them.

    Raises `ExecutionError` when the step does not run.
    """
    shape = profile(step, mode="estimated", hardware="cpu-core")
    alone = Placement(device=np.zeros(shape.n, dtype=np.int32))
    seen, temporary = np.zeros((traces, shape.n)), np.zeros(shape.n, dtype=np.int64)
    types = shape.op_types
    for row in seen:
        timeline, replaced = traced_step(step, alone, local, worker, shape, warmup)
        row[timeline.op] = timeline.end_us - timeline.start_us
        types = tuple(replaced.get(name, kind) for name, kind in zip(shape.names, shape.op_types, strict=True))
        temporary = np.maximum(temporary, temporary_bytes(timeline, shape.n))
    return shape.replace(duration_us=_typical(seen), duration_by_kind={}, temp_bytes=temporary, op_types=types)


def mean_graph(profiles: Sequence[OpGraph]) -> OpGraph:
    """One step as profiled several times: mean durations, and the most temporary bytes.

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
    """int64[count]: what each op of a measured timeline held at most besides its outputs."""
    held, most = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    log = timeline.memory
    for row in np.flatnonzero(log.category == MEMORY_CATEGORIES.index("temporary")).tolist():
        op = log.op[row]
        held[op] += log.delta[row]
        most[op] = max(most[op], held[op])
    return most


def busy_graph(step: Step, local: LocalCluster, worker: Worker, traces: int = TRACES, warmup: int = SETTLED) -> OpGraph:
    """The same while worker 1 runs the step as well: two micro-batches that know nothing of each other, one on each.

    Raises `ExecutionError` when the step does not run.
    """
    shape = profile(step, mode="estimated", hardware="cpu-core")
    alone = Placement(device=np.zeros(shape.n, dtype=np.int32))
    twice = pipelined_step(step, alone, local.cluster, shape, 2, None, "mean")
    added = np.array([kind == ACCUMULATE for kind in twice.graph.op_types])
    second = (np.asarray(twice.graph.micro_batch) == 1) & ~added
    apart = Placement(device=second.astype(np.int32))
    origin = np.asarray(twice.graph.copy_of)
    seen = np.zeros((traces, shape.n))
    for row in seen:
        timeline, _ = traced_step(twice.step, apart, local, worker, twice.graph, warmup)
        mine = ~second[timeline.op] & ~added[timeline.op]
        row[origin[timeline.op[mine]]] = (timeline.end_us - timeline.start_us)[mine]
    return shape.replace(duration_us=_typical(seen), duration_by_kind={})


def beside_us(
    step: Step, local: LocalCluster, worker: Worker, traces: int = TRACES, warmup: int = SETTLED
) -> NDArray[np.float64] | None:
    """Durations of `busy_graph`; None, which is said, where two of the step cannot run at once, and on one worker.

    Raises `ExecutionError` when the step does not run.
    """
    if local.n < 2:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of batch statistics: nobody reads what this step computes
            return busy_graph(step, local, worker, traces, warmup).duration_us
    except InvalidInput as error:
        warnings.warn(f"kernels of step {step.name!r} count as if the other workers did nothing: {error}", stacklevel=2)
        return None


def _typical(seen: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[n] of `seen[traces, n]`: of each op the median.

    Other work on the machine lengthens single kernels in single traces, which a mean would keep. The sum of medians is
    less than the median of sums, though, because kernels rarely take less time and sometimes more: all are lengthened to it.
    """
    each = np.median(seen, axis=0)
    whole = float(np.median(seen.sum(axis=1))) / max(float(each.sum()), 1e-9)
    return np.asarray(each * max(whole, 1.0))


def traced_step(
    step: Step, placement: Placement, local: LocalCluster, worker: Worker, graph: OpGraph, warmup: int
) -> tuple[Timeline, dict[str, str]]:
    """One traced step after `warmup` others, and the types of ops that TensorFlow replaced in it, by name.

    Raises `ExecutionError` when it does not run.
    """
    run = run_placed(step, placement, local, worker, 0, graph, warmup)
    if run.timeline is None:
        raise ExecutionError(f"step {step.name!r} gave no trace")
    return run.timeline, run.info["replaced"]


def run_placed(
    step: Step, placement: Placement, local: LocalCluster, worker: Worker, steps: int, graph: OpGraph,
    warmup: int = SETTLED,
) -> Run:  # fmt: skip
    """Run the step on the cluster; `info["all_seconds"]` has every step. `ExecutionError` when it does not end ok."""
    run = execute(
        step, placement, steps, warmup=warmup, traced=1, cluster=local, graph=graph, worker=worker, progress=False
    )
    if run.status != "ok":
        raise ExecutionError(f"step {step.name!r} ended with status {run.status!r}: {run.message}")
    run.info["all_seconds"] = [*run.info["warmup_seconds"], *run.info["traced_seconds"], *run.step_seconds.tolist()]
    return run
