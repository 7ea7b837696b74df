"""Solve the SCT linear program to a canonical optimum.

The LP has many optima, and which one a solver returns depends on solver and version. So the program, reduced by
`sct_program/reductions.py`, is solved for `w + sum_e r_e x_e` with small weights r_e in [0.5, 1) * 1e-4, a fixed hash of the
edge's position (times are first scaled to a median transfer of 100). The optimum that saves the most weight is unique except
for coincidences. Rivals differ by some 1e-7 per edge, which is what HiGHS takes for rounding, so it gets a thousand times the
objective. w exceeds its least value by less than 1e-9 of it on GNMT graphs of 18,000 to 23,000 ops. Last, edges outside of
the reduced program take the remaining savings, the longest transfer first, ties by index. This is feasible, since x only
falls. Interior point is followed by a crossover to a vertex: without it the solver stops near the middle of the optimal face.

Simplex prices by Devex, which takes 0.95 to 0.75 of the default's time on GNMT graphs of 23,000 and 18,000 ops.
Solutions are cached by content: a changed memory limit or threshold needs no LP.
"""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ...errors import BaechiLabError, UnknownNameError
from ...graph.kernels.csr import Integers
from ...graph.kernels.jit import has_few_entries, njit
from ...highs import row_program, silent_highs
from .lp import LinearProgram, SctProblem, sct_program
from .reductions import implied_rows, reduce_problem

PERTURBATION = 1e-4  # of the objective, so that the optimum is unique
CACHED_SOLUTIONS = 8  # of the last graphs
_HIGHS = {"highs": "simplex", "highs-ipm": "ipm"}
_FAST = {"simplex_dual_edge_weight_strategy": 1}  # Devex
_OBJECTIVE_SCALE = 1000.0  # of what HiGHS gets: weights of two edges then differ by more than its tolerance
_solution_cache: dict[bytes, SctSolution] = {}
_cache_lock = threading.Lock()


@dataclass(frozen=True)
class SctSolution:
    """`x` float64[e] and the objective `w` in microseconds; `rows`, `columns` and `seconds` of the solve."""

    x: NDArray[np.float64]
    objective_us: float
    solver: str
    rows: int
    columns: int
    seconds: float


def solve_sct(problem: SctProblem, solver: str = "highs") -> SctSolution:
    """Returns the canonical optimum by `highs` (dual simplex), `highs-ipm` (interior point), or a solver that cvxpy knows.

    The last few solutions of a process are cached. Raises `UnknownNameError` for a solver that is not installed.
    """
    digest = hashlib.blake2b(solver.encode(), digest_size=16)
    for array in (problem.source, problem.target, problem.transfer, problem.compute):
        digest.update(len(array).to_bytes(8, "little") + np.ascontiguousarray(array).tobytes())
    key = digest.digest()
    with _cache_lock:
        solution = _solution_cache.pop(key, None)
    solution = solution or _solve(problem, solver)
    with _cache_lock:  # placers solve in several threads
        _solution_cache[key] = solution
        while len(_solution_cache) > CACHED_SOLUTIONS:
            del _solution_cache[next(iter(_solution_cache))]
    return solution


