"""Equation 2 of Mayer et al. 2017 by hand, and against a count at every moment."""

import itertools

import numpy as np
import pytest
from fewer import fast
from random_cases import random_cluster, random_graph

import baechi_lab as bl
from baechi_lab.simulator.memory_rules import edge_memory

LINK = bl.Link(2.0, 0.0)


def live_bytes(timeline, device):
    """Returns time -> bytes after the last change of that moment."""
    times, levels = timeline.memory.levels(device)
    return dict(zip(times.tolist(), levels.sum(axis=1).tolist(), strict=True))


def test_equation_2_by_hand():
    """Op 0 (2 us) sends one tensor of 10 bytes to op 1 on d0 and op 2 on d1; op 1 (3 us) sends 7 bytes to op 3 on d1.

    d0: at 2 the edge 0 -> 1 is consumed at once, 0 -> 2 (10) is live until its transfer ends at 4; at 5 the edge 1 -> 3 (7)
    until 7. d1: 0 -> 2 arrives at 4 and is consumed at once (op 2 runs 4..10); 1 -> 3 arrives at 7, op 3 starts at 10.
    """
    graph = bl.OpGraph.from_edges(
        [2, 3, 6, 1], [(0, 1, 10), (0, 2, 10), (1, 3, 7)], persistent_bytes=[500] * 4, temp_bytes=[90] * 4
    )
    cluster = bl.Cluster.uniform(2, memory_bytes=11, link=LINK, comm="parallel")
    placement = bl.Placement(device=[0, 0, 1, 1])
    timeline = bl.simulate(graph, cluster, placement, memory_rule="edges")
    assert live_bytes(timeline, 0) == {2: 10, 4: 0, 5: 7, 7: 0}
    assert live_bytes(timeline, 1) == {7: 7, 10: 0}
    assert timeline.peak_bytes.tolist() == [10, 7]
    assert timeline.violations == ()
    assert timeline.info["memory_rule"] == "edges"
    # the other rule counts persistent bytes, temporaries and outputs: violations
    with_tensor_rule = bl.simulate(graph, cluster, placement)
    assert len(with_tensor_rule.violations) == 2
    assert with_tensor_rule.end_us.tolist() == timeline.end_us.tolist()


def test_the_sum_must_stay_below_the_capacity():
    graph = bl.OpGraph.from_edges([1, 1, 1], [(0, 2, 10)])
    for memory, violation_count in ((10, 1), (11, 0)):
        cluster = bl.Cluster.uniform(1, memory_bytes=memory)
        timeline = bl.simulate(graph, cluster, bl.Placement(device=[0, 0, 0]), memory_rule="edges")
        assert len(timeline.violations) == violation_count
    timeline = bl.simulate(
        graph, bl.Cluster.uniform(1, memory_bytes=10), bl.Placement(device=[0, 0, 0]), memory_rule="edges"
    )
    violation = timeline.violations[0]
    assert (violation.kind, violation.device, violation.time_us, violation.op) == ("memory", 0, 1.0, 0)
    assert "not below its 10 B" in violation.message


def test_a_tensor_counts_once_per_consumer():
    graph = bl.OpGraph.from_edges([1, 1, 1, 1], [(0, 2, 10), (0, 3, 10)])
    cluster = bl.Cluster.uniform(1, memory_bytes=1000)
    timeline = bl.simulate(graph, cluster, bl.Placement(device=[0] * 4, order=[0, 1, 2, 3]), memory_rule="edges")
    # from 1 both edges, from the start of op 2 at 2 one, from the start of op 3 at 3 none
    assert live_bytes(timeline, 0) == {1: 20, 2: 10, 3: 0}


def test_other_violations_stay():
    graph = bl.OpGraph.from_edges([1, 1], colocation=[0, 0], colocation_names=("g",))
    timeline = bl.simulate(graph, bl.Cluster.uniform(2), bl.Placement(device=[0, 1]), memory_rule="edges")
    assert [v.kind for v in timeline.violations] == ["colocation"]


def test_an_unknown_memory_rule_is_rejected():
    graph = bl.OpGraph.from_edges([1])
    with pytest.raises(bl.UnknownNameError, match="unknown memory rule 'edge'; did you mean 'edges'"):
        bl.simulate(graph, bl.Cluster.uniform(1), bl.Placement(device=[0]), memory_rule="edge")


@pytest.mark.parametrize("n", [0, 1])
def test_ops_without_bytes_have_no_peak(n):
    graph, cluster = bl.OpGraph.from_edges([1.0] * n), bl.Cluster.uniform(2, memory_bytes=0)
    timeline = bl.simulate(graph, cluster, bl.Placement(device=np.zeros(n, int)), memory_rule="edges")
    assert timeline.peak_bytes.tolist() == [0, 0]
    assert timeline.violations == ()


@pytest.mark.parametrize("seed", fast(range(30), 6))
def test_against_a_count_between_events(seed):
    rng = np.random.default_rng(seed)
    graph, cluster = random_graph(rng), random_cluster(rng)
    placement = bl.Placement(device=rng.integers(0, cluster.n, graph.n))
    timeline = edge_memory(graph, cluster, bl.simulate(graph, cluster, placement))
    transfers = timeline.transfers
    arrival = {
        (t, d): e
        for t, d, e in zip(transfers.tensor.tolist(), transfers.target.tolist(), transfers.end_us.tolist(), strict=True)
    }
    events = sorted({0.0, *timeline.start_us.tolist(), *timeline.end_us.tolist(), *transfers.end_us.tolist()})
    peak = [0] * cluster.n
    for moment in [(a + b) / 2 for a, b in itertools.pairwise(events)]:
        level = [0] * cluster.n
        for e in range(graph.edge_count):
            u, v, t = int(graph.edge_source[e]), int(graph.consumers[e]), int(graph.edge_tensor[e])
            if timeline.end_us[u] <= moment < timeline.start_us[v]:
                source, target = int(placement.device[u]), int(placement.device[v])
                level[target if moment >= arrival.get((t, target), 0.0) else source] += int(graph.tensor_bytes[t])
        peak = [max(a, b) for a, b in zip(peak, level, strict=True)]
    assert timeline.peak_bytes.tolist() == peak
