"""Adds to the simulator's inputs the costs that a kernel profile lacks.

Sending and receiving take processor time of workers without transfer engines. This is LogGP's model (o on the processors, L and
G between them), expressed in a graph and a cluster, without any factor fitted to measured steps. `with_messages` adds an op for
both ends of every message; `executor` describes the order in which a worker runs them. `Link.overhead_us` has one figure for
both ends, so a cluster of `bl.measure_cluster` simulates the overhead without a calibration.

The more kernels a device has run since it last sent or received, the fewer data of the runtime are in its caches, and the longer
sending or receiving takes: `cooled` of the calibration. The kernel time since then comes from a simulation without this cost.
Workers also share caches and memory bandwidth: a kernel takes longer, the larger the share of its time in which another device
works (`beside_us`: its time if another device always works).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..executors.tensorflow.calibration import Calibration
from ..graph import OpGraph, Placement
from .executor import executions_in_orders

PASSES = 2
"""How often a step is simulated again with the message costs from the previous simulation."""
DRAWS = 5
"""Number of start orders of a step over which a prediction averages."""


def with_messages(graph: OpGraph, placement: Placement, calibration: Calibration) -> tuple[OpGraph, Placement]:
    """Returns `graph` with a sending and a receiving op for every message under this placement, and the extended placement.

    Only times are modelled: no tensor has bytes except those between sending and receiving ops.
    """
    device = placement.on(graph).device.astype(np.int64)
    crosses = device[graph.edge_source] != device[graph.consumers]
    message, message_of_edge = np.unique(_messages(graph, device, crosses), return_inverse=True)
    tensor, target = message // _count(device), message % _count(device)
    producer, size = graph.tensor_producer[tensor], graph.tensor_bytes[tensor]
    send, receive = graph.n + np.arange(len(message)), graph.n + len(message) + np.arange(len(message))
    message_us = [link.latency_us + link.us_per_byte * size for link in (calibration.send, calibration.receive)]
    kernel_us = np.maximum(graph.duration_us + calibration.op_us, 0.0)
    edges: list[tuple[Any, Any, Any]] = [
        (graph.edge_source[~crosses], graph.consumers[~crosses], 0),
        (producer, send, 0),
        (send, receive, size),
        (receive[message_of_edge], graph.consumers[crosses], 0),
    ]
    rows = np.concatenate([np.stack(np.broadcast_arrays(*edge), axis=1) for edge in edges])
    types = (*graph.op_types, *("_Send",) * len(message), *("_Recv",) * len(message))
    with_ends = OpGraph.from_edges(np.concatenate([kernel_us, *message_us]), rows, op_types=types)
    return with_ends, Placement(device=np.concatenate([device, device[producer], target]))


def crossing(graph: OpGraph, device: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns tensor and receiving device of every message, in the order of `with_messages`."""
    device_index = device.astype(np.int64)
    message = np.unique(
        _messages(graph, device_index, device_index[graph.edge_source] != device_index[graph.consumers])
    )
    return message // _count(device_index), message % _count(device_index)


def _count(device: NDArray[np.int64]) -> int:
    return int(device.max(initial=0)) + 1


