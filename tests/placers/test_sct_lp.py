"""The SCT linear program: by hand, across solvers, against its cvxpy twin, and as a bound."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from brute_force import optimum
from fewer import fast
from random_cases import random_graph
from readable import readable

import baechi_lab as bl
from baechi_lab.graph.kernels.csr import topological_order
from baechi_lab.placers.sct_program import solver
from baechi_lab.placers.sct_program.favourites import favourites
from baechi_lab.placers.sct_program.lp import sct_problem, sct_program
from baechi_lab.placers.sct_program.reductions import (
    dominated_edges,
    earliest_joint_start,
    implied_rows,
    reduce_problem,
    start_bounds,
)
from baechi_lab.placers.sct_program.solver import solve_sct


def cluster(devices=2, latency=0.0):
    return bl.Cluster.uniform(devices, link=bl.Link(latency, 1.0), comm="parallel")


def test_fork_join_is_no_bound_where_the_assumption_fails():
    # docs/simulated-time.md: 5, 10, 10, 5 with transfers of 100 has LP 120 (half of each branch is paid), optimum 30
    g = bl.OpGraph.from_edges([5, 10, 10, 5], [(0, 1, 100), (0, 2, 101), (1, 3, 100), (2, 3, 100)])
    solution = solve_sct(sct_problem(g, bl.Cluster.uniform(2, link=bl.Link(100.0, 0.0), comm="parallel")))
    assert solution.objective_us == pytest.approx(5 + 10 + 5 + 100)


def test_a_chain_pays_nothing():
    g = bl.OpGraph.from_edges([1, 2, 3], [(0, 1, 9), (1, 2, 9)])
    favourite_ops = favourites(g, cluster())
    assert favourite_ops.solution.objective_us == pytest.approx(6)
    assert favourite_ops.child.tolist() == [1, 2, -1]
    assert favourite_ops.parent.tolist() == [-1, 0, 1]


def test_several_tensors_of_one_pair():
    g = bl.OpGraph.from_edges([1, 1], [(0, 1, 5), (0, 1, 7)])
    assert sct_problem(g, cluster()).transfer.tolist() == [7]
    assert sct_problem(g, cluster().replace(comm="sequential")).transfer.tolist() == [5 + 7]


def test_edges_inside_a_group_cost_nothing():
    g = bl.OpGraph.from_edges([1, 1], [(0, 1, 5)], colocation=[0, 0], colocation_names=("w",))
    assert sct_problem(g, cluster()).transfer.tolist() == [0]


@pytest.mark.parametrize("seed", fast(range(12), 3))
def test_the_optimum_does_not_depend_on_the_solver(seed):
    graph = random_graph(np.random.default_rng(seed), 30, zero=False)
    results = [favourites(graph, cluster(3, 1.0), solver=s) for s in ("highs", "highs-ipm", "clarabel")]
    for solution in results[1:]:
        assert solution.solution.objective_us == pytest.approx(results[0].solution.objective_us, rel=1e-5, abs=1e-5)
        assert solution.child.tolist() == results[0].child.tolist()


@pytest.mark.parametrize("seed", range(12))
def test_at_most_one_favourite_each_way(seed):
    graph = random_graph(np.random.default_rng(seed), 40)
    for threshold in (0.0, 0.1, 0.5, 0.9):
        favourite_ops = favourites(graph, cluster(3, 1.0), threshold=threshold)
        children = favourite_ops.child[favourite_ops.child >= 0]
        assert len(set(children.tolist())) == len(children)
        for i in np.flatnonzero(favourite_ops.child >= 0):
            assert favourite_ops.parent[favourite_ops.child[i]] == i
        if threshold < 0.5:
            assert favourite_ops.conflicts == 0


@pytest.mark.parametrize("seed", fast(range(15), 3))
def test_lp_is_below_every_makespan_where_the_assumption_holds(seed):
    """Every transfer at most as long as the shortest op, and as many devices as ops."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 6))
    edges = [(i, j, int(rng.integers(0, 5))) for i in range(n) for j in range(i + 1, n) if rng.random() < 0.5]
    graph, clu = bl.OpGraph.from_edges(rng.integers(4, 9, n).astype(float), edges), cluster(3)
    objective = solve_sct(sct_problem(graph, clu)).objective_us
    best = optimum(graph, clu, orders=False)
    assert objective <= best * (1 + 1e-9)


