"""What messages take from workers that are busy.

A message from a worker that goes on computing: its network threads wait for a turn on the only core. The fidelity study's
calibration times messages between workers that do nothing else; in a pipeline the sender is at its next unit, and the
operating system lets that run for a while before it sends. Measured with a made-up step of products.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...errors import ExecutionError
from ...executors import LocalCluster, Worker, execute
from ...executors.structure import graph_of
from ...executors.tensorflow.calibration import SIZES, Calibration, busy_step
from ...graph import Placement
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
