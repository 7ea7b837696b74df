"""The exact placer against hand-made optima and brute force over every placement and order."""

import importlib.util
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from brute_force import optimum
from fewer import fast
from shared_solver import SharedSolver, sharing_solver

if importlib.util.find_spec("ortools") is None:
    pytest.skip("OR-tools is not installed", allow_module_level=True)

from baechi_lab import Cluster, Device, Link, OpGraph, bounds, check, place, simulate
from baechi_lab.errors import ExecutionError, InfeasiblePlacement, InvalidInput, MissingPackage
from baechi_lab.graph import generators
from baechi_lab.placers.exact import placer, process, proof
from baechi_lab.placers.exact.placer import model_size
from baechi_lab.placers.exact.process import SolverProcess
from baechi_lab.placers.exact.variables import scaled_times
from baechi_lab.workers import pool

COMMS = ("parallel", "sequential", "duplex")


@pytest.fixture(scope="module", autouse=True)
def one_solver():
    with sharing_solver():
        yield


@pytest.fixture(autouse=True)
def only_by_solver(monkeypatch):
    """The models are tested on graphs so small that all their schedules are tried before a solver is asked."""
    monkeypatch.setattr(proof, "MOST_OPS", 0)


def exact(graph, cluster, **options):
    """With room for compiling, which the first call after an installation pays for out of the limit."""
    return place(graph, cluster, "exact", **{"time_limit": 250, "warm_start": 0.0, **options})


def test_fork_join_of_the_design():
    # Fork-join 5, 10, 10, 5 with transfers of 100: splitting costs more than it saves, 30 on one device.
    graph = OpGraph.from_edges([5, 10, 10, 5], [(0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 3, 2)])
    placement = exact(graph, Cluster.uniform(2, memory_bytes=100, link=Link(100.0, 0.0)))
    assert placement.info["status"] == "OPTIMAL" and placement.info["gap"] == 0
    assert simulate(graph, Cluster.uniform(2, link=Link(100.0, 0.0)), placement).makespan_us == 30
    # With transfers of 4 it pays: op 2 runs from 5 + 4 = 9 to 19 on the second device, where op 1's tensor arrives at
    # 15 + 4 = 19 and op 3 ends at 24.
    cheap = Cluster.uniform(2, memory_bytes=100, link=Link(4.0, 0.0))
    assert simulate(graph, cheap, exact(graph, cheap)).makespan_us == 24


def as_optimum(graph, cluster):
    """The exact placement, which is proven and as fast as the best of all; None where, rightly, there is none."""
    expected = optimum(graph, cluster)
    if np.isinf(expected):
        with pytest.raises(InfeasiblePlacement):
            exact(graph, cluster)
        return None
    placement = exact(graph, cluster)
    assert simulate(graph, cluster, placement).makespan_us == pytest.approx(expected, rel=1e-9)
    assert placement.info["status"] == "OPTIMAL"
    return placement


@pytest.mark.parametrize("seed", fast(range(9), 1))
def test_the_optimum_is_that_of_brute_force(seed):
    rng = np.random.default_rng(seed)
    graph = generators.random_dag(
        5,
        degree=1.2,
        second_output=0.3,
        duration_us=(1, 20),
        size_bytes=(10, 100),
        temp_bytes=(1, 50),
        persistent_bytes=(1, 100),
        colocation_groups=2,
        seed=seed,
    )
    graph = graph.replace(duration_us=np.round(graph.duration_us))
    devices = [Device("a", "gpu", 1 << 30), Device("b", "gpu", 1 << 30, speed=1.0 if seed % 2 else 2.0)]
    cluster = Cluster(tuple(devices), Link(float(rng.integers(0, 8)), 0.1), COMMS[seed % 3])
    if seed % 4 != 3:
        total = int(graph.persistent_bytes.sum() + graph.tensor_bytes.sum())
        cluster = cluster.with_memory(int(0.7 * total))
    placement = as_optimum(graph, cluster)
    if placement is not None:
        assert not check(graph, cluster, placement, simulate(graph, cluster, placement))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_equals_brute_force_where_times_are_rounded(seed):
    """Times that no scale makes whole: the bound is never above the optimum, and close enough to prove it."""
    graph = generators.random_dag(
        5,
        degree=1.2,
        second_output=0.3,
        duration_us=(1, 20),
        size_bytes=(10, 100),
        temp_bytes=(1, 50),
        persistent_bytes=(1, 100),
        colocation_groups=seed % 2,
        seed=seed,
    )
    cluster = Cluster.uniform(2, memory_bytes=1 << 30, link=Link(np.pi, 0.1), comm=COMMS[seed % 3])
    if seed >= 3:
        cluster = cluster.with_memory(int(0.7 * (graph.persistent_bytes.sum() + graph.tensor_bytes.sum())))
    assert not scaled_times(graph, cluster, 1.0).exact
    placement = as_optimum(graph, cluster)
    if placement is not None:
        assert placement.info["bound_us"] <= simulate(graph, cluster, placement).makespan_us * (1 + 1e-12)


