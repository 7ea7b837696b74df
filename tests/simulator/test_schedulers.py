"""Schedulers: equations 12 and 13 of Mayer et al. 2017 by hand, and what must hold under any of them."""

import numpy as np
import pytest
from fewer import fast
from random_cases import random_cluster, random_graph
from simulator_reference import simulate_reference

import baechi_lab as bl
from baechi_lab.graph.kernels.heaps import push
from baechi_lab.simulator import kernel
from baechi_lab.simulator.schedulers import SCHEDULERS, Msr, path_computation_time
from baechi_lab.simulator.schedulers.base import NO_COLUMN

PLACEMENT = bl.Placement(device=[0, 0, 0, 1, 0])
# 0 -> 2 on one device, 1 -> 3 across; 2 -> 4
GRAPH = bl.OpGraph.from_edges([2, 2, 3, 1, 1], [(0, 2, 8), (1, 3, 8), (2, 4, 8)])
CLUSTER = bl.Cluster.uniform(2, link=bl.Link(2.0, 0.5), comm="parallel", memory_bytes=1000)


def test_equation_12_by_hand():
    # 4: 1; 2: 3 + 0 + 1; 0: 2 + 0 + 4; 3: 1; 1: 2 + (2 + 0.5 * 8) + 1
    assert path_computation_time(GRAPH, CLUSTER, PLACEMENT).tolist() == [6, 9, 4, 1, 1]


def test_equation_12_uses_each_device_speed():
    devices = (bl.Device("a", "x", 1000, 2.0), bl.Device("b", "x", 1000, 0.5))
    cluster = bl.Cluster(devices, bl.Link(2.0, 0.5), comm="parallel")
    # 3 on b: 1 / 0.5; 1 on a: 2 / 2 + 6 + 2
    assert path_computation_time(GRAPH, cluster, PLACEMENT).tolist() == [1 + 1.5 + 0.5, 1 + 6 + 2, 2, 2, 0.5]


def test_pct_runs_the_longer_way_first():
    fifo, pct = (bl.simulate(GRAPH, CLUSTER, PLACEMENT, s) for s in ("fifo", "pct"))
    assert fifo.start_us[:2].tolist() == [0, 2]  # op 0 first by index: op 3 starts at 4 + 6
    assert fifo.makespan_us == 4 + 6 + 1
    assert pct.start_us[:2].tolist() == [2, 0]  # PCT 9 before 6: op 3 starts at 2 + 6
    assert pct.makespan_us == 2 + 6 + 1


def test_equation_13_by_hand():
    # successors of 0: 2 (here, one predecessor), 3 (there, two), 4 (there, one); of 1: 3
    graph = bl.OpGraph.from_edges([1] * 5, [(0, 2, 1), (0, 3, 1), (0, 4, 1), (1, 3, 1)])
    placement = bl.Placement(device=[0, 0, 0, 1, 1])
    score, pointer, woken = Msr(alpha=1, beta=10, gamma=100, delta=1000).terms(graph, placement.device)
    assert score.tolist() == [(1 + 100) + (1 + 10) + (1 + 10 + 100), 1 + 10, 0, 0, 0]
    assert [woken[pointer[i] : pointer[i + 1]].tolist() for i in range(5)] == [[0, 1], [], [], [], []]


def test_a_successor_that_reads_two_tensors_counts_once():
    graph = bl.OpGraph.from_edges([1, 1], [(0, 1, 1), (0, 1, 2)])
    score, _, woken = Msr().terms(graph, np.array([0, 1]))
    assert score.tolist() == [1 + 1 + 1, 0]
    assert woken.tolist() == [1]


@pytest.mark.parametrize(("busy", "first"), [(False, 2), (True, 1)])
def test_msr_sees_idleness_when_it_decides(busy, first):
    """Device 0 chooses at time 1, when op 0 has ended: op 1 feeds 3 here-readers, op 2 wakes device 1 if that is idle.

    Scores: op 1 has four successors on device 0, each with one predecessor: 4 (1 + 1) = 8; op 2 has one on
    device 1: 1 + 1 + 1 = 3, and 5 more while device 1 is idle = 8 + nothing: a tie would go to op 1, so op 2 gets
    a second successor there that has another predecessor: 1 + 1 = 2. Idle: 10 against 8. Busy: 5 against 8.
    """
    edges = [(0, 1, 1), (0, 2, 2), (1, 3, 1), (1, 4, 1), (1, 5, 1), (1, 6, 1), (2, 7, 1), (2, 8, 1), (9, 8, 1)]
    graph = bl.OpGraph.from_edges([1] * 9 + [5.0 if busy else 0.5], edges)
    cluster = bl.Cluster.uniform(2, link=bl.Link(0.0, 0.0), comm="parallel")
    placement = bl.Placement(device=[0, 0, 0, 0, 0, 0, 0, 1, 1, 1])
    timeline = bl.simulate(graph, cluster, placement, "msr")
    assert timeline.start_us[first] == 1.0
    assert timeline.start_us[3 - first] == 2.0


