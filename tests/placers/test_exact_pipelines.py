"""`exact` for the period of endless micro-batches and for steps of several, against brute force."""

import itertools

import numpy as np
import pytest
from fewer import fast
from shared_solver import sharing_solver

import baechi_lab as bl

from .test_search_pipelines import COMM, least_step, training, uneven_cluster

pytest.importorskip("ortools")


@pytest.fixture(scope="module", autouse=True)
def one_solver():
    with sharing_solver():
        yield


@pytest.mark.parametrize("seed", fast(range(4), 1))
def test_the_smallest_period_is_proven(seed):
    graph = bl.generators.random_dag(6, degree=1.5, duration_us=(1, 9), size_bytes=(1, 50), seed=seed)
    cluster, total = uneven_cluster(2 + seed % 2, COMM[seed % 3]), seed == 3
    best = min(
        bl.throughput(graph, cluster, bl.Placement(device=list(devices)), sum=total).period_us
        for devices in itertools.product(range(cluster.n), repeat=graph.n)
    )
    placement = bl.place(graph, cluster, "exact", objective="throughput", sum=total, time_limit=30, warm_start=0.0)
    assert bl.throughput(graph, cluster, placement, sum=total).period_us == pytest.approx(best, rel=1e-6)
    assert placement.info["status"] == "OPTIMAL"
    assert placement.info["gap"] == 0
    assert placement.info["bound_us"] <= best * (1 + 1e-6)


@pytest.mark.parametrize("seed", fast(range(3), 1))
def test_the_shortest_step_is_proven(seed):
    graph, cluster = training(seed, 4 + seed % 2), uneven_cluster(2 + seed % 2, COMM[seed % 3])
    step = {"micro_batches": 3, "schedule": ("1f1b", "gpipe", "zb-h1")[seed]}
    placement = bl.place(graph, cluster, "exact", objective="step", time_limit=30, warm_start=0.0, **step)
    assert placement.info["step_us"] == pytest.approx(least_step(graph, cluster, **step), rel=1e-6)
    assert placement.info["status"] == "OPTIMAL"
    assert bl.simulate(graph, cluster, placement, **step).makespan_us == placement.info["step_us"]


@pytest.mark.slow
def test_equal_devices_and_memory():
    """Four layers of 10 persistent bytes on two devices of 29 bytes: two each, although their loads then differ."""
    graph = bl.generators.pipeline([1.0, 1.0, 1.0, 9.0], [1.0, 1.0, 1.0, 9.0], output_bytes=1)
    graph = graph.replace(
        colocation=np.tile(np.arange(4, dtype=np.int32), 2),
        colocation_names=tuple("abcd"),
        persistent_bytes=np.array([10] * 4 + [0] * 4),
    )
    cluster = bl.Cluster.uniform(2, memory_bytes=29, link=bl.Link(0.0, 0.0), comm="parallel")
    placement = bl.place(graph, cluster, "exact", objective="throughput", time_limit=20)
    assert placement.info["period_us"] == 20.0
    assert np.bincount(placement.device).tolist() == [4, 4]
    with_ample_memory = bl.place(graph, cluster.with_memory(1000), "exact", objective="throughput", time_limit=20)
    assert with_ample_memory.info["period_us"] == with_ample_memory.info["bound_us"] == 18.0
    with pytest.raises(bl.InfeasiblePlacement):
        bl.place(graph, cluster.with_memory(11), "exact", objective="throughput", time_limit=5)


@pytest.mark.slow
def test_no_time_is_a_placement_with_its_gap():
    graph, cluster = training(0), uneven_cluster(2, "duplex")
    placement = bl.place(graph, cluster, "exact", objective="step", time_limit=0)
    assert placement.info["status"] in ("OPTIMAL", "FEASIBLE")
    assert placement.info["bound_us"] <= placement.info["step_us"]
    large = bl.generators.random_dag(3000, seed=1)
    with pytest.raises(bl.InvalidInput, match="too large for 'exact'"):
        bl.place(large, bl.Cluster.uniform(8), "exact", objective="throughput")
