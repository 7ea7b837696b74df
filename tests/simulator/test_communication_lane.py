"""Collectives run on the communication lane of their device, beside what it computes."""

from __future__ import annotations

import numpy as np
import pytest
from simulator_reference import simulate_reference

import baechi_lab as bl
from baechi_lab.graph.opgraph import COLLECTIVES


def one_rank() -> bl.OpGraph:
    """a (3), then an all-reduce (4) of its output; b (5) needs only a, c (1) needs both."""
    return bl.OpGraph.from_edges(
        [3.0, 4.0, 5.0, 1.0],
        [(0, 1, 8), (0, 2, 8), (1, 3, 8), (2, 3, 8)],
        names=["a", "sum", "b", "c"],
        op_types=["matmul", "all_reduce", "matmul", "matmul"],
    )


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_a_collective_overlaps_with_what_does_not_wait_for_it(kind: str) -> None:
    graph = one_rank().replace(op_types=("matmul", kind, "matmul", "matmul"))
    cluster, placement = bl.Cluster.uniform(1), bl.Placement(device=[0, 0, 0, 0])
    timeline = bl.simulate(graph, cluster, placement)
    assert timeline.makespan_us == 3 + max(4, 5) + 1
    assert timeline.start_us.tolist() == [0, 3, 3, 8]
    assert bl.check(graph, cluster, placement, timeline) == ()


def test_two_collectives_of_a_device_follow_each_other() -> None:
    graph = bl.OpGraph.from_edges([4.0, 6.0, 3.0], [], op_types=["all_gather", "all_reduce", "matmul"])
    cluster, placement = bl.Cluster.uniform(1), bl.Placement(device=[0, 0, 0])
    timeline = bl.simulate(graph, cluster, placement)
    assert timeline.makespan_us == 4 + 6
    bounds = bl.bounds(graph, cluster)
    assert (bounds["communication"], bounds["work"], bounds["critical-path"]) == (10, 3, 6)


def test_links_decide_how_long_a_collective_lasts_and_not_the_speed_of_a_device() -> None:
    graph = bl.OpGraph.from_edges([4.0, 6.0], [(0, 1, 4)], op_types=["matmul", "all_reduce"])
    cluster = bl.Cluster.uniform(1, speed=2.0)
    assert bl.simulate(graph, cluster, bl.Placement(device=[0, 0])).makespan_us == 4 / 2 + 6


def test_check_finds_collectives_that_overlap_and_lanes_that_idle() -> None:
    graph = bl.OpGraph.from_edges([4.0, 6.0], [], op_types=["all_gather", "all_reduce"])
    cluster, placement = bl.Cluster.uniform(1), bl.Placement(device=[0, 0])
    timeline = bl.simulate(graph, cluster, placement)
    from dataclasses import replace

    together = replace(timeline, start_us=np.array([0.0, 0.0]), end_us=np.array([4.0, 6.0]), makespan_us=6.0)
    assert {v.kind for v in bl.check(graph, cluster, placement, together)} == {"overlap"}
    delayed = replace(timeline, start_us=np.array([1.0, 5.0]), end_us=np.array([5.0, 11.0]), makespan_us=11.0)
    assert {v.kind for v in bl.check(graph, cluster, placement, delayed)} == {"idling"}


def test_memory_of_both_lanes_is_that_of_the_device() -> None:
    timeline = bl.simulate(one_rank(), bl.Cluster.uniform(1), bl.Placement(device=[0, 0, 0, 0]))
    assert timeline.peak_bytes.tolist() == [8 + 8 + 8]  # outputs of a, sum and b


@pytest.mark.parametrize("seed", range(12))
def test_the_readable_twin_the_check_and_the_bounds_know_the_lane(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, devices = 25, int(rng.integers(1, 4))
    pairs = [(a, b) for b in range(1, n) for a in rng.choice(b, size=min(b, 2), replace=False).tolist()]
    kinds = [COLLECTIVES[k % 5] if rng.random() < 0.4 else "matmul" for k in range(n)]
    graph = bl.OpGraph.from_edges(
        rng.integers(0, 9, n), [(a, b, int(rng.integers(1, 50))) for a, b in pairs], op_types=kinds
    )
    cluster = bl.Cluster.uniform(devices, link=bl.Link(1.0, 0.1), comm=("parallel", "sequential", "duplex")[seed % 3])
    placement = bl.Placement(device=rng.integers(0, devices, n))
    timeline = bl.simulate(graph, cluster, placement)
    twin = simulate_reference(graph, cluster, placement.device.tolist())
    assert [twin.start[i] for i in range(n)] == timeline.start_us.tolist()
    assert twin.peak == timeline.peak_bytes.tolist()
    assert bl.check(graph, cluster, placement, timeline) == ()
    assert bl.bounds(graph, cluster).best <= timeline.makespan_us + 1e-9
    step = bl.bounds(graph, cluster, micro_batches=1, placement=placement)
    assert step.best <= timeline.makespan_us + 1e-9


def test_collectives_in_a_pipeline_of_micro_batches() -> None:
    """Two stages; every forward op (2) is followed by a collective (3) that the next stage waits for."""
    graph = bl.OpGraph.from_edges(
        [2.0, 3.0, 2.0, 4.0, 4.0],
        [(0, 1, 8), (1, 2, 8), (2, 3, 8), (3, 4, 8), (0, 4, 8)],
        names=["f0", "sum", "f1", "b1", "b0"],
        op_types=["matmul", "all_reduce", "matmul", "matmul", "matmul"],
        forward_of=np.array([-1, -1, -1, 2, 0]),
    )
    cluster = bl.Cluster.uniform(2, link=bl.Link(0.0, 0.0))
    placement = bl.Placement(device=[0, 0, 1, 1, 0])
    timeline = bl.simulate(graph, cluster, placement, micro_batches=3, schedule="gpipe")
    step = bl.unroll(graph, 3)
    assert bl.check(step, cluster, placement.on(step), timeline) == ()
    # Sums run while the next micro-batch computes: they end at 5, 8, 11. f1 ends at 13, b1 at 25, b0 of the last at 29.
    assert timeline.makespan_us == 29
    steady = bl.throughput(graph, cluster, placement)
    assert steady.loads["communication"].tolist() == [3, 0]
    assert steady.loads["compute"].tolist() == [6, 6]


def test_the_exact_placer_refuses_what_it_cannot_prove() -> None:
    pytest.importorskip("ortools")
    with pytest.raises(bl.InvalidInput, match="op 'sum' is a collective; 'exact' proves nothing"):
        bl.place(one_rank(), bl.Cluster.uniform(2), "exact", time_limit=1)