def plain_optimum(problem, implied=None):
    """w of the whole program: no reduction, no weights, no code of the solver module but the call of HiGHS."""
    from scipy.optimize import linprog

    program = sct_program(problem, implied)
    result = linprog(
        program.cost, -program.matrix, -program.row_lower, bounds=np.c_[program.lower, program.upper], method="highs"
    )
    return result.fun


@pytest.mark.parametrize("seed", fast(range(30), 6))
def test_reductions_leave_the_optimum(seed):
    rng = np.random.default_rng(seed)
    problem = sct_problem(random_graph(rng, 60, zero=bool(seed % 2)), cluster(3, float(rng.integers(0, 3))))
    reduced = reduce_problem(problem)
    expected = plain_optimum(problem)
    assert plain_optimum(reduced.problem) == pytest.approx(expected, rel=1e-7, abs=1e-6)
    assert plain_optimum(problem, implied_rows(problem)) == pytest.approx(expected, rel=1e-7, abs=1e-6)
    assert solve_sct(problem).objective_us == pytest.approx(expected, rel=1e-7, abs=1e-6)


@pytest.mark.parametrize("seed", fast(range(30), 6))
def test_x_is_feasible_and_reaches_the_objective(seed):
    graph = random_graph(np.random.default_rng(seed), 60, zero=bool(seed % 2))
    problem = sct_problem(graph, cluster(3, 1.0))
    solution, n = solve_sct(problem), graph.n
    saved = 1 - solution.x
    assert saved.min(initial=0) >= 0
    assert saved.max(initial=0) <= 1
    for end in (problem.source, problem.target):
        assert np.bincount(end, weights=saved, minlength=n).max(initial=0) <= 1 + 1e-6
    finish = problem.compute.copy()
    for i in graph.order:
        into = np.flatnonzero(problem.target == i)
        arrive = finish[problem.source[into]] + problem.transfer[into] * solution.x[into]
        finish[i] += arrive.max(initial=0.0)
    assert finish.max(initial=0.0) == pytest.approx(solution.objective_us, rel=1e-6, abs=1e-5)


def test_starts_that_one_row_decides_are_no_variables():
    """0 -> {1, 2}, 1 -> 3: s_1 = 1 + 5 x_01, s_2 = 1 + 6 x_02, s_3 = s_1 + 2 + 7 x_13. Columns: x_01, x_02, x_13, w."""
    problem = sct_problem(bl.OpGraph.from_edges([1, 2, 3, 4], [(0, 1, 5), (0, 2, 6), (1, 3, 7)]), cluster())
    program = sct_program(problem)
    w_after_2, w_after_3, one_saving_of_0 = [0, -6, 0, 1], [-5, 0, -7, 1], [1, 1, 0, 0]
    assert program.matrix.toarray().tolist() == [w_after_2, w_after_3, one_saving_of_0]
    assert program.row_lower.tolist() == [1 + 3, 1 + 2 + 4, 1]


