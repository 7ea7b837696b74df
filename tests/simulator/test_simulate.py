"""Hand-computed schedules: one per rule of docs/simulated-time.md, with the arithmetic."""

import numpy as np
import pytest

import baechi_lab as bl

BIG = 10**6


def cluster(devices=2, comm="parallel", latency=4.0, per_byte=0.0, memory=BIG):
    return bl.Cluster.uniform(devices, memory_bytes=memory, link=bl.Link(latency, per_byte), comm=comm)


def starts(timeline):
    return dict(zip(timeline.op.tolist(), timeline.start_us.tolist(), strict=True))


def checked(graph, clu, placement, scheduler=None):
    timeline = bl.simulate(graph, clu, placement, scheduler)
    assert bl.check(graph, clu, placement, timeline) == ()
    return timeline


def test_chain_on_one_device_is_the_sum():
    g = bl.OpGraph.from_edges([1, 2, 3], [(0, 1, 8), (1, 2, 8)])
    assert checked(g, cluster(), bl.Placement(device=[0, 0, 0])).makespan_us == 1 + 2 + 3


def test_a_transfer_takes_latency_and_bytes():
    g = bl.OpGraph.from_edges([5, 7], [(0, 1, 100)])
    timeline = checked(g, cluster(latency=3.0, per_byte=0.5), bl.Placement(device=[0, 1]))
    assert timeline.makespan_us == 5 + (3 + 0.5 * 100) + 7


def test_fork_join_with_parallel_transfers():
    g = bl.OpGraph.from_edges([5, 10, 10, 5], [(0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 3, 1)])
    timeline = checked(g, cluster(), bl.Placement(device=[0, 0, 1, 0]))
    # op 2: 5 + 4; its result is back at 5 + 4 + 10 + 4 = 23
    assert starts(timeline) == {0: 0, 1: 5, 2: 5 + 4, 3: 5 + 4 + 10 + 4}


def test_receiver_caches_a_tensor():
    g = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 8), (0, 2, 8)])
    timeline = checked(g, cluster(), bl.Placement(device=[0, 1, 1]))
    assert len(timeline.transfers) == 1
    assert timeline.makespan_us == 1 + 4 + 1 + 1


def test_two_outputs_of_one_op_are_two_transfers():
    g = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 8), (0, 2, 16)])
    assert len(checked(g, cluster(), bl.Placement(device=[0, 1, 1])).transfers) == 2


def test_sequential_sends_wait_in_the_senders_queue():
    g = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 8), (0, 2, 16)])
    timeline = checked(g, cluster(3, "sequential"), bl.Placement(device=[0, 1, 2]))
    assert starts(timeline) == {0: 0, 1: 1 + 4, 2: 1 + 4 + 4}


def test_sequential_receives_wait_in_the_receivers_queue():
    # ops 0 and 1 end at 1 on devices 0 and 1; both send to device 2: the second is received after the first
    g = bl.OpGraph.from_edges([1, 1, 1], [(0, 2, 8), (1, 2, 8)])
    timeline = checked(g, cluster(3, "sequential"), bl.Placement(device=[0, 1, 2]))
    assert timeline.transfers.start_us.tolist() == [1, 1]
    assert timeline.transfers.receive_us.tolist() == [1, 1 + 4]
    assert starts(timeline)[2] == 1 + 4 + 4


CROSSING = bl.OpGraph.from_edges([1, 1, 1, 1], [(0, 3, 8), (1, 2, 8)])  # 0 and 2 on device 0, 1 and 3 on device 1


@pytest.mark.parametrize(
    ("comm", "second_arrives"), [("parallel", 1 + 4), ("duplex", 1 + 4), ("sequential", 1 + 4 + 4)]
)
def test_one_queue_for_both_directions_only_when_sequential(comm, second_arrives):
    timeline = checked(CROSSING, cluster(2, comm), bl.Placement(device=[0, 1, 0, 1]))
    assert timeline.transfers.end_us.tolist() == [1 + 4, second_arrives]


def test_fifo_runs_what_was_ready_first_then_the_lower_index():
    # device 1: op 3 is ready at 0, op 2 at 2 + 4 while op 3 runs, op 1 at 2 + 4 too
    g = bl.OpGraph.from_edges([2, 1, 1, 10], [(0, 1, 8), (0, 2, 8)])
    assert starts(checked(g, cluster(), bl.Placement(device=[0, 1, 1, 1]))) == {0: 0, 3: 0, 1: 10, 2: 11}


def test_planned_order_and_priorities_choose_among_ready_ops_only():
    g = bl.OpGraph.from_edges([1, 1, 1], [])
    one = cluster(1)
    assert starts(checked(g, one, bl.Placement(device=[0, 0, 0], order=[2, 1, 0]))) == {2: 0, 1: 1, 0: 2}
    assert starts(checked(g, one, bl.Placement(device=[0, 0, 0], priority=[0, 5, 1]))) == {1: 0, 2: 1, 0: 2}
    assert starts(checked(g, one, bl.Placement(device=[0, 0, 0], order=[2, 1, 0]), "fifo")) == {0: 0, 1: 1, 2: 2}


