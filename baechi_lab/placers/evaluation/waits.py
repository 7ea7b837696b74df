"""The inputs for which an op must wait under every placement. Inputs that surely arrive before another are left out.

Ops of one colocation group (a *unit*) share a device, so edges that others imply within it (`evaluation.edges`) are left
out. Every longest path stays, and so does every start time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import OpGraph
from ...graph.kernels.csr import distinct, offsets
from .edges import needed
from .parameters import EVALUATION


class Waits(NamedTuple):
    """The remaining waits of a graph, all int32.

    `degree`: the number of inputs for which each op waits. `near` (from `near_ptr[op]` on): ops of the same unit that wait
    for the op. `far` (from `far_ptr[op]` on): ops of other units that wait for one of its tensors, by tensor and unit.
    `far_tensor` numbers these tensors from 0; `tensor` has their numbers in the graph.
    """

    degree: NDArray[np.int32]
    near_ptr: NDArray[np.int32]
    near: NDArray[np.int32]
    far_ptr: NDArray[np.int32]
    far: NDArray[np.int32]
    far_tensor: NDArray[np.int32]
    tensor: NDArray[np.int32]


def make_waits(graph: OpGraph, unit: NDArray[np.int32]) -> Waits:
    """Find the waits of `graph` if the ops of each `unit` int32[n] share a device.

    >>> graph = OpGraph.from_edges([1, 1, 1], [(0, 1, 4), (1, 2, 4), (0, 2, 4)])
    >>> make_waits(graph, np.array([0, 1, 1])).degree.tolist()
    [0, 1, 1]
    """
    n, source, target = graph.n, graph.edge_source, graph.consumers
    ints = lambda a: np.array(a, dtype=np.int64)  # noqa: E731
    columns = ints(source), ints(graph.edge_tensor), ints(target)
    is_kept = needed(columns, ints(unit), ints(graph.order), EVALUATION.way_ops, EVALUATION.readers_seen)
    same = unit[source] == unit[target]
    near = distinct((source.astype(np.int64) * n + target)[is_kept & same])
    edge = np.flatnonzero(is_kept & ~same)
    edge = edge[np.lexsort((unit[target[edge]], graph.edge_tensor[edge]))]
    tensor, number = np.unique(graph.edge_tensor[edge], return_inverse=True)
    degree = np.bincount(near % n, minlength=n) + np.bincount(target[edge], minlength=n)
    arrays = (degree, offsets(near // n, n), near % n, offsets(source[edge], n), target[edge], number, tensor)
    return Waits(*(np.array(a, dtype=np.int32) for a in arrays))
