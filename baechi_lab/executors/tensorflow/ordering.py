"""The order of a schedule as control dependencies: TensorFlow runs what is ready, so what must wait has to be told to.

Every device works through its units one after the other, and does one op at a time, whatever threads it has: each op
waits for the one before it. What runs once before all micro-batches is left to TensorFlow; the first unit waits for it.
Nobody waits for an op on another device for the order's sake, so no message is sent for it.

Within a unit ops are in topological order, by the placement's plan, else by index. Where a schedule does not split the
backward pass, gradients of weights come before those of inputs as far as the graph allows, as in the simulator. (That
chooses among the ops whose inputs have arrived; here the order is fixed before.) O(ops log ops + edges).
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heapify, heappop, heappush

import numpy as np

from ...passes.all_reduce import ALL_REDUCE
from ...simulator.pipeline_stages import B
from ...simulator.pipelined_graph import PipelinedGraph


def waits_of(pipe: PipelinedGraph) -> dict[int, list[int]]:
    """Op -> the ops that it waits for besides those that it reads, under the schedule; empty without one.

    >>> from baechi_lab import Cluster, OpGraph, Placement
    >>> from baechi_lab.simulator.pipelined_graph import make_pipelined_graph
    >>> graph = OpGraph.from_edges([1, 2, 4, 2], [(0, 1, 8), (1, 2, 8), (2, 3, 8)], forward_of=[-1, -1, 1, 0])
    >>> pipe = make_pipelined_graph(graph, Cluster.uniform(2), Placement(device=[0, 1, 1, 0]), 2, "gpipe")
    >>> waits_of(pipe)               # ops 0-3 are micro-batch 0, 4-7 micro-batch 1; device 0: 0F0 0F1 0B0 0B1
    {4: [0], 3: [4], 7: [3], 5: [1], 2: [5], 6: [2]}
    """
    if pipe.schedule is None or pipe.unit is None:
        return {}
    graph, device = pipe.graph, pipe.placement.device.tolist()
    units: dict[tuple[int, int], list[int]] = defaultdict(list)
    for op, unit in enumerate(np.asarray(pipe.unit).tolist()):
        units[device[op], unit].append(op)
    readers, missing = _inside(pipe)
    urgency = _urgency(pipe)
    found: dict[int, list[int]] = {}
    before, last = list[int](), -1
    for where, unit in sorted(units):
        ops = units[where, unit]
        before, last = (before if where == last else []), where
        if unit == 0:
            before = [op for op in ops if not readers[op]]
            continue
        for op in _ordered(ops, readers, missing, urgency):
            found[op], before = before, [op]
    ring = {op for op, kind in enumerate(graph.op_types) if kind == ALL_REDUCE}  # whose edges are not all TensorFlow's
    edges = zip(graph.edge_source.tolist(), graph.consumers.tolist(), strict=True)
    own = {(a, b) for a, b in edges if b in found and a not in ring and b not in ring}
    left = {op: [k for k in waited if (k, op) not in own] for op, waited in found.items()}
    return {op: waited for op, waited in left.items() if waited}


def _inside(pipe: PipelinedGraph) -> tuple[dict[int, list[int]], list[int]]:
    """Readers of every op within its own unit and device, and how many such inputs every op has."""
    graph, device, unit = pipe.graph, pipe.placement.device, np.asarray(pipe.unit)
    source, reader = graph.edge_source, graph.consumers
    same = (device[source] == device[reader]) & (unit[source] == unit[reader])
    readers: dict[int, list[int]] = defaultdict(list)
    missing = [0] * graph.n
    for a, b in zip(source[same].tolist(), reader[same].tolist(), strict=True):
        readers[a].append(b)
        missing[b] += 1
    return readers, missing


def _urgency(pipe: PipelinedGraph) -> list[tuple[bool, float, int]]:
    """By what the ops of a unit are ordered: lowest first."""
    graph, schedule, stages = pipe.graph, pipe.schedule, pipe.stages
    late = np.zeros(graph.n, dtype=np.bool_)
    if schedule is not None and stages is not None and not schedule.splits:
        late = stages.phase[np.asarray(graph.copy_of)] == B
    planned = np.zeros(graph.n) if pipe.placement.rank is None else pipe.placement.rank
    return list(zip(late.tolist(), planned.tolist(), range(graph.n), strict=True))


def _ordered(
    ops: list[int], readers: dict[int, list[int]], missing: list[int], urgency: list[tuple[bool, float, int]]
) -> list[int]:
    """A topological order of a unit's `ops`, of those that are ready the most urgent first."""
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
