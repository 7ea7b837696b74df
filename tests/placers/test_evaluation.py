"""What rules, repair and search share: the orders that are tried, and the best of many candidates."""

import numpy as np
import pytest
from ten_tasks import CLUSTER, TEN_TASKS

from baechi_lab import Cluster, Link, OpGraph, Placement, simulate
from baechi_lab.graph import generators
from baechi_lab.placers.evaluation import orders
from baechi_lab.placers.evaluation.assignment import inverse, make_assignment
from baechi_lab.placers.evaluation.orders import best_of, usual_orders


def test_the_upward_order_counts_transfers_between_different_devices_alone():
    # 1 + 10 + 1: of the four ordered pairs of two devices, the two that cost nothing are no transfers.
    graph = OpGraph.from_edges([1, 1], [(0, 1, 4)])
    assert usual_orders(graph, Cluster.uniform(2, link=Link(10.0, 0.0)))["upward"].tolist() == [-12.0, -1.0]
    # One device: 1 + 1.
    assert usual_orders(graph, Cluster.uniform(1))["upward"].tolist() == [-2.0, -1.0]


def test_the_upward_order_is_the_published_one():
    """Table 3 of Topcuoglu, Hariri and Wu 2002: tasks 1, 3, 4, 2, 5, 6, 9, 7, 8, 10 (3 and 4 tie at 80)."""
    order = np.argsort(usual_orders(TEN_TASKS, CLUSTER)["upward"].round(6), kind="stable") + 1
    assert order.tolist() == [1, 3, 4, 2, 5, 6, 9, 7, 8, 10]


@pytest.mark.parametrize("seed", range(5))
def test_the_best_of_all_is_the_one_that_the_simulator_says(seed):
    graph, cluster = generators.layered_dag(30, seed=seed), Cluster.uniform(3, link=Link(20.0, 0.0))
    rng = np.random.default_rng(seed)
    devices = [(f"random {k}", rng.integers(0, 3, graph.n)) for k in range(4)]
    times = {
        f"{name}, {order}": simulate(graph, cluster, Placement(device=device, order=rank)).makespan_us
        for name, device in devices
        for order, rank in usual_orders(graph, cluster).items()
    }
    best = best_of(graph, cluster, devices)
    assert best.makespan_us == min(times.values()) == times[best.name]
    assert best_of(graph, cluster, []) is None


@pytest.mark.parametrize("seed", range(5))
def test_simulations_of_other_limits_choose_the_same_candidate(seed, monkeypatch):
    graph, cluster = generators.layered_dag(30, seed=seed), Cluster.uniform(3, link=Link(20.0, 0.0))
    rng = np.random.default_rng(seed)
    devices = [(f"random {k}", rng.integers(0, 3, graph.n)) for k in range(4)]
    peaks = [simulate(graph, cluster, Placement(device=device)).peak_bytes for _, device in devices]
    limits = [np.percentile(peaks, share, axis=0).astype(int).tolist() for share in (90, 50, 10)]
    limits.append(peaks[0].tolist())
    limited = [cluster.with_memory(limit) for limit in limits]
    expected = [best_of(graph, each, devices) for each in limited]
    simulations = {}
    repeated = [best_of(graph, each, devices, simulations=simulations) for each in limited]
    assert [(each.name, each.key) for each in repeated] == [(each.name, each.key) for each in expected]
    assert len(simulations) == len(devices) * len(usual_orders(graph, cluster))
    monkeypatch.setattr(orders, "measure", None)  # nothing is simulated again
    assert best_of(graph, limited[0], devices, simulations=simulations).key == expected[0].key


def test_positions_and_their_inverse():
    assignment = make_assignment(np.array([1, 0, 1]), np.array([5.0, 1.0, 5.0]))
    assert (assignment.position.tolist(), assignment.at.tolist()) == ([1, 0, 2], [1, 0, 2])
    assert inverse(np.array([2, 0, 1])).tolist() == [1, 2, 0]
    assert make_assignment(np.array([0, 0]), None).at.tolist() == [0, 1]
