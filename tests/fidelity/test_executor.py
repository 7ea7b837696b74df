"""TensorFlow's order of ops and messages, by hand: the last ready first, requests and what they bring last."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.fidelity.executor import execution_of, random_start_order
from baechi_lab.fidelity.message_costs import with_messages
from baechi_lab.graph.generators import layered_dag

FREE = bl.Link(0.0, 0.0)
AS_GIVEN = range


def BACKWARD(count):
    return range(count)[::-1]


def end_times(durations, edges, device, draw, send=0.0, receive=0.0, wire=0.0):
    """When ops end whose messages take so long: float64[ops]."""
    costs = SimpleNamespace(op_us=0.0, send=bl.Link(send, 0.0), receive=bl.Link(receive, 0.0))
    graph = bl.OpGraph.from_edges([float(x) for x in durations], edges)
    extended_graph, placement = with_messages(graph, bl.Placement(device=device), costs)
    messages = (extended_graph.n - graph.n) // 2
    return execution_of(extended_graph, placement, graph.n, np.full(messages, wire), draw).end_us[: graph.n].tolist()


def test_what_became_ready_last_goes_first():
    """0 makes 1 and 2 ready: 2, the later, lies on top. 2 makes 3 ready, which goes above 1, and 4 ends it."""
    assert end_times([1, 1, 1, 1, 1], [(0, 1, 8), (0, 2, 8), (2, 3, 8)], [0] * 5, AS_GIVEN) == [1, 4, 2, 3, 5]
    assert end_times([1, 1, 1, 1, 1], [(0, 1, 8), (0, 2, 8), (2, 3, 8)], [0] * 5, BACKWARD) == [2, 5, 3, 4, 1]


def test_a_send_waits_for_local_ops():
    """0 feeds 1, here, and 2, there: 1 goes first, then the tensor leaves at 6 + 2, arrives at 11, is received until 12."""
    assert end_times([1, 5, 1], [(0, 1, 8), (0, 2, 8)], [0, 0, 1], AS_GIVEN, 2.0, 1.0, 3.0) == [1, 6, 13]


@pytest.mark.parametrize(
    ("durations", "device", "expected"),
    [([10, 1, 5, 1], [1, 0, 0, 1], [10, 17, 24, 24]), ([10, 1, 1, 5], [1, 0, 1, 0], [10, 17, 29, 22])],
)
def test_a_send_that_was_asked_for_goes_where_its_reader_would(durations, device, expected):
    """1 runs from 16 to 17, when device 0 has long been asked, and makes a local op of 5 and a send of 2 ready.

    Read by 3, behind the local op 2, the tensor is sent first: until 19, there at 22, received until 23. Read by 2, before the
    local op 3, it is sent after that, from 22 to 24, there at 27, received until 28.
    """
    edges = [(0, 1, 8), (1, 2, 8), (1, 3, 8)]
    assert end_times(durations, edges, device, AS_GIVEN, 2.0, 1.0, 3.0) == expected


def test_receiving_begins_before_sending_has_ended():
    """As above, but both ends of a message work beside each other for 1 us.

    0 is sent from 10 to 12, there at 11, received until 12, and 1 runs until 13. It is sent until 15, there at 14, received until
    15, 3 until 16; only after the whole send device 0 goes on, with 2, until 20.
    """
    ends_us = end_times([10, 1, 5, 1], [(0, 1, 8), (1, 2, 8), (1, 3, 8)], [1, 0, 0, 1], AS_GIVEN, 2.0, 1.0, -1.0)
    assert ends_us == [10, 13, 20, 16]


def test_nothing_is_received_before_it_is_sent():
    """The send begins at 6, so the tensor is there at 6, although 9 us of the send would be left by then."""
    assert end_times([1, 5, 1], [(0, 1, 8), (0, 2, 8)], [0, 0, 1], AS_GIVEN, 2.0, 1.0, -9.0) == [1, 6, 8]


@pytest.mark.parametrize(("draw", "expected"), [(BACKWARD, [22, 11, 102, 51]), (AS_GIVEN, [22, 11, 73, 55])])
def test_whether_a_worker_asks_first_decides(draw, expected):
    """0 and 1 on device 0 feed 2 on device 1, which has 3 to run. 9 to send, 18 on the wire, 4 to receive.

    Backward device 1 begins with 3 and asks at 51: sent until 60 and 69, there at 78 and 87, received until 82 and 91, 2 until
    102. As given, by the place of 2, it asks first: the tensors leave after both ops, at 31 and 40, arrive at 49 and 58;
    receiving the first one makes 3 end at 55; the second is received until 62, 2 ends at 73. Device 0 begins with op 1 there
    and with 0 here.
    """
    ends_us = end_times([11, 11, 11, 51], [(0, 2, 8), (1, 2, 8)], [0, 0, 1, 1], draw, 9.0, 4.0, 18.0)
    assert sorted(ends_us[:2]) == [11, 22] and ends_us[2:] == expected[2:]


def test_what_a_tensor_makes_ready_goes_to_the_bottom():
    """Device 1 asks, then runs 2. The tensor of 0 is received from 3 to 6: 2 ends at 13; 3 goes before 1, which ends at 24."""
    ends_us = end_times([1, 1, 10, 10], [(0, 1, 8), (2, 3, 8)], [0, 1, 1, 1], AS_GIVEN, 2.0, 3.0)
    assert ends_us == [1, 24, 13, 23]


@pytest.mark.parametrize("seed", range(5))
def test_every_op_runs_once_and_after_what_it_reads(seed):
    graph = layered_dag(30, seed=seed)
    rng = np.random.default_rng(seed)
    device = rng.integers(0, 3, graph.n).astype(np.int32)
    costs = SimpleNamespace(op_us=0.0, send=bl.Link(3.0, 0.0), receive=bl.Link(2.0, 0.0))
    extended_graph, placement = with_messages(graph, bl.Placement(device=device), costs)
    start, end = execution_of(
        extended_graph,
        placement,
        graph.n,
        np.full((extended_graph.n - graph.n) // 2, 1.0),
        partial(random_start_order, rng),
    )
    assert (end - extended_graph.duration_us >= start - 1e-6).all()
    assert (start[extended_graph.consumers] >= end[extended_graph.edge_source] - 1e-6).all()
    for current in range(3):
        busy = extended_graph.duration_us[placement.device == current].sum()
        assert end[placement.device == current].max(initial=0.0) >= busy - 1e-6


def test_one_device_takes_the_sum_of_its_ops():
    graph = layered_dag(20, seed=1)
    alone = bl.Placement(device=np.zeros(graph.n, dtype=np.int32))
    assert execution_of(graph, alone, graph.n, np.zeros(0), AS_GIVEN).end_us.max() == pytest.approx(
        graph.duration_us.sum()
    )
    empty = bl.OpGraph.from_edges([])
    assert execution_of(empty, bl.Placement(device=[]), 0, np.zeros(0), AS_GIVEN).end_us.tolist() == []


def typed(durations, edges, device, types, draw=AS_GIVEN):
    """When ops of these types end, messages taking nothing."""
    graph = bl.OpGraph.from_edges([float(x) for x in durations], edges, op_types=types)
    costs = SimpleNamespace(op_us=0.0, send=FREE, receive=FREE)
    extended_graph, placement = with_messages(graph, bl.Placement(device=device), costs)
    return (
        execution_of(extended_graph, placement, graph.n, np.zeros((extended_graph.n - graph.n) // 2), draw)
        .end_us[: graph.n]
        .tolist()
    )


def test_cheap_ops_run_at_once_and_in_turn():
    """0 makes 1 to 4 ready. The reshapes 1 and 3 run at once, 1 first, and then what 3 makes ready, 5, before 4 and 2."""
    edges = [(0, 1, 8), (0, 2, 8), (0, 3, 8), (0, 4, 8), (3, 5, 8)]
    types = ["MatMul", "Reshape", "Mul", "Reshape", "Mul", "MatMul"]
    assert typed([1, 1, 10, 1, 10, 10], edges, [0] * 6, types) == [1, 2, 33, 3, 23, 13]


@pytest.mark.parametrize(("kind", "expected"), [("MatMul", [10, 11, 21, 12]), ("_MklMatMul", [10, 11, 21, 22])])
def test_a_send_comes_after_what_onednn_computes(kind, expected):
    """Device 0 was asked long ago when 1 makes 2, here, and a send to 3 ready: 3 is later in the graph, so it is sent first.

    An op that was replaced when the graph was already divided is later than the send.
    """
    ends_us = typed([10, 1, 10, 1], [(0, 1, 8), (1, 2, 8), (1, 3, 8)], [1, 0, 0, 1], ["Mul", "Mul", kind, "Mul"])
    assert ends_us == expected
