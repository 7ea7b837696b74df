"""Edges that other edges imply. No op need wait for them, wherever the units of ops are placed.

Ops of one label (a unit, or what stays on one device) are on one device wherever the unit goes. An edge between two of
them asks only for an order, and is implied by any other path from its producer to its reader within the label. Leaving
such edges out changes no simulated time and saves work.

Idea: transitive reduction (Aho, Garey and Ullman 1972, doi:10.1137/0201008), with sets of bits per label.
Complexity: O(edges * ops of a label / 64); very large labels keep all edges.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.jit import njit


@njit(cache=True, nogil=True)
def mark_needed_edges(
    column: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    label: NDArray[np.int64],
    order: NDArray[np.int64],
    window: int,
) -> NDArray[np.bool_]:
    """Returns bool[edges]: the edges that the other edges do not imply.

    `column`: producer, tensor and reader int64[edges], the edges of a tensor next to each other. `label` int64[n] of each
    op. `order` int64[n]: the ops in topological order. Paths are followed within labels of up to `window` ops.
    """
    producer, tensor, reader = column
    n, edges, labels = len(label), len(tensor), label.max() + 1 if len(label) else 0
    size = np.zeros(labels, np.int64)
    slot, base = np.empty(n, np.int64), np.empty(n, np.int64)
    for r in order:
        slot[r] = size[label[r]]
        size[label[r]] += 1
    total = 0
    for r in range(n):
        base[r] = total
        total += (size[label[r]] + 63) >> 6 if size[label[r]] <= window else 0
    before = np.zeros(total + 1, np.uint64)  # per op: the ops of its label from which a path leads to it
    into, entry = np.zeros(n + 1, np.int64), np.empty(edges, np.int64)
    for e in range(edges):
        into[reader[e] + 1] += 1
    for r in range(n):
        into[r + 1] += into[r]
    place = into[:-1].copy()
    for e in range(edges):
        entry[place[reader[e]]] = e
        place[reader[e]] += 1
    is_needed, one = np.ones(edges, np.bool_), np.uint64(1)
    for r in order:
        reader_label = label[r]
        if size[reader_label] > window:
            continue
        words = (size[reader_label] + 63) >> 6
        for x in range(into[r], into[r + 1]):
            p = producer[entry[x]]
            if label[p] == reader_label:
                for z in range(words):
                    before[base[r] + z] |= before[base[p] + z]
        for x in range(into[r], into[r + 1]):
            p = producer[entry[x]]
            if label[p] == reader_label:  # implied by another path, or by another tensor of the same producer
                word, bit = base[r] + (slot[p] >> 6), one << np.uint64(slot[p] & 63)
                is_needed[entry[x]] = (before[word] & bit) == 0
                before[word] |= bit
    return is_needed
