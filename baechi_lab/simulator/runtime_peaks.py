"""Peaks of devices if the framework runs the step in another order than the schedule.

A schedule sends a tensor as soon as its link is free, and devices work at the same time. TensorFlow's workers send late: a
worker whose core computes sends when it has nothing left to compute, and its outputs stay in its memory until then;
the receiver takes arriving tensors at once. They promise no order of ops: one thread runs the op that became ready
last (`executor_order`); several run gradients of weights when nothing else is left, as a schedule by critical
paths does. A worker may also be slow, so that copies wait for it. The largest peak counts.

PyTorch's host calls one layer after another, whichever device it is on, and allocates and frees memory in that order. So for a
graph in code order, each op takes one turn here, and tensors are sent when the turn of their producer is over. A call of
`torch.autograd.grad` in a forward pass is one op, on one device. But autograd runs the backward pass of each layer where the
layer is. So what that op holds may be on any device that has a layer before it, and is added there.
O((ops + edges + transfers) log).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, Link, OpGraph, Timeline
from ..graph.kernels.csr import inverse
from ..graph.units import format_bytes
from ..memory.code_order import code_order, has_code_order
from .buffer_reuse import apply_buffer_reuse
from .executor_order import executor_orders, has_executor_order

SLOWDOWN = 16
"""How much slower than simulated a worker may be. Measured peaks of two workers on a busy machine lie below those at 16."""


_INNER_GRADIENT = "grad"
"""Type of the op of `torch.autograd.grad` in the forward pass of a PyTorch model."""

_EXECUTOR_ORDERS: WeakKeyDictionary[OpGraph, tuple[NDArray[np.int64], ...]] = WeakKeyDictionary()
"""Graph -> its orders. A search simulates the same graph many times."""


def runtime_peaks(
    graph: OpGraph,
    cluster: Cluster,
    timeline: Timeline,
    simulate_order: Callable[[Cluster, str, NDArray[np.int64] | None], Timeline] | None = None,
) -> NDArray[np.int64]:
    """Returns int64[devices]: peak bytes as the graph's framework may have them; at least those of `timeline`.

    `simulate_order` returns the timeline on a cluster, under a scheduler and a planned order, with memory by the plain rules;
    None if the order of ops is enforced.
    """
    if has_code_order(graph):
        turn_of_op = inverse(code_order(graph)).astype(np.float64)
        sent_us = turn_of_op[graph.tensor_producer[timeline.transfers.tensor]] + 1.0
        in_turns = dataclasses.replace(
            timeline,
            start_us=turn_of_op[timeline.op],
            end_us=turn_of_op[timeline.op] + 1.0,
            transfers=dataclasses.replace(timeline.transfers, start_us=sent_us, receive_us=sent_us, end_us=sent_us),
            info={},
        )
        peaks = np.maximum(timeline.peak_bytes, apply_buffer_reuse(graph, cluster, in_turns).peak_bytes)
        return peaks + _inner_gradient_bytes(graph, timeline)
    peaks = late_send_peaks(graph, cluster, timeline)
    if simulate_order is not None and has_executor_order(graph):
        orders = _EXECUTOR_ORDERS.get(graph)
        if orders is None:
            orders = _EXECUTOR_ORDERS[graph] = executor_orders(graph)
        latest_durations = list(graph.latest_durations)
        timelines = [simulate_order(cluster, "pct", None)]
        for slowed_cluster in (cluster, *_with_slow_devices(cluster)):
            timelines += [simulate_order(slowed_cluster, "planned", order) for order in orders]
        graph.latest_durations[:] = latest_durations  # those of `cluster`, for whoever simulates next
        for timeline_in_order in timelines:
            # A tensor that is sent late is live for longer, so the peak without delay is not above this one, but for ties.
            delayed_timeline = _send_late(graph, cluster, timeline_in_order)
            peaks = np.maximum(peaks, apply_buffer_reuse(graph, cluster, delayed_timeline).peak_bytes)
    return peaks


def _inner_gradient_bytes(graph: OpGraph, timeline: Timeline) -> NDArray[np.int64]:
    """Returns int64[devices]: bytes of gradients within the forward pass that may be there, though their op is elsewhere."""
    extra_bytes = np.zeros(len(timeline.device_names), dtype=np.int64)
    grad_ops = [op for op, op_type in enumerate(graph.op_types) if op_type == _INNER_GRADIENT]
    if not grad_ops:
        return extra_bytes
    device_of_op = np.full(graph.n, -1, dtype=np.int64)
    device_of_op[timeline.op] = timeline.device
    output_bytes = np.bincount(graph.tensor_producer, graph.tensor_bytes, graph.n).astype(np.int64)
    first_producer, producers = graph.predecessors
    for op in grad_ops:
        ancestors: set[int] = set()
        waiting = [op]
        while waiting:
            reader = waiting.pop()
            inputs = set(producers[first_producer[reader] : first_producer[reader + 1]].tolist()) - ancestors
            ancestors |= inputs
            waiting += inputs
        backward_ops = np.flatnonzero(graph.forward_of == op)
        backward_bytes = int((output_bytes + graph.temp_bytes)[backward_ops].sum())
        op_bytes = int(output_bytes[op]) + max(int(graph.temp_bytes[op]), backward_bytes)
        other_devices = {int(device_of_op[ancestor]) for ancestor in ancestors} - {int(device_of_op[op]), -1}
        extra_bytes[sorted(other_devices)] += op_bytes
    return extra_bytes


def _with_slow_devices(cluster: Cluster) -> Iterator[Cluster]:
    """Yields clusters with free links and some slow devices. Of each two devices, one alone is slow in one of them."""
    for bit in range((cluster.n - 1).bit_length()):
        for slow in (0, 1):
            devices = (
                dataclasses.replace(device, speed=device.speed / (SLOWDOWN if d >> bit & 1 == slow else 1))
                for d, device in enumerate(cluster.devices)
            )
            yield cluster.replace(devices=tuple(devices), link=Link(0.0, 0.0), comm="parallel")


def late_send_peaks(graph: OpGraph, cluster: Cluster, timeline: Timeline) -> NDArray[np.int64]:
    """Returns int64[devices]: peak bytes where a device sends only when its ops leave it idle; at least the timeline's own.

    A tensor is held until the busy time of its sender is over, and a copy from the moment at which its tensor is produced. Ops
    keep their times. Measured peaks of workers under placements that keep one device busy lie between both.

    Op `a` is sent while `b` runs; late, it is still there when `c` makes its output:

    >>> from baechi_lab import Link, Placement, simulate
    >>> edges = [(0, 4, 30), (1, 2, 4), (2, 3, 40)]
    >>> graph = OpGraph.from_edges([1, 5, 1, 1, 1], edges, names=["a", "b", "c", "d", "reader"]).replace(reuse=[0] * 5)
    >>> cluster = Cluster.uniform(2, link=Link(1.0, 0.0))
    >>> timeline = simulate(graph, cluster, Placement(device=[0, 0, 0, 0, 1]))
    >>> timeline.peak_bytes.tolist(), late_send_peaks(graph, cluster, timeline).tolist()
    ([44, 30], [74, 30])
    """
    if not len(timeline.transfers):
        return timeline.peak_bytes
    delayed_timeline = _send_late(graph, cluster, timeline)
    return np.maximum(timeline.peak_bytes, apply_buffer_reuse(graph, cluster, delayed_timeline).peak_bytes)


def _send_late(graph: OpGraph, cluster: Cluster, timeline: Timeline) -> Timeline:
    """Returns the timeline with the transfers of `late_send_peaks`."""
    transfers = timeline.transfers
    produced_us = np.zeros(graph.n)
    produced_us[timeline.op] = timeline.end_us
    receive_us = np.minimum(transfers.receive_us, produced_us[graph.tensor_producer[transfers.tensor]])
    end_us = transfers.end_us.copy()
    for device in range(cluster.n):
        sends = np.flatnonzero(transfers.source == device)
        if len(sends):
            time_us = end_us[sends]
            rows = np.flatnonzero(timeline.device == device)
            rows = rows[np.argsort(timeline.start_us[rows], kind="stable")]
            if len(rows):
                start, end = timeline.start_us[rows], np.maximum.accumulate(timeline.end_us[rows])
                pause = np.flatnonzero(start[1:] > end[:-1])
                busy_from, busy_until = start[np.r_[0, pause + 1]], end[np.r_[pause, len(end) - 1]]
                period = np.searchsorted(busy_from, time_us, side="right") - 1
                within = (period >= 0) & (time_us <= busy_until[period])
                end_us[sends] = np.where(within, busy_until[period], time_us)
    return dataclasses.replace(timeline, transfers=dataclasses.replace(transfers, receive_us=receive_us, end_us=end_us))


def notes_on_runtime_peaks(timeline: Timeline) -> list[str]:
    """Returns a sentence per device that fits its memory in the simulation and may exceed it in the framework."""
    return [
        f"{timeline.device_names[d]} fits by the simulation, with {format_bytes(int(timeline.peak_bytes[d]))}, but may need "
        f"{format_bytes(int(timeline.runtime_peak_bytes[d]))} of its {format_bytes(int(timeline.memory_bytes[d]))} when the "
        "framework runs it (peak_margin)"
        for d in timeline.devices_in_doubt
    ]