def test_a_device_does_not_idle_for_a_better_op():
    # op 2 has the best priority but arrives at 1 + 4: op 1 runs meanwhile
    g = bl.OpGraph.from_edges([1, 9, 1], [(0, 2, 8)])
    assert starts(checked(g, cluster(), bl.Placement(device=[0, 1, 1], priority=[0, 1, 9]))) == {0: 0, 1: 0, 2: 9}


def test_durations_follow_kind_and_speed():
    g = bl.OpGraph.from_edges([10, 10], [], duration_by_kind={"cpu": [40, 60]})
    devices = (bl.Device("gpu:0", "gpu", BIG, speed=2.0), bl.Device("cpu:0", "cpu", BIG))
    timeline = checked(g, bl.Cluster(devices), bl.Placement(device=[0, 1]))
    assert timeline.end_us.tolist() == [10 / 2, 60]


def test_zero_durations_are_legal():
    g = bl.OpGraph.from_edges([5, 0, 5], [(0, 1, 8), (1, 2, 8)])
    assert checked(g, cluster(), bl.Placement(device=[0, 0, 0])).makespan_us == 10
    assert checked(g, cluster(latency=0.0), bl.Placement(device=[0, 1, 0])).makespan_us == 10


def test_the_empty_graph_takes_no_time():
    g = bl.OpGraph.from_edges([])
    timeline = checked(g, cluster(), bl.Placement(device=np.zeros(0, int)))
    assert timeline.makespan_us == 0
    assert timeline.peak_bytes.tolist() == [0, 0]


def test_memory_of_a_chain():
    # a (out 10, temp 5) -> b (out 20): 10 + 5 while a runs, 10 + 20 while b runs; 7 persistent throughout
    g = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 10), (1, 2, 20)], temp_bytes=[5, 0, 0], persistent_bytes=[7, 0, 0])
    assert checked(g, cluster(1), bl.Placement(device=[0, 0, 0])).peak_bytes.tolist() == [7 + 10 + 20]


def test_memory_of_a_received_copy():
    # device 1 holds the copy (10) from the start of its receive until op 1 has ended, beside op 1's temporary 3;
    # device 0 holds the output until the transfer has ended, op 2 (temporary 4) runs at the same time
    g = bl.OpGraph.from_edges([1, 1, 2], [(0, 1, 10)], temp_bytes=[0, 3, 4])
    timeline = checked(g, cluster(), bl.Placement(device=[0, 1, 0], order=[0, 1, 2]))
    assert timeline.peak_bytes.tolist() == [10 + 4, 10 + 3]
    times, levels = timeline.memory.levels(1)
    assert times[0] == 1  # the receive starts when op 0 has ended
    assert levels[-1].sum() == 0


def test_an_output_that_nobody_reads_goes_when_its_op_ends():
    g = bl.OpGraph(
        names=("a", "b"),
        duration_us=[1, 1],
        tensor_producer=[0],
        tensor_bytes=[10],
        consumer_ptr=[0, 0],
        consumers=[],
        temp_bytes=[0, 8],
    )
    assert checked(g, cluster(1), bl.Placement(device=[0, 0])).peak_bytes.tolist() == [10]


def test_exactly_full_is_no_violation_and_one_byte_less_is():
    g = bl.OpGraph.from_edges([1, 1], [(0, 1, 10)], temp_bytes=[0, 5])
    placement = bl.Placement(device=[0, 0])
    assert bl.simulate(g, cluster(1, memory=15), placement).violations == ()
    timeline = bl.simulate(g, cluster(1, memory=14), placement)
    (violation,) = timeline.violations
    assert (violation.kind, violation.device, violation.op, violation.time_us) == ("memory", 0, 1, 1.0)
    assert "op1" in violation.message
    assert [v.kind for v in bl.check(g, cluster(1, memory=14), placement, timeline)] == ["memory"]


def test_colocation_and_allowed_devices_are_violations():
    g = bl.OpGraph.from_edges([1, 1], [], colocation=[0, 0], colocation_names=("w",))
    assert [v.kind for v in bl.simulate(g, cluster(), bl.Placement(device=[0, 1])).violations] == ["colocation"]
    g = bl.OpGraph.from_edges([1, 1], [], allowed=[0, -1], allowed_sets=(("gpu:1",),))
    assert [v.kind for v in bl.simulate(g, cluster(), bl.Placement(device=[0, 1])).violations] == ["allowed"]


def test_bad_placements_are_refused():
    g = bl.OpGraph.from_edges([1, 1], [])
    with pytest.raises(bl.InvalidInput, match=r"device 2; the cluster has devices 0\.\.1"):
        bl.simulate(g, cluster(), bl.Placement(device=[0, 2]))
    with pytest.raises(bl.InvalidInput, match="made for another graph, of 3 ops; this graph has 2"):
        bl.simulate(g, cluster(), bl.Placement(device=[0, 0, 0]))
    with pytest.raises(bl.UnknownNameError, match="did you mean 'fifo'"):
        bl.simulate(g, cluster(), bl.Placement(device=[0, 0]), "fifa")
    with pytest.raises(bl.InvalidInput, match="planned none"):
        bl.simulate(g, cluster(), bl.Placement(device=[0, 0]), "planned")
