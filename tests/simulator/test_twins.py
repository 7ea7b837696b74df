"""Random graphs: the compiled event loop, its readable twin and the validity check agree, ties included."""

import numpy as np
import pytest
from fewer import fast
from mixed_clusters import mixed_cluster
from random_cases import random_cluster, random_graph
from simulator_reference import simulate_reference

import baechi_lab as bl


@pytest.mark.parametrize("seed", fast(range(12), 2))
def test_kernel_twin_and_check_agree(seed):
    rng = np.random.default_rng(seed)
    for case in range(60):
        graph = random_graph(rng, zero=case % 2 == 0)
        cluster = random_cluster(rng)
        device = rng.integers(0, cluster.n, graph.n)
        priority = rng.integers(0, 4, graph.n) if case % 3 == 0 else None
        placement = bl.Placement(device=device, priority=priority)
        timeline = bl.simulate(graph, cluster, placement)
        key = None if priority is None else lambda op, ready, p=priority: -float(p[op])
        twin = simulate_reference(graph, cluster, device.tolist(), key)
        assert timeline.start_us.tolist() == [twin.start[i] for i in range(graph.n)]
        assert timeline.end_us.tolist() == [twin.end[i] for i in range(graph.n)]
        assert timeline.peak_bytes.tolist() == twin.peak
        transfers = timeline.transfers
        rows = zip(
            transfers.tensor.tolist(),
            transfers.target.tolist(),
            transfers.start_us,
            transfers.receive_us,
            transfers.end_us,
            strict=True,
        )
        assert {(t, d): (a, b, c) for t, d, a, b, c in rows} == twin.transfers
        assert bl.check(graph, cluster, placement, timeline) == ()
        for d in range(cluster.n):
            _, levels = timeline.memory.levels(d)
            assert levels.sum(axis=1).max(initial=0) == timeline.peak_bytes[d]
            assert levels.min(initial=0) >= 0
        assert bl.bounds(graph, cluster).best <= timeline.makespan_us * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("comm", fast(["sequential", "duplex"], 1))
@pytest.mark.parametrize("scheduler", fast(["fifo", "pct", "msr"], 1))
def test_ops_of_no_duration_between_unequal_links(comm, scheduler):
    rng = np.random.default_rng(5)
    for _ in range(100):
        graph = random_graph(rng, 24)
        graph = graph.replace(duration_us=np.where(rng.random(graph.n) < 0.6, 0.0, graph.duration_us))
        cluster = mixed_cluster(rng, memory=(1 << 20, 1 << 21), comm=comm)
        placement = bl.Placement(device=rng.integers(0, cluster.n, graph.n))
        timeline = bl.simulate(graph, cluster, placement, scheduler=scheduler)
        assert bl.check(graph, cluster, placement, timeline) == ()


def test_same_input_same_output():
    rng = np.random.default_rng(1)
    graph, cluster = random_graph(rng, 30), random_cluster(rng)
    placement = bl.Placement(device=rng.integers(0, cluster.n, graph.n))
    first, second = bl.simulate(graph, cluster, placement), bl.simulate(graph, cluster, placement)
    for key in ("start_us", "end_us", "peak_bytes"):
        assert getattr(first, key).tobytes() == getattr(second, key).tobytes()
    assert first.memory.delta.tobytes() == second.memory.delta.tobytes()


@pytest.mark.parametrize("speed", [0.5, 2.0, 8.0])
def test_speed_scales_the_makespan_when_communication_is_free(speed):
    rng = np.random.default_rng(7)
    for _ in range(20):
        graph = random_graph(rng)
        slow = bl.Cluster.uniform(3, link=bl.Link(0.0, 0.0))
        fast = bl.Cluster.uniform(3, link=bl.Link(0.0, 0.0), speed=speed)
        placement = bl.Placement(device=rng.integers(0, 3, graph.n))
        expected = bl.simulate(graph, slow, placement).makespan_us / speed
        assert bl.simulate(graph, fast, placement).makespan_us == pytest.approx(expected)
