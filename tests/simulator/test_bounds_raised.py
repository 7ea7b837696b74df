"""`probed-path` and `energy` by hand; heads only ever rise; compiled and readable kernels agree."""

import numpy as np
import pytest
from readable import readable

from baechi_lab import Cluster, Link, OpGraph, bounds
from baechi_lab.graph import generators
from baechi_lab.simulator.bounds import energy as bounds_energy
from baechi_lab.simulator.bounds import probe as bounds_probe
from baechi_lab.simulator.bounds.bounds import paid_bounds, raise_heads_and_tails
from baechi_lab.simulator.bounds.energy import energy_heads, window_bound
from baechi_lab.simulator.bounds.probe import probe_heads
from baechi_lab.simulator.bounds.problem import merge_problem
from baechi_lab.simulator.bounds.sweep import paid_heads

COMMS = ("parallel", "sequential", "duplex")
FORK_JOIN = [(0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 3, 1)]


def probed_heads(graph, cluster):
    problem = merge_problem(graph, cluster, reach=False)
    head, tail = np.zeros(graph.n), np.zeros(graph.n)
    probe_heads(problem, head, tail, zone=20)
    return head


@pytest.mark.parametrize("comm", COMMS)
def test_there_and_back_is_paid_twice(comm):
    # Fork and join are together: a branch elsewhere is sent there and back, 1 + 4 + 9 + 4; both branches here: 1 + 9 + 9.
    graph = OpGraph.from_edges([1, 9, 9, 1], FORK_JOIN).replace(colocation=[0, -1, -1, 0], colocation_names=["ends"])
    assert probed_heads(graph, Cluster.uniform(2, link=Link(4.0, 0.0), comm=comm))[3] == pytest.approx(18, rel=0.02)
    assert probed_heads(graph, Cluster.uniform(2, link=Link(40.0, 0.0), comm=comm))[3] == pytest.approx(19)


def test_chains_beside_each_other_are_serial_where_every_way_out_is_dear():
    # Two chains of three ops of 2 between a fork and a join of 1, transfers of 20: whoever leaves pays once, 1 + 20 at least,
    # so the join starts after 1 + 12. Rule 1 alone sees the last op of each chain: 1 + 4 + 2 + 2.
    edges = [(0, 1, 1), (1, 2, 1), (2, 3, 1), (0, 4, 1), (4, 5, 1), (5, 6, 1), (3, 7, 1), (6, 7, 1)]
    graph, cluster = OpGraph.from_edges([1, 2, 2, 2, 2, 2, 2, 1], edges), Cluster.uniform(3, link=Link(20.0, 0.0))
    assert paid_heads(merge_problem(graph, cluster, reach=False))[0][7] == 9
    assert probed_heads(graph, cluster)[7] == pytest.approx(13)
    assert bounds(graph, cluster)["probed-path"] == pytest.approx(14)  # everything on one device


def test_energy_sees_where_the_graph_is_narrow():
    # Four of 3, one of 5, four of 3 on two devices: 6 + 5 + 6; work alone: 29 / 2.
    edges = [(k, 4, 1) for k in range(4)] + [(4, k, 1) for k in range(5, 9)]
    graph, cluster = OpGraph.from_edges([3] * 4 + [5] + [3] * 4, edges), Cluster.uniform(2, link=Link(0.0, 0.0))
    lower_bounds = bounds(graph, cluster)
    assert lower_bounds["work"] == 14.5 and lower_bounds["energy"] == 17


def test_window_takes_the_best_head_and_tail():
    # Three ops of 6 between a head of 2 and a tail of 4 on two devices: 2 + 9 + 4; a long op alone gives less.
    graph = OpGraph.from_edges([6, 6, 6, 10])
    problem = merge_problem(graph, Cluster.uniform(2), reach=False)
    assert window_bound(problem, np.array([2.0, 2, 2, 0]), np.array([4.0, 4, 4, 0])) == 15


def test_first_ops_of_different_devices_are_of_different_groups():
    # Two sources of 1 share a device, so only one device starts at 0: the other waits for an op and its transfer of 7.
    graph = OpGraph.from_edges([1, 1, 10, 10], [(0, 2, 1), (1, 3, 1)])
    together = graph.replace(colocation=[0, 0, -1, -1], colocation_names=["sources"])
    cluster = Cluster.uniform(2, link=Link(7.0, 0.0))
    assert paid_bounds(graph, cluster)["staggered-work"] == 11  # 22 / 2
    assert paid_bounds(together, cluster)["staggered-work"] == 15  # (22 + 0 + 8) / 2, less than 22 on one device


def test_heads_only_rise_and_stop_in_time():
    graph, cluster = generators.layered_dag(120, seed=3), Cluster.uniform(3)
    problem = merge_problem(graph, cluster, reach=False)
    head, tail = paid_heads(problem)
    raised = raise_heads_and_tails(problem, (10, 40))
    assert np.all(raised.head >= head) and np.all(raised.tail >= tail)
    without_time = raise_heads_and_tails(problem, (10, 40), seconds=0.0)
    assert np.array_equal(without_time.head, head) and np.array_equal(without_time.tail, tail)
    assert bounds(graph, cluster, effort="high", time_limit=0.0).best >= paid_bounds(graph, cluster)["local-or-paid"]


@pytest.mark.parametrize("seed", range(4))
def test_compiled_and_readable_kernels_agree(seed, monkeypatch):
    graph = generators.random_dag(30, degree=2.0, duration_us=(1, 20), size_bytes=(10, 100), seed=seed)
    problem = merge_problem(graph, Cluster.uniform(2 + seed % 2, link=Link(5.0, 0.1)), reach=False)
    answers = []
    for interpreted in (False, True):
        if interpreted:
            monkeypatch.setattr(bounds_probe, "probe", readable(bounds_probe.probe))
            for name in ("heaviest", "raise_heads"):
                monkeypatch.setattr(bounds_energy, name, readable(getattr(bounds_energy, name)))
        head, tail = paid_heads(problem)
        probe_heads(problem, head, tail, zone=12)
        energy_heads(problem, head, tail)
        answers.append((head, tail, window_bound(problem, head, tail)))
    for compiled, plain in zip(*answers, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-12)
