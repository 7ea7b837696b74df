"""Structures along which a search moves ops, parts that it re-optimises, and the contracted graph that it searches first."""

import numpy as np
import pytest
from fewer import fast

from baechi_lab import Cluster, Link, OpGraph, Placement, check, simulate
from baechi_lab.graph import generators
from baechi_lab.placers.evaluation.moves import make_units
from baechi_lab.placers.problem import groups_of
from baechi_lab.placers.search.combine import around
from baechi_lab.placers.search.contract import contract_short_ops, short_us
from baechi_lab.placers.search.structure import layer_labels, weights

COMMS = ("parallel", "sequential", "duplex")


def two_layers():
    """Variables 0 and 1; layer a = ops 2, 3 reads 0, layer b = 4, 5 reads 1; 6 and 7 are the gradients of 5 and 3."""
    names = ["a/w", "b/w", "a/mul", "a/act", "b/mul", "b/act", "gradient_tape/b/act", "AddN"]
    edges = [(0, 2, 9), (2, 3, 4), (1, 4, 9), (3, 4, 4), (4, 5, 4), (5, 6, 4), (6, 7, 4)]
    graph = OpGraph.from_edges([1.0] * 8, edges, names=names, persistent_bytes=[50, 50, 0, 0, 0, 0, 0, 0])
    return graph.replace(forward_of=np.array([-1, -1, -1, -1, -1, -1, 5, 3], dtype=np.int32))


def test_ops_go_with_the_weight_that_comes_nearest_before_them():
    graph = two_layers()
    assert weights(graph, groups_of(graph)).tolist() == [0, 1, 0, 0, 1, 1, 1, 0]


def test_what_comes_before_any_weight_goes_with_its_first_reader():
    graph = OpGraph.from_edges([1.0] * 3, [(0, 2, 4), (1, 2, 4)], persistent_bytes=[0, 9, 0])
    assert weights(graph, groups_of(graph)).tolist() == [1, 1, 1]


def test_layers_keep_groups_whole_and_are_left_out_where_they_say_nothing():
    graph = two_layers()
    assert layer_labels(graph, np.arange(8)).tolist() == [0, 1, 0, 0, 1, 1, 1, 0]
    together = np.array([0, 1, 2, 3, 2, 4, 5, 6])  # ops 2 and 4 must share a device
    labels = layer_labels(graph, together)
    assert labels[2] == labels[4]
    assert layer_labels(generators.random_dag(20, seed=0), np.arange(20)) is None, "every op is a layer of its own"
    one_weight = graph.replace(persistent_bytes=[50, 0, 0, 0, 0, 0, 0, 0], forward_of=None)
    assert layer_labels(one_weight.replace(names=graph.names), np.zeros(8, dtype=np.int64)) is None, "one layer"


def test_a_line_by_distance_has_units_near_in_the_graph():
    graph = OpGraph.from_edges([1.0] * 6, [(0, 1, 4), (1, 2, 4), (3, 4, 4), (4, 5, 4)])
    units = make_units(np.arange(6), np.arange(6), np.ones((6, 2), dtype=np.bool_))
    rng = np.random.default_rng(0)
    assert {tuple(sorted(around(graph, units, rng).tolist())) for _ in range(20)} == {(0, 1, 2), (3, 4, 5)}


def test_an_op_is_merged_where_a_cut_on_its_other_side_costs_no_more():
    cluster = Cluster.uniform(2, link=Link(1.0, 1.0))
    # 0 and 1 feed the short op 2, which feeds 3: what 2 receives (2 x 5 bytes) costs more than what it makes (4 bytes).
    join = OpGraph.from_edges([9.0, 9.0, 1.0, 9.0], [(0, 2, 5), (1, 2, 5), (2, 3, 4)])
    assert contract_short_ops(join, cluster, 2.0)[0].n == 4
    wide = OpGraph.from_edges([9.0, 9.0, 1.0, 9.0], [(0, 2, 5), (1, 2, 5), (2, 3, 40)])
    coarse, member = contract_short_ops(wide, cluster, 2.0)
    assert member.tolist() == [0, 1, 2, 2] and coarse.duration_us.tolist() == [9.0, 9.0, 10.0]
    # Too long to be merged, unless nothing comes in between and both together are still short enough.
    assert contract_short_ops(wide, cluster, 0.5)[0].n == 4


def test_colocation_groups_are_not_mixed():
    cluster = Cluster.uniform(2, link=Link(1.0, 1.0))
    graph = OpGraph.from_edges(
        [1.0, 1.0, 1.0], [(0, 1, 4), (1, 2, 4)], colocation=[0, -1, 1], colocation_names=("a", "b")
    )
    coarse, member = contract_short_ops(graph, cluster, 10.0)
    assert member[0] != member[2] and coarse.n == 2


@pytest.mark.parametrize("seed", fast(range(30), 6))
def test_a_contracted_plan_is_valid_for_the_graph_and_costs_nearly_the_same(seed):
    rng = np.random.default_rng(seed)
    graph = generators.random_dag(
        int(rng.integers(20, 120)),
        degree=float(rng.uniform(0.5, 2.0)),
        duration_us=(1, 100),
        size_bytes=(10, 1000),
        second_output=0.3,
        colocation_groups=seed % 4,
        seed=seed,
    )
    short = np.where(rng.random(graph.n) < 0.6, 0.5, graph.duration_us)
    graph = graph.replace(duration_us=short)
    cluster = Cluster.uniform(3, memory_bytes=1 << 40, link=Link(5.0, 0.1), comm=COMMS[seed % 3])
    coarse, member = contract_short_ops(graph, cluster, short_us(graph, cluster))
    assert member.shape == (graph.n,) and coarse.duration_us.sum() == pytest.approx(graph.duration_us.sum())
    device = rng.integers(0, 3, int(groups_of(coarse).max()) + 1)[groups_of(coarse)]
    merged = simulate(coarse, cluster, Placement(device=device))
    fine = simulate(graph, cluster, Placement(device=device[member]))
    assert check(graph, cluster, Placement(device=device[member]), fine) == ()
    assert merged.makespan_us == pytest.approx(fine.makespan_us, rel=0.35)
