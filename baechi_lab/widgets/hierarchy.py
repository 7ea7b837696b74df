"""The tree that the graph view opens and closes: name scopes, then groups of the coarse graph, then their members."""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph

SCOPE, GROUP, OP = 0, 1, 2
CROWDED, ALIKE = 40, 8
"""A scope with more children than CROWDED bundles those of which at least ALIKE differ only in their number."""
ROOT = 0


@dataclass(frozen=True, eq=False)
class Tree:
    """Nodes in depth-first order, the root first; every node covers `ops[low:high]` of the original graph.

    `kind` is SCOPE (a name prefix), GROUP (an op of the coarse graph with several members) or OP; `unit` is the
    coarse op of a group or of an op in it, -1 for scopes.
    """

    names: tuple[str, ...]
    parent: NDArray[np.int32]
    kind: NDArray[np.uint8]
    unit: NDArray[np.int32]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    ops: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Per node, its children in order."""
        lists: list[list[int]] = [[] for _ in self.names]
        for node in range(1, len(self)):
            lists[self.parent[node]].append(node)
        return tuple(tuple(x) for x in lists)

    @cached_property
    def leaf_of(self) -> NDArray[np.int32]:
        """int32[ops]: the OP node of each original op."""
        leaf = np.zeros(len(self.ops), dtype=np.int32)
        nodes = np.flatnonzero(self.kind == OP)
        leaf[self.ops[self.low[nodes]]] = nodes
        return leaf

    def members(self, node: int) -> NDArray[np.int32]:
        """The original ops below `node`."""
        return self.ops[self.low[node] : self.high[node]]

    def path(self, node: int) -> list[int]:
        """The nodes above `node`, the root first."""
        above: list[int] = []
        while node != ROOT:
            node = int(self.parent[node])
            above.append(node)
        return above[::-1]

    def visible(self, expanded: Collection[int]) -> NDArray[np.int32]:
        """The nodes that are drawn when `expanded` are open; the root always is."""
        shown: list[int] = []
        stack = list(self.children[ROOT][::-1])
        while stack:
            node = stack.pop()
            if node in expanded and self.children[node]:
                stack.extend(self.children[node][::-1])
            else:
                shown.append(node)
        return np.array(shown, dtype=np.int32)

    def owner(self, visible: NDArray[np.int32]) -> NDArray[np.int32]:
        """int32[ops]: position in `visible` of the node that covers each op."""
        owner = np.empty(len(self.ops), dtype=np.int32)
        size = self.high[visible] - self.low[visible]
        owner[self.ops] = np.repeat(np.arange(len(visible), dtype=np.int32), size)
        return owner

    def open_until(self, limit: int) -> frozenset[int]:
        """Nodes to open, the largest first, while no more than `limit` nodes are visible."""
        count = len(self.children[ROOT])
        queue = [(-int(self.high[c] - self.low[c]), c) for c in self.children[ROOT]]
        heapq.heapify(queue)
        opened: set[int] = set()
        while queue:
            _, node = heapq.heappop(queue)
            more = len(self.children[node]) - 1
            if more < 0 or self.kind[node] != SCOPE or count + more > limit:
                continue
            opened.add(node)
            count += more
            for c in self.children[node]:
                heapq.heappush(queue, (-int(self.high[c] - self.low[c]), c))
        return frozenset(opened)

    def open_all(self, limit: int) -> frozenset[int]:
        """Every scope (not the groups) when at most `limit` nodes are then visible, else as `open_until`."""
        scopes = frozenset(np.flatnonzero(self.kind == SCOPE).tolist())
        return scopes if len(self.visible(scopes)) <= limit else self.open_until(limit)


@dataclass
class _Scope:
    name: str
    scopes: dict[str, _Scope] = field(default_factory=dict)
    units: list[int] = field(default_factory=list)


def build_tree(graph: OpGraph, coarse: OpGraph | None = None) -> Tree:
    """The tree of `graph`, by the name scopes (`a/b/c`) of the ops, or of the groups of `coarse`.

    A scope with a single child is merged with it; in a crowded scope, children that differ only in the number at their
    end (`AddN_1`, `AddN_2`, ...) share a scope `AddN_*`. Cost: O(ops x depth of names).
    """
    units = graph if coarse is None else coarse
    root = _Scope("")
    for unit, name in enumerate(units.names):
        scope = root
        for part in name.split("/")[:-1]:
            found = scope.scopes.get(part)
            if found is None:
                found = scope.scopes[part] = _Scope(f"{scope.name}/{part}" if scope.name else part)
            scope = found
        scope.units.append(unit)
    _bundle(root, units.names)
    return _number(root, graph, units)


def _bundle(scope: _Scope, names: tuple[str, ...]) -> None:
    """Put numbered children of crowded scopes into scopes of their own, below `scope` and all its scopes."""
    for child in list(scope.scopes.values()):
        _bundle(child, names)
    if len(scope.scopes) + len(scope.units) <= CROWDED:
        return
    stems: dict[str, list[tuple[str, int]]] = {}
    for name in scope.scopes:
        stems.setdefault(_stem(name), []).append((name, -1))
    for unit in scope.units:
        last = names[unit].rsplit("/", 1)[-1]
        stems.setdefault(_stem(last), []).append((last, unit))
    moved: set[int] = set()
    for stem, members in stems.items():
        if len(members) < ALIKE or len(members) == len(scope.scopes) + len(scope.units):
            continue
        path = f"{stem}_*" if stem else "*"
        bundle = _Scope(f"{scope.name}/{path}" if scope.name else path)
        bundle.scopes = {name: scope.scopes.pop(name) for name, unit in members if unit < 0}
        bundle.units = [unit for _, unit in members if unit >= 0]
        scope.scopes[path] = bundle
        moved.update(bundle.units)
    scope.units = [unit for unit in scope.units if unit not in moved]


def _stem(name: str) -> str:
    """A name without the number at its end."""
    return name.rstrip("0123456789").rstrip("_")


def _number(root: _Scope, graph: OpGraph, units: OpGraph) -> Tree:
    names, parents, kinds, unit_of = [""], [-1], [SCOPE], [-1]
    low, high = [0], [graph.n]
    ops: list[int] = []
    members: Any = units.members if units is not graph else [(i,) for i in range(graph.n)]

    def add(name: str, parent: int, kind: int, unit: int) -> int:
        names.append(name)
        parents.append(parent)
        kinds.append(kind)
        unit_of.append(unit)
        low.append(len(ops))
        high.append(0)
        return len(names) - 1

    def add_op(op: int, parent: int, unit: int) -> None:
        node = add(graph.names[op], parent, OP, unit)
        ops.append(op)
        high[node] = len(ops)

    def add_unit(unit: int, parent: int) -> None:
        inside = [int(m) for m in members[unit]]
        if len(inside) == 1:
            return add_op(inside[0], parent, unit)
        node = add(units.names[unit], parent, GROUP, unit)
        for op in inside:
            add_op(op, node, unit)
        high[node] = len(ops)

    def add_scope(scope: _Scope, parent: int) -> None:
        while len(scope.scopes) == 1 and not scope.units:
            scope = next(iter(scope.scopes.values()))
        if not scope.scopes and len(scope.units) == 1:
            return add_unit(scope.units[0], parent)
        node = add(scope.name, parent, SCOPE, -1)
        fill(scope, node)
        high[node] = len(ops)

    def fill(scope: _Scope, node: int) -> None:
        for child in scope.scopes.values():
            add_scope(child, node)
        for unit in scope.units:
            add_unit(unit, node)

    fill(root, ROOT)
    return Tree(
        tuple(names), np.array(parents, np.int32), np.array(kinds, np.uint8), np.array(unit_of, np.int32),
        np.array(low), np.array(high), np.array(ops, np.int32),
    )  # fmt: skip
