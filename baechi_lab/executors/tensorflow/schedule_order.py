"""The order of a schedule as control dependencies. TensorFlow runs any op that is ready, so an order needs them.

Every device runs its units one after the other, and one op at a time: each op waits for the previous one. Ops that run once
before all micro-batches are left to TensorFlow; the first unit waits for them. No op waits for an op on another device just
for the order, so the order adds no message.

Within a unit ops are in topological order, by the placement's plan, else by index. If a schedule does not split the backward
pass, gradients of weights come before those of inputs as far as the graph allows, as in the simulator. The simulator chooses
among the ops whose inputs have arrived; here the order is fixed in advance. O(ops log ops + edges).
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heapify, heappop, heappush

import numpy as np

from ...passes.all_reduce import ALL_REDUCE
from ...simulator.pipeline_stages import B
from ...simulator.pipelined_graph import PipelinedGraph


def control_dependencies(pipe: PipelinedGraph) -> dict[int, list[int]]:
    """Returns op -> the ops that it waits for under the schedule, besides those that it reads. Empty without a schedule.

    >>> from baechi_lab import Cluster, OpGraph, Placement
    >>> from baechi_lab.simulator.pipelined_graph import make_pipelined_graph
    >>> graph = OpGraph.from_edges([1, 2, 4, 2], [(0, 1, 8), (1, 2, 8), (2, 3, 8)], forward_of=[-1, -1, 1, 0])
    >>> pipe = make_pipelined_graph(graph, Cluster.uniform(2), Placement(device=[0, 1, 1, 0]), 2, "gpipe")
    >>> control_dependencies(pipe)               # ops 0-3 are micro-batch 0, 4-7 micro-batch 1; device 0: 0F0 0F1 0B0 0B1
    {4: [0], 3: [4], 7: [3], 5: [1], 2: [5], 6: [2]}
    """
    if pipe.schedule is None or pipe.unit is None:
        return {}
    graph, device, unit_of = pipe.graph, pipe.placement.device, np.asarray(pipe.unit)
    units: dict[tuple[int, int], list[int]] = defaultdict(list)
    for op, place in enumerate(zip(device.tolist(), unit_of.tolist(), strict=True)):
        units[place].append(op)
    # The readers of every op within its unit and device, and the number of such inputs of every op.
    source, reader = graph.edge_source, graph.consumers
    same = (device[source] == device[reader]) & (unit_of[source] == unit_of[reader])
    readers: dict[int, list[int]] = defaultdict(list)
    missing = [0] * graph.n
    for a, b in zip(source[same].tolist(), reader[same].tolist(), strict=True):
        readers[a].append(b)
        missing[b] += 1
    # The sort key of every op within its unit; the lowest runs first.
    is_backward = np.zeros(graph.n, dtype=np.bool_)
    if pipe.stages is not None and not pipe.schedule.splits:
        is_backward = pipe.stages.phase[np.asarray(graph.copy_of)] == B
    rank = np.zeros(graph.n) if pipe.placement.rank is None else pipe.placement.rank
    urgency = list(zip(is_backward.tolist(), rank.tolist(), range(graph.n), strict=True))
    waits: dict[int, list[int]] = {}
    predecessors, last_device = list[int](), -1
    for unit_device, unit in sorted(units):
        ops = units[unit_device, unit]
        predecessors, last_device = (predecessors if unit_device == last_device else []), unit_device
        if unit == 0:
            predecessors = [op for op in ops if not readers[op]]
            continue
        for op in _order_by_urgency(ops, readers, missing, urgency):
            waits[op], predecessors = predecessors, [op]
    ring = {op for op, kind in enumerate(graph.op_types) if kind == ALL_REDUCE}  # TensorFlow lacks some of their edges
    edges = zip(graph.edge_source.tolist(), graph.consumers.tolist(), strict=True)
    data_edges = {(a, b) for a, b in edges if b in waits and a not in ring and b not in ring}
    control_inputs = {op: [k for k in awaited_ops if (k, op) not in data_edges] for op, awaited_ops in waits.items()}
    return {op: awaited_ops for op, awaited_ops in control_inputs.items() if awaited_ops}


def _order_by_urgency(
    ops: list[int], readers: dict[int, list[int]], missing: list[int], urgency: list[tuple[bool, float, int]]
) -> list[int]:
    """Returns a topological order of a unit's `ops`; among ready ops the most urgent comes first."""
    ready = [urgency[op] for op in ops if not missing[op]]
    heapify(ready)
    order = []
    while ready:
        op = heappop(ready)[2]
        order.append(op)
        for k in readers[op]:
            missing[k] -= 1
            if not missing[k]:
                heappush(ready, urgency[k])
    return order
