"""Peak memory of devices in a step that runs in the order of TensorFlow's executor (see `executor`).

An update of a variable needs temporary memory for a copy of it if its old value is still in use. TensorFlow's dense updates
write into the variable's memory if no one else uses it, and otherwise into a copy (`PrepareToUpdateVariable`). A read returns
the memory itself and no copy. So it depends on the order of a step, and on the placement, whether a reader or a send is still
running when the update starts. A profile only shows its own order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from ..executors.tensorflow.calibration import Calibration
from ..graph import Cluster, MemoryLog, OpGraph, Placement, Timeline, Transfers
from ..graph.opgraph import CONTROL_BYTES, VIEW
from ..simulator.buffer_reuse import apply_buffer_reuse
from .executor import RECEIVE_MODES, Execution, executions_in_orders
from .message_costs import crossing, wire_us, with_shared_caches

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
    variables that are still read (see the module). Results are written over received copies; in every second round of
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


DENSE = re.compile(r"Assign(Add|Sub)VariableOp|ResourceApply\w+")
"""Types of updates that may copy. For sparse updates the reads copy instead; assignments bring their own value."""
HANDLE, READ = "VarHandleOp", "ReadVariableOp"
ROUNDING_US = 1e-6  # by which times of a simulated timeline may be off


def temporaries(graph: OpGraph, line: Timeline) -> NDArray[np.int64]:
    """Returns int64[n]: `temp_bytes` of the ops, with those of updates adjusted to the order of a simulated timeline."""
    temp_bytes = graph.temp_bytes.copy()
    start, end = np.zeros(graph.n), np.zeros(graph.n)
    start[line.op], end[line.op] = line.start_us, line.end_us
    # The end of the last use of every op's output on its device, uses of views and sends included.
    until, device = end.copy(), np.zeros(graph.n, dtype=np.int64)
    device[line.op] = line.device
    np.maximum.at(until, graph.tensor_producer[line.transfers.tensor], line.transfers.end_us)
    data = graph.tensor_bytes[graph.edge_tensor] > CONTROL_BYTES
    edges = np.flatnonzero(data & (device[graph.edge_source] == device[graph.consumers]))
    # Readers before what they read.
    latest = edges[np.argsort(-graph.position[graph.edge_source[edges]], kind="stable")]
    views = np.zeros(graph.n, dtype=bool) if graph.reuse is None else graph.reuse == VIEW
    for source, reader in zip(graph.edge_source[latest].tolist(), graph.consumers[latest].tolist(), strict=True):
        until[source] = max(until[source], until[reader] if views[reader] else end[reader])
    types, producers, readers = graph.op_types, _sides(graph, reverse=True), _sides(graph)
    for op in (i for i in range(graph.n) if DENSE.fullmatch(types[i])):
        for handle in (i for i in producers[op] if types[i] == HANDLE):
            size = int(graph.persistent_bytes[handle])
            reads = [i for i in readers[handle] if types[i] == READ and end[i] <= start[op] + ROUNDING_US]
            is_read_later = any(until[i] > start[op] + ROUNDING_US for i in reads)
            temp_bytes[op] += size * (int(is_read_later) - int(temp_bytes[op] >= size))
    return temp_bytes


def _sides(graph: OpGraph, reverse: bool = False) -> list[list[int]]:
    """Returns the readers of every op, or in reverse the ops that it reads."""
    near: list[list[int]] = [[] for _ in range(graph.n)]
    for pair in zip(graph.edge_source.tolist(), graph.consumers.tolist(), strict=True):
        source, reader = reversed(pair) if reverse else pair
        near[source].append(reader)
    return near
