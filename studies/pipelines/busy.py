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
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from baechi_lab.errors import ExecutionError
from baechi_lab.executors import LocalCluster, Worker, execute
from baechi_lab.executors.structure import graph_of
from baechi_lab.executors.tensorflow.calibration import SIZES, Calibration, Cost, cost_of, two_device_step
from baechi_lab.graph import Placement, Step
from baechi_lab.profilers.links import fit_link

if TYPE_CHECKING:
    from tensorflow import Tensor

MESSAGES = 24
SIDE = 256
"""Rows and columns of the matrices whose products lie between messages of a busy worker: about a millisecond each."""
STEPS = 12


def busy_messages(local: LocalCluster, worker: Worker) -> NDArray[np.float64]:
    """float64[sizes, 3], microseconds per message of each of `SIZES`: of the sender's and the receiver's processor, on the way.

    Raises `ExecutionError` when a made-up step does not run.
    """
    cost = partial(cost_of, local, worker, STEPS)
    return np.array([(*_ends(cost, size), np.median(_arrivals(size, local, worker))) for size in SIZES])


def with_busy_messages(costs: Calibration, message_costs: Sequence[NDArray[np.float64]]) -> Calibration:
    """`costs` with messages as they are between busy workers; nothing is added for cold caches, which are so already.

    Args:
        message_costs: what `busy_messages` found, once or several times: single differences of two steps may be far off where the
            cores change their pace between the two.

    >>> from baechi_lab.graph import Link
    >>> free = Link(0.0, 0.0)
    >>> seen = np.array([[30.0, 20.0, 90.0]] * len(SIZES))
    >>> costs = with_busy_messages(Calibration(1.0, 0.0, free, free, free, 1.0), [seen, seen + 500.0, seen])
    >>> [round(link.cost_us(4), 3) for link in (costs.send, costs.receive, costs.wire)]
    [30.0, 20.0, 40.0]
    """
    send, receive, wire = np.maximum(np.median(np.array(message_costs), axis=0), 0.1).T
    end_costs = fit_link(SIZES, send)[0], fit_link(SIZES, receive)[0]
    wires = [
        max(us - sum(end.cost_us(size) for end in end_costs), 0.1)
        for size, us in zip(SIZES, wire.tolist(), strict=True)
    ]
    return replace(costs, send=end_costs[0], receive=end_costs[1], wire=fit_link(SIZES, wires)[0], cooled=())


def _ends(cost: Callable[[Step, int], Cost], size: int) -> tuple[float, float]:
    """Microseconds of processor time that a message takes of a sender and of a receiver that both make products."""
    stays, crosses_devices = (
        cost(stream_step(MESSAGES, size, crosses_devices, two_streams=True), 2).cpu_us
        for crosses_devices in (False, True)
    )
    send_us, receive_us = ((b - a) / MESSAGES for a, b in zip(stays, crosses_devices, strict=True))
    return send_us, receive_us


def _arrivals(size: int, local: LocalCluster, worker: Worker) -> np.ndarray:
    """Microseconds from the end of the op that has a tensor to its arrival, per message of one traced step."""
    step = stream_step(MESSAGES, size)
    graph = graph_of(step)
    placement = Placement(device=np.array([int(name[1]) for name in graph.names], dtype=np.int32))
    run = execute(step, placement, 1, warmup=2, traced=1, cluster=local, graph=graph, worker=worker, progress=False)
    if run.status != "ok" or run.timeline is None:
        raise ExecutionError(f"step {step.name!r} ended with status {run.status!r}: {run.message}")
    end_us = dict(zip(run.timeline.op.tolist(), run.timeline.end_us.tolist(), strict=True))
    transfers = run.timeline.transfers
    rows = zip(transfers.tensor.tolist(), transfers.end_us.tolist(), strict=True)
    producer = run.timeline.tensor_producer
    names = [(graph.names[producer[t]], int(producer[t]), end) for t, end in rows]
    return np.array([max(end - end_us[op], 0.0) for name, op, end in names if name.startswith("d0_send")][:-1])


def stream_step(messages: int, size: int, crosses: bool = True, two_streams: bool = False) -> Step:
    """A chain of products on device 0. After each one, a tensor of `size` bytes goes to device 1 if `crosses`.

    With `two_streams`, device 1 computes a chain of products of its own at the same time.
    """
    name = f"{messages} messages of {size} bytes that {'go' if crosses else 'stay'}, between products"
    return two_device_step(name, partial(_stream, messages, size, crosses, two_streams))


def _stream(messages: int, size: int, crosses: bool, two_streams: bool, raw: ModuleType) -> Tensor:
    value = [
        raw.Fill(dims=[SIDE, SIDE], value=np.float32(1 / SIDE), name=f"d{d}_matrix") for d in range(1 + two_streams)
    ]
    matrix = list(value)
    source = raw.Fill(dims=[size // 4], value=np.float32(1), name="d0_source")
    outputs = []
    for i in range(messages):
        value = [
            raw.MatMul(a=a, b=b, name=f"d{d}_product{i}") for d, (a, b) in enumerate(zip(value, matrix, strict=True))
        ]
        with source.graph.control_dependencies([value[0].op]):
            sent_tensor = raw.Identity(input=source, name=f"d0_send{i}")
        outputs.append(raw.Identity(input=sent_tensor, name=f"d{int(crosses)}_receive{i}"))
    for d, last in enumerate(value):
        outputs.append(
            raw.Slice(
                input=last,
                begin=raw.Fill(dims=[2], value=0, name=f"d{d}_begin"),
                size=raw.Fill(dims=[2], value=1, name=f"d{d}_size"),
                name=f"d{d}_last",
            )
        )
    return raw.IdentityN(input=outputs, name=f"d{int(crosses)}_all")[0]
