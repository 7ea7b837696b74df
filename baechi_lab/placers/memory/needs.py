"""Bytes that every placement and every schedule of a graph needs, so that a lack of them is a proof.

*Alone.* While an op runs, its device holds what it reads, makes and uses besides: also where outputs are computed again or
wait on a host.

*Across.* While op v runs, the devices together hold all persistent bytes, v's own bytes, and every tensor that an ancestor of v
made and that v or a descendant of v reads: its readers cannot have ended, and a tensor that is sent is held at one end at
least. This holds for the graph as it is; a graph that recomputes is another one.

`shared=True` counts outputs that may lie in the memory of others (`OpGraph.reuse`) as nothing, which is less than they take.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph import OpGraph
from ...graph.opgraph import GROWS, OWN

Ints = NDArray[np.int64]

TRIED = 16
"""Ops for which what is held across them is counted: those where one device would hold most, in as many parts of the step."""


def counted_bytes(graph: OpGraph, shared: bool = False) -> Ints:
    """int64[tensors]: the bytes of each tensor that it surely has for itself."""
    if not shared or graph.reuse is None:
        return graph.tensor_bytes
    own = (graph.reuse == OWN) | (graph.reuse == GROWS)
    return np.where(own[graph.tensor_producer], graph.tensor_bytes, 0)


def alone_bytes(graph: OpGraph, shared: bool = False) -> Ints:
    """int64[n]: what each op reads, makes and uses while it runs, without persistent bytes.

    >>> alone_bytes(OpGraph.from_edges([1, 1], [(0, 1, 40)], temp_bytes=[0, 20])).tolist()
    [40, 60]
    """
    size, need = counted_bytes(graph, shared), graph.temp_bytes.copy()
    np.add.at(need, graph.tensor_producer, size)
    np.add.at(need, graph.consumers, size[graph.edge_tensor])
    return need


def most_across(graph: OpGraph, shared: bool = False, room: int = 0) -> tuple[int, int]:
    """(bytes, op): the most that is held by all devices together across one of `TRIED` ops, counted if it may exceed `room`.

    What one device holds in some order while an op runs is at least what is held across it, so that ops which hold
    little in topological order need no count. (0, -1) for no op.

    >>> graph = OpGraph.from_edges([1, 1, 1], [(0, 1, 30), (0, 2, 30), (1, 2, 10)], persistent_bytes=[5, 0, 0])
    >>> most_across(graph)    # 5 + 30 + 10: one tensor of op 0 for both of its readers
    (45, 1)
    """
    best, at = 0, -1
    for held, op in _candidates(graph, shared):
        if held <= max(best, room):
            break
        if (found := across_bytes(graph, op, shared)) > best:
            best, at = found, op
    return best, at


def across_bytes(graph: OpGraph, op: int, shared: bool = False) -> int:
    """Bytes that all devices together hold while `op` runs. O(ops + edges)."""
    size = counted_bytes(graph, shared)
    before, after = _reached(*graph.predecessors, op), _reached(*graph.successors, op)
    before[op] = False
    read = np.zeros(graph.tensor_count, dtype=np.bool_)
    read[graph.edge_tensor[after[graph.consumers]]] = True
    held = (read & before[graph.tensor_producer]) | (graph.tensor_producer == op)
    kept = graph.persistent_bytes
    if shared and graph.reuse is not None:  # what grows is there once its op has started
        kept = np.where((graph.reuse == GROWS) & ~before & (np.arange(graph.n) != op), 0, kept)
    return int(kept.sum() + size[held].sum() + graph.temp_bytes[op])


def _reached(pointer: Ints, neighbours: NDArray[np.int32], op: int) -> NDArray[np.bool_]:
    """bool[n]: the op and all that a walk from it comes to."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order

    n = len(pointer) - 1
    edges = csr_array((np.ones(len(neighbours), dtype=np.int8), neighbours, pointer), shape=(n, n))
    found = np.zeros(n, dtype=np.bool_)
    found[breadth_first_order(edges, op, return_predecessors=False)] = True
    return found


def _candidates(graph: OpGraph, shared: bool) -> list[tuple[int, int]]:
    """(bytes, op): in each of `TRIED` parts of the topological order the op during which one device holds most; most first."""
    if graph.n == 0:
        return []
    size, position = counted_bytes(graph, shared), graph.position
    last = position[graph.tensor_producer].copy()
    np.maximum.at(last, graph.edge_tensor, position[graph.consumers])
    change = np.zeros(graph.n + 1, dtype=np.int64)
    np.add.at(change, position[graph.tensor_producer], size)
    np.add.at(change, last + 1, -size)
    held = np.cumsum(change[:-1]) + graph.temp_bytes[graph.order] + int(graph.persistent_bytes.sum())
    tops = [part[held[part].argmax()] for part in np.array_split(np.arange(graph.n), min(TRIED, graph.n))]
    return sorted(((int(held[k]), int(graph.order[k])) for k in tops), key=lambda pair: (-pair[0], pair[1]))
