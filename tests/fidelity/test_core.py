"""A core that ops and receiving share, by hand; and nothing is lost."""

from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.fidelity.executor import PIECES, RECEIVE_MODES, SHARES, Core, execution_of, random_start_order
from baechi_lab.fidelity.message_costs import with_messages


def finished_tasks(core, starts):
    """(what, when it ended) of everything; `starts`: time -> (microseconds, name), tensors by a number as name."""
    log, waiting = [], sorted(starts.items())
    while waiting or core.next_us() < np.inf:
        time_us = min(core.next_us(), waiting[0][0] if waiting else np.inf)
        core.advance(time_us)
        core.finish(time_us)
        while waiting and waiting[0][0] == time_us:
            takes, label = waiting.pop(0)[1]
            note = lambda end_us, label=label: log.append((label, end_us))  # noqa: E731
            core.run(takes, note) if isinstance(label, str) else core.receive(takes, label, note)
    return log


def test_receiving_alone_has_all_of_a_core():
    assert finished_tasks(Core(0.5), {3.0: (4.0, 0)}) == [(0, 7.0)]


def test_tensors_that_come_together_end_by_size():
    """Both get half until 2, when a third begins: then thirds. 1 has 1 + 1 = 2 at 5; 2 has 1 then and needs 2 more: at 9."""
    assert finished_tasks(Core(0.5), {0.0: (9.0, 0), 0.5: (1.75, 1), 2.0: (3.0, 2)}) == [
        (1, pytest.approx(5.0)),
        (2, pytest.approx(9.0)),
        (0, pytest.approx(13.75)),
    ]


def test_tensors_may_come_one_after_the_other():
    """As above, but each as a whole; one that comes when nothing is received begins at once, with what an op leaves."""
    starts = {0.0: (9.0, 0), 0.5: (1.75, 1), 2.0: (3.0, 2), 20.0: (4.0, "op"), 21.0: (1.0, 3)}
    assert finished_tasks(Core(0.5, in_turns=False), starts) == [
        (0, pytest.approx(9.0)),
        (1, pytest.approx(10.75)),
        (2, pytest.approx(13.75)),
        (3, pytest.approx(23.0)),
        ("op", pytest.approx(25.0)),
    ]


@pytest.mark.parametrize(("share", "op", "tensor"), [(1.0, 14.0, 8.0), (0.5, 14.0, 12.0), (0.8, 14.0, 9.0)])
def test_an_op_has_what_is_left(share, op, tensor):
    """10 of op from 0 on, 4 of tensor from 4 on: together until 14 whoever comes first."""
    log = dict(finished_tasks(Core(share), {0.0: (10.0, "op"), 4.0: (4.0, 0)}))
    assert log == {"op": pytest.approx(op), 0: pytest.approx(tensor)}


@pytest.mark.parametrize(("share", "in_turns"), RECEIVE_MODES)
def test_shared_cores_lose_no_work(share, in_turns):
    rng = np.random.default_rng(0)
    for _ in range(20):
        times, takes = np.sort(rng.uniform(0, 20, 8)), rng.uniform(0.1, 5, 8)
        starts = {float(t): (float(us), k) for k, (t, us) in enumerate(zip(times, takes, strict=True))}
        log = finished_tasks(Core(share, in_turns), {0.0: (30.0, "op"), **starts})
        assert len(log) == 9 and max(time_us for _, time_us in log) == pytest.approx(30.0 + takes.sum())


def test_orders_differ_in_what_receiving_has():
    """0 sends 8 tensors of 4 us at once to device 1, which works on 9 for 50 us: there by 33 if it waits, else by 65."""
    edges = [(0, k, 8 + k) for k in range(1, 9)]
    graph = bl.OpGraph.from_edges([1.0] + [1.0] * 8 + [50.0], edges)
    costs = SimpleNamespace(op_us=0.0, send=bl.Link(0.0, 0.0), receive=bl.Link(4.0, 0.0))
    extended_graph, placement = with_messages(graph, bl.Placement(device=[0] + [1] * 9), costs)
    executions = [execution_of(extended_graph, placement, graph.n, np.zeros(8), share=share) for share in SHARES]
    ends_us = [run.end_us for run in executions]
    received = [float(end[-8:].max()) for end in ends_us]
    assert received == sorted(received, reverse=True)
    assert (received[0], received[-1]) == (pytest.approx(65.0), pytest.approx(33.0))
    assert [float(end.max()) for end in ends_us] == pytest.approx([32.0 + 50.0 + 8.0] * len(SHARES))
    assert {float(run.start_us[9]) for run in executions} == {0.0}  # whatever it takes from then on


def test_pieces_are_in_order_within():
    """Each piece goes up or down by one: what is cut changes direction or jumps, at most once per piece."""
    for seed in range(50):
        order = random_start_order(np.random.default_rng(seed), 40)
        assert sorted(order) == list(range(40))
        assert np.count_nonzero(np.abs(np.diff(order)) != 1) < PIECES
    assert random_start_order(np.random.default_rng(0), 0) == []
    assert {tuple(random_start_order(np.random.default_rng(seed), 3)) for seed in range(50)} == set(
        permutations(range(3))
    )


@pytest.mark.parametrize(("start_order", "updated"), [(range, 2.0), (lambda count: range(count)[::-1], 12.0)])
def test_what_lies_below_a_long_op_waits(start_order, updated):
    """A variable's handle makes an update of 1 us ready; constants go first, whatever the order."""
    types = ["VarHandleOp", "Conv2D", "Assign", "Const"]
    graph = bl.OpGraph.from_edges([1.0, 10.0, 1.0, 0.0], [(0, 2, 8), (3, 2, 8)], op_types=types)
    end = execution_of(graph, bl.Placement(device=[0] * 4), graph.n, np.zeros(0), start_order).end_us
    assert (end[3], end[2]) == (0.0, updated)
