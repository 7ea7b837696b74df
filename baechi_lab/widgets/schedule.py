"""Analysis of a schedule for the timeline view: the critical chain, idle time and bubbles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph, Timeline
from ..viz.bars import covered_us


@dataclass(frozen=True, eq=False)
class Chain:
    """A critical path of a schedule, in order of time: `ops`, and `transfers` (rows) between them."""

    ops: NDArray[np.int64]
    transfers: NDArray[np.int64]


def critical_chain(graph: OpGraph, timeline: Timeline) -> Chain:
    """Returns the chain of ops and transfers that ends at the makespan, each of which waited for the previous one.

    It is followed back from the op that ends last. Each op started when an input arrived, or when its device's previous op
    ended; the later of both is the previous one (an input if both are equal). O(ops log ops + chain x inputs).
    """
    if len(timeline.op) == 0:
        return Chain(np.zeros(0, np.int64), np.zeros(0, np.int64))
    walk = _Walk(graph, timeline)
    row = int(np.argmax(timeline.end_us))
    ops, transfers = [], []
    while row >= 0:
        ops.append(int(timeline.op[row]))
        row, transfer = walk.cause(row)
        if transfer >= 0:
            transfers.append(transfer)
    return Chain(np.array(ops[::-1], np.int64), np.array(transfers[::-1], np.int64))


class _Walk:
    """Look-ups for one walk: the row of an op, the row before on the device, the transfer of a tensor to a device."""

    def __init__(self, graph: OpGraph, timeline: Timeline):
        self.graph, self.timeline = graph, timeline
        self.row_of = np.full(graph.n, -1, dtype=np.int64)
        self.row_of[timeline.op] = np.arange(len(timeline.op))
        lane = 2 * timeline.device.astype(np.int64) + ~computing(graph, timeline)
        order = np.lexsort((timeline.end_us, timeline.start_us, lane))
        self.before = np.full(len(order), -1, dtype=np.int64)
        same = lane[order][1:] == lane[order][:-1]
        self.before[order[1:][same]] = order[:-1][same]
        transfers = timeline.transfers
        self.transfer = {
            (t, d): k for k, (t, d) in enumerate(zip(transfers.tensor.tolist(), transfers.target.tolist(), strict=True))
        }
        self.is_visited = np.zeros(len(order), dtype=bool)  # zero durations could lead back to a row

    def cause(self, row: int) -> tuple[int, int]:
        """Returns the row for which `row` waited, and the transfer between them; -1 for none."""
        self.is_visited[row] = True
        graph, timeline = self.graph, self.timeline
        pointer, tensors = graph.inputs
        op, device = int(timeline.op[row]), int(timeline.device[row])
        latest_us, latest_row, latest_transfer = 0.0, -1, -1
        for t in tensors[pointer[op] : pointer[op + 1]].tolist():
            producer = int(self.row_of[graph.tensor_producer[t]])
            if producer < 0 or self.is_visited[producer]:
                continue
            transfer = self.transfer.get((t, device), -1)
            arrival_us = float(timeline.transfers.end_us[transfer] if transfer >= 0 else timeline.end_us[producer])
            if latest_row < 0 or arrival_us > latest_us:
                latest_us, latest_row, latest_transfer = arrival_us, producer, transfer
        previous = int(self.before[row])
        if (
            previous >= 0
            and not self.is_visited[previous]
            and (latest_row < 0 or timeline.end_us[previous] > latest_us)
        ):
            return previous, -1
        return latest_row, latest_transfer


@dataclass(frozen=True)
class Idle:
    """Idle time of one device: `share` of the step, and its `bubbles`, the gaps between two of its ops."""

    idle_us: float
    share: float
    bubbles: int
    bubble_us: float
    longest_us: float


def computing(graph: OpGraph, timeline: Timeline) -> NDArray[np.bool_]:
    """Returns bool[rows]: the ops of the timeline that a device computes; the others are collectives, which run beside them."""
    if timeline.op_names == graph.names:
        return ~graph.on_communication_lane[timeline.op]
    collectives = {graph.names[k] for k in np.flatnonzero(graph.on_communication_lane)}
    return np.array([name not in collectives for name in timeline.op_names], dtype=np.bool_)[timeline.op]


def exposed_us(timeline: Timeline, computes: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Returns float64[devices]: the time in which a device runs collectives and computes nothing. O(rows log rows)."""
    exposed_us_of_device = np.zeros(len(timeline.device_names))
    for d in range(len(exposed_us_of_device)):
        on_device = timeline.device == d
        lanes = (on_device & computes, on_device)
        busy = [covered_us(timeline.start_us[rows], timeline.end_us[rows]) for rows in lanes]
        exposed_us_of_device[d] = max(busy[1] - busy[0], 0.0)
    return exposed_us_of_device


def idle(timeline: Timeline, computes: NDArray[np.bool_]) -> tuple[Idle, ...]:
    """Returns the idle time and the bubbles of each device between the rows that it computes.

    The time before its first and after its last op is idle, but no bubble.
    """
    return tuple(_idle_of(timeline, (timeline.device == d) & computes) for d in range(len(timeline.device_names)))


def _idle_of(timeline: Timeline, on_device: NDArray[np.bool_]) -> Idle:
    rows = np.flatnonzero(on_device)
    rows = rows[np.lexsort((timeline.end_us[rows], timeline.start_us[rows]))]
    span = timeline.makespan_us
    gaps: NDArray[np.float64] = np.zeros(0)
    if len(rows):
        end_us = np.maximum.accumulate(timeline.end_us[rows])
        gaps = timeline.start_us[rows][1:] - end_us[:-1]
        # Rounding of a sum of durations is no bubble.
        gaps = gaps[gaps > 1e-9 * max(span, 1.0)]
    busy_us = float((timeline.end_us[rows] - timeline.start_us[rows]).sum())
    idle_us = max(span - busy_us, 0.0)  # a sum of durations may exceed the span by rounding
    share = idle_us / span if span > 0 else 0.0
    return Idle(idle_us, share, len(gaps), float(gaps.sum()), float(gaps.max(initial=0.0)))
