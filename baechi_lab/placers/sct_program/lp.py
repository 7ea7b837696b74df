"""The SCT linear program: which successor of each op should follow it on the same device.

Model (Jeon et al. 2020, section 2.4 after Hanen and Munier 1995, doi:10.1109/ETFA.1995.496763; infinitely many devices):
minimise `w` subject to, for every edge i -> j with transfer time c_ij and 0 <= x_ij <= 1,

    s_j >= s_i + k_i + c_ij x_ij,      s_i + k_i <= w,
    sum over succ(i) of x_ij >= |succ(i)| - 1,      sum over pred(j) of x_ij >= |pred(j)| - 1.

`j` is the favourite child of `i` where x_ij rounds to 0. `solve_with_cvxpy` in `sct_program/solver.py` is the readable twin.

The program given to the solver has no variable s_j where one row alone says when `j` starts, and it comes with a basis to start
from. On GNMT steps that takes a quarter of the rows and more than a third of the time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from ...errors import CycleError
from ...graph import Cluster, OpGraph
from ...graph.costs import allowed_durations
from ...graph.kernels.csr import Integers, offsets, topological_order
from ...simulator.bounds.problem import transfers_between_ops
from ..problem import transfer_us

SUBSTITUTED_IN_A_ROW = 2
"""Most ops of a path whose starts are written by those of the op before: each adds an entry to the rows of the next."""


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
    """minimise cost @ v, matrix @ v >= row_lower, lower <= v <= upper. `v` has x of all edges, then w, then starts of ops.

    `basic_columns` and `basic_rows` (bool) are a basis: all other columns are at `lower`, all other rows at `row_lower`.
    """

    cost: NDArray[np.float64]
    matrix: csr_array
    row_lower: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    basic_columns: NDArray[np.bool_]
    basic_rows: NDArray[np.bool_]


def sct_problem(graph: OpGraph, cluster: Cluster) -> SctProblem:
    """Returns the data of the LP: compute time on the fastest allowed device, transfer time over the mean link.

    Edges inside a colocation group cost nothing, since the group shares a device.
    """
    compute = allowed_durations(graph, cluster).min(axis=1, initial=np.inf)
    source, target, transfer = transfers_between_ops(graph, cluster, transfer_us(graph, cluster))
    together = (graph.colocation[source] >= 0) & (graph.colocation[source] == graph.colocation[target])
    return SctProblem(source, target, np.where(together, 0.0, transfer), compute)


def sct_program(problem: SctProblem, is_implied: NDArray[np.bool_] | None = None) -> LinearProgram:
    """Returns the LP as arrays, without the rows of edges that `is_implied` bool[e] marks.

    An edge that is the only one of its source and of its target has x = 0. A transfer that takes no time has x = 1, since nothing
    can be saved. `s_i + k_i <= w` is kept for ops without successors; it follows for the others.

    Ops without predecessors start at 0. An op that has the row of one edge only starts as early as this row says, so
    `s_i + k_i + c_ij x_ij` takes the place of `s_j` in all others.

    In the basis, every transfer is saved and each op starts at the end of the longest path to it. That is optimal but for
    the rows of degrees, so the dual simplex method goes on from there.
    """
    n, e = len(problem.compute), len(problem.source)
    edge = np.arange(e) if is_implied is None else np.flatnonzero(~is_implied)
    last_edge, earliest_us, is_substituted = _longest_paths(problem, edge)
    with_variable = np.flatnonzero((last_edge >= 0) & ~is_substituted)
    columns = e + 1 + len(with_variable)
    variable_column = np.full(n, -1)
    variable_column[with_variable] = e + 1 + np.arange(len(with_variable))
    # Start of every op = `start` @ v + `constant`.
    op = np.flatnonzero(is_substituted)
    before, transfer = problem.source[last_edge[op]], problem.transfer[last_edge[op]]
    follows = _entries(op, before, np.ones(len(op)), (n, n))
    direct_terms = _entries(with_variable, variable_column[with_variable], np.ones(len(with_variable)), (n, columns))
    direct_terms = direct_terms + _entries(op, last_edge[op], transfer, (n, columns))
    work = np.zeros(n)
    work[op] = problem.compute[before]
    start, constant = direct_terms, work
    for _ in range(SUBSTITUTED_IN_A_ROW):
        start, constant = direct_terms + follows @ start, work + follows @ constant

    edge = np.setdiff1d(edge, last_edge[op])
    source, target, paths = problem.source[edge], problem.target[edge], np.arange(len(edge))
    sinks = np.flatnonzero(problem.out_degree == 0)
    branching, merging = np.flatnonzero(problem.out_degree > 1), np.flatnonzero(problem.in_degree > 1)
    makespan = _entries(np.arange(len(sinks)), np.full(len(sinks), e), np.ones(len(sinks)), (len(sinks), columns))
    matrix = vstack(
        [
            start[target] - start[source] - _entries(paths, edge, problem.transfer[edge], (len(edge), columns)),
            makespan - start[sinks],
            _entries(problem.source, np.arange(e), np.ones(e), (n, columns))[branching],
            _entries(problem.target, np.arange(e), np.ones(e), (n, columns))[merging],
        ],
        format="csr",
    )
    matrix.eliminate_zeros()
    matrix.sort_indices()
    row_lower = np.concatenate(
        [
            problem.compute[source] + constant[source] - constant[target],
            problem.compute[sinks] + constant[sinks],
            problem.out_degree[branching] - 1.0,
            problem.in_degree[merging] - 1.0,
        ]
    )
    alone = (problem.out_degree[problem.source] == 1) & (problem.in_degree[problem.target] == 1)
    lower, upper = np.zeros(columns), np.full(columns, np.inf)
    lower[:e] = problem.transfer == 0
    upper[:e] = np.where(alone & (problem.transfer > 0), 0.0, 1.0)
    cost = np.zeros(columns)
    cost[e] = 1.0
    basic_columns, basic_rows = np.zeros(columns, dtype=np.bool_), np.ones(len(row_lower), dtype=np.bool_)
    basic_columns[e:] = True
    basic_rows[np.searchsorted(edge, last_edge[with_variable])] = False
    if len(sinks):
        basic_rows[len(edge) + np.argmax((earliest_us + problem.compute)[sinks])] = False
    return LinearProgram(cost, matrix, row_lower, lower, upper, basic_columns, basic_rows)


def _longest_paths(
    problem: SctProblem, edge: Integers
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
    """Returns, per op, the last edge of the longest path to it if all transfers are saved (-1: none), and the path's length.

    The third array marks ops whose start that edge alone decides; after `SUBSTITUTED_IN_A_ROW` of them comes one that is not
    marked. Only the edges `edge` count.
    """
    n = len(problem.compute)
    order = topological_order(n, problem.source.astype(np.int64), problem.target.astype(np.int64))
    if order is None:
        raise CycleError("the edges of the SCT program form a cycle")
    pointer = offsets(problem.target[edge], n).tolist()
    edges_in = edge[np.argsort(problem.target[edge], kind="stable")].tolist()
    source, compute = problem.source.tolist(), problem.compute.tolist()
    last_edge, earliest_us, substituted_before = [-1] * n, [0.0] * n, [0] * n
    for j in order.tolist():
        into = edges_in[pointer[j] : pointer[j + 1]]
        for k in into:
            finish = earliest_us[source[k]] + compute[source[k]]
            if last_edge[j] < 0 or finish > earliest_us[j]:
                last_edge[j], earliest_us[j] = k, finish
        if len(into) == 1 and substituted_before[source[into[0]]] < SUBSTITUTED_IN_A_ROW:
            substituted_before[j] = substituted_before[source[into[0]]] + 1
    return np.array(last_edge, dtype=np.int64), np.array(earliest_us), np.array(substituted_before, dtype=np.int64) > 0


def _entries(row: Integers, column: Integers, value: NDArray[np.float64], shape: tuple[int, int]) -> csr_array:
    return csr_array((value, (row, column)), shape=shape)
