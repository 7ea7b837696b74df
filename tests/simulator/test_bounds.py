"""Bounds: by hand, and never above the optimum of brute force over every placement and order."""

import numpy as np
import pytest
from brute_force import optimum
from fewer import fast
from readable import readable

from baechi_lab import Cluster, Device, Link, OpGraph, bounds
from baechi_lab.errors import InvalidInput
from baechi_lab.graph import generators
from baechi_lab.graph.kernels import compiling
from baechi_lab.simulator.bounds import merge
from baechi_lab.simulator.bounds.bounds import paid_bounds
from baechi_lab.simulator.bounds.merge import forced_merges, propagate
from baechi_lab.simulator.bounds.problem import merge_problem
from baechi_lab.simulator.bounds.sweep import no_deductions

COMMS = ("parallel", "sequential", "duplex")


def small_case(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 6))
    graph = generators.random_dag(
        n,
        degree=float(rng.uniform(0.5, 2.0)),
        second_output=0.3,
        duration_us=(1, 20),
        size_bytes=(10, 100),
        colocation_groups=seed % 2,
        grouped=0.5,
        persistent_bytes=(1, 100),
        seed=seed,
    )
    if seed % 5 == 0:
        graph = graph.replace(duration_us=np.where(rng.random(n) < 0.3, 0.0, graph.duration_us))
    speeds = (1.0, 1.0 + seed % 3, 1.0)[: 2 + (seed % 7 == 0)]
    devices = tuple(Device(f"gpu:{k}", "gpu", 1 << 30, s) for k, s in enumerate(speeds))
    cluster = Cluster(devices, Link(float(rng.choice([0, 2, 10, 30])), 0.02), COMMS[seed % 3])
    if seed % 4 == 0:
        cluster = cluster.with_memory(int(0.75 * (graph.persistent_bytes.sum() + graph.tensor_bytes.sum())))
    return graph, cluster


@pytest.mark.parametrize("seed", fast(range(60), 4))
def test_no_bound_is_above_the_optimum(seed):
    graph, cluster = small_case(seed)
    best = optimum(graph, cluster)
    for name, value in bounds(graph, cluster, effort="high", time_limit=2).items():
        assert value <= best * (1 + 1e-9) + 1e-9, name


@pytest.mark.slow
def test_high_effort_often_proves_the_optimum():
    tight = 0
    for seed in range(20):
        graph, cluster = small_case(seed)
        tight += bounds(graph, cluster, effort="high", time_limit=2).best >= 0.99 * optimum(graph, cluster)
    assert tight >= 10


def test_fork_join_with_expensive_transfers_is_serial():
    # Ops 5, 10, 10, 5, transfers of 100: whoever splits pays 100, so everything is on one device: 30.
    graph = OpGraph.from_edges([5, 10, 10, 5], [(0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 3, 1)])
    cluster = Cluster.uniform(2, memory_bytes=100, link=Link(100.0, 0.0))
    lower_bounds = bounds(graph, cluster, effort="high")
    # critical path 5 + 10 + 5, work 30 / 2; ops 1 and 2 local to op 3: 5 + 10 + 10 before it starts, then 5.
    assert lower_bounds["critical-path"] == 20 and lower_bounds["work"] == 15
    assert lower_bounds["local-or-paid"] == 30 and lower_bounds["forced-merges"] == pytest.approx(30, rel=0.01)


def test_local_or_paid_takes_the_best_number_of_local_producers():
    # Three producers of 10 and a reader of 1, transfers of 15: all local 30; one paid: max(20, 10 + 15) = 25; + 1.
    graph = OpGraph.from_edges([10, 10, 10, 1], [(0, 3, 1), (1, 3, 1), (2, 3, 1)])
    for comm in COMMS:
        cluster = Cluster.uniform(3, link=Link(15.0, 0.0), comm=comm)
        assert paid_bounds(graph, cluster)["local-or-paid"] == 26.0


