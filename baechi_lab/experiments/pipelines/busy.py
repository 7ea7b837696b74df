"""What messages and kernels take on workers that are all busy.

A message from a worker that goes on computing: its network threads wait for a turn on the only core. The fidelity study's
calibration times messages between workers that do nothing else; in a pipeline the sender is at its next unit, and the
operating system lets that run for a while before it sends. Measured with a made-up step of products. A kernel: its
neighbours share caches and memory with it. Measured with two micro-batches that know nothing of each other. None of the
steps that are predicted is looked at.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...errors import ExecutionError
from ...executors import LocalCluster, Worker, execute
from ...executors.structure import graph_of
from ...executors.tensorflow.calibration import SIZES, Calibration, busy_step
from ...executors.tensorflow.pipelining import pipelined_step
from ...graph import OpGraph, Placement, Step
from ...passes.unroll import ACCUMULATE
from ...profilers import profile
from ...profilers.links import fit_link

MESSAGES = 24
RUNS = 3


def busy_calibration(costs: Calibration, local: LocalCluster, worker: Worker) -> Calibration:
    """`costs` with the wire as it is from a busy sender, what sender and receiver are charged taken off.

    Raises `ExecutionError` when a made-up step does not run.
    """
    wires = []
    for size in SIZES:
        took = float(np.median(np.concatenate([_arrivals(size, local, worker) for _ in range(RUNS)])))
        wires.append(max(took - costs.send.cost_us(size) - costs.receive.cost_us(size), 0.1))
    return replace(costs, wire=fit_link(SIZES, wires)[0])


def _arrivals(size: int, local: LocalCluster, worker: Worker) -> np.ndarray:
    """Microseconds from the end of the op that has a tensor to its arrival, per message of one traced step."""
    step = busy_step(MESSAGES, size)
    graph = graph_of(step)
    placed = Placement(device=np.array([int(name[1]) for name in graph.names], dtype=np.int32))
    run = execute(step, placed, 1, warmup=2, traced=1, cluster=local, graph=graph, worker=worker, progress=False)
    if run.status != "ok" or run.timeline is None:
        raise ExecutionError(f"step {step.name!r} ended with status {run.status!r}: {run.message}")
    ended = dict(zip(run.timeline.op.tolist(), run.timeline.end_us.tolist(), strict=True))
    moved = run.timeline.transfers
    rows = zip(moved.tensor.tolist(), moved.end_us.tolist(), strict=True)
    producer = run.timeline.tensor_producer
    names = [(graph.names[producer[t]], int(producer[t]), end) for t, end in rows]
    return np.array([max(end - ended[op], 0.0) for name, op, end in names if name.startswith("d0_send")][:-1])


def busy_graph(step: Step, local: LocalCluster, worker: Worker, traces: int = 9) -> OpGraph:
    """The step's graph with durations as worker 0 takes them while worker 1 runs the same step: the median over traces.

    In a pipeline both work at a time, and share memory bandwidth and caches. Two micro-batches without a schedule are run,
    one on each. Raises `ExecutionError` when the step does not run.
    """
    shape = profile(step, mode="estimated", hardware="cpu-core")
    alone = Placement(device=np.zeros(shape.n, dtype=np.int32))
    twice = pipelined_step(step, alone, local.cluster, shape, 2, None, "mean")
    added = np.array([kind == ACCUMULATE for kind in twice.graph.op_types])
    second = (np.asarray(twice.graph.micro_batch) == 1) & ~added
    apart = Placement(device=second.astype(np.int32))
    origin = np.asarray(twice.graph.copy_of)
    seen = np.zeros((traces, shape.n))
    for index in range(traces):
        run = execute(
            twice.step, apart, 0, warmup=1, traced=1, cluster=local, graph=twice.graph, worker=worker, progress=False
        )
        if run.status != "ok" or run.timeline is None:
            raise ExecutionError(f"step {step.name!r} ended with status {run.status!r}: {run.message}")
        timeline = run.timeline
        mine = ~second[timeline.op] & ~added[timeline.op]
        seen[index, origin[timeline.op[mine]]] = (timeline.end_us - timeline.start_us)[mine]
    return shape.replace(duration_us=np.median(seen, axis=0), duration_by_kind={})
