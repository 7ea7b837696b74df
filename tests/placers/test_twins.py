"""The compiled list scheduler and its readable twin take the same decisions, ties and memory included."""

import numpy as np
import pytest
from fewer import fast
from random_cases import random_cluster, random_graph

import baechi_lab as bl
from baechi_lab.placers.list_scheduling.earliest_start import earliest_start
from baechi_lab.placers.list_scheduling.earliest_start_reference import earliest_start_reference
from baechi_lab.placers.problem import make_problem

NONE = np.zeros(0, np.int32)


def random_favourites(rng, graph):
    child, parent = np.full(graph.n, -1, np.int32), np.full(graph.n, -1, np.int32)
    for e in rng.permutation(graph.edge_count):
        u, v = graph.edge_source[e], graph.consumers[e]
        if child[u] < 0 and parent[v] < 0:
            child[u], parent[v] = v, u
    return child, parent


@pytest.mark.parametrize("seed", fast(range(20), 3))
def test_the_compiled_list_scheduler_decides_as_its_readable_twin(seed):
    rng = np.random.default_rng(seed)
    for case in range(50):
        graph = random_graph(rng, zero=case % 2 == 0, groups=case % 3 == 0)
        memory = 10**6 if case % 3 else int(rng.integers(5, 120))
        problem = make_problem(graph, random_cluster(rng, memory), reservation=case % 5 == 0)
        child, parent = random_favourites(rng, graph)
        if case % 2:
            child[:], parent[:] = -1, -1
        fast = earliest_start(problem, *((NONE, NONE) if case % 2 else (child, parent)))
        slow, _ = earliest_start_reference(problem, child, parent)
        for a, b in zip(fast, slow, strict=True):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("seed", fast(range(10), 4))
def test_with_parallel_transfers_plan_and_simulation_agree(seed):
    rng = np.random.default_rng(seed)
    for _ in range(30):
        graph = random_graph(rng, zero=False, groups=True)
        cluster = random_cluster(rng).replace(comm="parallel")
        placement = bl.place(graph, cluster, "etf")
        assert bl.simulate(graph, cluster, placement).makespan_us == placement.info["planned_makespan_us"]


@pytest.mark.parametrize("seed", fast(range(5), 2))
@pytest.mark.parametrize(("limited", "free"), [("m-etf", "etf"), ("m-sct", "sct")])
def test_with_ample_memory_limits_change_nothing(limited, free, seed):
    rng = np.random.default_rng(seed)
    for _ in range(10):
        graph, cluster = random_graph(rng, groups=True), random_cluster(rng)
        assert bl.place(graph, cluster, limited).device.tolist() == bl.place(graph, cluster, free).device.tolist()


def test_the_decision_log_says_what_was_chosen_and_why():
    g = bl.OpGraph.from_edges([1, 1], persistent_bytes=[6, 6])
    placement = bl.place(g, bl.Cluster.uniform(2, memory_bytes=10), "m-etf", explain=True)
    first, second = placement.info["decisions"]
    assert (first.chosen.op, first.chosen.device, first.chosen.start_us) == (0, 0, 0.0)
    assert {(c.op, c.device) for c in first.candidates} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert (second.chosen.op, second.chosen.device) == (1, 1)
    assert placement.device.tolist() == bl.place(g, bl.Cluster.uniform(2, memory_bytes=10), "m-etf").device.tolist()


def test_the_log_tells_of_dropped_pairs():
    g = bl.OpGraph.from_edges([1, 1, 9], persistent_bytes=[6, 6, 0])
    log = bl.place(g, bl.Cluster.uniform(2, memory_bytes=10), "m-etf", explain=True).info["decisions"]
    assert log[1].chosen.device == 1  # both devices offer something, device 1 is free at once
    busy = bl.OpGraph.from_edges([1, 5, 1], persistent_bytes=[6, 0, 6])
    log = bl.place(busy, bl.Cluster.uniform(2, memory_bytes=10), "m-etf", explain=True).info["decisions"]
    dropped = [c for c in log[2].candidates if c.excluded]
    assert [(c.op, c.device) for c in dropped] == [(2, 0)]
    assert dropped[0].excluded == "needs 6 bytes, 4 left"
    assert log[2].chosen.start_us == 5.0
