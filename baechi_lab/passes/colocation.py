"""Colocation constraints in normal form (paper B, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..graph import OpGraph
from .allowed_lists import common_allowed, spread
from .base import Pass


@dataclass(frozen=True)
class Colocation(Pass):
    """Normalise colocation groups: one list of allowed devices per group, groups of one dropped.

    Every member gets the meet of its group's allowed lists, so that whoever places one member sees what holds for all
    of them. Idempotent; O(ops log ops). Raises `ColocationError` when a group's lists can never agree.
    """

    name: ClassVar[str] = "colocation"

    def apply(self, graph: OpGraph) -> OpGraph:
        size = np.bincount(graph.colocation[graph.colocation >= 0], minlength=len(graph.colocation_names))
        kept = np.flatnonzero(size > 1)
        number = np.append(np.full(len(size), -1), -1)
        number[kept] = np.arange(len(kept))
        column = number[graph.colocation].astype(np.int32)
        found, meets = common_allowed(graph, column, len(kept))
        allowed = spread(graph, column, found)
        if len(kept) == len(size) and np.array_equal(allowed, graph.allowed):
            return graph
        return graph.replace(
            colocation=column,
            colocation_names=tuple(graph.colocation_names[k] for k in kept.tolist()),
            allowed=allowed,
            allowed_sets=tuple(meets.table),
        )
