"""The order of a schedule as control dependencies: TensorFlow runs what is ready, so what must wait has to be told to.

Every device works through its units one after the other. Between two units stands a barrier, an op that does nothing: it
waits for the ops of a unit that no other op of it reads, and the ops of the next unit that read none of their own unit
wait for it. Barriers lie on the device whose units they divide, so that no message is sent for the order's sake.

Within a unit TensorFlow takes ops as they become ready. Where a schedule does not split the backward pass, gradients of
weights come before those of inputs as far as the graph allows, as in the simulator: each B op waits for the B op before
it and the W ops between them. O(ops log ops + edges).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...simulator.pipelined import Pipelined
from ...simulator.stages import B, W

Bools = NDArray[np.bool_]


@dataclass
class Waits:
    """`barriers`: (device, position of the unit, ops waited for). `before`: op -> the barrier that it waits for, by its
    number. `after`: op -> the ops that it waits for."""

    barriers: list[tuple[int, int, list[int]]] = field(default_factory=list)
    before: dict[int, int] = field(default_factory=dict)
    after: dict[int, list[int]] = field(default_factory=dict)


def waits_of(pipe: Pipelined) -> Waits:
    """What the ops of an unrolled graph wait for under its schedule; nothing without one.

    >>> from baechi_lab import Cluster, OpGraph, Placement
    >>> from baechi_lab.simulator.pipelined import pipelined
    >>> graph = OpGraph.from_edges([1, 2, 4, 2], [(0, 1, 8), (1, 2, 8), (2, 3, 8)], forward_of=[-1, -1, 1, 0])
    >>> pipe = pipelined(graph, Cluster.uniform(2), Placement(device=[0, 1, 1, 0]), 2, "gpipe")
    >>> waits_of(pipe).barriers                 # device 0: 0F0 0F1 0B0 0B1; ops 0-3 are micro-batch 0, 4-7 micro-batch 1
    [(0, 1, [0]), (0, 2, [4]), (0, 3, [3]), (1, 1, [1]), (1, 2, [5]), (1, 3, [2])]
    """
    found = Waits()
    if pipe.schedule is None or pipe.stages is None or pipe.unit is None:
        return found
    graph, device, unit = pipe.graph, pipe.placement.device, np.asarray(pipe.unit)
    source, reader = graph.edge_source, graph.consumers
    inside = (device[source] == device[reader]) & (unit[source] == unit[reader])
    first, last = np.ones(graph.n, dtype=np.bool_), np.ones(graph.n, dtype=np.bool_)
    first[reader[inside]] = last[source[inside]] = False
    _barriers(found, device, unit, first, last)
    if not pipe.schedule.splits:
        _weights_first(found, pipe, inside)
    return found


def _barriers(found: Waits, device: NDArray[Any], unit: NDArray[Any], first: Bools, last: Bools) -> None:
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for op, key in enumerate(zip(device.tolist(), unit.tolist(), strict=True)):
        groups[key].append(op)
    before: tuple[int, int] | None = None
    for key in sorted(groups):
        if before is not None and before[0] == key[0]:
            found.barriers.append((*before, [op for op in groups[before] if last[op]]))
            found.before.update((op, len(found.barriers) - 1) for op in groups[key] if first[op])
        before = key


def _weights_first(found: Waits, pipe: Pipelined, inside: Bools) -> None:
    """Within every unit: an order in which W ops run as early as the graph allows, demanded of the B ops."""
    graph, stages = pipe.graph, pipe.stages
    part = stages.part[np.asarray(graph.copy_of)] if stages is not None else np.zeros(graph.n)
    backward = (part == B) | (part == W)
    device, unit = pipe.placement.device.tolist(), np.asarray(pipe.unit).tolist()
    planned = np.zeros(graph.n) if pipe.placement.rank is None else pipe.placement.rank
    readers: dict[int, list[int]] = defaultdict(list)
    missing = np.zeros(graph.n, dtype=np.int64)
    chosen = inside & backward[graph.edge_source] & backward[graph.consumers]
    for a, b in zip(graph.edge_source[chosen].tolist(), graph.consumers[chosen].tolist(), strict=True):
        readers[a].append(b)
        missing[b] += 1
    units: dict[tuple[int, int], list[int]] = defaultdict(list)
    for op in np.flatnonzero(backward).tolist():
        units[device[op], unit[op]].append(op)
    for ops in units.values():
        _demand(found, _ordered(ops, readers, missing, part == B, planned), readers, part == B)


def _ordered(
    ops: list[int], readers: dict[int, list[int]], missing: NDArray[np.int64], late: Bools, planned: NDArray[Any]
) -> list[int]:
    """A topological order of a unit's `ops`, those that are not `late` as early as possible."""
    ready = [(bool(late[op]), float(planned[op]), op) for op in ops if not missing[op]]
    heapify(ready)
    order = []
    while ready:
        op = heappop(ready)[2]
        order.append(op)
        for k in readers[op]:
            missing[k] -= 1
            if not missing[k]:
                heappush(ready, (bool(late[k]), float(planned[k]), k))
    return order


def _demand(found: Waits, order: list[int], readers: dict[int, list[int]], late: Bools) -> None:
    since: list[int] = []  # W ops since the B op before
    before: int | None = None
    for op in order:
        if not late[op]:
            since.append(op)
            continue
        between = set(since)
        waited = [k for k in since if not any(r in between for r in readers[k])]
        waited += [] if before is None else [before]
        waited = [k for k in waited if op not in readers[k]]
        if waited:
            found.after[op] = waited
        before, since = op, []
