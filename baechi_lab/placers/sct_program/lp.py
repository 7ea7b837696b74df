"""The SCT linear program: which successor of each op should follow it on the same device.

Model (paper B section 2.4 after Hanen and Munier 1995, doi:10.1109/ETFA.1995.496763; infinitely many devices):
minimise `w` subject to, for every edge i -> j with transfer time c_ij and 0 <= x_ij <= 1,

    s_j >= s_i + k_i + c_ij x_ij,      s_i + k_i <= w,
    sum over succ(i) of x_ij >= |succ(i)| - 1,      sum over pred(j) of x_ij >= |pred(j)| - 1.

`j` is the favourite child of `i` where x_ij rounds to 0. `solve_with_cvxpy` in `sct_program/solver.py` is the readable twin.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ...graph import Cluster, OpGraph
from ...graph.costs import allowed_durations
from ...graph.kernels.csr import Integers
from ..problem import transfer_us


@dataclass(frozen=True)
class SctProblem:
    """Edges (distinct op pairs) `source`, `target` int32[e], `transfer` float64[e] us; `compute` float64[n] us."""

    source: NDArray[np.int32]
    target: NDArray[np.int32]
    transfer: NDArray[np.float64]
    compute: NDArray[np.float64]

    @property
    def out_degree(self) -> NDArray[np.int64]:
        return np.bincount(self.source, minlength=len(self.compute))

    @property
    def in_degree(self) -> NDArray[np.int64]:
        return np.bincount(self.target, minlength=len(self.compute))


@dataclass(frozen=True)
class LinearProgram:
    """minimise cost @ v, row_lower <= matrix @ v <= row_upper, lower <= v <= upper."""

    cost: NDArray[np.float64]
    matrix: csr_array
    row_lower: NDArray[np.float64]
    row_upper: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


def sct_problem(graph: OpGraph, cluster: Cluster) -> SctProblem:
    """Returns the data of the LP: compute time on the fastest allowed device, transfer time over the mean link.

    Several tensors between two ops are sent one after the other, unless the cluster's transfers are `parallel`. Edges inside a
    colocation group cost nothing, since the group shares a device.
    """
    compute = allowed_durations(graph, cluster).min(axis=1, initial=np.inf)
    cost = transfer_us(graph, cluster)[graph.edge_tensor]
    n = max(graph.n, 1)
    pair, pair_of_edge = np.unique(graph.edge_source.astype(np.int64) * n + graph.consumers, return_inverse=True)
    transfer = np.zeros(len(pair))
    (np.maximum if cluster.comm == "parallel" else np.add).at(transfer, pair_of_edge.reshape(-1), cost)
    source, target = (pair // n).astype(np.int32), (pair % n).astype(np.int32)
    together = (graph.colocation[source] >= 0) & (graph.colocation[source] == graph.colocation[target])
    return SctProblem(source, target, np.where(together, 0.0, transfer), compute)


def sct_program(problem: SctProblem, is_implied: NDArray[np.bool_] | None = None) -> LinearProgram:
    """Returns the LP as arrays, without the rows of edges that `is_implied` bool[e] marks.

    Variables: s (one per op), x (one per edge), w.

    An edge that is the only one of its source and of its target has x = 0. A transfer that takes no time has x = 1, since nothing
    can be saved. `s_i + k_i <= w` is kept for ops without successors; it follows for the others.
    """
    n, e = len(problem.compute), len(problem.source)
    edge = np.arange(e) if is_implied is None else np.flatnonzero(~is_implied)
    source, target, paths = problem.source[edge], problem.target[edge], np.arange(len(edge))
    sinks = np.flatnonzero(problem.out_degree == 0)
    branching, merging = np.flatnonzero(problem.out_degree > 1), np.flatnonzero(problem.in_degree > 1)
    blocks = (
        (paths, n + edge, -problem.transfer[edge]),
        (paths, source, np.full(len(edge), -1.0)),
        (paths, target, np.ones(len(edge))),
        (len(edge) + np.arange(len(sinks)), np.full(len(sinks), n + e), np.ones(len(sinks))),
        (len(edge) + np.arange(len(sinks)), sinks, np.full(len(sinks), -1.0)),
        _degree_rows(len(edge) + len(sinks), branching, problem.source, n + np.arange(e)),
        _degree_rows(len(edge) + len(sinks) + len(branching), merging, problem.target, n + np.arange(e)),
    )
    row, column, value = (np.concatenate(columns) for columns in zip(*blocks, strict=True))
    rows = len(edge) + len(sinks) + len(branching) + len(merging)
    row_lower = np.concatenate(
        [
            problem.compute[source],
            problem.compute[sinks],
            problem.out_degree[branching] - 1.0,
            problem.in_degree[merging] - 1.0,
        ]
    )
    alone = (problem.out_degree[problem.source] == 1) & (problem.in_degree[problem.target] == 1)
    smallest = np.zeros(n + e + 1)
    smallest[n : n + e] = problem.transfer == 0
    largest = np.concatenate([np.full(n, np.inf), np.where(alone & (problem.transfer > 0), 0.0, 1.0), [np.inf]])
    cost = np.zeros(n + e + 1)
    cost[-1] = 1.0
    matrix = csr_array((value, (row, column)), shape=(rows, n + e + 1))
    return LinearProgram(cost, matrix, row_lower, np.full(rows, np.inf), smallest, largest)


def _degree_rows(first: int, ops: Integers, end: Integers, variable: Integers) -> tuple[NDArray[np.number], ...]:
    """Returns rows `first`, `first + 1`, ... in COO form: one per op of `ops`, with the x of its edges.

    `end` is the op to which each edge belongs.
    """
    row_of = np.full(int(end.max(initial=-1)) + 1, -1)
    row_of[ops] = np.arange(len(ops))
    has_row = row_of[end] >= 0
    return first + row_of[end[has_row]], variable[has_row], np.ones(int(has_row.sum()))