@pytest.mark.parametrize("seed", fast(range(20), 4))
def test_the_first_basis_saves_all_transfers_at_no_negative_price(seed):
    """Its solution has the longest path of the ops alone as w, and no column or row could lower the objective."""
    problem = sct_problem(random_graph(np.random.default_rng(seed), 40, zero=bool(seed % 2)), cluster(3, 1.0))
    program = sct_program(problem)
    basic, tight = program.basic_columns, ~program.basic_rows
    square, at_lower = program.matrix.toarray()[tight][:, basic], np.where(basic, 0.0, program.lower)
    values = np.linalg.solve(square, program.row_lower[tight] - (program.matrix @ at_lower)[tight])
    start = np.zeros(len(problem.compute))  # edges go from lower to higher numbers
    for i, j in sorted(zip(problem.source.tolist(), problem.target.tolist(), strict=True), key=lambda edge: edge[1]):
        start[j] = max(start[j], start[i] + problem.compute[i])
    assert values[0] == pytest.approx((start + problem.compute).max())
    price = np.linalg.solve(square.T, program.cost[basic])
    assert price.min() >= -1e-9
    assert (program.cost - program.matrix.toarray()[tight].T @ price)[~basic].min(initial=0) >= -1e-9


@pytest.mark.slow
def test_bug_favourites_depended_on_where_simplex_began():
    """The steps without weights that followed the optimum ended at any of its neighbours. Interior point calls this program
    infeasible, because its transfers differ a hundred thousandfold; simplex then solves it without a basis to start from."""
    path = Path(__file__).parents[2] / "data" / "tf-examples" / "recurrent_network.json.gz"
    graph, machine = bl.load_graph(path), bl.Cluster.uniform(4, comm="sequential")
    results = [favourites(graph, machine, solver=solver) for solver in ("highs", "highs-ipm")]
    assert results[0].child.tolist() == results[1].child.tolist()
    assert results[0].solution.x == pytest.approx(results[1].solution.x, abs=1e-6)


def test_one_saving_is_shared():
    # two inputs there at 0, transfers of 4: half of each is saved, 0 + 4 * 0.5 = 2; then one at 1, transfer 3:
    # (4 - t) / 4 + (1 + 3 - t) / 3 = 1 at t = (1 + 4 / 3 - 1 + 1) / (1 / 4 + 1 / 3) = 4 - 12 / 7
    assert earliest_joint_start(np.array([0.0, 0.0]), np.array([4.0, 4.0])) == pytest.approx(2)
    assert earliest_joint_start(np.array([0.0, 1.0]), np.array([4.0, 3.0])) == pytest.approx(4 - 12 / 7)
    assert earliest_joint_start(np.array([5.0, 1.0]), np.array([0.0, 1.0])) == 5


def test_an_edge_that_never_binds_goes():
    # d starts after a and b, 10 + 10, whatever is saved; the input from c is there at 1 + 5 even if paid in full
    g = bl.OpGraph.from_edges([10, 10, 1, 1], [(0, 1, 5), (1, 3, 5), (2, 3, 5)])
    reduced = reduce_problem(sct_problem(g, cluster()))
    assert len(reduced.edge) == 0
    assert reduced.free.tolist() == [True, True, False]
    assert reduced.problem.compute.max() == 10 + 10 + 1
    # what is left over of the savings: d's is used by b, so c pays
    assert solve_sct(sct_problem(g, cluster())).x.tolist() == [0, 0, 1]


def test_rows_that_a_longer_path_implies():
    """c starts after b, 1 + 5 after a, whatever is saved: a transfer from a to c of less than 5 never decides, 6 may."""
    for transfer, implied in ((4, True), (6, False)):
        g = bl.OpGraph.from_edges([1, 5, 1], [(0, 1, 9), (0, 2, transfer), (1, 2, 9)])
        assert implied_rows(sct_problem(g, cluster())).tolist() == [False, implied, False]
    # two paths of the same ops without time: neither may rely on the other
    g = bl.OpGraph.from_edges([0, 0, 0], [(0, 1, 0), (0, 2, 0), (1, 2, 0)])
    assert not implied_rows(sct_problem(g, cluster())).any()


def test_equal_paths_keep_what_decides():
    """Zero transfers make bounds equal: dropping all of them would lose the path."""
    g = bl.OpGraph.from_edges([1, 2, 4], [(0, 1, 0), (0, 2, 0), (1, 2, 0)])
    assert solve_sct(sct_problem(g, cluster())).objective_us == pytest.approx(1 + 2 + 4)