def test_msr_weights_are_parameters():
    # One successor each: op 0 feeds its own device, op 1 the other one. Only beta tells them apart.
    graph = bl.OpGraph.from_edges([1] * 4, [(0, 2, 1), (1, 3, 1)])
    cluster, placement = bl.Cluster.uniform(2, link=bl.Link(0.0, 0.0)), bl.Placement(device=[0, 0, 0, 1])
    even = bl.simulate(graph, cluster, placement, Msr(beta=0, delta=0))
    assert even.start_us[:2].tolist() == [0, 1]
    remote = bl.simulate(graph, cluster, placement, Msr(beta=1, delta=0))
    assert remote.start_us[:2].tolist() == [1, 0]
    assert Msr().get_params() == {"alpha": 1, "beta": 1, "gamma": 1, "delta": 5}
    with pytest.raises(bl.InvalidInput, match="delta of scheduler 'msr' is -1"):
        bl.simulate(graph, cluster, placement, Msr(delta=-1))


@pytest.mark.parametrize("seed", fast(range(20), 6))
def test_any_scheduler_gives_a_valid_timeline(seed):
    rng = np.random.default_rng(seed)
    for _ in range(10):
        graph, cluster = random_graph(rng), random_cluster(rng)
        placement = bl.Placement(device=rng.integers(0, cluster.n, graph.n), priority=rng.integers(0, 5, graph.n))
        for scheduler in SCHEDULERS.names():
            timeline = bl.simulate(graph, cluster, placement, scheduler)
            assert bl.check(graph, cluster, placement, timeline) == ()
            assert timeline.makespan_us >= bl.bounds(graph, cluster).best * (1 - 1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_pct_agrees_with_the_readable_simulator(seed):
    rng = np.random.default_rng(seed)
    graph, cluster = random_graph(rng), random_cluster(rng)
    placement = bl.Placement(device=rng.integers(0, cluster.n, graph.n))
    pct = path_computation_time(graph, cluster, placement)
    twin = simulate_reference(graph, cluster, placement.device.tolist(), lambda op, ready: -float(pct[op]))
    timeline = bl.simulate(graph, cluster, placement, "pct")
    assert timeline.start_us.tolist() == [twin.start[i] for i in range(graph.n)]


@pytest.mark.parametrize("n", [0, 1])
def test_graphs_without_choice_run_under_every_scheduler(n):
    graph, placement = bl.OpGraph.from_edges([7.0] * n), bl.Placement(device=np.zeros(n, int))
    for scheduler in ("fifo", "pct", "msr"):
        assert bl.simulate(graph, CLUSTER, placement, scheduler).makespan_us == 7.0 * n


def test_unknown_scheduler_suggests():
    with pytest.raises(bl.UnknownNameError, match="did you mean 'pct'"):
        bl.simulate(GRAPH, CLUSTER, PLACEMENT, "ptc")


@pytest.mark.slow
def test_msr_takes_the_op_with_the_highest_score_whatever_runs():
    """All ready ops are compared, as the kernel does not: it leaves out those that could not be the best."""
    rng, n, devices, weight = np.random.default_rng(3), 40, 4, 0.3
    lanes = kernel.records(np.zeros(devices, kernel.DEVICE))
    for _ in range(20):
        score, pointer = 0.1 * rng.integers(0, 4, n), np.arange(0, 3 * n + 1, 3)
        woken = rng.integers(0, devices, 3 * n).astype(np.int32)
        scheduler = kernel.Scheduler(kernel.BY_IDLENESS, NO_COLUMN, score, pointer, woken, weight)

        def total(op, idle, score=score, woken=woken):
            priority = score[op]
            for d in woken[3 * op : 3 * op + 3]:
                priority += weight * idle[d]
            return priority

        ready = kernel.Ready(np.empty(n), np.empty(n, np.int64), True)
        lanes["ready_first"], lanes["ready_size"] = 0, 0
        for op in rng.permutation(n).tolist():
            size = int(lanes["ready_size"][0])
            lanes["ready_size"][0] = push(ready.key, ready.op, 0, size, -total(op, [False, True, True, True]), op)
        remaining = set(range(n))
        while remaining:
            lanes["running"] = rng.integers(0, 2, devices)
            idle = [False, *(~lanes["running"][1:]).tolist()]
            expected_op = min(remaining, key=lambda op, idle=idle, total=total: (-total(op, idle), op))
            assert kernel.pop_highest_score(0, lanes, ready, scheduler) == expected_op
            remaining.remove(expected_op)
