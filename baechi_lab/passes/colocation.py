"""Colocation constraints in normal form (Jeon et al. 2020, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..graph import OpGraph
from .allowed_lists import codes_of_ops, common_allowed
from .base import Pass


@dataclass(frozen=True)
class Colocation(Pass):
    """Normalise colocation groups: one list of allowed devices per group, groups of one dropped.

    Every member gets the meet of its group's allowed lists, so that its own list holds for the whole group. Idempotent;
    O(ops log ops). Raises `ColocationError` if a group's lists can never agree.
    """

    name: ClassVar[str] = "colocation"

    def apply(self, graph: OpGraph) -> OpGraph:
        size = np.bincount(graph.colocation[graph.colocation >= 0], minlength=len(graph.colocation_names))
        large_groups = np.flatnonzero(size > 1)
        number = np.append(np.full(len(size), -1), -1)
        number[large_groups] = np.arange(len(large_groups))
        column = number[graph.colocation].astype(np.int32)
        common, meets = common_allowed(graph, column, len(large_groups))
        allowed = codes_of_ops(graph, column, common)
        if len(large_groups) == len(size) and np.array_equal(allowed, graph.allowed):
            return graph
        return graph.replace(
            colocation=column,
            colocation_names=tuple(graph.colocation_names[k] for k in large_groups.tolist()),
            allowed=allowed,
            allowed_sets=tuple(meets.table),
        )
