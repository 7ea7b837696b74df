"""Joins ops into groups that may run wherever one of their ops may."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph
from ..graph.kernels.csr import Ints
from .allowed_lists import UNCLEAR, AllowedMeets


class JoinedOps:
    """Union-find over ops; every set has its smallest member as root, its work, and its allowed list.

    The first sets are the given colocation groups, whose ops must share a device.
    """

    def __init__(self, graph: OpGraph):
        self.parent = list(range(graph.n))
        self.work = graph.duration_us.tolist()
        self.code = graph.allowed.tolist()
        self.meets = AllowedMeets(graph.allowed_sets)
        member = np.flatnonzero(graph.colocation >= 0)
        first = np.full(len(graph.colocation_names), graph.n, dtype=np.int64)
        np.minimum.at(first, graph.colocation[member], member)
        # Ops of a colocation group must share a device, whatever their allowed lists and work.
        for a, b in zip(member.tolist(), first[graph.colocation[member]].tolist(), strict=True):
            a, b = self.root(a), self.root(b)
            if a != b:
                meet_code = self.meets.meet(self.code[a], self.code[b])
                self._merge(a, b, UNCLEAR if meet_code is None else meet_code)

    def root(self, op: int) -> int:
        """Returns the smallest member of an op's set."""
        parent = self.parent
        while parent[op] != op:
            parent[op] = op = parent[parent[op]]
        return op

    def join_pairs(self, first: Ints, second: Ints | NDArray[np.int32], limit: float | None = None) -> None:
        """Joins the pairs in order, as `join` does."""
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            self.join(a, b, limit)

    def join(self, a: int, b: int, limit: float | None = None) -> bool:
        """Joins the sets of two ops, unless neither list contains the other or the work would exceed `limit`.

        Returns whether the two are in one set.
        """
        a, b = self.root(a), self.root(b)
        if a == b:
            return True
        meet_code = self.meets.meet_if_nested(self.code[a], self.code[b])
        if meet_code is None or (limit is not None and self.work[a] + self.work[b] > limit):
            return False
        self._merge(a, b, meet_code)
        return True

    def _merge(self, a: int, b: int, code: int) -> None:
        """Joins the sets of two roots, whose common list is `code`."""
        low, high = min(a, b), max(a, b)
        self.parent[high] = low
        self.work[low] += self.work[high]
        self.code[low] = code

    def roots(self) -> NDArray[np.int64]:
        """Returns int64[n]: the smallest member of every op's set."""
        parent = self.parent
        for op in range(len(parent)):  # a parent is smaller, and its own parent already is its root
            parent[op] = parent[parent[op]]
        return np.array(parent, dtype=np.int64)
