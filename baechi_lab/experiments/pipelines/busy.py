"""What messages take of workers that are busy, as those of a pipeline are.

The fidelity study's calibration sends a tensor to and fro between workers that do nothing else: every message wakes both
ends. In a pipeline most messages come while both ends compute, their threads being awake. Both are measured with made-up
steps of products: what a message takes of each end's processor while both work, by the processes' clocks, and how long it
is under way from a sender that goes on computing, whose network threads wait for a turn on its only core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ...errors import ExecutionError
from ...executors import LocalCluster, Worker, execute
from ...executors.structure import graph_of
from ...executors.tensorflow.calibration import SIZES, Calibration, Cost, cost_of, stream_step
from ...graph import Link, Placement, Step
from ...profilers.links import fit_link

MESSAGES = 24
RUNS = 3
STEPS = 12


def busy_calibration(costs: Calibration, local: LocalCluster, worker: Worker) -> Calibration:
    """`costs` with messages as they are between busy workers; nothing is added for cold caches, which are so already.

    Raises `ExecutionError` when a made-up step does not run.
    """
    cost = partial(cost_of, local, worker, STEPS)
    send, receive = (_fitted(times) for times in zip(*(_ends(cost, size) for size in SIZES), strict=True))
    wires = []
    for size in SIZES:
        took = float(np.median(np.concatenate([_arrivals(size, local, worker) for _ in range(RUNS)])))
        wires.append(max(took - send.cost_us(size) - receive.cost_us(size), 0.1))
    return replace(costs, send=send, receive=receive, wire=_fitted(wires), cooled=())


def _fitted(times_us: Sequence[float]) -> Link:
    return fit_link(SIZES, times_us)[0]


def _ends(cost: Callable[[Step, int], Cost], size: int) -> tuple[float, float]:
    """Microseconds of processor time that a message takes of a sender and of a receiver that both make products."""
    stays, goes = (cost(stream_step(MESSAGES, size, goes, both=True), 2).cpu_us for goes in (False, True))
    sent, received = (max((b - a) / MESSAGES, 0.1) for a, b in zip(stays, goes, strict=True))
    return sent, received


def _arrivals(size: int, local: LocalCluster, worker: Worker) -> np.ndarray:
    """Microseconds from the end of the op that has a tensor to its arrival, per message of one traced step."""
    step = stream_step(MESSAGES, size)
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
