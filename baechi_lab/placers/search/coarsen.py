"""Coarsening that merges only units on one device, so that every level can express the current placement.

Heavy-edge matching (Karypis and Kumar 1998, doi:10.1137/S1064827595287997): units are visited in a random order and
each merges with the unmatched neighbour on the same device to which its transfers would cost most, as long as the
merged work stays below a limit. Rounds repeat until there are few enough units or none merges. Cycles between units are
allowed: a unit is a set of ops that move together, and the simulation still runs single ops.

Complexity: O((ops + edges) log edges) per round, about log2(ops / target) rounds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.csr import Integers
from ...graph.kernels.jit import njit
from ..problem import both_directions
from .parameters import SEARCH, SearchParameters


def coarsen(
    label: Integers,
    device: Integers,
    edges: tuple[NDArray[np.generic], NDArray[np.generic], NDArray[np.float64]],
    work: NDArray[np.number],
    target_count: int,
    rng: np.random.Generator,
    parameters: SearchParameters = SEARCH,
) -> NDArray[np.int64]:
    """Merges units with equal `label` until there are about `target_count`, each on one device; returns labels int64[n].

    `edges`: source, target and the cost of cutting it, for each edge between ops; `work` float64[n] per op.
    """
    source, target, cost = edges
    labels = np.unique(label, return_inverse=True)[1].reshape(-1)
    limit = parameters.unit_work * float(work.sum()) / max(target_count, 1)
    count = int(labels.max(initial=-1)) + 1
    while count > target_count:
        unit_work = np.bincount(labels, work, count)
        vertex_device = np.zeros(count, dtype=np.int64)
        vertex_device[labels] = device
        # Pairs of different units on one device in CSR form, with the summed cost of their edges.
        a, b = labels[source], labels[target]
        near = (a != b) & (vertex_device[a] == vertex_device[b])
        pointer, neighbour, (price,) = both_directions(a[near], b[near], [cost[near]], count)
        match = _match((pointer, neighbour, price), unit_work, limit, rng.permutation(count), count - target_count)
        new_label = np.unique(match, return_inverse=True)[1].reshape(-1)
        fewer = int(new_label.max(initial=-1)) + 1
        if fewer == count:
            break
        labels, count = new_label[labels], fewer
    return labels


@njit(cache=True, nogil=True)
def _match(
    units: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.number]],
    work: NDArray[np.number],
    limit: float,
    order: NDArray[np.int64],
    limit_count: int,
) -> NDArray[np.int64]:
    """Returns int64[units]: the unit into which each unit merges (itself, or its partner with the smaller index)."""
    pointer, neighbour, weight = units
    match = np.full(len(work), -1, np.int64)
    merge_count = 0
    for u in order:
        if match[u] >= 0:
            continue
        match[u] = u
        best, best_weight = -1, 0.0
        for k in range(pointer[u], pointer[u + 1]):
            v = neighbour[k]
            if match[v] < 0 and weight[k] > best_weight and work[u] + work[v] <= limit:
                best, best_weight = v, weight[k]
        if best >= 0 and merge_count < limit_count:
            match[u] = match[best] = min(u, best)
            merge_count += 1
    return match
