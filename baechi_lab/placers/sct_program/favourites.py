"""Favourite children: round the SCT linear program so that every op has at most one favourite child and one favourite parent.

The favourite child of an op is the successor that should run next on the op's device, so that their transfer is saved.

For graphs with more than `LARGEST_LP` edges the program would take hours. There each edge, in order of the longest path after
it, makes its reader the favourite child if neither end has a favourite yet.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from ...graph import Cluster, OpGraph
from ...graph.kernels.compiling import working_seconds
from ...simulator.paths import heads_and_tails
from .lp import SctProblem, sct_problem
from .solver import SctSolution, solve_sct

LARGEST_LP = 60_000
"""Most edges for which "highs" solves the linear program."""


@dataclass(frozen=True)
class Favourites:
    """`child`, `parent` int32[n] (-1: none); `conflicts`: edges that rounded to 0 but lost to a better one; the LP's solution."""

    child: NDArray[np.int32]
    parent: NDArray[np.int32]
    conflicts: int
    solution: SctSolution


def check_threshold(threshold: float) -> None:
    """Raises `InvalidInput` unless 0 <= threshold < 1."""
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 <= threshold < 1:
        raise InvalidInput(
            f"threshold is {threshold!r}; it must be in [0, 1): x at or below it makes a favourite child"
        )


def favourites(graph: OpGraph, cluster: Cluster, threshold: float = 0.1, solver: str = "highs") -> Favourites:
    """Solves the LP and rounds it: `j` may be the favourite child of `i` if `x_ij <= threshold`.

    Rounding may give an op two favourites (5 -> {10, 10} with transfers of 4 has x = 0.5, 0.5). The smaller x wins, then the
    larger transfer, then the lower edge. Edges that lose are counted as conflicts.
    """
    check_threshold(threshold)
    problem = sct_problem(graph, cluster)
    if solver == "highs" and len(problem.source) > LARGEST_LP:
        return greedy_favourites(graph, problem)
    solution, conflicts = solve_sct(problem, solver), 0
    child, parent = np.full(graph.n, -1, dtype=np.int32), np.full(graph.n, -1, dtype=np.int32)
    rounded_x = np.round(solution.x, 6)  # what solvers leave of an exact value
    candidates = np.flatnonzero(rounded_x <= threshold)
    for e in candidates[np.lexsort((candidates, -problem.transfer[candidates], rounded_x[candidates]))].tolist():
        i, j = problem.source[e], problem.target[e]
        if child[i] < 0 and parent[j] < 0:
            child[i], parent[j] = j, i
        else:
            conflicts += 1
    return Favourites(child, parent, conflicts, solution)


def greedy_favourites(graph: OpGraph, problem: SctProblem) -> Favourites:
    """Favourites without a linear program: by the time from an edge's transfer to the end of the step, longest first.

    >>> graph = OpGraph.from_edges([5, 10, 3], [(0, 1, 8), (0, 2, 8)])
    >>> greedy_favourites(graph, sct_problem(graph, Cluster.uniform(2))).child.tolist()
    [1, -1, -1]
    """
    start_seconds = working_seconds()
    child, parent = np.full(graph.n, -1, dtype=np.int32), np.full(graph.n, -1, dtype=np.int32)
    tail = heads_and_tails(graph, problem.compute)[1]
    behind = problem.transfer + problem.compute[problem.target] + tail[problem.target]
    saving = np.flatnonzero(problem.transfer > 0)
    source, target = problem.source.tolist(), problem.target.tolist()
    x = np.ones(len(source))
    for e in saving[np.argsort(-behind[saving], kind="stable")].tolist():
        i, j = source[e], target[e]
        if child[i] < 0 and parent[j] < 0:
            child[i], parent[j], x[e] = j, i, 0.0
    solution = SctSolution(
        x, objective_us=float("nan"), solver="greedy", rows=0, columns=0, seconds=working_seconds() - start_seconds
    )
    return Favourites(child, parent, 0, solution)
