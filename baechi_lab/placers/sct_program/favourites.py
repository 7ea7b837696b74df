"""Favourite children: round the SCT LP so that every op has at most one favourite child and one favourite parent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from ...graph import Cluster, OpGraph
from .lp import SctProblem, sct_problem
from .solver import SctSolution, solve_sct


@dataclass(frozen=True)
class Favourites:
    """`child`, `parent` int32[n] (-1: none); `conflicts`: edges that rounded to 0 beside a better one; the LP's solution."""

    child: NDArray[np.int32]
    parent: NDArray[np.int32]
    conflicts: int
    solution: SctSolution


def check_threshold(threshold: float) -> None:
    """Raise `InvalidInput` unless 0 <= threshold < 1."""
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 <= threshold < 1:
        raise InvalidInput(
            f"threshold is {threshold!r}; it must be in [0, 1): x at or below it makes a favourite child"
        )


def favourites(graph: OpGraph, cluster: Cluster, threshold: float = 0.1, solver: str = "highs") -> Favourites:
    """Solve the LP and round: `j` may be the favourite child of `i` where `x_ij <= threshold`.

    Up to 0.5 rounding may give an op two favourites (5 -> {10, 10} with transfers of 4 has x = 0.5, 0.5). The
    smaller x wins, then the larger transfer, then the lower edge; what loses is counted, never kept.
    """
    check_threshold(threshold)
    problem = sct_problem(graph, cluster)
    solution = solve_sct(problem, solver)
    child, parent, conflicts = round_solution(problem, solution.x, threshold)
    return Favourites(child, parent, conflicts, solution)


def round_solution(
    problem: SctProblem, x: NDArray[np.float64], threshold: float
) -> tuple[NDArray[np.int32], NDArray[np.int32], int]:
    """`child` and `parent` int32[n] and the number of conflicts."""
    n, conflicts = len(problem.compute), 0
    child, parent = np.full(n, -1, dtype=np.int32), np.full(n, -1, dtype=np.int32)
    rounded = np.round(x, 6)  # what solvers leave of an exact value
    chosen = np.flatnonzero(rounded <= threshold)
    for e in chosen[np.lexsort((chosen, -problem.transfer[chosen], rounded[chosen]))].tolist():
        i, j = problem.source[e], problem.target[e]
        if child[i] < 0 and parent[j] < 0:
            child[i], parent[j] = j, i
        else:
            conflicts += 1
    return child, parent, conflicts
