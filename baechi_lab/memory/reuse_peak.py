"""Peak memory of one device that runs ops in a given order, where outputs may lie in inputs (`OpGraph.reuse`).

The rules are those of docs/simulated-time.md, "Outputs that lie in inputs". The simulator applies them to the events of
a finished timeline. One device with one order needs neither transfers nor times.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph
from ..graph.opgraph import GROWS
from .buffers import END, START, apply_events, state_for, uses_of


def reuse_peak(graph: OpGraph, order: NDArray[np.int64]) -> int:
    """Returns the peak bytes of running the ops of a graph with `reuse` in `order`, int64[n]. O(ops + edges).

    >>> graph = OpGraph.from_edges([1, 1, 1], [(0, 1, 30), (1, 2, 30)], reuse=[0, 1, 0])
    >>> reuse_peak(graph, graph.order)  # op 1 writes over what it reads
    30
    """
    persistent = int(graph.persistent_bytes[graph.reuse != GROWS].sum())
    return persistent + int(live_bytes_per_op(graph, order).max(initial=0))


def live_bytes_per_op(graph: OpGraph, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns int64[n]: the live bytes while each op runs in `order`, without persistent bytes that do not grow.

    >>> graph = OpGraph.from_edges([1, 1, 1], [(0, 1, 30), (1, 2, 20)], persistent_bytes=[9, 9, 0], reuse=[0, 3, 0])
    >>> live_bytes_per_op(graph, graph.order).tolist()  # the second op takes its persistent bytes when it starts
    [30, 59, 29]
    """
    none = np.zeros(0, dtype=np.int32)
    uses = uses_of(graph, np.zeros(graph.n, dtype=np.int64), none, none)
    index, kind = np.repeat(np.asarray(order, dtype=np.int64), 2), np.tile([START, END], len(order))
    state = state_for(uses, kind, index)
    rows = apply_events(uses, state, np.arange(len(index), dtype=np.float64), kind, index)
    changes = np.bincount(state.time[:rows].astype(np.int64), state.delta[:rows], minlength=len(index))
    live_bytes = np.empty(graph.n, dtype=np.int64)
    live_bytes[order] = np.cumsum(changes.astype(np.int64))[::2]  # after each start
    return live_bytes
