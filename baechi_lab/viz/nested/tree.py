"""The tree of nested boxes: scopes, ops, and levels in between if a box would hold too many."""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...graph import OpGraph
from .boxes import LEVEL, OP, SCOPE, Box, with_levels
from .scopes import BACKWARD, Path, parts_of, scope_paths, separator

__all__ = ["LEVEL", "OP", "ROOT", "SCOPE", "Tree", "build_tree"]
ROOT = 0
FEW, SMALLEST_FRAME = 5, 0.1
"""Limits of the first picture: while it has fewer boxes, any scope is opened; then only those with this share of all ops."""
MOST_CHILDREN = 20
"""Most children of a box without levels in between; each of the two outermost levels of a training step has half of it."""


@dataclass(frozen=True, eq=False)
class Tree:
    """Nodes in depth-first order, the root first; every node covers `ops[low:high]` of the original graph.

    `kind` is SCOPE (a name prefix), LEVEL (in between, if a scope would hold too many) or OP. `backward` marks boxes of the
    backward pass. `twin` of an outermost backward box is the box of its forward ops, else -1.
    """

    names: tuple[str, ...]
    labels: tuple[str, ...]
    parent: NDArray[np.int32]
    kind: NDArray[np.uint8]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    ops: NDArray[np.int32]
    backward: NDArray[np.bool_]
    twin: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The children of each node, in order."""
        lists: list[list[int]] = [[] for _ in self.names]
        for node, parent in enumerate(self.parent.tolist()):
            if node:
                lists[parent].append(node)
        return tuple(tuple(x) for x in lists)

    @cached_property
    def leaf_of(self) -> NDArray[np.int32]:
        """The OP node int32[ops] of each original op."""
        leaf = np.zeros(len(self.ops), dtype=np.int32)
        nodes = np.flatnonzero(self.kind == OP)
        leaf[self.ops[self.low[nodes]]] = nodes
        return leaf

    def members(self, node: int) -> NDArray[np.int32]:
        return self.ops[self.low[node] : self.high[node]]

    def path(self, node: int) -> list[int]:
        """Returns the ancestors of `node`, the root first."""
        above: list[int] = []
        while node != ROOT:
            node = int(self.parent[node])
            above.append(node)
        return above[::-1]

    def visible(self, expanded: Collection[int]) -> NDArray[np.int32]:
        """Returns the nodes that are drawn as boxes if `expanded` are open; the root is always open."""
        return np.array([n for n in self._walk(expanded) if not self._open(n, expanded)], dtype=np.int32)

    def frames(self, expanded: Collection[int]) -> NDArray[np.int32]:
        """Returns the visible open nodes without the root, outer ones before inner ones."""
        return np.array([n for n in self._walk(expanded) if self._open(n, expanded)], dtype=np.int32)

    def _open(self, node: int, expanded: Collection[int]) -> bool:
        return node in expanded and bool(self.children[node])

    def _walk(self, expanded: Collection[int]) -> list[int]:
        nodes: list[int] = []
        stack = list(self.children[ROOT][::-1])
        while stack:
            node = stack.pop()
            nodes.append(node)
            if self._open(node, expanded):
                stack.extend(self.children[node][::-1])
        return nodes

    def owner(self, visible: NDArray[np.int32]) -> NDArray[np.int32]:
        """Returns int32[ops]: the position in `visible` of the node that covers each op."""
        owner = np.empty(len(self.ops), dtype=np.int32)
        size = self.high[visible] - self.low[visible]
        owner[self.ops] = np.repeat(np.arange(len(visible), dtype=np.int32), size)
        return owner

    def _deserves_frame(self, node: int) -> bool:
        """Whether a node is large enough for a frame, and most of its ops are in inner scopes."""
        size = self.high - self.low
        inside = sum(int(size[c]) for c in self.children[node] if self.kind[c] == SCOPE)
        return bool(size[node] >= SMALLEST_FRAME * size[ROOT] and 2 * inside > size[node])

    def open_until(self, limit: int) -> frozenset[int]:
        """Returns the scopes to open for the first picture: the largest first, while at most `limit` boxes are visible.

        A scope of scopes is opened. A scope of mostly single ops, or with levels, is opened only if there would otherwise be
        hardly any boxes. The backward pass is opened like the forward pass, or not at all.
        """
        open_nodes: set[int] = set()
        count = len(self.children[ROOT])
        queue = [(-int(self.high[c] - self.low[c]), c) for c in self.children[ROOT] if not self.backward[c]]
        heapq.heapify(queue)
        while queue:
            _, node = heapq.heappop(queue)
            inside = self.children[node]
            if not inside or count + len(inside) - 1 > limit or not (self._deserves_frame(node) or count < FEW):
                continue
            open_nodes.add(node)
            count += len(inside) - 1
            for c in inside:
                heapq.heappush(queue, (-int(self.high[c] - self.low[c]), c))
        mirrored_nodes = {c for c in self.children[ROOT] if self.backward[c] and int(self.twin[c]) in open_nodes}
        added_count = sum(len(self.children[c]) - 1 for c in mirrored_nodes if self.children[c])
        return frozenset(open_nodes | mirrored_nodes if count + added_count <= limit else open_nodes)


def build_tree(graph: OpGraph) -> Tree:
    """Builds the tree of `graph` by the scopes of its ops (`scope_paths`).

    A scope with a single child is merged with it. Boxes of the backward pass are siblings of those of the forward pass, and
    have the same levels.
    """
    mark = separator(graph.names)
    forward, backward = _Scope(""), _Scope(BACKWARD)
    for op, path in enumerate(scope_paths(graph)):
        if path[:1] == (BACKWARD,):
            backward.add(op, path[1:], mark)
        else:
            forward.add(op, path, mark)
    ahead, backward_box = (scope.box(graph, mark) for scope in (forward, backward))
    has_both = bool(ahead.items and backward_box.items)
    with_levels(graph, ahead, backward_box, MOST_CHILDREN, MOST_CHILDREN // 2 if has_both else MOST_CHILDREN)
    return _number_boxes(graph, ahead, backward_box)


class _Scope:
    """A name scope with the scopes and ops in it."""

    def __init__(self, name: str):
        self.name = name
        self.scopes: dict[str, _Scope] = {}
        self.ops: list[int] = []

    def add(self, op: int, path: Path, mark: str) -> None:
        scope = self
        for component in path:
            if component not in scope.scopes:
                scope.scopes[component] = _Scope(f"{scope.name}{mark}{component}" if scope.name else component)
            scope = scope.scopes[component]
        scope.ops.append(op)

    def box(self, graph: OpGraph, mark: str) -> Box:
        """Returns the scope as a box; a scope with a single child becomes that child, with the label of both."""
        items, last = [], self.name.rpartition(mark)[2]
        for label, scope in self.scopes.items():
            if label.isdigit() and last != BACKWARD:
                label = f"{last}{mark}{label}".removeprefix(mark)  # a number alone has no meaning
            while len(scope.scopes) == 1 and not scope.ops:
                scope = next(iter(scope.scopes.values()))
            if not scope.scopes and len(scope.ops) == 1:
                items.append(_op_box(graph, mark, scope.ops[0]))
            else:
                inner = scope.box(graph, mark)
                items.append(Box(inner.name, label, SCOPE, inner.items))
        items.extend(_op_box(graph, mark, op) for op in self.ops)
        return Box(self.name, "", SCOPE, items)


def _op_box(graph: OpGraph, mark: str, op: int) -> Box:
    """Returns the box of an op, labelled by the end of its name, but not by a number alone or a long dotted name."""
    components = parts_of(graph.names[op], mark)
    label = mark.join(components[-2:]) if components[-1].isdigit() else components[-1]
    while len(label) > LONGEST_LABEL and "." in label:
        label = label.partition(".")[2]
    return Box(graph.names[op], label, OP, (), op)


LONGEST_LABEL = 28
"""Length of a dotted name from which its outer parts are left out."""


def _number_boxes(graph: OpGraph, forward: Box, backward: Box) -> Tree:
    """Returns the boxes in depth-first order as columns; the two outermost boxes become one root."""
    rows: list[tuple[Box, int, bool]] = [(Box("", "", SCOPE, []), -1, False)]
    low, high = [0], [graph.n]
    ops: list[int] = []

    def add(box: Box, parent: int, is_backward: bool) -> None:
        node = len(rows)
        rows.append((box, parent, is_backward))
        low.append(len(ops))
        high.append(0)
        if box.kind == OP:
            ops.append(box.op)
        for item in box.items:
            add(item, node, is_backward)
        high[node] = len(ops)

    first = {}
    for root, is_backward in ((forward, False), (backward, True)):
        for item in root.items:
            first[id(item)] = len(rows)
            add(item, ROOT, is_backward)
    twin = np.full(len(rows), -1, dtype=np.int32)
    holder = np.full(graph.n, -1, dtype=np.int64)
    for k, item in enumerate(forward.items):
        holder[item.ops] = k
    by_label = {item.label: item for item in forward.items}
    twins_of_boxes = []
    for item in backward.items:
        twins = graph.forward_of[item.ops]
        twin_box = holder[twins[twins >= 0]]
        if len(twin_box := twin_box[twin_box >= 0]):
            twins_of_boxes.append((item, forward.items[int(np.bincount(twin_box).argmax())]))
        elif item.label in by_label:
            twins_of_boxes.append((item, by_label[item.label]))
    for forward_box, backward_box in twins_of_boxes:
        twin[first[id(forward_box)]] = first[id(backward_box)]
    return Tree(
        names=tuple(b.name for b, _, _ in rows),
        labels=tuple(b.label for b, _, _ in rows),
        parent=np.array([p for _, p, _ in rows], np.int32),
        kind=np.array([b.kind for b, _, _ in rows], np.uint8),
        low=np.array(low),
        high=np.array(high),
        ops=np.array(ops, np.int32),
        backward=np.array([is_backward for _, _, is_backward in rows], np.bool_),
        twin=twin,
    )
