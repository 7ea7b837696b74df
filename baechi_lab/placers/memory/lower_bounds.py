"""Bytes that every placement and every schedule of a graph needs. If a cluster has fewer, no placement fits.

*While one op runs*, its device holds its inputs, outputs and temporaries. This is also true for graphs that recompute
or offload.

*Across one op v*, the devices together hold all persistent bytes, v's own bytes, and every tensor that an ancestor of v
made and that v or a descendant of v reads. Its readers have not ended, and a tensor in transfer is held on at least one
device. This is true for the given graph; a graph that recomputes is another one.

With `with_reuse=True`, outputs that may lie in the memory of others (`OpGraph.reuse`) count 0 bytes, which is a lower bound.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph import OpGraph
from ...graph.kernels.csr import Ints
from ...graph.opgraph import GROWS
from ...memory.peak import counted_bytes, live_bytes

MAX_COUNTED_OPS = 16
"""Ops across which bytes are counted: one for each of as many parts of the step, where one device would hold most."""


def largest_bytes_across_op(graph: OpGraph, with_reuse: bool = False, threshold_bytes: int = 0) -> tuple[int, int]:
    """Returns (bytes, op): the most bytes that all devices together hold across one of `MAX_COUNTED_OPS` ops.

    What one device would hold in some order is an upper bound of the bytes across an op. Ops whose upper bound is at most
    `threshold_bytes` are not counted. Returns (0, -1) if no op is counted.

    >>> graph = OpGraph.from_edges([1, 1, 1], [(0, 1, 30), (0, 2, 30), (1, 2, 10)], persistent_bytes=[5, 0, 0])
    >>> largest_bytes_across_op(graph)    # 5 + 30 + 10: one tensor of op 0 for both of its readers
    (45, 1)
    """
    best, best_op = 0, -1
    if graph.n == 0:
        return best, best_op
    # The op during which one device holds most, in each of `MAX_COUNTED_OPS` equal parts of the topological order.
    size = counted_bytes(graph, with_reuse)
    bytes_on_one_device = live_bytes(graph, graph.position, size) + graph.temp_bytes[graph.order]
    bytes_on_one_device += int(graph.persistent_bytes.sum())
    segments = np.array_split(np.arange(graph.n), min(MAX_COUNTED_OPS, graph.n))
    peak_positions = [segment[bytes_on_one_device[segment].argmax()] for segment in segments]
    candidates = [(int(bytes_on_one_device[position]), int(graph.order[position])) for position in peak_positions]
    for candidate_bytes, op in sorted(candidates, key=lambda pair: (-pair[0], pair[1])):
        if candidate_bytes <= max(best, threshold_bytes):
            break
        # Bytes that all devices together hold while `op` runs: O(ops + edges).
        before, after = _reachable(*graph.predecessors, op), _reachable(*graph.successors, op)
        before[op] = False
        read = np.zeros(graph.tensor_count, dtype=np.bool_)
        read[graph.edge_tensor[after[graph.consumers]]] = True
        live = (read & before[graph.tensor_producer]) | (graph.tensor_producer == op)
        persistent_bytes = graph.persistent_bytes
        if with_reuse and graph.reuse is not None:  # bytes that grow exist once their op has started
            persistent_bytes = np.where(
                (graph.reuse == GROWS) & ~before & (np.arange(graph.n) != op), 0, persistent_bytes
            )
        bytes_across = int(persistent_bytes.sum() + size[live].sum() + graph.temp_bytes[op])
        if bytes_across > best:
            best, best_op = bytes_across, op
    return best, best_op


def _reachable(pointer: Ints, neighbours: NDArray[np.int32], op: int) -> NDArray[np.bool_]:
    """Returns bool[n]: the op and all ops reachable from it."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order

    n = len(pointer) - 1
    edges = csr_array((np.ones(len(neighbours), dtype=np.int8), neighbours, pointer), shape=(n, n))
    is_reached = np.zeros(n, dtype=np.bool_)
    is_reached[breadth_first_order(edges, op, return_predecessors=False)] = True
    return is_reached
