"""Converts a RunMetadata into the arrays of one traced step, with clock offsets removed."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .allocations import allocations, allocator_peaks
from .kernels import Kernel, read_kernels
from .sends import Edge, Send, copies_held_until, hand_overs, read_sends, received_transfers

if TYPE_CHECKING:
    from tensorflow.core.protobuf.config_pb2 import RunMetadata


@dataclass(frozen=True)
class Trace:
    """One traced step: times in microseconds of the first task's clock, ops and devices by index."""

    op: NDArray[np.int32]
    device: NDArray[np.int32]
    start_us: NDArray[np.float64]
    end_us: NDArray[np.float64]
    transfers: NDArray[np.float64]
    """float64[k, 8]: producer, output slot, bytes, source, target, start, end, end of the last op that used the copy."""
    memory: NDArray[np.float64]
    """float64[k, 5]: device, time, category, delta, op; in order of time."""
    in_use: NDArray[np.int64]
    """int64[devices]: most bytes that the device's own allocator took, including rounding; 0 if it has none."""
    offsets_us: NDArray[np.float64]
    """float64[devices]: clock offsets that were removed."""

    def arrays(self) -> tuple[NDArray[np.generic], ...]:
        """Returns the fields in order, to be sent. `Trace(*arrays)` is the inverse."""
        return tuple(getattr(self, f.name) for f in fields(self))

    @property
    def span_us(self) -> float:
        """Microseconds from the first start to the last end of an op."""
        return float(self.end_us.max(initial=0.0) - self.start_us.min(initial=np.inf)) if len(self.op) else 0.0

    def first(self, devices: int) -> Trace:
        """Returns the rows of the first `devices` devices only."""
        op_rows = self.device < devices
        transfer_rows = (self.transfers[:, 3] < devices) & (self.transfers[:, 4] < devices)
        return Trace(
            op=self.op[op_rows],
            device=self.device[op_rows],
            start_us=self.start_us[op_rows],
            end_us=self.end_us[op_rows],
            transfers=self.transfers[transfer_rows],
            memory=self.memory[self.memory[:, 0] < devices],
            in_use=self.in_use[:devices],
            offsets_us=self.offsets_us[:devices],
        )


def read_trace(
    metadata: RunMetadata, names: Sequence[str], device_of_op: NDArray[np.int32], devices: Sequence[str]
) -> Trace:
    """Returns the rows of a RunMetadata for the ops `names`, placed on `device_of_op`; `devices` are full TensorFlow names."""
    op_at = {name: i for i, name in enumerate(names)}
    device_at = {name: i for i, name in enumerate(devices)}
    kernels = read_kernels(metadata, op_at, device_at, device_of_op)
    sends = read_sends(metadata, op_at, device_at)
    arrivals = {
        row.edge: (row.size, row.start_us, row.end_us) for row in received_transfers(metadata, sends, device_at)
    }
    held_until = copies_held_until(metadata, sends, device_at, kernels)
    # The microseconds to subtract from the clock of each device's task.
    matches = [re.search(r"/task:(\d+)", name) for name in devices]
    task = np.array([int(m[1]) if m else 0 for m in matches])
    end_us = {kernel.op: kernel.end_us for kernel in kernels}
    messages = [
        (int(task[sends[edge].source]), int(task[sends[edge].target]), end_us[sends[edge].producer], end)
        for edge, (_, _, end) in arrivals.items()
        if sends[edge].producer in end_us
    ]
    offset = np.array(clock_offsets(messages, int(task.max(initial=0)) + 1))[task]
    table = np.array([(k.op, k.device, k.start_us, k.end_us) for k in kernels], dtype=np.float64).reshape(-1, 4)
    device = table[:, 1].astype(np.int32)
    moves = [
        (*row, held_until[edge] - offset[edge[1]]) for edge, row in _between_tasks(sends, arrivals, kernels, offset)
    ]
    within = {edge: send for edge, send in sends.items() if edge not in arrivals}
    for send, size, start, end in hand_overs(within, kernels):
        shift = offset[send.source]
        moves.append(
            (send.producer, send.slot, size, send.source, send.target, start - shift, end - shift, end - shift)
        )
    moves.sort(key=lambda row: (row[5], row[0], row[4]))
    return Trace(
        op=table[:, 0].astype(np.int32),
        device=device,
        start_us=table[:, 2] - offset[device],
        end_us=table[:, 3] - offset[device],
        transfers=np.array(moves, dtype=np.float64).reshape(-1, 8),
        memory=allocations(kernels, devices, offset),
        in_use=allocator_peaks(kernels, devices),
        offsets_us=offset,
    )


def _between_tasks(
    sends: Mapping[Edge, Send],
    arrivals: Mapping[Edge, tuple[int, float, float]],
    kernels: Sequence[Kernel],
    offset: NDArray[np.float64],
) -> Iterator[tuple[Edge, tuple[float, ...]]]:
    """Yields the transfers with a RecvTensor row. They start by the sender's clock, not before the producer ended."""
    end_us = {kernel.op: kernel.end_us - offset[kernel.device] for kernel in kernels}
    for edge, (size, start, end) in arrivals.items():
        send = sends[edge]
        arrival_us = end - offset[send.target]
        sent_us = min(
            max(start - offset[send.target], end_us.get(send.producer, start - offset[send.target])), arrival_us
        )
        yield edge, (send.producer, send.slot, size, send.source, send.target, sent_us, arrival_us)


def clock_offsets(messages: Iterable[tuple[int, int, float, float]], tasks: int) -> list[float]:
    """Returns the microseconds to subtract from each task's clock to get the first task's clock.

    `messages` has one (source task, target task, sending time, arrival time) per tensor, each on its own task's clock.

    Idea (Cristian 1989, doi:10.1007/BF01784024; the symmetric form is NTP's): a tensor cannot arrive before it was sent.
    With `ab` the smallest (arrival on b's clock) - (sending on a's clock) and `ba` the same the other way, the offset of
    b's clock lies between `-ba` and `ab`. If that window contains 0, the offset is 0: workers of one machine share a clock, and
    the middle of the window would only add half of the links' asymmetry. Otherwise the offset is the middle of the window, or
    its bound if tensors went one way only. Tasks that did not exchange tensors with the first one are reached through others,
    breadth first. O(transfers + tasks).

    >>> clock_offsets([(0, 1, 10.0, 1012.0), (1, 0, 1020.0, 24.0)], 2)  # window -(24-1020) = 996 .. 1002
    [0.0, 999.0]
    """
    smallest: dict[tuple[int, int], float] = {}
    for source, target, start, end in messages:
        if source != target:
            smallest[source, target] = min(smallest.get((source, target), inf), end - start)
    offsets = [0.0] * tasks
    reached_tasks, queue = {0}, deque([0])
    while queue:
        origin = queue.popleft()
        for task in range(tasks):
            forth_us, back_us = smallest.get((origin, task), inf), smallest.get((task, origin), inf)
            if task not in reached_tasks and (forth_us < inf or back_us < inf):
                offsets[task] = offsets[origin] + _in_window(-back_us, forth_us)
                reached_tasks.add(task)
                queue.append(task)
    return offsets


def _in_window(low: float, high: float) -> float:
    if low <= 0.0 <= high:
        return 0.0
    if low == -inf or high == inf:
        return high if low == -inf else low
    return (low + high) / 2
