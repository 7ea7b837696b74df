"""Which inputs an op must wait for, whatever the placement: those that no other input is sure to come after.

Idea: ops of one colocation group (a *unit*) share a device. Where a unit holds `w` and `v`, both read tensor `t`, and a
path leads from `w` to `v`, then `t` is on their device before `w` starts, so `v` need not wait for it; nor for a tensor of
its own unit whose producer also reaches it by a longer path. The longest path of waits stays, hence every start time.

Ancestors are kept as bits, for a block of ops at a time: O(edges * ops / 64) time, O(ops) memory.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import OpGraph
from ...graph.kernels.csr import Integers, distinct, offsets
from ...graph.kernels.jit import njit
from .parameters import EVALUATION


class Waits(NamedTuple):
    """What is left to wait for, all int32.

    `degree` per op. `near` (from `near_ptr[op]` on): ops of its unit that wait for an op. `far` (from `far_ptr[op]` on):
    ops of other units that wait for one of its tensors, by tensor and unit; `far_tensor` counts these tensors from 0
    (`tensor` tells which in the graph).
    """

    degree: NDArray[np.int32]
    near_ptr: NDArray[np.int32]
    near: NDArray[np.int32]
    far_ptr: NDArray[np.int32]
    far: NDArray[np.int32]
    far_tensor: NDArray[np.int32]
    tensor: NDArray[np.int32]


class _Edges(NamedTuple):
    """Edges as `_mark_implied` reads them: `into` (from `into_ptr[op]` on) those to an op, `alike` all of them with the
    readers of one tensor in one unit side by side."""

    order: NDArray[np.int32]
    into_ptr: NDArray[np.int32]
    into: NDArray[np.int32]
    alike: NDArray[np.int32]
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    tensor: NDArray[np.int32]
    unit: NDArray[np.int32]


def make_waits(graph: OpGraph, unit: NDArray[np.int32]) -> Waits:
    """Waits of `graph` where the ops of each `unit` int32[n] share a device.

    >>> graph = OpGraph.from_edges([1, 1, 1], [(0, 1, 4), (1, 2, 4), (0, 2, 4)])
    >>> make_waits(graph, np.array([0, 1, 1])).degree.tolist()
    [0, 1, 1]
    """
    n, source, target = graph.n, graph.edge_source, graph.consumers
    is_kept = ~_implied(graph, unit)
    same = unit[source] == unit[target]
    near = distinct((source.astype(np.int64) * n + target)[is_kept & same])
    edge = np.flatnonzero(is_kept & ~same)
    edge = edge[np.lexsort((unit[target[edge]], graph.edge_tensor[edge]))]
    tensor, number = np.unique(graph.edge_tensor[edge], return_inverse=True)
    degree = np.bincount(near % n, minlength=n) + np.bincount(target[edge], minlength=n)
    arrays = (
        degree,
        offsets(near // n, n),
        near % n,
        offsets(source[edge], n),
        target[edge],
        number,
        tensor,
    )
    return Waits(*(np.array(a, dtype=np.int32) for a in arrays))


def _implied(graph: OpGraph, unit: NDArray[np.int32]) -> NDArray[np.bool_]:
    """bool[edges]: another input of the same op is sure to come later."""
    ints = lambda a: np.array(a, dtype=np.int32)  # noqa: E731
    tensor, target = graph.edge_tensor, graph.consumers
    into = np.argsort(target, kind="stable")
    alike = np.lexsort((unit[target], tensor))  # readers of one tensor by unit, side by side
    result = np.zeros(len(target), dtype=np.bool_)
    words = EVALUATION.ancestor_words
    bits = np.zeros((graph.n, words), dtype=np.uint64)
    columns = (
        graph.order,
        offsets(target, graph.n),
        into,
        alike,
        graph.edge_source,
        target,
        tensor,
        unit,
    )
    edges = _Edges(*map(ints, columns))
    for low in range(0, graph.n, 64 * words):
        bits[:] = 0
        _mark_implied(low, bits, edges, result)
    return result


@njit(cache=True, inline="always")
def _has(bits: NDArray[np.uint64], row: int, k: int) -> bool:
    """Whether bit `k` of a row is set; bits outside the block never are."""
    return 0 <= k < 64 * bits.shape[1] and (bits[row, k >> 6] >> np.uint64(k & 63)) & np.uint64(1) != np.uint64(0)


@njit(cache=True, nogil=True)
def _mark_implied(
    low: int,
    bits: NDArray[np.uint64],
    edges: tuple[Integers, Integers, Integers, Integers, Integers, Integers, Integers, Integers],
    result: NDArray[np.bool_],
) -> None:
    """Set `result[e]` where an ancestor among the ops `low`, `low + 1`, ... implies edge `e`."""
    order, into_ptr, into, alike, source, target, tensor, unit = edges
    words = bits.shape[1]
    for v in order:
        first, last = into_ptr[v], into_ptr[v + 1]
        for k in range(first, last):
            u = source[into[k]]
            for word in range(words):
                bits[v, word] |= bits[u, word]
        for k in range(first, last):  # so far only what is at least two edges away
            u = source[into[k]]
            if unit[u] == unit[v] and _has(bits, v, u - low):
                result[into[k]] = True
        for k in range(first, last):
            u = source[into[k]] - low
            if 0 <= u < 64 * words:
                bits[v, u >> 6] |= np.uint64(1) << np.uint64(u & 63)
    mask = np.zeros(words, dtype=np.uint64)
    k, count = 0, len(alike)
    while k < count:
        e = alike[k]
        last = k + 1
        while last < count and tensor[alike[last]] == tensor[e] and unit[target[alike[last]]] == unit[target[e]]:
            last += 1
        if last > k + 1:
            mask[:] = np.uint64(0)
            for i in range(k, last):
                w = target[alike[i]] - low
                if 0 <= w < 64 * words:
                    mask[w >> 6] |= np.uint64(1) << np.uint64(w & 63)
            for i in range(k, last):
                for word in range(words):
                    if bits[target[alike[i]], word] & mask[word] != np.uint64(0):
                        result[alike[i]] = True
                        break
        k = last
