"""Contiguous cuts by dynamic programming, and METIS partitions."""

import sys
from itertools import combinations, pairwise

import numpy as np
import pytest
from fewer import fast
from mixed_clusters import mixed_cluster, restricted_graph

from baechi_lab import Cluster, Link, OpGraph, place, simulate
from baechi_lab.errors import InvalidInput, MissingPackage
from baechi_lab.graph import generators
from baechi_lab.placers.contiguous import contiguous_splits, cut_line
from baechi_lab.placers.metis import metis_partitions


def brute_force_cost(work, persistent_bytes, cross, cap, memory):
    n, devices, best = len(work), len(cap), np.inf
    for inner in combinations(sorted([*range(n + 1)] * (devices - 1)), devices - 1):
        cuts = [0, *inner, n]
        fits = all(
            work[a:b].sum() <= c and persistent_bytes[a:b].sum() <= m
            for (a, b), c, m in zip(pairwise(cuts), cap, memory, strict=True)
        )
        if fits:
            cost = sum(cross[b] for a, b in pairwise(cuts) if a < b < n)
            best = min(best, cost)
    return best


@pytest.mark.parametrize("seed", fast(range(20), 6))
def test_cuts_cost_least(seed):
    rng = np.random.default_rng(seed)
    n, devices = 7, 2 + seed % 2
    work, persistent_bytes = rng.integers(1, 9, n).astype(float), rng.integers(0, 5, n)
    cross = rng.integers(1, 20, n + 1).astype(float)
    cap, memory = np.full(devices, work.sum() / devices * 1.3), Cluster.uniform(devices, memory_bytes=10).memory_bytes
    cuts = cut_line(work, persistent_bytes, cross, cap, memory)
    expected = brute_force_cost(work, persistent_bytes, cross, cap, memory)
    if np.isinf(expected):
        assert cuts[-1] == -1
    else:
        run_ends = [0, *cuts.tolist()]
        assert sum(cross[b] for a, b in pairwise(run_ends) if a < b < n) == expected


def test_a_chain_is_cut_at_its_lightest_tensor():
    # Work 10 each on 2 devices, at most 2 x the fair share of 20: the 1-byte tensor costs least.
    graph = OpGraph.from_edges([10] * 4, [(0, 1, 100), (1, 2, 50), (2, 3, 1)])
    cluster = Cluster.uniform(2, memory_bytes=1000, link=Link(0.0, 1.0))
    devices = [d.tolist() for _, d in contiguous_splits(graph, cluster, caps=(1.6,))]
    assert [0, 0, 0, 1] in devices


def test_bug_more_devices_made_contiguous_slower():
    """Eight ops of 10 us, each of whose tensors takes 100 us to another device: of eight devices one is used."""
    graph = OpGraph.from_edges([10] * 8, [(k, k + 1, 100) for k in range(7)])
    for devices in (2, 4, 8, 12):
        cluster = Cluster.uniform(devices, memory_bytes=10_000, link=Link(0.0, 1.0))
        assert simulate(graph, cluster, place(graph, cluster, "contiguous")).makespan_us == 80


def test_contiguous_keeps_groups_and_memory():
    graph = generators.random_dag(40, colocation_groups=3, persistent_bytes=(10, 50), size_bytes=10, seed=1)
    cluster = Cluster.uniform(2, memory_bytes=int(0.75 * (graph.persistent_bytes.sum() + graph.tensor_bytes.sum())))
    assert simulate(graph, cluster, place(graph, cluster, "contiguous")).feasible


def test_contiguous_on_degenerate_graphs():
    for devices in (1, 3):
        cluster = Cluster.uniform(devices, memory_bytes=100)
        for graph in (OpGraph.from_edges([]), OpGraph.from_edges([5]), OpGraph.from_edges([0, 0])):
            assert place(graph, cluster, "contiguous").n == graph.n
    with pytest.raises(InvalidInput):
        place(OpGraph.from_edges([1]), Cluster.uniform(1), "contiguous", caps=(0.5,))


def test_metis_cuts_the_bridge():
    pytest.importorskip("pymetis")
    # Two cliques of four ops joined by one edge.
    edges = [(a, b, 8) for k in (0, 4) for a, b in combinations(range(k, k + 4), 2)] + [(3, 4, 8)]
    graph = OpGraph.from_edges([10] * 8, edges)
    device = place(graph, Cluster.uniform(2, memory_bytes=1000), "metis").device.tolist()
    assert device in ([0] * 4 + [1] * 4, [1] * 4 + [0] * 4)


def test_metis_keeps_groups_memory_and_is_deterministic():
    pytest.importorskip("pymetis")
    graph = generators.random_dag(60, colocation_groups=3, persistent_bytes=(10, 50), size_bytes=10, seed=1)
    cluster = Cluster.uniform(2, memory_bytes=int(0.75 * (graph.persistent_bytes.sum() + graph.tensor_bytes.sum())))
    first, second = place(graph, cluster, "metis"), place(graph, cluster, "metis")
    assert first == second and simulate(graph, cluster, first).feasible
    assert place(OpGraph.from_edges([]), cluster, "metis").n == 0


def test_bug_metis_devices_without_memory_and_more_parts_than_groups():
    pytest.importorskip("pymetis")
    graph = OpGraph.from_edges([1, 1, 1], [(0, 1, 4), (1, 2, 4)], persistent_bytes=[10, 10, 10])
    full = Cluster.uniform(2).with_memory([0, 100])
    assert [d.tolist() for _, d in metis_partitions(graph, full, by_bytes=True)] == [[1, 1, 1]]
    assert [d.tolist() for _, d in metis_partitions(graph, Cluster.uniform(4))] == [[0, 1, 2]]
    assert place(graph, full, "metis").device.tolist() == [1, 1, 1]


def test_a_missing_pymetis_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(MissingPackage, match="solvers"):
        place(OpGraph.from_edges([1, 1]), Cluster.uniform(2), "metis")


def test_metis_prints_nothing_although_parts_come_out_empty(capfd):
    for seed in (146, 182, 194):
        rng = np.random.default_rng(seed)
        cluster = mixed_cluster(rng, memory=((0, 200), (50, 400), (1 << 19, 1 << 20))[(seed + 1) % 3])
        graph = restricted_graph(rng, most=int(rng.integers(1, 25)))
        place(graph, cluster, "metis")
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("placer", ["metis", "scotch"])
def test_bug_a_seed_of_numpy_was_refused_by_metis_with_an_error_of_its_own(placer):
    graph, cluster = generators.layered_dag(30, seed=1), Cluster.uniform(2)
    placement = place(graph, cluster, placer, seed=np.int8(1))
    assert placement.device.tolist() == place(graph, cluster, placer, seed=1).device.tolist()
