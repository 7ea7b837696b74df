"""`Link.overhead_us`: processor time of messages, by hand and against the readable twin."""

import numpy as np
import pytest
from fewer import fast
from random_cases import random_graph
from simulator_reference import simulate_reference

import baechi_lab as bl
from baechi_lab.graph.costs import message_overheads

MODES = ("parallel", "sequential", "duplex")


def cluster(n=2, overhead=3.0, latency=5.0, comm="parallel"):
    return bl.Cluster.uniform(n, link=bl.Link(latency, 0.0, overhead), comm=comm)


def test_a_chain_over_two_devices():
    """10 + 3 to send, 5 on the wire, 3 to receive + 20."""
    graph = bl.OpGraph.from_edges([10.0, 20.0], [(0, 1, 8)])
    timeline = bl.simulate(graph, cluster(), bl.Placement(device=[0, 1]))
    assert timeline.start_us.tolist() == [0, 10 + 3 + 5] and timeline.makespan_us == 10 + 3 + 5 + 3 + 20
    assert bl.check(graph, cluster(), bl.Placement(device=[0, 1]), timeline) == ()


def test_one_message_per_device_and_its_first_reader():
    """0 is read by 1 and 2 on device 1 and by 3 on device 2: two messages; 1 is first on device 1."""
    graph = bl.OpGraph.from_edges([1.0] * 4, [(0, 1, 8), (0, 2, 8), (0, 3, 8)])
    assert message_overheads(graph, cluster(3), np.array([0, 1, 1, 2])).tolist() == [6, 3, 0, 3]


def test_what_stays_costs_nothing():
    graph = bl.OpGraph.from_edges([1.0, 1.0], [(0, 1, 8)])
    assert bl.simulate(graph, cluster(), bl.Placement(device=[1, 1])).makespan_us == 2


def test_overheads_of_a_matrix_are_those_of_the_pair():
    """From 0 to 1 a message takes 2 of each, back it takes 7."""
    no_link, forward_link, backward_link = bl.Link(0.0, 0.0), bl.Link(0.0, 0.0, 2.0), bl.Link(0.0, 0.0, 7.0)
    pair = cluster().replace(link=[[no_link, forward_link], [backward_link, no_link]])
    graph = bl.OpGraph.from_edges([1.0, 1.0, 1.0], [(0, 1, 8), (1, 2, 8)])
    assert message_overheads(graph, pair, np.array([0, 1, 0])).tolist() == [2, 2 + 7, 7]


@pytest.mark.parametrize("comm", MODES)
@pytest.mark.parametrize("seed", fast(range(25), 6))
def test_kernel_twin_check_and_bounds_agree(seed, comm):
    rng = np.random.default_rng(seed)
    graph, three_devices = random_graph(rng), cluster(3, float(rng.integers(0, 5)), float(rng.integers(0, 4)), comm)
    placement = bl.Placement(device=rng.integers(0, 3, graph.n))
    timeline = bl.simulate(graph, three_devices, placement)
    twin = simulate_reference(graph, three_devices, placement.device.tolist())
    assert dict(zip(timeline.op.tolist(), timeline.end_us.tolist(), strict=True)) == twin.end
    assert timeline.peak_bytes.tolist() == twin.peak
    assert bl.check(graph, three_devices, placement, timeline) == ()
    assert timeline.makespan_us >= bl.bounds(graph, three_devices).best - 1e-9


def test_check_refuses_a_timeline_without_the_overheads():
    graph, placement = bl.OpGraph.from_edges([10.0, 20.0], [(0, 1, 8)]), bl.Placement(device=[0, 1])
    free = bl.simulate(graph, cluster(overhead=0.0), placement)
    assert "duration" in {v.kind for v in bl.check(graph, cluster(), placement, free)}


@pytest.mark.slow
def test_placers_see_the_overhead_as_latency():
    """Two ops of 10 before a sink of 1: apart they save 10, a message costs 1 + 2 * 6 from end to end."""
    graph = bl.OpGraph.from_edges([10.0, 10.0, 1.0], [(0, 2, 4), (1, 2, 4)])
    assert len(set(bl.place(graph, cluster(overhead=0.0, latency=1.0), "m-etf").device.tolist())) == 2
    exact = bl.place(graph, cluster(overhead=0.0, latency=1.0), "exact", time_limit=5) if _has_ortools() else None
    assert exact is None or exact.info["status"] == "OPTIMAL"
    slow_links = cluster(overhead=6.0, latency=1.0)
    assert slow_links.without_overhead().link == bl.Link(13.0, 0.0)
    replaced = (
        bl.place(graph, slow_links, "exact", time_limit=5) if _has_ortools() else bl.place(graph, slow_links, "single")
    )
    assert replaced.info["overhead"] == "seen as latency" and "gap" not in replaced.info


def _has_ortools():
    from importlib.util import find_spec

    return find_spec("ortools") is not None


def test_robustness_keeps_the_overheads():
    """Without error every sample is the simulated 41 microseconds."""
    graph, placement = bl.OpGraph.from_edges([10.0, 20.0], [(0, 1, 8)]), bl.Placement(device=[0, 1])
    robust = bl.robustness(graph, cluster(), placement, error=0.0, samples=3)
    assert robust.nominal_us == 41 and robust.makespan_us.tolist() == [[41.0] * 3]


def test_link_says_its_overhead_and_keeps_it_in_a_file(tmp_path):
    with_overhead = cluster(overhead=3.0)
    assert repr(with_overhead.link) == "Link(latency_us=5.0, us_per_byte=0.0, overhead_us=3.0)"
    assert repr(cluster(overhead=0.0).link) == "Link(latency_us=5.0, us_per_byte=0.0)"
    assert with_overhead != cluster(overhead=0.0)
    bl.save_cluster(with_overhead, tmp_path / "two.json")
    assert bl.load_cluster(tmp_path / "two.json") == with_overhead
    assert "overhead" not in (
        bl.save_cluster(cluster(overhead=0.0), tmp_path / "plain.json") or (tmp_path / "plain.json").read_text()
    )


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan"), True, "3"])
def test_bad_overheads_are_rejected(value):
    with pytest.raises(bl.InvalidInput, match="link overhead_us is"):
        bl.Link(1.0, 0.0, value)