def test_a_long_op_without_edges_decides():
    g = bl.OpGraph.from_edges([1, 2, 9, 8], [(0, 1, 5)])
    assert solve_sct(sct_problem(g, cluster())).objective_us == pytest.approx(9)


def test_no_edges_and_no_ops():
    assert solve_sct(sct_problem(bl.OpGraph.from_edges([3.0, 4.0]), cluster())).objective_us == pytest.approx(4)
    assert solve_sct(sct_problem(bl.OpGraph.from_edges([]), cluster())).objective_us == 0


def test_a_solution_is_remembered_by_content():
    problem = [sct_problem(random_graph(np.random.default_rng(3), 30), cluster(3, lat)) for lat in (1.0, 1.0, 2.0)]
    first = solve_sct(problem[0])
    assert solve_sct(problem[1]) is first
    assert solve_sct(problem[2]) is not first
    assert solve_sct(problem[0], "highs-ipm") is not first


def test_the_kernel_and_its_python_form_agree():
    for seed in range(20):
        problem = sct_problem(random_graph(np.random.default_rng(seed), 40), cluster(3, 1.0))
        edges = np.argsort(problem.target, kind="stable")
        pointer = np.r_[0, np.cumsum(problem.in_degree)]
        order = topological_order(len(problem.compute), problem.source, problem.target).astype(np.int64)
        arguments = (order, pointer, edges, problem.source.astype(np.int64), problem.compute, problem.transfer)
        for compiled, plain in zip(start_bounds(*arguments), readable(start_bounds)(*arguments), strict=True):
            assert compiled.tolist() == plain.tolist()
        leaving = np.argsort(problem.source, kind="stable")
        arguments = (
            order,
            np.r_[0, np.cumsum(problem.out_degree)],
            leaving,
            problem.target.astype(np.int64),
            problem.compute,
            problem.transfer,
            seed,
        )
        assert dominated_edges(*arguments).tolist() == readable(dominated_edges)(*arguments).tolist()


def test_large_graphs_do_without_the_linear_program(monkeypatch):
    """5 -> {10, 4}, transfers of 8: the reader with the longer path behind it follows its parent."""
    from baechi_lab import Cluster, Link, OpGraph, place
    from baechi_lab.placers.sct_program import favourites

    graph = OpGraph.from_edges([5, 4, 10], [(0, 1, 8), (0, 2, 8)])
    cluster = Cluster.uniform(2, link=Link(8.0, 0.0))
    assert place(graph, cluster, "m-sct").info["lp"]["solver"] == "highs"
    monkeypatch.setattr(favourites, "LARGEST_LP", 1)
    placement = place(graph, cluster, "m-sct")
    assert placement.info["lp"]["solver"] == "greedy" and placement.info["favourite_child"].tolist() == [2, -1, -1]
    assert placement.device[0] == placement.device[2]


def test_bug_the_cache_of_solutions_was_changed_by_two_threads_at_once(monkeypatch):
    """`auto` asks sct and m-sct in threads: an old solution was looked for while another thread added one."""
    graph = bl.OpGraph.from_edges([1.0, 1.0], [(0, 1, 8)])
    solution = favourites(graph, cluster()).solution
    monkeypatch.setattr(solver, "_solve", lambda problem, name: solution)
    problem = sct_problem(graph, cluster())
    monkeypatch.setattr(solver, "_solution_cache", SlowToIterate())
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda k: solve_sct(problem, f"solver {k}"), range(60)))
    assert len(solver._solution_cache) == solver.CACHED_SOLUTIONS


class SlowToIterate(dict):
    """Lets other threads run between the begin of an iteration and its first entry."""

    def __iter__(self):
        entries = super().__iter__()
        time.sleep(1e-3)
        return entries
