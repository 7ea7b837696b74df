"""Idle time and its reasons, on schedules done by hand and against a second, slower reckoning on random ones."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.widgets.views import TimelineView
from baechi_lab.widgets.waiting import KINDS, statistics, waits


def rows(gaps, device):
    on_device = gaps.device == device
    kinds = [KINDS[k] for k in gaps.kind[on_device]]
    return list(zip(gaps.start_us[on_device].tolist(), gaps.end_us[on_device].tolist(), kinds, strict=True))


def test_reasons_in_the_split_diamond(diamond, split):
    # a 0-5, b 5-15, d 19-24 on gpu:0; c 7-17 on gpu:1; a's tensor moves 5-7, c's 17-19.
    gaps = waits(diamond, split)
    assert rows(gaps, 0) == [(15, 17, "op"), (17, 19, "transfer")]
    assert rows(gaps, 1) == [(0, 5, "op"), (5, 7, "transfer"), (17, 24, "nothing")]
    assert gaps.source[gaps.device == 0].tolist() == [2, 2] and set(gaps.op[gaps.device == 0]) == {3}


def test_a_queue_is_told_from_the_transfer():
    # a ends at 5; its tensors to b and c take 4 each, one after the other: the second waits from 5 to 9, moves 9-13.
    graph = bl.OpGraph.from_edges([5, 1, 1], [(0, 1, 8), (0, 2, 8)])
    cluster = bl.Cluster.uniform(3, link=bl.Link(4.0, 0.0), comm="sequential")
    gaps = waits(graph, bl.simulate(graph, cluster, bl.Placement(device=[0, 1, 2])))
    assert rows(gaps, 2) == [(0, 5, "op"), (5, 9, "queue"), (9, 13, "transfer")]


def test_statistics_of_a_range(diamond, split):
    first, second = statistics(diamond, split, waits(diamond, split), 4.0, 18.0)
    # gpu:0 from 4 to 18: a for 1, b for 10, then 15-17 for c and 17-18 for its transfer.
    assert (first.busy_us, first.idle_us, first.ops, first.most, first.most_us) == (11, 3, 2, "MatMul", 10)
    assert {k: v for k, v in first.waited.items() if v} == {"op": 2, "transfer": 1}
    assert second.waited == {"op": 1, "transfer": 2, "queue": 0, "order": 0, "nothing": 1, "collective": 0}


def slow_reasons(graph, line, device, time):
    """The reason at one moment, from the rules alone: the input of the next op that comes last, and where it is then."""
    not_started = [k for k in range(len(line.op)) if line.device[k] == device and line.start_us[k] >= time]
    if not not_started:
        return "nothing"
    op = line.op[min(not_started, key=lambda k: (line.start_us[k], line.end_us[k]))]
    end_of_op = dict(zip(line.op.tolist(), line.end_us.tolist(), strict=True))
    last = (-1.0, "order")
    pointer, tensors = graph.inputs
    for t in tensors[pointer[op] : pointer[op + 1]]:
        produced_us, transfers = end_of_op[int(graph.tensor_producer[t])], line.transfers
        arrival_us, state = produced_us, "op" if time < produced_us else "order"
        for k in np.flatnonzero((transfers.tensor == t) & (transfers.target == device)):
            arrival_us, begun = transfers.end_us[k], max(transfers.start_us[k], transfers.receive_us[k])
            state = (
                "op"
                if time < produced_us
                else "queue"
                if time < begun
                else "transfer"
                if time < arrival_us
                else "order"
            )
        last = max(last, (arrival_us, state))
    return last[1]


@pytest.mark.parametrize("comm", ["sequential", "parallel", "duplex"])
@pytest.mark.parametrize("seed", range(3))
def test_reasons_and_sums_on_random_graphs(comm, seed):
    graph = bl.generators.random_dag(50, seed=seed)
    cluster = bl.Cluster.uniform(3, link=bl.Link(3.0, 1e-4)).replace(comm=comm)
    line = bl.simulate(graph, cluster, bl.place(graph, cluster, "random", seed=seed))
    gaps = waits(graph, line)
    for d, start, end, kind in zip(gaps.device, gaps.start_us, gaps.end_us, gaps.kind, strict=True):
        assert KINDS[kind] == slow_reasons(graph, line, d, (start + end) / 2)
        assert kind != KINDS.index("order")  # a simulated device never idles while an op is ready
    first, last = 0.2 * line.makespan_us, 0.7 * line.makespan_us
    busy_us = np.clip(np.minimum(line.end_us, last) - np.maximum(line.start_us, first), 0, None)
    busy = np.bincount(line.device, busy_us, minlength=3)
    for d, one in enumerate(statistics(graph, line, gaps, first, last)):
        assert one.busy_us == pytest.approx(busy[d]) and sum(one.waited.values()) == pytest.approx(one.idle_us)
        assert one.busy_us + one.idle_us == pytest.approx(last - first)
    assert gaps.sums(3, 0, np.inf).sum(axis=1) == pytest.approx(line.idle_us)


def test_measured_ops_are_matched_by_name(diamond, split):
    from dataclasses import replace

    # As a run may number them: ops backwards, one tensor per op, with an op that the graph does not have.
    names = (*split.op_names[::-1], "extra")
    transfers = split.transfers
    tensors = replace(transfers, tensor=3 - split.tensor_producer[transfers.tensor])
    measured = replace(
        split,
        origin="measured",
        op_names=names,
        op=np.append(3 - split.op, 4),
        device=np.append(split.device, 1),
        start_us=np.append(split.start_us, 20.0),
        end_us=np.append(split.end_us, 22.0),
        transfers=tensors,
        tensor_producer=np.arange(4),
        tensor_bytes=np.full(4, 8),
    )
    gaps = waits(diamond, measured)
    assert rows(gaps, 0) == [(15, 17, "op"), (17, 19, "transfer")]
    assert rows(gaps, 1)[2:] == [(17, 20, "order"), (22, 24, "nothing")]


def test_the_view_sends_reasons_by_lane_and_measures_what_is_marked(diamond, split):
    view = TimelineView()
    view.show(diamond, [split])
    assert np.frombuffer(view.waits["pointer"], "<i4").tolist() == [0, 2, 2, 5, 5] and view.statistics == []
    view.measuring = True
    assert [row["busy_us"] for row in view.statistics] == [20, 10]
    view.window = [0.0, 10.0]
    assert [row["busy_us"] for row in view.statistics] == [10, 3]
    view.range = [4.0, 18.0]
    assert [row["busy_us"] for row in view.statistics] == [11, 10]
    assert view.statistics[1]["device"] == "gpu:1" and view.statistics[1]["waited"]["transfer"] == 2
    view.range, view.measuring = [], False
    assert view.statistics == []


def test_devices_without_ops_and_graphs_without_ops():
    graph = bl.OpGraph.from_edges([5])
    line = bl.simulate(graph, bl.Cluster.uniform(2), bl.Placement(device=[0]))
    assert rows(waits(graph, line), 1) == [(0, 5, "nothing")]
    empty = bl.OpGraph.from_edges([])
    line = bl.simulate(empty, bl.Cluster.uniform(2), bl.Placement(device=np.zeros(0, int)))
    assert len(waits(empty, line)) == 0 and statistics(empty, line, waits(empty, line), 0, 0)[0].ops == 0
    view = TimelineView()
    view.measuring = True
    view.show(empty, [line])
    assert [row["busy_us"] for row in view.statistics] == [0, 0]