def _messages(graph: OpGraph, device: NDArray[np.int64], crosses: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Returns a key per crossing edge. Readers of one tensor on one device have the same key."""
    return np.asarray(graph.edge_tensor[crosses] * _count(device) + device[graph.consumers[crosses]])


def predicted_us(
    graph: OpGraph, placement: Placement, calibration: Calibration, beside_us: NDArray[np.float64] | None = None
) -> float:
    """Returns the step time in microseconds on single-threaded TensorFlow workers, with the runtime's overheads.

    It is the mean over `DRAWS` start orders (see `executor`). `beside_us`: float64[n], each op's time while another device
    works; by default its duration.
    """
    extended_graph, extended_placement = with_shared_caches(graph, placement, calibration, beside_us)
    message_wire_us = wire_us(extended_graph, graph.n, calibration)
    times = [
        execution.end_us.max(initial=0.0)
        for execution in executions_in_orders(extended_graph, extended_placement, graph.n, message_wire_us, DRAWS)
    ]
    return float(np.mean(times)) + calibration.step_us


def with_shared_caches(
    graph: OpGraph, placement: Placement, calibration: Calibration, beside_us: NDArray[np.float64] | None = None
) -> tuple[OpGraph, Placement]:
    """Adds what `with_messages` adds, and the extra time of messages after kernels and of kernels while other devices work."""
    warm_graph, extended_placement = with_messages(graph, placement, calibration)
    extended_graph, message_wire_us = warm_graph, wire_us(warm_graph, graph.n, calibration)
    longer = np.zeros(warm_graph.n)
    if beside_us is not None:
        longer[: graph.n] = beside_us - graph.duration_us
    for _ in range(PASSES if calibration.cooled or longer.any() else 0):
        execution = executions_in_orders(extended_graph, extended_placement, graph.n, message_wire_us, 1)[0]
        # Extra time of the ends of messages, which are the ops from `graph.n` on; those that send come first.
        extra_us = np.zeros(len(execution.end_us))
        receives = (graph.n + len(extra_us)) // 2
        for current in range(int(extended_placement.device.max(initial=-1)) + 1):
            op = np.flatnonzero(extended_placement.device == current)
            op = op[np.argsort(execution.end_us[op], kind="stable")]
            run = np.cumsum(np.where(op < graph.n, extended_graph.duration_us[op], 0.0))
            for kind in ((graph.n <= op) & (op < receives), op >= receives):
                extra_us[op[kind]] = [calibration.cold_us(us) for us in np.diff(run[kind], prepend=0.0).tolist()]
        extra_us += longer * share_beside_others(*execution, extended_placement.device)
        extended_graph = warm_graph.replace(
            duration_us=np.maximum(warm_graph.duration_us + extra_us, 0.0), duration_by_kind={}
        )
    return extended_graph, extended_placement


def share_beside_others(
    start_us: NDArray[np.float64], end_us: NDArray[np.float64], device: NDArray[np.int32]
) -> NDArray[np.float64]:
    """Returns float64[ops]: the share of each op's time in which another device works.

    >>> share_beside_others(np.array([0.0, 4.0]), np.array([10.0, 14.0]), np.array([0, 1])).tolist()
    [0.6, 0.6]
    """
    share = np.zeros(len(end_us))
    for current in np.unique(device).tolist():
        own_ops, order = np.flatnonzero(device == current), np.argsort(start_us, kind="stable")
        other_ops = order[device[order] != current]
        if not len(other_ops):
            continue
        until = np.maximum.accumulate(end_us[other_ops])
        since = np.maximum(start_us[other_ops], np.concatenate([[-np.inf], until[:-1]]))
        times = np.stack([since, until], axis=1).ravel()
        worked_us = np.cumsum(np.stack([np.zeros(len(other_ops)), until - since], axis=1).ravel())
        busy_us = np.interp(end_us[own_ops], times, worked_us) - np.interp(start_us[own_ops], times, worked_us)
        share[own_ops] = busy_us / np.maximum(end_us[own_ops] - start_us[own_ops], 1e-9)
    return share


def wire_us(extended_graph: OpGraph, kernels: int, calibration: Calibration) -> NDArray[np.float64]:
    """Returns float64[messages]: time between the two ends, negative if they overlap."""
    sends = (extended_graph.n - kernels) // 2
    size = np.zeros(sends)
    message = extended_graph.tensor_producer - kernels
    is_message = (message >= 0) & (message < sends)
    size[message[is_message]] = extended_graph.tensor_bytes[is_message]
    wire, overlap = calibration.wire, calibration.overlap
    return np.asarray(wire.latency_us - overlap.latency_us + (wire.us_per_byte - overlap.us_per_byte) * size)
