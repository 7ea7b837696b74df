"""The simulated peak of a placement whose executor promises no order.

TensorFlow's executor runs some ready ops first in, first out and others last in, first out. What is held at once depends
on it. So a step is simulated in both orders, and the larger peak of each device counts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, Placement, Timeline
from ...simulator import simulate


def last_in_first_out(graph: OpGraph) -> NDArray[np.int64]:
    """int64[n]: the place of each op where the op that became ready last runs first.

    >>> graph = OpGraph.from_edges([1, 1, 1, 1], [(0, 2, 1), (1, 3, 1)])
    >>> last_in_first_out(graph).tolist()  # 1, 3, 0, 2
    [2, 0, 3, 1]
    """
    pointer, successor = (a.tolist() for a in graph.successors)
    missing = np.diff(graph.predecessors[0]).tolist()
    ready = [op for op in range(graph.n) if missing[op] == 0]
    place = np.zeros(graph.n, dtype=np.int64)
    for k in range(graph.n):
        op = ready.pop()
        place[op] = k
        for reader in successor[pointer[op] : pointer[op + 1]]:
            missing[reader] -= 1
            if missing[reader] == 0:
                ready.append(reader)
    return place


def in_both_orders(graph: OpGraph, cluster: Cluster, placement: Placement) -> tuple[Timeline, Timeline]:
    """Simulated first in, first out, and last in, first out."""
    plain = placement.on(graph).replace(order=None, priority=None)
    latest = plain.replace(order=last_in_first_out(graph))
    return simulate(graph, cluster, plain, "fifo"), simulate(graph, cluster, latest, "planned")


def parts_at_peak(timeline: Timeline, device: int) -> tuple[int, ...]:
    """Persistent, outputs, temporary and received bytes when a device held most; zeros where it held nothing."""
    return tuple(timeline.peak_parts(device).values())