def test_transfers_to_one_device_queue():
    # Four producers of 10, transfers of 8. Parallel: one local, three arrive at 18; two local end at 20.
    # Queued and fractional: x local of 4: 10 x against 10 + 8 (4 - x): x = 42 / 18 = 7/3, 23.33; then 1.
    graph = OpGraph.from_edges([10, 10, 10, 10, 1], [(k, 4, 1) for k in range(4)])
    lower_bounds = {
        c: paid_bounds(graph, Cluster.uniform(4, link=Link(8.0, 0.0), comm=c))["local-or-paid"] for c in COMMS
    }
    assert lower_bounds["parallel"] == 19.0
    assert lower_bounds["sequential"] == lower_bounds["duplex"] == pytest.approx(70 / 3 + 1)


def test_staggered_work_of_a_tree():
    # Root 10, four leaves of 10, transfers of 6. One device 50. Two: the second starts at 16: (50 + 0 + 16) / 2 = 33;
    # three: (50 + 16 + 16) / 3 = 27.33; the minimum over 1 .. 3 devices counts.
    graph = OpGraph.from_edges([10] * 5, [(0, k, 1) for k in range(1, 5)])
    cluster = Cluster.uniform(3, link=Link(6.0, 0.0))
    assert paid_bounds(graph, cluster)["staggered-work"] == pytest.approx(82 / 3)


def test_memory_forces_a_cut():
    # 60 + 60 bytes on devices of 100: the edge is paid, 10 + 7 + 10.
    graph = OpGraph.from_edges([10, 10], [(0, 1, 1)], persistent_bytes=[60, 60])
    cluster = Cluster.uniform(2, memory_bytes=100, link=Link(7.0, 0.0))
    assert bounds(graph, cluster)["memory-cut"] == 27
    assert bounds(graph, cluster, effort="high").best == pytest.approx(27)


def test_compiled_and_readable_propagation_agree():
    for seed in range(6):
        graph, cluster = small_case(seed)
        problem = merge_problem(graph, cluster)
        n = graph.n
        for limit in (0.4, 0.7, 0.9):
            answers = []
            for function in (propagate, readable(propagate)):
                paid = np.zeros(len(problem.before.near), np.int8)
                deductions = no_deductions(problem.unit.copy(), paid, np.zeros(n), np.zeros(n))
                fits = function(limit * problem.p.sum(), problem, deductions, 30)
                answers.append((fits, *(column.tolist() for column in deductions)))
            assert answers[0] == answers[1]


def test_high_effort_is_never_below_normal_and_respects_its_limit():
    graph = generators.layered_dag(200, seed=1)
    cluster = Cluster.uniform(3)
    normal, high = bounds(graph, cluster), bounds(graph, cluster, effort="high", time_limit=0.5)
    assert all(high[name] >= value for name, value in normal.items())
    assert high["forced-merges"] >= max(value for name, value in high.items() if name != "forced-merges")
    assert forced_merges(graph, cluster, 5.0, 5.0) == 5.0


def test_degenerate_graphs_and_wrong_effort():
    for graph in (OpGraph.from_edges([]), OpGraph.from_edges([4]), OpGraph.from_edges([0, 0], [(0, 1, 1)])):
        for devices in (1, 2):
            lower_bounds = bounds(graph, Cluster.uniform(devices), effort="high")
            assert lower_bounds.best == graph.duration_us.sum()
    with pytest.raises(InvalidInput, match="effort"):
        bounds(OpGraph.from_edges([1]), Cluster.uniform(1), effort="low")


def test_compiling_does_not_count(monkeypatch):
    """The first bound after an installation compiles its kernels; that takes nothing from its time limit."""
    graph = OpGraph.from_edges([5, 10, 10, 5], [(0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 3, 1)])
    clock_us = [0.0]

    def compiled_first(*arguments):
        compiling.clock.start()
        clock_us[0] += 100.0
        compiling.clock.end()
        return propagate(*arguments)

    monkeypatch.setattr("time.perf_counter", lambda: clock_us[0])
    monkeypatch.setattr(merge, "propagate", compiled_first)
    # On one device 30; each split pays 100.
    assert forced_merges(graph, Cluster.uniform(2, link=Link(100.0, 0.0)), 20.0, 30.0, time_limit=10.0) > 29.9
