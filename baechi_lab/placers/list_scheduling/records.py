"""Record arrays of the list scheduler: what belongs together lies side by side, and kernels take few arguments."""

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
    "group:i4 device:i4 missing:i4 child:i4 parent:i4 first_input:i8 first_output:i8 made:i8 temp:i8 start:f8 "
    "finish:f8 position:i8"
)
TENSOR = record_type("producer:i4 unread:i4 size:i8 first_consumer:i8")
GROUP = record_type("device:i4 left:i4 promised:i8 reserve:i8 first_member:i8")
DEVICE = record_type("free:f8 last:i4 out_queue:f8 in_queue:f8 limit:i8 level:i8 first_start:f8 first_op:i8")
PAIR = record_type("bound:f8 queued:f8 duration:f8 place:i4 state:i1 exact:b1 allowed:b1 dropped:b1")
WAITING = record_type("key:f8 op:i8")
COPY = record_type("there:f8 last_use:f8")
LINK = record_type("latency:f8 per_byte:f8")
FETCH = record_type("tensor:i8 cost:f8 receive:f8 end:f8 out_before:f8 in_before:f8")


Records = NDArray[np.void]
"""A structured array of one of these dtypes."""


class Traffic(NamedTuple):
    """The state from which arrivals of inputs are computed: records of the dtypes above, and the communication mode."""

    ops: Records
    tensors: Records
    devices: Records
    copies: Records
    links: Records
    inputs: NDArray[np.int32]
    comm: int


def make_records(problem: Problem) -> tuple[Traffic, Records, Records]:
    """Traffic, groups and pairs; one entry more than ops, tensors and groups ends the rows."""
    n, count = problem.table.shape
    t, g = len(problem.producer), len(problem.promised)
    ops, tensors, groups = np.zeros(n + 1, OP), np.zeros(t + 1, TENSOR), np.zeros(g + 1, GROUP)
    devices, pairs = np.zeros(count, DEVICE), np.zeros((count, n), PAIR)
    copies, links = np.empty((t, count), COPY), np.empty((count, count), LINK)
    ops["group"][:n], ops["device"], ops["missing"][:n] = problem.group, -1, np.diff(problem.input_ptr)
    ops["first_input"], ops["first_output"] = problem.input_ptr, problem.output_ptr
    ops["made"][:n], ops["temp"][:n] = problem.output_bytes, problem.temp
    tensors["producer"][:t], tensors["size"][:t] = problem.producer, problem.size_bytes
    tensors["unread"][:t], tensors["first_consumer"] = np.diff(problem.consumer_ptr), problem.consumer_ptr
    groups["device"], groups["left"][:g], groups["first_member"] = -1, problem.group_size, problem.member_ptr
    groups["promised"][:g], groups["reserve"][:g] = problem.promised, problem.reserve
    devices["last"], devices["limit"] = -1, problem.limit
    pairs["duration"], pairs["allowed"] = problem.table.T, problem.allowed.T
    copies["there"], copies["last_use"] = np.nan, -1.0
    links["latency"], links["per_byte"] = problem.latency, problem.per_byte
    traffic = Traffic(
        records(ops), records(tensors), records(devices), records(copies), records(links), problem.inputs, problem.comm
    )
    return traffic, records(groups), records(pairs)
