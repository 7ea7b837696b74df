"""Replayed placements: by hand, against the list scheduler's own log, and whatever is looked at first."""

import math

import numpy as np
import pytest

from baechi_lab import Cluster, Link, OpGraph, Placement, generators, place
from baechi_lab.placers.list_scheduling.replay import Replay

COMMS = ("parallel", "sequential", "duplex")


def test_a_replayed_placement_by_hand():
    # a 5 us -> b 10 us, c 10 us; a transfer takes 2 us; b stays with a, c goes to the second device.
    graph = OpGraph.from_edges([5, 10, 10], [(0, 1, 8), (0, 2, 8)], names=["a", "b", "c"])
    cluster = Cluster.uniform(2, memory_bytes=1000, link=Link(2.0, 0.0), comm="parallel")
    log = Replay(graph, cluster, Placement(device=[0, 0, 1]), [0, 1, 2])
    assert [d.chosen.start_us for d in log] == [0, 5, 5 + 2]
    # After a: both ops are ready, on gpu:0 at 5, on gpu:1 at 5 + 2.
    assert {(c.op, c.device): c.start_us for c in log[1].candidates} == {(1, 0): 5, (2, 0): 5, (1, 1): 7, (2, 1): 7}
    assert log[1].reason == "Nothing could start earlier, on any device."
    # b runs on gpu:0 until 15.
    assert {(c.op, c.device): c.start_us for c in log[2].candidates} == {(2, 0): 15, (2, 1): 7}


def test_what_a_device_lacks_is_said():
    graph = OpGraph.from_edges([1, 1], names=["v", "w"], persistent_bytes=[6, 6])
    cluster = Cluster.uniform(2, memory_bytes=10)
    second = Replay(graph, cluster, Placement(device=[0, 1]), [0, 1])[1]
    assert {c.device: c.excluded for c in second.candidates} == {0: "needs 6 bytes, 4 left", 1: ""}


def test_colocated_ops_have_one_home():
    graph = OpGraph.from_edges([1, 1], colocation=[0, 0], colocation_names=("g",))
    second = Replay(graph, Cluster.uniform(2), Placement(device=[1, 1]), [0, 1])[1]
    assert [c.excluded for c in second.candidates if c.device == 0] == ["colocated with ops on gpu:1"]


@pytest.mark.parametrize("comm", COMMS)
@pytest.mark.parametrize("seed", range(4))
def test_equals_the_list_scheduler_s_own_log(comm, seed):
    """In the order of its own decisions and without memory pressure, a replay sees what ETF saw."""
    graph, cluster = generators.random_dag(40, seed=seed), Cluster.uniform(3, memory_bytes=1 << 40, comm=comm)
    placement = place(graph, cluster, "m-etf", explain=True)
    decisions = placement.info["decisions"]
    log = Replay(graph, cluster, placement, [d.chosen.op for d in decisions])
    for replayed, logged in zip(log, decisions, strict=True):
        assert (replayed.step, replayed.chosen) == (logged.step, logged.chosen)
        assert set(replayed.candidates) == set(logged.candidates)


def test_steps_do_not_depend_on_the_order_in_which_they_are_looked_at():
    graph, cluster = generators.layered_dag(200, seed=2), Cluster.uniform(4)
    placement = place(graph, cluster, "hash")
    order = np.argsort(placement.rank) if placement.rank is not None else graph.order
    onward = Replay(graph, cluster, placement, order)
    backward = Replay(graph, cluster, placement, order)
    steps = range(0, 200, 17)
    last_first = {k: backward[k] for k in reversed(steps)}
    assert [onward[k] for k in steps] == [last_first[k] for k in steps]
    assert onward[-1] == backward[199] and len(onward[3:6]) == 3
    with pytest.raises(IndexError, match="200"):
        onward[200]


def test_an_empty_graph_has_no_steps():
    empty = OpGraph.from_edges([])
    assert list(Replay(empty, Cluster.uniform(2), Placement(device=[]), [])) == []


def test_m_topo_tells_how_full_devices_are():
    # Three ops of 4 bytes on two devices: the cap is 12 / 2 + 4 = 10, so two fit on the first and one on the second.
    graph = OpGraph.from_edges([1, 1, 1], persistent_bytes=[4, 4, 4])
    placement = place(graph, Cluster.uniform(2, memory_bytes=100), "m-topo", explain=True)
    decisions = placement.info["decisions"]
    assert [d.chosen.device for d in decisions] == placement.device.tolist() == [0, 0, 1]
    assert all(math.isnan(d.chosen.start_us) for d in decisions)
    assert decisions[1].reason == "Needs 4 B; the device then has 8 B of its cap of 10 B."
    assert [c.excluded for c in decisions[2].candidates] == ["full: has 8 B of its cap of 10 B", ""]
    plain = place(graph, Cluster.uniform(2, memory_bytes=100), "m-topo")
    assert np.array_equal(plain.device, placement.device) and "decisions" not in plain.info


def test_m_topo_names_the_step_that_placed_a_colocation_group():
    graph = OpGraph.from_edges([1, 1, 1], colocation=[0, -1, 0], colocation_names=("g",))
    decisions = place(graph, Cluster.uniform(2), "m-topo", explain=True).info["decisions"]
    assert decisions[2].reason == "Its colocation group was placed in step 1."
