"""The SCT linear program in cvxpy: a readable twin of `sct_program/lp.py`, and access to other solvers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ...errors import UnknownNameError
from ...graph.kernels.csr import Integers
from .lp import SctProblem

# The canonical optimum differs from the others by some 1e-5 of the objective: interior solvers must come closer.
_TIGHT = {"CLARABEL": {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-10}}


def solve_with_cvxpy(problem: SctProblem, weight: NDArray[np.float64], solver: str) -> NDArray[np.float64]:
    """Returns float64[n + e + 1]: s, x and w at the optimum of `w + weight @ x`.

    `solver` is a name that cvxpy knows, such as `CLARABEL` or `SCS`; `UnknownNameError` lists those installed.
    """
    import cvxpy as cp

    if solver.upper() not in cp.installed_solvers():
        raise UnknownNameError.of("LP solver", solver, [*map(str.lower, cp.installed_solvers()), "highs-ipm"])
    n, e = len(problem.compute), len(problem.source)
    start, x, makespan = cp.Variable(n, nonneg=True), cp.Variable(e), cp.Variable()
    finish = start + problem.compute
    rules: list[object] = [finish <= makespan]
    if e:
        rules += [
            x >= 0,
            x <= 1,
            x >= (problem.transfer == 0),  # nothing to save
            start[problem.target] >= finish[problem.source] + cp.multiply(problem.transfer, x),
            _incidence(problem.source, n) @ x >= problem.out_degree - 1,
            _incidence(problem.target, n) @ x >= problem.in_degree - 1,
        ]
    cp.Problem(cp.Minimize(makespan + (weight @ x if e else 0.0)), rules).solve(
        solver=solver.upper(), **_TIGHT.get(solver.upper(), {})
    )
    return np.concatenate([start.value, x.value if e else np.zeros(0), [makespan.value]])


def _incidence(end: Integers, n: int) -> csr_array:
    return csr_array((np.ones(len(end)), (end, np.arange(len(end)))), shape=(n, len(end)))