class NoSolver(SolverProcess):
    """Nobody may ask it."""

    def prepare(self):
        pytest.fail("the solver's process was started")

    solve = prepare


@pytest.mark.parametrize("seed", range(6))
def test_bug_small_graphs_were_not_proven_where_the_solver_came_too_late(monkeypatch, seed):
    """With five ops there are at most 32 placements and 120 orders: neither the time limit nor the solver matters."""
    monkeypatch.undo()
    monkeypatch.setattr(placer, "SolverProcess", NoSolver)
    sizes = {"size_bytes": (10, 100), "temp_bytes": (1, 50), "persistent_bytes": (1, 100)}
    graph = generators.random_dag(5, degree=1.2, duration_us=(1, 20), seed=seed, **sizes)
    cluster = Cluster.uniform(2, link=Link(np.pi, 0.1), comm=COMMS[seed % 3])
    if seed >= 3:
        cluster = cluster.with_memory(int(0.7 * (graph.persistent_bytes.sum() + graph.tensor_bytes.sum())))
    least = optimum(graph, cluster)
    if np.isinf(least):
        with pytest.raises(InfeasiblePlacement):
            place(graph, cluster, "exact", time_limit=0)
        return
    placement = place(graph, cluster, "exact", time_limit=0)
    assert (placement.info["status"], placement.info["gap"]) == ("OPTIMAL", 0)
    assert placement.info["bound_us"] == simulate(graph, cluster, placement).makespan_us == pytest.approx(least)


@pytest.mark.parametrize("comm", COMMS)
def test_strict_and_relaxed_models_bracket_the_optimum(comm):
    """The strict model's optimum is what the simulator can reach; the relaxed one's is never above it."""
    request = {"within_us": 1000.0, "lowest": 0, "seconds": 60.0, "seed": 0, "workers": 1}
    with SharedSolver() as solver:
        for seed in range(3):
            graph = generators.random_dag(4, degree=1.0, duration_us=(1, 20), size_bytes=(10, 100), seed=seed)
            graph = graph.replace(duration_us=np.round(graph.duration_us))
            cluster = Cluster.uniform(2, memory_bytes=1 << 30, link=Link(2.0, 0.1), comm=comm)
            scale = scaled_times(graph, cluster, 1000.0).scale
            start = {"device": [0] * 4, "start_us": [0.0] * 4, "end_us": [0.0] * 4, "horizon": round(1000 * scale)}
            answers = [solver.solve(graph, cluster, {**request, **start, "strict": strict}) for strict in (False, True)]
            assert [answer["status"] for answer in answers] == ["OPTIMAL", "OPTIMAL"]
            relaxed, strict = (answer["bound"] / scale for answer in answers)
            assert relaxed <= strict + 1e-9 and strict == pytest.approx(optimum(graph, cluster))


