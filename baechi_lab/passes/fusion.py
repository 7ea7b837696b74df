"""Fusion by the safe-degree rule (Jeon et al. 2020, section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..graph import OpGraph
from ..graph.groups import components
from ..graph.kernels.csr import Ints, distinct
from .allowed_lists import with_common_lists
from .base import Pass
from .contraction import contract


@dataclass(frozen=True)
class Fusion(Pass):
    """Merge directly connected ops of one group if no cycle can appear.

    Ops of one colocation (or co-placement) group that are joined by an edge `src -> dst` are merged if `src` has no
    other successor or `dst` no other predecessor; without that, a second path from `src` to `dst` could become a
    cycle. A collective and an op that computes stay apart, as they run on different lanes. Repeated until no edge
    qualifies. The rule needs no search for paths, and misses some merges that a search would find.

    All edges that qualify by their source are merged at once: after merging one, the other sources still have one
    successor, so any order is safe, and so is merging them together; likewise for targets. The two kinds alternate,
    O((ops + edges) log) each, on graphs that shrink. If many rounds would be needed (ladders), one edge after another is
    merged with a work list that always moves the smaller set, O(edges log ops).
    """

    name: ClassVar[str] = "fusion"

    def apply(self, graph: OpGraph) -> OpGraph:
        graph = with_common_lists(graph)
        # Ops of one group whose allowed lists cannot be combined into one list must stay apart.
        codes = len(graph.allowed_sets) + 1
        key = np.where(graph.colocation >= 0, graph.colocation * np.int64(codes) + graph.allowed + 1, -1)
        key = np.where(key >= 0, 2 * key + graph.on_communication_lane, -1)  # collectives have a lane of their own
        return contract(graph, fuse(graph.edge_source.astype(np.int64), graph.consumers.astype(np.int64), key))


ARRAY_ROUNDS = 12
"""Most rounds with arrays; after them the work list is used."""


def fuse(source: Ints, target: Ints, key: Ints, max_rounds: int = ARRAY_ROUNDS) -> Ints:
    """Returns int64[n]: the smallest op of every op's merged group. Ops merge only with ops of the same key; -1 never merges."""
    n = len(key)
    label, idle_rounds = np.arange(n, dtype=np.int64), 0
    source, target = distinct_edges(source, target, n)
    for round_number in range(max_rounds):
        side = source if round_number % 2 == 0 else target
        degree = np.bincount(side, minlength=n)
        mergeable = (degree[side] == 1) & (key[source] == key[target]) & (key[source] >= 0)
        idle_rounds = 0 if mergeable.any() else idle_rounds + 1
        if idle_rounds == 2:
            return label
        component = components(n, source[mergeable], target[mergeable])
        label = component[label]
        source, target = distinct_edges(component[source], component[target], n)
    return _fuse_one_by_one(source, target, key)[label]


def distinct_edges(source: Ints, target: Ints, n: int) -> tuple[Ints, Ints]:
    """Returns the edges between different ops, each once."""
    pair = source * max(n, 1) + target
    pair = distinct(pair[source != target])
    return pair // max(n, 1), pair % max(n, 1)


def _fuse_one_by_one(source: Ints, target: Ints, key: Ints) -> Ints:
    """Merges one edge at a time until none qualifies; neighbours move from the op with fewer to the one with more."""
    n = len(key)
    successors: dict[int, set[int]] = {}
    predecessors: dict[int, set[int]] = {}
    for u, v in zip(source.tolist(), target.tolist(), strict=True):
        successors.setdefault(u, set()).add(v)
        predecessors.setdefault(v, set()).add(u)
    keys, root_of = key.tolist(), np.arange(n, dtype=np.int64)
    parent: dict[int, int] = {}
    nodes = sorted({*successors, *predecessors})
    for node in nodes:
        successors.setdefault(node, set())
        predecessors.setdefault(node, set())
    stack = list(reversed(nodes))
    while stack:
        node = stack.pop()
        if node in parent:
            continue
        partner = _partner(node, successors, predecessors, keys)
        if partner < 0:
            continue
        survivor, absorbed_node = node, partner
        if _degree(node, successors, predecessors) < _degree(partner, successors, predecessors):
            survivor, absorbed_node = partner, node
        # The neighbours of `absorbed_node` become those of `survivor`. A neighbour that both had now has one fewer.
        shared_neighbours: set[int] = set()
        for neighbours, reverse in ((successors, predecessors), (predecessors, successors)):
            for neighbour in neighbours.pop(absorbed_node):
                reverse[neighbour].discard(absorbed_node)
                if neighbour == survivor:
                    continue
                if survivor in reverse[neighbour]:
                    shared_neighbours.add(neighbour)
                reverse[neighbour].add(survivor)
                neighbours[survivor].add(neighbour)
        parent[absorbed_node] = survivor
        # Only ops next to the two can have lost a neighbour, and so have become mergeable.
        stack += sorted(shared_neighbours, reverse=True)
        stack.append(survivor)
    for node in nodes:
        root = node
        while root in parent:
            root = parent[root]
        root_of[node] = root
    first = np.full(n, n, dtype=np.int64)
    np.minimum.at(first, root_of, np.arange(n))
    return first[root_of]


def _degree(node: int, successors: dict[int, set[int]], predecessors: dict[int, set[int]]) -> int:
    """Returns the number of neighbours of a node."""
    return len(successors[node]) + len(predecessors[node])


def _partner(node: int, successors: dict[int, set[int]], predecessors: dict[int, set[int]], keys: list[int]) -> int:
    """Returns a neighbour with which `node` may be merged by the rule, -1 for none; either end of an edge may find it."""
    if keys[node] < 0:
        return -1
    if len(successors[node]) == 1:
        (neighbour,) = successors[node]
        if keys[neighbour] == keys[node]:
            return neighbour
    if len(predecessors[node]) == 1:
        (neighbour,) = predecessors[node]
        if keys[neighbour] == keys[node]:
            return neighbour
    return -1
