"""Robustness: makespans under errors of the profile."""

import numpy as np
import pytest

from baechi_lab import Cluster, Link, OpGraph, Placement, robustness, simulate
from baechi_lab.errors import InvalidInput
from baechi_lab.graph import generators


def test_a_chain_over_one_link_by_hand():
    # 10 + 4 + 10 = 24; with every cost within +-10 % the makespan is within 21.6 .. 26.4.
    graph = OpGraph.from_edges([10, 10], [(0, 1, 8)])
    cluster = Cluster.uniform(2, link=Link(4.0, 0.0))
    robust = robustness(graph, cluster, Placement(device=[0, 1]), error=[0.0, 0.1], samples=200)
    assert robust.nominal_us == 24.0
    assert np.all(robust.makespan_us[0] == 24.0)
    assert 21.6 <= robust.makespan_us[1].min() < 23 and 25 < robust.makespan_us[1].max() <= 26.4
    assert robust.quantile(0.0) == robust.makespan_us[1].min() and robust.quantile(0.9, 0.0) == 24.0


def test_same_seed_same_samples_and_a_table():
    graph = generators.layered_dag(30, seed=1)
    cluster = Cluster.uniform(2)
    placement = Placement(device=np.arange(30) % 2)
    first, second = (robustness(graph, cluster, placement, samples=20, seed=4) for _ in range(2))
    assert np.array_equal(first.makespan_us, second.makespan_us)
    assert first.nominal_us == simulate(graph, cluster, placement).makespan_us
    table = first.to_pandas()
    assert table["error"].tolist() == [0.05, 0.1, 0.2, 0.4, 0.8]
    assert (table["p10"] <= table["p50"]).all() and (table["p90"] <= table["worst"]).all()
    assert "90th percentile" in repr(first)


def test_wrong_parameters():
    graph, cluster, placement = OpGraph.from_edges([1]), Cluster.uniform(1), Placement(device=[0])
    for bad in ({"error": 1.0}, {"error": -0.1}, {"samples": 0}):
        with pytest.raises(InvalidInput):
            robustness(graph, cluster, placement, **bad)
    with pytest.raises(InvalidInput, match=r"0\.3"):
        robustness(graph, cluster, placement, error=0.2, samples=2).quantile(0.5, 0.3)
    with pytest.raises(InvalidInput):
        robustness(graph, cluster, Placement(device=[0, 0]))


def test_the_empty_graph_takes_no_time():
    assert robustness(OpGraph.from_edges([]), Cluster.uniform(1), Placement(device=np.zeros(0, int))).nominal_us == 0