def _solve(problem: SctProblem, solver: str) -> SctSolution:
    """Solves the reduced and scaled program, with small weights that make its optimum unique, and expands the solution."""
    began = time.perf_counter()
    reduction = reduce_problem(problem)
    small = reduction.problem
    n, e = len(small.compute), len(small.source)
    nonzero = small.transfer[small.transfer > 0]
    unit = float(np.median(nonzero)) / 100 if len(nonzero) else max(float(small.compute.max(initial=0.0)), 1.0)
    scaled_problem = SctProblem(small.source, small.target, small.transfer / unit, small.compute / unit)
    # Numbers in [0, 1): SplitMix64 (Steele, Lea, Flood 2014) of 1, 2, ...; sums of few do not cancel.
    z = np.arange(1, len(problem.source) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    uniform_hash = (z ^ (z >> np.uint64(31))).astype(np.float64) / 2.0**64
    weight = PERTURBATION * (0.5 + 0.5 * uniform_hash[reduction.edge])
    program = sct_program(scaled_problem, implied_rows(scaled_problem))
    if n == 0:
        value = np.zeros(e + 1)
    elif solver.lower() in _HIGHS:
        program.cost[:e] = weight
        value = _solve_with_highs(program, _HIGHS[solver.lower()])
    else:
        value = solve_with_cvxpy(scaled_problem, weight, solver)
    x = reduction.expand(np.clip(value[:e], 0.0, 1.0))
    longest_first = np.lexsort((np.arange(len(x)), -problem.transfer))
    x = _spend_remaining_savings(x, problem.source, problem.target, longest_first, len(problem.compute))
    x.flags.writeable = False
    rows, columns = program.matrix.shape
    return SctSolution(x, float(value[e]) * unit, solver, rows, columns, time.perf_counter() - began)


@njit(cache=True, interpreted_if=has_few_entries)
def _spend_remaining_savings(
    x: NDArray[np.float64], source: NDArray[np.int32], target: NDArray[np.int32], order: NDArray[np.int64], n: int
) -> NDArray[np.float64]:
    """Lowers x, edge by edge in `order`, as far as `sum (1 - x) <= 1` allows at both ends."""
    x, left_out, left_in = x.copy(), np.ones(n), np.ones(n)
    for e in range(len(x)):
        left_out[source[e]] -= 1.0 - x[e]
        left_in[target[e]] -= 1.0 - x[e]
    for e in order:
        saving = max(min(x[e], left_out[source[e]], left_in[target[e]]), 0.0)
        x[e] -= saving
        left_out[source[e]] -= saving
        left_in[target[e]] -= saving
    return x


def _solve_with_highs(program: LinearProgram, method: str) -> NDArray[np.float64]:
    from highspy import HighsBasis, HighsBasisStatus

    solver = silent_highs(threads=1, solver=method, **(_FAST if method == "simplex" else {}))
    matrix, columns = program.matrix, (program.lower, program.upper)
    rows, cost = (program.row_lower, np.full(len(program.row_lower), np.inf)), _OBJECTIVE_SCALE * program.cost
    solver.passModel(row_program(cost, columns, rows, (matrix.indptr, matrix.indices, matrix.data)))
    if method == "simplex":
        status, basis = (HighsBasisStatus.kLower, HighsBasisStatus.kBasic), HighsBasis()
        basis.col_status = [status[is_basic] for is_basic in program.basic_columns.tolist()]
        basis.row_status = [status[is_basic] for is_basic in program.basic_rows.tolist()]
        basis.valid, basis.alien = True, False
        solver.setBasis(basis)
    solver.run()
    if solver.modelStatusToString(solver.getModelStatus()) != "Optimal":
        # Where transfers differ a hundred thousandfold, HiGHS may fail at a basis, or its interior point at the whole program.
        solver.clearSolver()
        solver.setOptionValue("solver", "simplex")
        solver.run()
    model_status = solver.modelStatusToString(solver.getModelStatus())
    if model_status != "Optimal":
        raise BaechiLabError(f"the SCT linear program was not solved: HiGHS ({method}) says {model_status!r}")
    return np.array(solver.getSolution().col_value)


# The canonical optimum differs from the others by some 1e-5 of the objective: interior solvers must come closer.
_TIGHT = {"CLARABEL": {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-10}}


def solve_with_cvxpy(problem: SctProblem, weight: NDArray[np.float64], solver: str) -> NDArray[np.float64]:
    """Returns float64[e + 1]: x and w at the optimum of `w + weight @ x`.

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
    return np.concatenate([x.value if e else np.zeros(0), [makespan.value]])


def _incidence(end: Integers, n: int) -> csr_array:
    return csr_array((np.ones(len(end)), (end, np.arange(len(end)))), shape=(n, len(end)))
