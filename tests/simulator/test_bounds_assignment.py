"""The assignment bound by hand; that it is never above the optimum is tested with all other bounds by enumeration."""

import numpy as np
import pytest

from baechi_lab import Cluster, Device, Link, OpGraph, bounds
from baechi_lab.graph import allowed_devices, durations
from baechi_lab.simulator.bounds.assignment import assignment
from baechi_lab.simulator.paths import heads_and_tails


def bound(graph, cluster, low=None, **options):
    table = np.where(allowed_devices(graph, cluster), durations(graph, cluster), np.inf)
    head, tail = heads_and_tails(graph, table.min(axis=1))
    low = float((head + table.min(axis=1) + tail).max()) if low is None else low
    return assignment(graph, cluster, table, head, tail, low, **options)


def test_work_comes_in_whole_ops():
    graph = OpGraph.from_edges([6.0, 6.0, 6.0, 5.0, 5.0], [])
    assert bound(graph, Cluster.uniform(2)) == pytest.approx(16.0, rel=1e-3)  # 28 / 2 = 14
    assert bounds(graph, Cluster.uniform(2), effort="high").best >= 15.99


def test_memory_decides_who_may_share_a_device():
    # The two that need 6 bytes cannot share a device, so a short op runs beside each long one.
    graph = OpGraph.from_edges([9.0, 9.0, 2.0, 2.0], [], persistent_bytes=[4, 4, 6, 6])
    cluster = Cluster.uniform(2, memory_bytes=10)
    assert bound(graph, cluster) == pytest.approx(11.0, rel=1e-3)
    only = OpGraph.from_edges([9.0, 2.0, 2.0], [], persistent_bytes=[4, 6, 7])
    assert bound(only, cluster) == pytest.approx(11.0, rel=1e-3)
    separate = OpGraph.from_edges([9.0, 9.0, 2.0], [], persistent_bytes=[5, 5, 10])
    assert bound(separate, cluster) == pytest.approx(18.0, rel=1e-3)


def test_bug_a_device_without_memory_divided_by_zero():
    # Only the op without bytes may run on the first device, so the other device runs the two of 9.
    graph = OpGraph.from_edges([9.0, 9.0, 2.0], [], persistent_bytes=[4, 4, 0])
    cluster = Cluster([Device("empty", "gpu", 0), Device("large", "gpu", 100)], Link(1.0, 0.0))
    with np.errstate(all="raise"):
        assert bound(graph, cluster) == pytest.approx(18.0, rel=1e-3)


@pytest.mark.parametrize("comm", ["parallel", "sequential", "duplex"])
def test_memory_forces_transfers_onto_a_path(comm):
    # a -> b -> c, of which no two fit one device's memory: both edges are paid; on three devices.
    graph = OpGraph.from_edges([3.0, 3.0, 3.0], [(0, 1, 1), (1, 2, 1)], persistent_bytes=[6, 6, 6])
    assert bound(graph, Cluster.uniform(3, memory_bytes=10, link=Link(20.0, 0.0), comm=comm)) == pytest.approx(
        49.0, rel=1e-3
    )


def test_transfers_to_one_device_queue():
    # Three sources on a device of their own kind, their reader on the other: 1 + 3 * 10 + 1; side by side without queues.
    graph = OpGraph.from_edges(
        [1.0, 1.0, 1.0, 1.0], [(0, 3, 1), (1, 3, 1), (2, 3, 1)], allowed=[0, 0, 0, 1], allowed_sets=(("cpu",), ("gpu",))
    )
    pair = (Device("cpu:0", "cpu", 100), Device("gpu:0", "gpu", 100))
    for comm, least in (("parallel", 12.0), ("duplex", 32.0), ("sequential", 32.0)):
        assert bound(graph, Cluster(pair, Link(10.0, 0.0), comm)) == pytest.approx(least, rel=1e-3)


def test_relaxed_ops_still_take_time(monkeypatch):
    monkeypatch.setattr("baechi_lab.simulator.bounds.assignment.BINARY_UNITS", 1)
    graph = OpGraph.from_edges([6.0, 6.0, 6.0, 5.0, 5.0], [])
    assert bound(graph, Cluster.uniform(2)) == pytest.approx(14.0, rel=1e-3)


def test_without_time_or_devices_the_given_bound_remains():
    graph = OpGraph.from_edges([6.0, 6.0, 6.0], [])
    assert bound(graph, Cluster.uniform(2), time_limit=0.0) == 6.0
    assert bound(graph, Cluster.uniform(1)) == 6.0 and bound(graph, Cluster.uniform(2), low=0.0) == 0.0
    heavy = graph.replace(persistent_bytes=[6, 6, 6])  # nothing fits: not for a bound to say
    assert bound(heavy, Cluster.uniform(2, memory_bytes=5)) == 6.0
