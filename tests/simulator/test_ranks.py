"""Ranks: equations 5 and 6 of Mayer et al. 2017 by hand, HEFT's ranks of the published ten tasks, longest paths by force."""

import networkx as nx
import numpy as np
import pytest
from fewer import fast
from random_cases import random_cluster, random_graph
from ten_tasks import CLUSTER, TEN_TASKS

import baechi_lab as bl
from baechi_lab.simulator.ranks import longest_path, rank_costs

# 0 -> 1 -> 3 and 0 -> 2 -> 3
DIAMOND = bl.OpGraph.from_edges([1, 2, 5, 3], [(0, 1, 10), (0, 2, 20), (1, 3, 30), (2, 3, 40)])


def test_equation_5_by_hand():
    # sink 3; 1: 2 + 3; 2: 5 + 3; 0: 1 + max(5, 8)
    assert bl.upward_rank(DIAMOND).tolist() == [1 + 8, 2 + 3, 5 + 3, 3]


def test_equation_6_by_hand():
    # predecessors' work only: 0; 1; 1; 1 + 5
    assert bl.downward_rank(DIAMOND).tolist() == [0, 1, 1, 1 + 5]
    # as printed, the op's own work added
    assert bl.downward_rank(DIAMOND, own=True).tolist() == [1, 1 + 2, 1 + 5, 1 + 5 + 3]


def test_total_rank_and_critical_path_by_hand():
    assert bl.total_rank(DIAMOND).tolist() == [9, 1 + 2 + 3, 9, 9]
    assert bl.critical_path(DIAMOND).tolist() == [0, 2, 3]


def test_mean_communication_by_hand():
    devices = (bl.Device("a", "x", 100, 1.0), bl.Device("b", "x", 100, 0.5))
    cluster = bl.Cluster(devices, [[bl.Link(0, 0), bl.Link(1, 0.1)], [bl.Link(3, 0.3), bl.Link(0, 0)]])
    # mean duration: (w + 2 w) / 2 = 1.5 w; mean link: (1 + 3) / 2 + (0.1 + 0.3) / 2 bytes = 2 + 0.2 bytes
    up3 = 4.5
    up1 = 3 + (2 + 6) + up3
    up2 = 7.5 + (2 + 8) + up3
    up0 = 1.5 + max(2 + 2 + up1, 2 + 4 + up2)
    assert bl.upward_rank(DIAMOND, cluster) == pytest.approx([up0, up1, up2, up3])
    assert bl.upward_rank(DIAMOND, cluster, communication=False) == pytest.approx([13.5, 7.5, 12, 4.5])
    assert bl.downward_rank(DIAMOND, cluster)[3] == pytest.approx(1.5 + 6 + 7.5 + 10)


def test_mean_is_over_the_devices_that_an_op_may_use():
    graph = bl.OpGraph.from_edges([8.0], allowed=[0], allowed_sets=[("fast",)])
    cluster = bl.Cluster((bl.Device("fast", "x", 1, 4.0), bl.Device("slow", "x", 1, 1.0)), bl.Link(0, 0))
    assert bl.upward_rank(graph, cluster).tolist() == [2.0]


def test_ranks_of_the_published_example():
    """Topcuoglu, Hariri, Wu 2002, table 3, to the three decimals printed there."""
    upward = [108.000, 77.000, 80.000, 80.000, 69.000, 63.333, 42.667, 35.667, 44.333, 14.667]
    downward = [0.000, 31.000, 25.000, 22.000, 24.000, 27.000, 62.333, 66.667, 63.667, 93.333]
    assert bl.upward_rank(TEN_TASKS, CLUSTER) == pytest.approx(upward, abs=5e-4)
    assert bl.downward_rank(TEN_TASKS, CLUSTER) == pytest.approx(downward, abs=5e-4)
    # t1, t2, t9, t10
    assert bl.critical_path(TEN_TASKS, CLUSTER).tolist() == [0, 1, 8, 9]


def test_communication_needs_a_cluster():
    with pytest.raises(bl.InvalidInput, match="communication is True without a cluster"):
        bl.upward_rank(DIAMOND, communication=True)


@pytest.mark.parametrize("n", [0, 1])
def test_ops_without_edges_have_their_durations_as_ranks(n):
    graph = bl.OpGraph.from_edges([7.0] * n)
    assert bl.upward_rank(graph).tolist() == bl.total_rank(graph).tolist() == [7.0] * n
    assert bl.downward_rank(graph).tolist() == [0.0] * n
    assert bl.critical_path(graph).tolist() == list(range(n))


@pytest.mark.parametrize("seed", fast(range(30), 6))
def test_ranks_are_longest_paths_of_networkx(seed):
    rng = np.random.default_rng(seed)
    graph, cluster = random_graph(rng), random_cluster(rng)
    weight, edge = rank_costs(graph, cluster)
    bridge = nx.DiGraph()
    bridge.add_node("end")
    for i in range(graph.n):
        bridge.add_edge(i, "end", weight=weight[i])
    for e, (u, v) in enumerate(zip(graph.edge_source.tolist(), graph.consumers.tolist(), strict=True)):
        parallel_weight = bridge.get_edge_data(u, v, {"weight": 0.0})["weight"]
        bridge.add_edge(u, v, weight=max(parallel_weight, weight[u] + edge[e]))
    length = nx.dag_longest_path_length(bridge)
    total = bl.total_rank(graph, cluster)
    assert total.max(initial=0.0) == pytest.approx(length)
    path = bl.critical_path(graph, cluster)
    assert total[path] == pytest.approx(np.full(len(path), length))
    hops = {(u, v) for u, v in bridge.edges}
    assert all((a, b) in hops for a, b in zip(path.tolist(), path.tolist()[1:], strict=False))


def test_longest_path_among_some_ops():
    free = np.array([True, True, False, True])
    assert longest_path(DIAMOND, DIAMOND.duration_us, None, free).tolist() == [0, 1, 3]
    assert longest_path(DIAMOND, DIAMOND.duration_us, None, np.zeros(4, bool)).tolist() == []