def test_times_are_scaled_exactly_where_a_small_scale_is_enough():
    graph, cluster = OpGraph.from_edges([1.5, 2.25], [(0, 1, 10)]), Cluster.uniform(2, link=Link(0.25, 0.1))
    times = scaled_times(graph, cluster, 10.0)
    assert times.exact and times.scale == 4 and times.duration[:, 0].tolist() == [6, 9]
    assert times.transfer[0, 0, 1] == 5  # 0.25 + 10 * 0.1 = 1.25
    rounded = scaled_times(OpGraph.from_edges([np.pi]), cluster, 10.0)
    # One op loses less than half a millionth of 10 us: 2e6 units.
    assert not rounded.exact and rounded.scale == 2e5 and rounded.duration[0, 0] == 628318


def test_rounded_times_leave_a_valid_bound():
    graph = OpGraph.from_edges(np.array([np.pi, np.e, np.sqrt(2.0), np.sqrt(3.0)]))
    cluster = Cluster.uniform(2)
    placement = exact(graph, cluster)
    # pi + sqrt 2 = 4.5558 and e + sqrt 3 = 4.4503 divide best.
    best = np.pi + np.sqrt(2.0)
    assert simulate(graph, cluster, placement).makespan_us == pytest.approx(best)
    assert best * (1 - 1e-6) < placement.info["bound_us"] <= best
    assert placement.info["status"] == "OPTIMAL" and 0 < placement.info["scale_error_us"] < best * 1e-6


def test_no_time_returns_the_start_with_its_gap():
    graph = generators.layered_dag(30, seed=1)
    cluster = Cluster.uniform(2, memory_bytes=1 << 40)
    placement = exact(graph, cluster, time_limit=0)
    assert placement.info["status"] == "FEASIBLE" and placement.info["bound_us"] >= bounds(graph, cluster).best
    gap = simulate(graph, cluster, placement).makespan_us / placement.info["bound_us"] - 1
    assert placement.info["gap"] == pytest.approx(gap) and gap > 0


def test_too_large_instances_say_so_with_their_size():
    graph, cluster = generators.layered_dag(500, seed=1), Cluster.uniform(2)
    with pytest.raises(InvalidInput, match=rf"500 ops.*{model_size(graph, cluster)}"):
        exact(graph, cluster)


def test_graphs_without_work_are_solved():
    for cluster in (Cluster.uniform(1), Cluster.uniform(2)):
        assert exact(OpGraph.from_edges([]), cluster).n == 0
        assert exact(OpGraph.from_edges([0, 0], [(0, 1, 4)]), cluster).info["status"] == "OPTIMAL"


def test_a_missing_ortools_is_one_sentence(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "ortools" else find(name, *a))
    with pytest.raises(MissingPackage, match="solvers"):
        exact(OpGraph.from_edges([1]), Cluster.uniform(1))


def test_the_solver_stays_in_its_own_process(monkeypatch):
    # OR-tools and highspy cannot be imported into one process. A test before this one may have imported OR-tools.
    for name in [name for name in sys.modules if name.partition(".")[0] == "ortools"]:
        monkeypatch.delitem(sys.modules, name)
    exact(OpGraph.from_edges([2, 2, 3], [(0, 1, 4)]), Cluster.uniform(2))
    assert "ortools" not in sys.modules


@pytest.mark.slow
def test_a_solver_that_dies_is_an_error_with_its_reason():
    graph, cluster = OpGraph.from_edges([1]), Cluster.uniform(1)
    with SolverProcess() as solver, pytest.raises(ExecutionError, match="horizon"):
        solver.solve(graph, cluster, {"within_us": 1.0, "seconds": 60.0})


def test_a_solver_that_goes_on_beyond_its_time_is_ended(monkeypatch):
    """Building the model counts: this process never answers."""
    monkeypatch.setattr(pool, "isolated_command", lambda _: [sys.executable, "-c", "import time; time.sleep(3600)"])
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.1)
    with SolverProcess() as solver:
        answer = solver.solve(OpGraph.from_edges([1]), Cluster.uniform(1), {"seconds": 0.1})
        assert answer["status"] == "STOPPED" and answer["device"] is None


