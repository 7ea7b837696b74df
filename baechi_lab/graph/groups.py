"""Groups of ops: joins those that overlap, and makes colocation groups of single ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .kernels.csr import Integers, Ints

if TYPE_CHECKING:
    from .opgraph import OpGraph


def add_single_groups(graph: OpGraph, ops: Sequence[int] | Ints, label: str) -> tuple[Ints, tuple[str, ...]]:
    """Returns the colocation int64[n] and the names of groups of `graph`, with a group for each of `ops`, which have none.

    A group has the name of its op, or with `label` before it if another group has that name.

    >>> from baechi_lab.graph import OpGraph
    >>> graph = OpGraph.from_edges([1, 1, 1], colocation=[0, -1, 0], colocation_names=("op1",))
    >>> colocation, names = add_single_groups(graph, [1], "copies of")
    >>> colocation.tolist(), names
    ([0, 1, 0], ('op1', 'copies of op1'))
    """
    colocation = graph.colocation.astype(np.int64)
    colocation[ops] = len(graph.colocation_names) + np.arange(len(ops))
    taken_names = set(graph.colocation_names)
    names = (graph.names[op] for op in ops)
    added_names = (f"{label} {name}" if name in taken_names else name for name in names)
    return colocation, (*graph.colocation_names, *added_names)


def components(n: int, a: Integers, b: Integers) -> NDArray[np.int64]:
    """Returns int64[n]: the smallest node to which each node is connected by the pairs `(a[k], b[k])`.

    Each round joins every tree to the smallest that a pair leads to, and then points every node at its root (Shiloach and
    Vishkin 1982, doi:10.1016/0196-6774(82)90008-6). Two rounds halve the trees of a component: O((n + pairs) log n), and no
    import of SciPy, which takes longer than all rounds.
    """
    root = np.arange(n, dtype=np.int64)
    while True:
        root_a, root_b = root[a], root[b]
        joins = root_a != root_b
        if not joins.any():
            return root
        np.minimum.at(root, np.maximum(root_a, root_b)[joins], np.minimum(root_a, root_b)[joins])
        while not np.array_equal(root[root], root):
            root = root[root]


def join_groups(n: int, groups: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    """Returns the groups of `n` ops that remain when all that overlap are joined.

    Members ascend, and groups are in the order of their first members. A group of one op is left out.

    >>> join_groups(5, [(1, 3), (0, 1), (4,)])
    ((0, 1, 3),)
    """
    pairs = np.array(
        [(first, member) for first, *other_members in groups for member in other_members], dtype=np.int64
    ).reshape(-1, 2)
    members: dict[int, list[int]] = {}
    for op, first in enumerate(components(n, pairs[:, 0], pairs[:, 1]).tolist()):
        members.setdefault(first, []).append(op)
    return tuple(tuple(m) for m in members.values() if len(m) > 1)
