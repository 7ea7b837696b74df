"""Tries every placement of a small graph in every order, so that a refusal is a proof.

A placement puts each colocation group on one of its allowed devices. An order is a topological order; running ops by such an
order wherever several are ready makes every schedule that an order can make. The cost is O(devices^groups x orders)
simulations. Graphs that need more than `MAX_SIMULATIONS` are not tried, or only in a few orders.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from math import prod

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, Placement
from ..evaluation.assignment import Limits, make_assignment
from ..evaluation.evaluate import evaluate, overflow
from ..evaluation.model import make_model
from ..evaluation.work import make_work
from ..problem import allowed_group_devices, every_assignment, groups_of
from .depth_first import depth_first_order
from .packing import promised_bytes, reuses_memory

MAX_SIMULATIONS = 20_000
"""Most simulations; they take about half a second."""
MAX_OPS = 500
"""Largest graph that is tried. Larger ones have too many orders, and the recursion is as deep as there are ops."""


def first_fitting(graph: OpGraph, cluster: Cluster) -> tuple[Placement | None, str]:
    """Returns the first placement that fits in memory, else None and a proof in one sentence (empty if nothing is proven)."""
    allowed = allowed_group_devices(graph, cluster, groups_of(graph))
    # A product of Python's integers, since floats would overflow.
    if graph.n > MAX_OPS or prod(allowed.sum(axis=1).tolist()) > MAX_SIMULATIONS:
        return None, ""
    return _try_all_placements(graph, cluster)


@lru_cache(maxsize=16)
def _try_all_placements(graph: OpGraph, cluster: Cluster) -> tuple[Placement | None, str]:
    """Tries all placements for `first_fitting`. The last results are cached: many placers ask for the same graph."""
    group, need = groups_of(graph), promised_bytes(graph)
    allowed = allowed_group_devices(graph, cluster, group)
    count = int(allowed.sum(axis=1).prod())
    orders_per_placement = MAX_SIMULATIONS // count
    orders = list(islice(topological_orders(graph), orders_per_placement + 1))
    has_all_orders = len(orders) <= orders_per_placement
    candidate_orders = [None, depth_first_order(graph), *orders[:orders_per_placement]]
    model = make_model(graph, cluster)
    work = make_work(model)
    for assignment in every_assignment(allowed, MAX_SIMULATIONS):
        if np.any(np.bincount(assignment, need, cluster.n) > cluster.memory_bytes):
            continue
        device = assignment.astype(np.int32)[group]
        for order in candidate_orders:
            evaluate(model, work, make_assignment(device, order), Limits(True))
            if overflow(model, work) == 0:
                return Placement(device=device, order=order), ""
    premise = "if no memory is reused, " if reuses_memory(graph) else ""
    return None, f"{premise}no placement fits: all {count} were tried, in every order" if has_all_orders else ""


def topological_orders(graph: OpGraph) -> Iterator[NDArray[np.float64]]:
    """Yields every topological order, as float64[n]: the position of every op."""
    pointer, successor = (a.tolist() for a in graph.successors)
    missing_inputs = np.diff(graph.predecessors[0]).tolist()
    position = np.zeros(graph.n)

    def extend(next_position: int, ready: list[int]) -> Iterator[NDArray[np.float64]]:
        if next_position == graph.n:
            yield position.copy()
        for op in ready:
            position[op] = next_position
            newly_ready = []
            for reader in successor[pointer[op] : pointer[op + 1]]:
                missing_inputs[reader] -= 1
                if missing_inputs[reader] == 0:
                    newly_ready.append(reader)
            yield from extend(
                next_position + 1, [*(still_ready for still_ready in ready if still_ready != op), *newly_ready]
            )
            for reader in successor[pointer[op] : pointer[op + 1]]:
                missing_inputs[reader] += 1

    return extend(0, [i for i in range(graph.n) if missing_inputs[i] == 0])
