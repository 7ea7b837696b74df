"""Peak memory of devices in a step that runs in the order of TensorFlow's executor (see `executor`)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from ..executors.tensorflow.calibration import Calibration
from ..graph import Cluster, MemoryLog, OpGraph, Placement, Timeline, Transfers
from ..simulator.buffer_reuse import apply_buffer_reuse
from .executor import RECEIVE_MODES, Execution, executions_in_orders
from .message_costs import crossing, wire_us, with_shared_caches
from .update_memory import temporaries

ORDERS = 48
"""Number of start orders, of which the largest peak counts. The order differs per session; in up to half of the orders,
gradients wait for learning rates until the end. Three rounds of `RECEIVE_MODES`, twice. A mean time needs fewer orders."""
COPY_RETAINED_US = 100.0
"""Microseconds for which a received copy cannot be overwritten. An op that waits for a tensor may start before the receiving
thread has released it, and its output then needs new memory. In traces of Inception, VGG16, DenseNet121, Xception and
MobileNetV2 this happens for 17 % of 876 ops that start within 200 us after the copy, and for 3 of 550 that start after 200 to
1000 us. Simulated ops start at once, or later by an op."""


def predicted_timelines(
    graph: OpGraph,
    cluster: Cluster,
    placement: Placement,
    calibration: Calibration,
    beside_us: NDArray[np.float64] | None = None,
) -> list[Timeline]:
    """Returns timelines of the step with memory, in `ORDERS` start orders.

    A tensor stays until it was sent, and a busy worker sends late: devices hold more than under a scheduler. Updates copy
    variables that are still read (see `update_memory`). Results are written over received copies; in every second round of
    `RECEIVE_MODES`, only over copies that have been there for `COPY_RETAINED_US`. `beside_us`: as in `predicted_us`.
    Tensors arrive while an op runs.
    """
    extended_graph, extended_placement = with_shared_caches(graph, placement, calibration, beside_us)
    wire, plain = wire_us(extended_graph, graph.n, calibration), graph
    if graph.reuse is None:
        plain = graph.replace(reuse=np.zeros(graph.n, dtype=np.int8))
    orders = executions_in_orders(extended_graph, extended_placement, graph.n, wire, ORDERS)
    lines = [_timeline(graph, extended_graph, cluster, extended_placement.device, execution) for execution in orders]
    return [
        apply_buffer_reuse(
            plain.replace(temp_bytes=temporaries(graph, line)),
            cluster,
            line,
            over_copies_us=COPY_RETAINED_US * holds_copies,
        )
        for line, holds_copies in zip(lines, cycle([0] * len(RECEIVE_MODES) + [1] * len(RECEIVE_MODES)), strict=False)
    ]


def fullest(timelines: Iterable[Timeline], device: int) -> Timeline:
    """Returns the timeline with the largest peak of the device."""
    return max(timelines, key=lambda line: int(line.peak_bytes[device]))


def _timeline(
    graph: OpGraph, extended_graph: OpGraph, cluster: Cluster, device: NDArray[np.int32], execution: Execution
) -> Timeline:
    """Returns ops and transfers of a step. A copy exists during the last part of receiving, after the data has arrived."""
    start_us, end_us = execution
    ready_us = np.zeros(extended_graph.n)
    np.maximum.at(ready_us, extended_graph.consumers, end_us[extended_graph.edge_source])
    made_us = np.maximum(end_us - extended_graph.duration_us, ready_us)
    tensor, target = crossing(graph, device[: graph.n])
    receive = graph.n + len(tensor)
    transfers = Transfers(
        tensor=tensor,
        source=device[graph.tensor_producer[tensor]],
        target=target,
        start_us=start_us[graph.n : receive],
        receive_us=made_us[receive:],
        end_us=end_us[receive:],
    )
    return Timeline(
        op=np.arange(graph.n),
        device=device[: graph.n],
        start_us=start_us[: graph.n],
        end_us=end_us[: graph.n],
        transfers=transfers,
        memory=MemoryLog.none(),
        peak_bytes=np.zeros(cluster.n, dtype=np.int64),
        makespan_us=float(end_us.max(initial=0.0)),
        origin="simulated",
        op_names=graph.names,
        device_names=tuple(d.name for d in cluster.devices),
        memory_bytes=cluster.memory_bytes,
        tensor_producer=graph.tensor_producer,
        tensor_bytes=graph.tensor_bytes,
    )
