"""A topological order that keeps few bytes alive: depth first, by the bytes that an op adds.

Idea: among the ready ops take the one that adds the fewest bytes (its outputs minus the inputs that it is the last to read).
Ties go to the op that became ready last, so that a branch is finished before the next one starts. Greedy and not
optimal (the problem is NP-hard: Sethi 1975, doi:10.1137/0204020). O((ops + edges) log ops).
"""

from __future__ import annotations

import heapq
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ...graph import OpGraph

_POSITIONS: WeakKeyDictionary[OpGraph, NDArray[np.float64]] = WeakKeyDictionary()
"""Cache of the orders of living graphs, which every placement of a graph needs."""


def depth_first_order(graph: OpGraph) -> NDArray[np.float64]:
    """Returns float64[n]: the position of each op in that order."""
    if graph not in _POSITIONS:
        _POSITIONS[graph] = _depth_first_order(graph)
    return _POSITIONS[graph].copy()


def _depth_first_order(graph: OpGraph) -> NDArray[np.float64]:
    size, readers_left = graph.tensor_bytes.tolist(), np.diff(graph.consumer_ptr).tolist()
    input_ptr, inputs = (a.tolist() for a in graph.inputs)
    missing_inputs = np.diff(graph.inputs[0]).tolist()
    outputs, consumer_ptr, consumers = graph.output_ptr.tolist(), graph.consumer_ptr.tolist(), graph.consumers.tolist()
    added_bytes = graph.output_bytes.tolist()
    for i in range(graph.n):
        added_bytes[i] -= sum(size[t] for t in inputs[input_ptr[i] : input_ptr[i + 1]] if readers_left[t] == 1)
    position, ready_count = np.full(graph.n, -1.0), 0
    ready = [(added_bytes[i], 0, i) for i in range(graph.n) if missing_inputs[i] == 0]
    heapq.heapify(ready)
    next_position = 0
    while ready:
        queued_bytes, _, op = heapq.heappop(ready)
        if position[op] >= 0:
            continue
        if queued_bytes != added_bytes[op]:  # an input lost its other readers since then
            heapq.heappush(ready, (added_bytes[op], 0, op))
            continue
        position[op] = next_position
        next_position += 1
        for t in inputs[input_ptr[op] : input_ptr[op + 1]]:
            readers_left[t] -= 1
            if readers_left[t] == 1:  # its last reader will free it
                for reader in consumers[consumer_ptr[t] : consumer_ptr[t + 1]]:
                    if position[reader] < 0:
                        added_bytes[reader] -= size[t]
                        if missing_inputs[reader] == 0:
                            heapq.heappush(ready, (added_bytes[reader], 0, reader))
        for t in range(outputs[op], outputs[op + 1]):
            for reader in consumers[consumer_ptr[t] : consumer_ptr[t + 1]]:
                missing_inputs[reader] -= 1
                if missing_inputs[reader] == 0:
                    ready_count += 1
                    heapq.heappush(ready, (added_bytes[reader], -ready_count, reader))
    return position
