"""What updates of variables take while they run: the variable's bytes once more where its old value is still read.

TensorFlow's dense updates write into the variable's memory where nobody else holds it, and else into a copy
(`PrepareToUpdateVariable`). A read gives no copy but the memory itself, so it depends on the order of a step, and thus on the
placement, whether an op that reads, or a send, has not ended when the update begins. A profile tells of its own order alone.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph, Timeline
from ..graph.opgraph import CONTROL_BYTES, VIEW

DENSE = re.compile(r"Assign(Add|Sub)VariableOp|ResourceApply\w+")
"""Types of updates that may copy. Sparse ones make reads copy instead, assignments have a value of their own."""
HANDLE, READ = "VarHandleOp", "ReadVariableOp"
ROUNDING_US = 1e-6


def temporaries(graph: OpGraph, line: Timeline) -> NDArray[np.int64]:
    """int64[n]: `temp_bytes` of the ops in a simulated timeline, with those of updates as in its order.

    >>> from baechi_lab import Cluster, Placement, simulate
    >>> edges = [(0, 1, 4), (0, 3, 4), (1, 2, 80), (1, 3, 4)]  # 3 updates what 1 has read for 2
    >>> types = ["VarHandleOp", "ReadVariableOp", "MatMul", "AssignSubVariableOp"]
    >>> graph = OpGraph.from_edges([1, 1, 5, 1], edges, op_types=types, persistent_bytes=[80, 0, 0, 0])
    >>> both = [Placement(device=[0] * 4, order=[0, 1, *last]) for last in ([2, 3], [3, 2])]
    >>> [temporaries(graph, simulate(graph, Cluster.uniform(1), x, "planned")).tolist() for x in both]
    [[0, 0, 0, 0], [0, 0, 0, 80]]
    """
    found = graph.temp_bytes.copy()
    start, end = np.zeros(graph.n), np.zeros(graph.n)
    start[line.op], end[line.op] = line.start_us, line.end_us
    until = _needed_until(graph, line, end)
    types, producers, readers = graph.op_types, _sides(graph, reverse=True), _sides(graph)
    for op in (i for i in range(graph.n) if DENSE.fullmatch(types[i])):
        for handle in (i for i in producers[op] if types[i] == HANDLE):
            size = int(graph.persistent_bytes[handle])
            reads = [i for i in readers[handle] if types[i] == READ and end[i] <= start[op] + ROUNDING_US]
            held = any(until[i] > start[op] + ROUNDING_US for i in reads)
            found[op] += size * (int(held) - int(found[op] >= size))
    return found


def _sides(graph: OpGraph, reverse: bool = False) -> list[list[int]]:
    """Of each op those that read of it, or in reverse those that it reads of."""
    near: list[list[int]] = [[] for _ in range(graph.n)]
    for pair in zip(graph.edge_source.tolist(), graph.consumers.tolist(), strict=True):
        source, reader = reversed(pair) if reverse else pair
        near[source].append(reader)
    return near


def _needed_until(graph: OpGraph, line: Timeline, end: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[n]: when the last op that needs an op's output on its device has ended, views of it included, and its sends."""
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
    return until
