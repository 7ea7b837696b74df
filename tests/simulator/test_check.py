"""`check` must find every rule broken: take a valid timeline, break one thing, and look at what it says."""

from dataclasses import replace

import numpy as np
import pytest

import baechi_lab as bl

GRAPH = bl.OpGraph.from_edges([5, 10, 10, 5], [(0, 1, 1), (0, 2, 2), (1, 3, 1), (2, 3, 1)])
CLUSTER = bl.Cluster.uniform(2, memory_bytes=100, link=bl.Link(4.0, 0.0), comm="sequential")
PLACEMENT = bl.Placement(device=[0, 0, 1, 0])
TIMELINE = bl.simulate(GRAPH, CLUSTER, PLACEMENT)


def kinds(timeline, placement=PLACEMENT, cluster=CLUSTER, graph=GRAPH):
    return {v.kind for v in bl.check(graph, cluster, placement, timeline)}


def with_transfers(**changes):
    return replace(TIMELINE, transfers=replace(TIMELINE.transfers, **changes))


def shifted(op, by):
    start, end = TIMELINE.start_us.copy(), TIMELINE.end_us.copy()
    start[op] += by
    end[op] += by
    return replace(TIMELINE, start_us=start, end_us=end, makespan_us=float(end.max()))


def test_the_timeline_is_valid():
    assert kinds(TIMELINE) == set()


def test_start_before_the_input_is_there():
    assert "precedence" in kinds(shifted(3, -1.0))


def test_start_later_than_needed():
    assert "idling" in kinds(shifted(3, +1.0))


def test_two_ops_at_once():
    assert "overlap" in kinds(shifted(1, -3.0))


def test_a_wrong_duration_is_found():
    end = TIMELINE.end_us.copy()
    end[3] += 2
    assert kinds(replace(TIMELINE, end_us=end, makespan_us=float(end.max()))) == {"duration"}


def test_a_wrong_makespan_is_found():
    assert kinds(replace(TIMELINE, makespan_us=1.0)) == {"makespan"}


def test_a_missing_op_is_found():
    rows = {k: getattr(TIMELINE, k)[:-1] for k in ("op", "device", "start_us", "end_us")}
    assert "rows" in kinds(replace(TIMELINE, **rows))


def test_an_op_that_ran_elsewhere_is_found():
    assert "rows" in kinds(replace(TIMELINE, device=[0, 1, 1, 0]))


def test_a_missing_transfer_is_found():
    keys = ("tensor", "source", "target", "start_us", "receive_us", "end_us")
    assert "transfer" in kinds(with_transfers(**{k: getattr(TIMELINE.transfers, k)[:-1] for k in keys}))


def test_a_tensor_sent_twice_is_found():
    keys = ("tensor", "source", "target", "start_us", "receive_us", "end_us")
    rows = {k: np.r_[getattr(TIMELINE.transfers, k), getattr(TIMELINE.transfers, k)[:1]] for k in keys}
    assert "transfer" in kinds(with_transfers(**rows))


@pytest.mark.parametrize("key", ["start_us", "receive_us", "end_us"])
def test_transfer_at_another_time(key):
    assert "transfer" in kinds(with_transfers(**{key: getattr(TIMELINE.transfers, key) + 1.0}))


def test_transfers_that_should_have_waited():
    graph = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 1), (0, 2, 2)])
    three = bl.Cluster.uniform(3, link=bl.Link(4.0, 0.0), comm="sequential")
    placement = bl.Placement(device=[0, 1, 2])
    unqueued = bl.simulate(graph, three.replace(comm="parallel"), placement)
    assert kinds(unqueued, placement, three, graph) == {"transfer"}


def test_two_ops_of_no_duration_cannot_both_wait_for_the_other():
    graph = bl.OpGraph.from_edges([0, 0, 1, 1], [(0, 2, 1), (1, 3, 1)])
    two = CLUSTER.replace(comm="sequential")
    placement = bl.Placement(device=[0, 1, 1, 0])
    timeline = bl.simulate(graph, two, placement)
    assert bl.check(graph, two, placement, timeline) == ()
    cost = float(timeline.transfers.end_us[0] - timeline.transfers.receive_us[0])
    transfers = replace(timeline.transfers, start_us=[0, 0], receive_us=[cost, cost], end_us=[2 * cost, 2 * cost])
    delayed = replace(
        timeline, transfers=transfers, start_us=[0, 0, 2 * cost, 2 * cost], end_us=[0, 0, 2 * cost + 1, 2 * cost + 1]
    )
    assert "transfer" in kinds(delayed, placement, two, graph)


def test_memory_is_rebuilt_not_believed():
    tight = CLUSTER.with_memory(1)
    assert "memory" in kinds(replace(TIMELINE, violations=()), cluster=tight)


def test_colocation_and_allowed():
    graph = GRAPH.replace(
        colocation=[0, -1, 0, -1], colocation_names=("w",), allowed=[-1, 0, -1, -1], allowed_sets=(("gpu:1",),)
    )
    assert kinds(TIMELINE, graph=graph) == {"colocation", "allowed"}
