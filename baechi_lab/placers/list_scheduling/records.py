"""Record arrays of the list scheduler: what belongs together lies side by side, and kernels take few arguments.

Times are microseconds, sizes bytes. -1 stands for no op and no device.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.jit import records
from ..problem import Problem


def record_type(fields: str) -> np.dtype[np.void]:
    """Returns the dtype of records with these fields, each as `name:type`."""
    return np.dtype([tuple(field.split(":")) for field in fields.split()])


OP = record_type(
    "group:i4 device:i4 missing_inputs:i4 child:i4 parent:i4 first_input:i8 first_output:i8 output_bytes:i8 temp_bytes:i8 "
    "start:f8 finish:f8 position:i8"
)
"""`missing_inputs` counts producers not yet placed; `child` and `parent` are favourites; `position` is that in the plan."""
TENSOR = record_type("producer:i4 unread:i4 size_bytes:i8 first_consumer:i8")
"""`unread` counts the consumers that are not placed yet."""
GROUP = record_type("device:i4 unplaced:i4 promised_bytes:i8 reserve:i8 first_member:i8")
"""`promised_bytes` last for the whole step, `reserve` until all members, of which `unplaced` are not placed, have run."""
DEVICE = record_type("free:f8 last_op:i4 out_queue:f8 in_queue:f8 limit:i8 used_bytes:i8 first_start:f8 first_op:i8")
"""`free` and the queues are times; (`first_start`, `first_op`) is a lower bound of the device's next pair."""
PAIR = record_type("bound:f8 queued:f8 duration:f8 heap_position:i4 state:i1 exact:b1 allowed:b1 dropped:b1")
"""`bound` is a lower bound of the inputs' arrival, or the arrival if `exact`; `queued` is how long they hold the queue."""
WAITING = record_type("key:f8 op:i8")
"""An entry of a heap (`pair_heaps.py`)."""
COPY = record_type("arrival:f8 last_use:f8")
"""A tensor on a device that it was sent to (`arrival` is NaN if not) or produced on."""
LINK = record_type("latency:f8 per_byte:f8")
"""The cost of a transfer of `size_bytes`: `latency + per_byte * size_bytes`."""
FETCH = record_type("tensor:i8 cost:f8 receive:f8 end:f8 out_before:f8 in_before:f8")
"""A transfer that an op needs, and the queues of the sender and receiver before it."""


Records = NDArray[np.void]
"""A structured array of one of these dtypes."""


class ScheduleState(NamedTuple):
    """The problem and the schedule so far, as arrays of the records above.

    Args:
        ops, tensors, groups: one record each, and one more that ends the ranges `first_input`, `first_output`,
            `first_consumer` and `first_member`.
        devices: one record each.
        pairs: [devices, ops].
        copies: [tensors, devices].
        links: [sender, receiver].
        inputs, consumers: the tensors that each op reads, and the ops that read each tensor.
        members: the ops of each group.
        comm: the index of the communication mode.
    """

    ops: Records
    tensors: Records
    groups: Records
    devices: Records
    pairs: Records
    copies: Records
    links: Records
    inputs: NDArray[np.int32]
    consumers: NDArray[np.int32]
    members: NDArray[np.int64]
    comm: int


class Schedule(NamedTuple):
    """A planned schedule of n ops.

    Args:
        device: int32[n].
        start, finish: float64[n], microseconds.
        position: int64[n], the place of each op in the order in which the ops were scheduled.
        overflows: the number of ops put on a device that lacks the memory.
    """

    device: NDArray[np.int32]
    start: NDArray[np.float64]
    finish: NDArray[np.float64]
    position: NDArray[np.int64]
    overflows: int


def make_state(problem: Problem) -> ScheduleState:
    """Returns the state before the first op is scheduled, without favourites."""
    n, count = problem.table.shape
    t, g = len(problem.producer), len(problem.promised_bytes)
    ops, tensors, groups = np.zeros(n + 1, OP), np.zeros(t + 1, TENSOR), np.zeros(g + 1, GROUP)
    devices, pairs = np.zeros(count, DEVICE), np.zeros((count, n), PAIR)
    copies, links = np.empty((t, count), COPY), np.empty((count, count), LINK)
    ops["group"][:n], ops["device"], ops["missing_inputs"][:n] = problem.group, -1, np.diff(problem.input_ptr)
    ops["child"], ops["parent"] = -1, -1
    ops["first_input"], ops["first_output"] = problem.input_ptr, problem.output_ptr
    ops["output_bytes"][:n], ops["temp_bytes"][:n] = problem.output_bytes, problem.temp
    tensors["producer"][:t], tensors["size_bytes"][:t] = problem.producer, problem.size_bytes
    tensors["unread"][:t], tensors["first_consumer"] = np.diff(problem.consumer_ptr), problem.consumer_ptr
    groups["device"], groups["unplaced"][:g], groups["first_member"] = -1, problem.group_size, problem.member_ptr
    groups["promised_bytes"][:g], groups["reserve"][:g] = problem.promised_bytes, problem.reserve
    devices["last_op"], devices["limit"] = -1, problem.limit
    pairs["duration"], pairs["allowed"] = problem.table.T, problem.allowed.T
    copies["arrival"], copies["last_use"] = np.nan, -1.0
    links["latency"], links["per_byte"] = problem.latency, problem.per_byte
    return ScheduleState(
        records(ops),
        records(tensors),
        records(groups),
        records(devices),
        records(pairs),
        records(copies),
        records(links),
        problem.inputs,
        problem.consumers,
        problem.members,
        problem.comm,
    )
