"""Groupings that are computed: random (H, Table 2), by name scope, by METIS, or by hand.

The Placer network places them as they are, or a Grouper starts from them.

ColocRL (Mirhoseini et al. 2017, arXiv:1706.04972) places groups that people made by name; here the deepest level of name
scopes that yields at most the wanted number of groups.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from ...graph import Cluster, OpGraph
from ...workers.metis import metis_parts
from ..metis import cut_costs, load_pymetis
from ..scopes import scope_labels, scope_of
from .embeddings import Units


def random_grouping(units: Units, groups: int, seed: int) -> NDArray[np.int64]:
    """Returns int64[U]: a group per unit with equal odds (the randomized groupings of Mirhoseini et al. 2018, Table 2)."""
    return np.random.default_rng(seed).integers(0, groups, units.total)


def scope_grouping(graph: OpGraph, units: Units, groups: int) -> NDArray[np.int64]:
    """Returns int64[U]: units by name scope of their first op, as deep as `groups` allow; backward ops with their forward scope.

    Where even the outermost scopes are too many, the surplus shares the last group.
    """
    _, first = np.unique(units.of, return_index=True)
    scope_paths = [scope_of(graph.names[i]) for i in first.tolist()]
    labels = scope_labels(scope_paths, 1)
    for depth in range(2, max(map(len, scope_paths)) + 1):
        deeper = scope_labels(scope_paths, depth)
        if deeper.max() >= groups:
            break
        labels = deeper
    return np.minimum(labels, groups - 1)


def metis_grouping(graph: OpGraph, cluster: Cluster, units: Units, groups: int, seed: int) -> NDArray[np.int64]:
    """Returns int64[U]: about equally many units per group, the cheapest transfers between groups (METIS, k-way; needs pymetis).

    Where there are enough groups for that, every unit is in one of its own.
    """
    if groups >= units.total or groups == 1:
        return np.arange(units.total) % groups
    load_pymetis()
    pointer, neighbour, cost = cut_costs(graph, cluster, units.of, units.total)
    return metis_parts(pointer, neighbour, cost, groups, recursive=False, seed=seed)


def given_grouping(graph: OpGraph, units: Units, grouping: object) -> NDArray[np.int64]:
    """Returns int64[U] from a group number per op, numbered anew without gaps; ops of one colocation group must agree."""
    group = np.asarray(grouping)
    if group.shape != (graph.n,) or group.dtype.kind not in "iu" or (group.size and group.min() < 0):
        raise InvalidInput(
            f"grouping is an array of {group.dtype} of shape {group.shape}; it must hold one group number "
            f"from 0 on per op, {graph.n}"
        )
    _, first = np.unique(units.of, return_index=True)
    unit_groups = group[first].astype(np.int64)
    divided_units = np.flatnonzero(unit_groups[units.of] != group)
    if len(divided_units):
        name = graph.names[divided_units[0]]
        raise InvalidInput(
            f"grouping separates op {name!r} from the others of its colocation group; they must share one"
        )
    return np.unique(unit_groups, return_inverse=True)[1].reshape(-1).astype(np.int64)
