"""Peak memory of one device that runs a whole graph, by the rules of docs/simulated-time.md.

Peaks with outputs that lie in inputs (`OpGraph.reuse`) follow docs/simulated-time.md, "Outputs that lie in inputs", as the
simulator does. One device with one order needs neither transfers nor times.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph
from ..graph.kernels.csr import interval_sum, inverse
from ..graph.kernels.readiness import order_of_readiness
from ..graph.opgraph import GROWS, OWN
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


def single_device_peak(graph: OpGraph, order: NDArray[np.int64] | None = None) -> int:
    """Returns the peak bytes of one device that runs every op in `order`, by default topological with the lowest index first.

    Persistent bytes are held throughout; outputs and temporaries appear when their op starts; temporaries go when it ends, an
    output when its last reader has ended. Every output has bytes of its own, whatever `OpGraph.reuse` says. O(ops + edges).

    >>> g = OpGraph.from_edges([1.0, 1.0, 1.0], [(0, 1, 10), (1, 2, 20)], persistent_bytes=[5, 0, 0])
    >>> single_device_peak(g)    # 5 + 10 + 20 while op 1 runs
    35
    """
    if graph.n == 0:
        return 0
    position = graph.position if order is None else inverse(order)
    temp_bytes = graph.temp_bytes[graph.order if order is None else order]
    return int(graph.persistent_bytes.sum() + (live_bytes(graph, position, graph.tensor_bytes) + temp_bytes).max())


def last_use(graph: OpGraph, position: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns int64[tensors]: the largest of the positions of a tensor's producer and readers; `position` is int64[n]."""
    last_position = position[graph.tensor_producer].copy()
    np.maximum.at(last_position, graph.edge_tensor, position[graph.consumers])
    return last_position


def live_bytes(
    graph: OpGraph,
    position: NDArray[np.int64],
    size: NDArray[np.int64],
    tensors: NDArray[np.bool_] | slice = slice(None),
) -> NDArray[np.int64]:
    """Returns int64[n]: the bytes of tensors that one device holds while the op at each position runs.

    `position` is int64[n], `size` int64[tensors]. Only `tensors`, a mask, are counted; by default all are.
    """
    start, end, size = position[graph.tensor_producer][tensors], last_use(graph, position)[tensors] + 1, size[tensors]
    return interval_sum(size, start, end, graph.n)


def readiness_peak(graph: OpGraph) -> int:
    """Returns the peak bytes of one device that runs every op in the order of readiness, as the scheduler `fifo` does.

    Ops that become ready at one instant run by their index. Outputs may lie in inputs (`OpGraph.reuse`). O((ops + edges) log).
    """
    return order_peak(graph, readiness_order(graph))


def order_peak(graph: OpGraph, order: NDArray[np.int64]) -> int:
    """Returns the peak bytes of one device that runs every op in `order`, int64[n]; outputs may lie in inputs."""
    return (single_device_peak if graph.reuse is None else reuse_peak)(graph, order)


def readiness_order(graph: OpGraph) -> NDArray[np.int64]:
    """Returns int64[n]: the ops in the order of readiness, as one device runs them first in, first out."""
    pointer, successor = graph.successors
    open_inputs = np.diff(graph.predecessors[0])
    return order_of_readiness(pointer, successor.astype(np.int64), open_inputs, graph.duration_us.copy()).astype(
        np.int64
    )


def counted_bytes(graph: OpGraph, with_reuse: bool = False) -> NDArray[np.int64]:
    """Returns int64[tensors]: the bytes of each tensor that certainly has memory of its own, else 0."""
    if not with_reuse or graph.reuse is None:
        return graph.tensor_bytes
    owns_bytes = (graph.reuse == OWN) | (graph.reuse == GROWS)
    return np.where(owns_bytes[graph.tensor_producer], graph.tensor_bytes, 0)


def bytes_while_running(graph: OpGraph, with_reuse: bool = False) -> NDArray[np.int64]:
    """Returns int64[n]: the bytes of each op's inputs, outputs and temporaries, without persistent bytes.

    >>> bytes_while_running(OpGraph.from_edges([1, 1], [(0, 1, 40)], temp_bytes=[0, 20])).tolist()
    [40, 60]
    """
    size, need = counted_bytes(graph, with_reuse), graph.temp_bytes.copy()
    np.add.at(need, graph.tensor_producer, size)
    np.add.at(need, graph.consumers, size[graph.edge_tensor])
    return need


def least_of_one_op(graph: OpGraph) -> int:
    """Returns the persistent bytes plus the inputs, outputs and temporaries of the op that needs most, without shared ones.

    >>> graph = OpGraph.from_edges([1, 1, 1], [(0, 1, 30), (1, 2, 20)], persistent_bytes=[5, 0, 0])
    >>> least_of_one_op(graph), least_of_one_op(graph.replace(reuse=[0, 1, 0]))    # op 1 writes over what it reads
    (55, 35)
    """
    needed_bytes, persistent = bytes_while_running(graph, with_reuse=True), int(graph.persistent_bytes.sum())
    growing = np.zeros(graph.n, np.int64) if graph.reuse is None else graph.persistent_bytes * (graph.reuse == GROWS)
    return max(persistent, persistent - int(growing.sum()) + int((needed_bytes + growing).max(initial=0)))
