"""The steady state of endless micro-batches, by hand and against long simulations."""

import numpy as np
import pytest

import baechi_lab as bl

LINK = bl.Link(1.0, 0.1)  # 10 bytes take 2 us, 30 bytes 4 us


def cluster(comm, n=3, link=LINK):
    return bl.Cluster.uniform(n, memory_bytes=10**9, link=link, comm=comm)


@pytest.fixture
def forked():
    """Op 0 sends 10 bytes to two devices; op 1 sends 30 bytes on."""
    return bl.OpGraph.from_edges([4.0, 6.0, 3.0], [(0, 1, 10), (0, 2, 10), (1, 2, 30)])


def test_loads_by_communication_mode(forked):
    placement = bl.Placement(device=[0, 1, 2])
    steady = {comm: bl.throughput(forked, cluster(comm), placement) for comm in ("parallel", "sequential", "duplex")}
    assert all(f.loads["compute"].tolist() == [4, 6, 3] for f in steady.values())
    assert list(steady["parallel"].loads) == ["compute"]
    assert steady["sequential"].loads["queue"].tolist() == [2 + 2, 2 + 4, 2 + 4]
    assert steady["duplex"].loads["send"].tolist() == [2 + 2, 4, 0]
    assert steady["duplex"].loads["receive"].tolist() == [0, 2, 2 + 4]
    assert [f.period_us for f in steady.values()] == [6, 6, 6]
    assert steady["sequential"].bottleneck == ("compute", "gpu:1")


def test_sum_charges_a_producer_once_for_sending_and_each_receiver_once(forked):
    steady = bl.throughput(forked, cluster("parallel"), bl.Placement(device=[0, 1, 2]), sum=True)
    assert steady.loads["compute and transfers"].tolist() == [4 + 2, 6 + 2 + 4, 3 + 2 + 4]
    assert steady.period_us == 12
    assert steady.samples_per_second(24) == 24 / 12e-6


def test_a_tensor_goes_to_a_device_once():
    graph = bl.OpGraph.from_edges([1.0, 1.0, 1.0], [(0, 1, 10), (0, 2, 10)])
    steady = bl.throughput(graph, cluster("sequential", 2), bl.Placement(device=[0, 1, 1]))
    assert steady.loads["queue"].tolist() == [2, 2]
    assert steady.bottleneck == ("compute", "gpu:1")


def test_sum_takes_the_dearest_link_of_a_tensor():
    link = [[bl.Link(float(a + 2 * b), 0.0) for b in range(3)] for a in range(3)]
    graph = bl.OpGraph.from_edges([1.0, 1.0, 1.0], [(0, 1, 10), (0, 2, 10)])
    steady = bl.throughput(graph, cluster("parallel", link=link), bl.Placement(device=[0, 1, 2]), sum=True)
    assert steady.loads["compute and transfers"].tolist() == [1 + 4, 1 + 2, 1 + 4]


def test_processor_time_of_messages_is_compute():
    graph = bl.OpGraph.from_edges([1.0, 1.0], [(0, 1, 10)])
    steady = bl.throughput(graph, cluster("parallel", 2, bl.Link(5.0, 0.0, 3.0)), bl.Placement(device=[0, 1]))
    assert steady.period_us == 1 + 3


def test_kinds_speeds_and_coarse_placements():
    devices = (bl.Device("a", "gpu", 10**9, 2.0), bl.Device("b", "cpu", 10**9))
    graph = bl.OpGraph.from_edges(
        [4.0, 6.0, 3.0], [(0, 1, 10), (1, 2, 10)], duration_by_kind={"cpu": [40.0, 60.0, 30.0]}
    )
    mixed = bl.Cluster(devices, LINK, "duplex")
    assert bl.throughput(graph, mixed, bl.Placement(device=[0, 0, 1])).loads["compute"].tolist() == [10 / 2, 30]
    groups = bl.Placement(device=[0, 1], group_of=[0, 0, 1], graph_key="groups", source_key=graph.key)
    assert bl.throughput(graph, mixed, groups).period_us == 30


def test_nothing_to_do_takes_no_time():
    graph = bl.OpGraph.from_edges([0.0])
    steady = bl.throughput(graph, cluster("sequential"), bl.Placement(device=[0]))
    assert steady.period_us == 0 and steady.samples_per_second(1) == np.inf
    assert bl.throughput(bl.OpGraph.from_edges([]), cluster("duplex"), bl.Placement(device=[])).period_us == 0


@pytest.mark.parametrize("batch", [0, -1, float("nan"), float("inf"), True])
def test_batch_size_is_checked(batch):
    steady = bl.throughput(bl.OpGraph.from_edges([1.0]), cluster("sequential"), bl.Placement(device=[0]))
    with pytest.raises(bl.InvalidInput, match=r"batch_size is .*above 0"):
        steady.samples_per_second(batch)


@pytest.mark.parametrize("comm", ["parallel", "duplex"])
@pytest.mark.parametrize("seed", range(4))
def test_many_copies_in_flight_come_near_the_period(comm, seed):
    """Independent copies of a chain that goes forward through the devices: run oldest first, they reach the period."""
    rng = np.random.default_rng(seed)
    count, stages = 60, 4
    duration, size = rng.uniform(5, 50, stages), rng.integers(1, 200, stages - 1)
    copies = bl.OpGraph.from_edges(
        np.tile(duration, count),
        [(m * stages + s, m * stages + s + 1, size[s]) for m in range(count) for s in range(stages - 1)],
    )
    one = bl.OpGraph.from_edges(duration, [(s, s + 1, size[s]) for s in range(stages - 1)])
    machine = cluster(comm, stages)
    device = np.arange(stages)
    period = bl.throughput(one, machine, bl.Placement(device=device)).period_us
    ordered = bl.Placement(device=np.tile(device, count), order=np.arange(count * stages))
    makespan = bl.simulate(copies, machine, ordered).makespan_us
    filling = bl.simulate(one, machine, bl.Placement(device=device)).makespan_us
    assert count * period - 1e-6 <= makespan <= (count - 1) * period + filling + 1e-6
