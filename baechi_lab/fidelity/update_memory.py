"""Temporary memory of variable updates: a copy of the variable if its old value is still in use.

TensorFlow's dense updates write into the variable's memory if no one else uses it, and otherwise into a copy
(`PrepareToUpdateVariable`). A read returns the memory itself and no copy. So it depends on the order of a step, and on the
placement, whether a reader or a send is still running when the update starts. A profile only shows its own order.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph, Timeline
from ..graph.opgraph import CONTROL_BYTES, VIEW

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