def test_the_solver_has_what_is_left_when_its_model_is_built(monkeypatch):
    class Model:
        OPTIMAL, FEASIBLE, parameters = 1, 2, SimpleNamespace()

        def CpSolver(self):
            return self

        def solve(self, _):
            return self.OPTIMAL

    monkeypatch.setattr(process.time, "monotonic", lambda: 100.0)
    for deadline, seconds in ((103.5, 3.5), (90.0, process.LEAST_SECONDS)):
        solver, _, _ = process.run_solver(
            Model(), None, {"deadline": deadline, "seconds": 20.0, "seed": 0, "workers": 3}
        )
        assert solver.parameters.max_time_in_seconds == seconds


@pytest.mark.slow
def test_the_callback_hears_of_progress_and_stops_the_proof():
    # Twenty-six ops with queued transfers on four devices: not proven within an hour, but stopped at the second call.
    graph, cluster, progress = generators.random_dag(26, seed=6), Cluster.uniform(4), []
    placement = exact(
        graph, cluster, time_limit=3600.0, warm_start=0.0, callback=lambda p: progress.append(p) or len(progress) == 2
    )
    assert len(progress) == 2 and progress[-1].bound_us > 0 and "s, " in str(progress[-1])
    assert simulate(graph, cluster, placement).feasible


@pytest.mark.slow
@pytest.mark.parametrize(
    "ending", ["sys.exit(9)", "print('{\"status\": ', end='', flush=True); os.kill(os.getpid(), 9)"]
)
def test_the_start_is_the_answer_when_the_solver_dies(monkeypatch, ending):
    graph = OpGraph.from_edges([3, 4, 5, 6, 7, 3], [(0, 2, 8), (1, 3, 8), (2, 4, 8), (3, 5, 8)])
    cluster = Cluster.uniform(2, link=Link(1.5, 0.25))
    place(graph, cluster, "auto")  # METIS has a process of its own from now on
    code = f"import os, sys; sys.stdin.read(1); {ending}"
    monkeypatch.setattr(pool, "isolated_command", lambda *ignored: [sys.executable, "-c", code])
    monkeypatch.setattr(placer, "SolverProcess", SolverProcess)  # not the one that is running
    placement = place(graph, cluster, "exact", time_limit=20)
    assert simulate(graph, cluster, placement).feasible
    if placement.info["status"] != "OPTIMAL":  # the bound alone may prove the start
        assert "relaxed: DIED" in placement.info["solves"][0]
        assert "the solver's process failed: BrokenExecutor: the worker" in placement.info["solves"][0]
    assert len(placement.info["solves"]) <= 1


@pytest.mark.slow
def test_an_interrupted_start_ends_the_proof(monkeypatch):
    from baechi_lab.placers.search.placer import Search

    assign = Search.assign

    def interrupted(self, *arguments):
        placement = assign(self, *arguments)
        return placement.replace(interrupted=True)

    monkeypatch.setattr(Search, "assign", interrupted)
    placement = place(OpGraph.from_edges([3, 4, 5], [(0, 2, 80)]), Cluster.uniform(2), "exact", time_limit=5)
    assert placement.interrupted
    assert not placement.info["solves"]


@pytest.mark.slow
def test_bug_durations_far_beyond_the_horizon_were_no_model_that_could_be_solved():
    """1e12 us stands for a device that nobody should use; as 64-bit numbers of units, such times overflow."""
    edges = [(0, 1, 4), (0, 2, 4), (1, 4, 8), (2, 3, 4)]
    for far in (1e12, 1e30):
        graph = OpGraph.from_edges([3.5, 4.25, 5, 2, 6], edges, duration_by_kind={"cpu": [far, 2, far, far, far]})
        devices = (Device("gpu:0", "gpu", 100), Device("gpu:1", "gpu", 100), Device("cpu:0", "cpu", 100))
        cluster = Cluster(devices, Link(1.0, 0.25), "sequential")
        placement = place(graph, cluster, "exact", time_limit=30)
        assert placement.info["status"] == "OPTIMAL" and placement.info["solves"]
