"""What devices hold at most in a step that runs in the order of TensorFlow's executor (see `executor`)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from ..executors.tensorflow.calibration import Calibration
from ..graph import Cluster, MemoryLog, OpGraph, Placement, Timeline, Transfers
from ..simulator.buffer_reuse import apply_buffer_reuse
from .charging import crossing, wire_us, with_shared_caches
from .executor import WAYS, Ran, in_orders
from .updates import temporaries

ORDERS = 48
"""Orders of what a step begins with, of which the largest peak counts. TensorFlow draws one per session: with up to half of
them gradients wait for learning rates until the end. Three rounds of `WAYS`, twice; a mean time needs fewer."""
HELD_US = 100.0
"""An op that waits for a tensor may begin before the thread that received it has let go of it: then its result needs bytes of
its own. In traces of Inception, VGG16, DenseNet121, Xception and MobileNetV2 that is so for 17 % of 876 ops that begin within
200 us of what they could write over, and for 3 of 550 that begin after 200 to 1000 us. Simulated ops begin at once, or later
by an op."""


def predicted_timelines(
    graph: OpGraph,
    cluster: Cluster,
    placement: Placement,
    calibration: Calibration,
    beside_us: NDArray[np.float64] | None = None,
) -> list[Timeline]:
    """The step with its memory, in `ORDERS` orders in which it may begin.

    A tensor that was not sent yet stays, and a busy worker sends late: devices hold more than under a scheduler. Updates
    copy variables that are still read (see `updates`), and results are written over received copies, in every second round of
    `WAYS` only once these have been there for `HELD_US`. `beside_us`: as in `predicted_us`; tensors come while an op runs.

    >>> from baechi_lab.graph import Link
    >>> costs = Calibration(0.0, 0.0, Link(1.0, 0.0), Link(1.0, 0.0), Link(0.0, 0.0), 1.0)
    >>> graph = OpGraph.from_edges([1.0, 1.0, 9.0, 9.0], [(0, 1, 50), (0, 2, 8), (2, 3, 70)])
    >>> lines = predicted_timelines(graph, Cluster.uniform(2), Placement(device=[0, 1, 0, 0]), costs)
    >>> [int(fullest(lines, device).peak_bytes[device]) for device in (0, 1)]  # the 50 bytes leave after 2 and 3
    [128, 50]
    """
    both, placed = with_shared_caches(graph, placement, calibration, beside_us)
    wire, plain = wire_us(both, graph.n, calibration), graph
    if graph.reuse is None:
        plain = graph.replace(reuse=np.zeros(graph.n, dtype=np.int8))
    orders = in_orders(both, placed, graph.n, wire, ORDERS)
    lines = [_timeline(graph, both, cluster, placed.device, ran) for ran in orders]
    return [
        apply_buffer_reuse(
            plain.replace(temp_bytes=temporaries(graph, line)), cluster, line, over_copies_us=HELD_US * held
        )
        for line, held in zip(lines, cycle([0] * len(WAYS) + [1] * len(WAYS)), strict=False)
    ]


def fullest(timelines: Iterable[Timeline], device: int) -> Timeline:
    """That in which the device holds most."""
    return max(timelines, key=lambda line: int(line.peak_bytes[device]))


def _timeline(graph: OpGraph, both: OpGraph, cluster: Cluster, device: NDArray[np.int32], ran: Ran) -> Timeline:
    """Ops and transfers of a step. A copy is made when what was sent is there: it is held for the end of what receiving takes."""
    start_us, end_us = ran
    ready_us = np.zeros(both.n)
    np.maximum.at(ready_us, both.consumers, end_us[both.edge_source])
    made_us = np.maximum(end_us - both.duration_us, ready_us)
    tensor, target = crossing(graph, device[: graph.n])
    receive = graph.n + len(tensor)
    transfers = Transfers(
        tensor, device[graph.tensor_producer[tensor]], target, start_us[graph.n : receive], made_us[receive:],
        end_us[receive:],
    )  # fmt: skip
    return Timeline(
        op=np.arange(graph.n), device=device[: graph.n], start_us=start_us[: graph.n], end_us=end_us[: graph.n],
        transfers=transfers, memory=MemoryLog.none(), peak_bytes=np.zeros(cluster.n, dtype=np.int64),
        makespan_us=float(end_us.max(initial=0.0)), origin="simulated", op_names=graph.names,
        device_names=tuple(d.name for d in cluster.devices), memory_bytes=cluster.memory_bytes,
        tensor_producer=graph.tensor_producer, tensor_bytes=graph.tensor_bytes,
    )  # fmt: skip
