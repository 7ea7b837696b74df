"""Small problems, tried out: every placement in every order, so that a refusal of them is a proof.

A placement puts each colocation group on one of its allowed devices. An order is a topological one; running ops by such
an order wherever several are ready makes every schedule that an order can make. O(devices^groups x orders) simulations;
what would take more than `MOST` is not begun, or is tried in a few orders only.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, Placement, allowed_devices
from ..evaluation.assignment import Limits, make_assignment
from ..evaluation.evaluate import evaluate, overflow
from ..evaluation.model import make_model
from ..evaluation.work import make_work
from ..problem import groups_of
from .order import depth_first_order
from .packing import promises

MOST = 20_000
"""Simulations: half a second."""

MOST_OPS = 500
"""Above, orders are too many to go through, and the recursion is as deep as there are ops."""


def first_fitting(graph: OpGraph, cluster: Cluster) -> tuple[Placement | None, str]:
    """The first placement that keeps within memory, and what the search says where there is none: a proof, or nothing.

    >>> from baechi_lab import Link
    >>> graph = OpGraph.from_edges([1, 1], persistent_bytes=[6, 6])
    >>> first_fitting(graph, Cluster.uniform(2, memory_bytes=10, link=Link(0.0, 0.0)))[0].device.tolist()
    [0, 1]
    """
    able = _able(graph, cluster)
    count = float(np.prod(able.sum(axis=1, dtype=np.float64)))
    return (None, "") if count > MOST or graph.n > MOST_OPS else _tried_out(graph, cluster)


def _able(graph: OpGraph, cluster: Cluster) -> NDArray[np.bool_]:
    """bool[groups, devices]: where each colocation group may be."""
    group = groups_of(graph)
    able = np.ones((int(group.max(initial=-1)) + 1, cluster.n), dtype=np.bool_)
    np.logical_and.at(able, group, allowed_devices(graph, cluster))
    return able


@lru_cache(maxsize=16)
def _tried_out(graph: OpGraph, cluster: Cluster) -> tuple[Placement | None, str]:
    """What `first_fitting` finds; one rule after the other asks it of the same problem."""
    group, need, able = groups_of(graph), promises(graph), _able(graph, cluster)
    count = int(able.sum(axis=1).prod())
    orders = list(islice(topological_orders(graph), int(MOST // count) + 1))
    every = len(orders) <= MOST // count
    tried = [None, depth_first_order(graph), *orders[: max(int(MOST // count) - 2, 0)]]
    model = make_model(graph, cluster)
    work = make_work(model)
    for home in product(*(np.flatnonzero(row).tolist() for row in able)):
        if np.any(np.bincount(home, need, cluster.n) > cluster.memory_bytes):
            continue
        device = np.array(home, dtype=np.int32)[group]
        for order in tried:
            evaluate(model, work, make_assignment(device, order), Limits(True))
            if overflow(model, work) == 0:
                return Placement(device=device, order=order), ""
    return None, f"no placement fits: all {count} were tried, in every order" if every else ""


def topological_orders(graph: OpGraph) -> Iterator[NDArray[Any]]:
    """float64[n] each: the position of every op in every topological order."""
    pointer, after = (a.tolist() for a in graph.successors)
    missing = np.diff(graph.predecessors[0]).tolist()
    place = np.zeros(graph.n)

    def extend(k: int, ready: list[int]) -> Iterator[NDArray[Any]]:
        if k == graph.n:
            yield place.copy()
        for op in ready:
            place[op] = k
            freed = []
            for reader in after[pointer[op] : pointer[op + 1]]:
                missing[reader] -= 1
                if missing[reader] == 0:
                    freed.append(reader)
            yield from extend(k + 1, [*(x for x in ready if x != op), *freed])
            for reader in after[pointer[op] : pointer[op + 1]]:
                missing[reader] += 1

    return extend(0, [i for i in range(graph.n) if missing[i] == 0])
