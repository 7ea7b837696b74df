"""Why ops start when they do, on schedules done by hand."""

import pytest

import baechi_lab as bl
from baechi_lab.widgets.causes import cause, neighbours
from baechi_lab.widgets.schedule import critical_chain
from baechi_lab.widgets.views import TimelineView


def test_causes_in_the_split_diamond(diamond, split):
    # a 0-5, b 5-15 on gpu:0, c 7-17 on gpu:1 (a's tensor takes 2), d 19-24 on gpu:0 (c's tensor takes 2).
    a, b, c, d = (cause(diamond, split, op) for op in range(4))
    assert (a.kind, a.op) == ("start", -1)
    assert (b.kind, b.op, b.sentence) == ("tensor", 0, "started at 5.00 us, when a ended")
    assert (c.kind, c.op) == ("transfer", 0) and "(8 B) arrived from gpu:0 after 2.00 us" in c.sentence
    # b had ended at 15: gpu:0 stood free for 4 us.
    assert (d.kind, d.op, d.waited_us) == ("transfer", 2, 19 - 15) and "gpu:0 was free 4.00 us before" in d.sentence


def test_a_busy_device_is_named_with_how_long_the_inputs_waited():
    graph = bl.OpGraph.from_edges([5, 10, 10], [(0, 1, 8), (0, 2, 8)], names=["a", "b", "c"])
    line = bl.simulate(graph, bl.Cluster.uniform(1), bl.Placement(device=[0, 0, 0]))
    last = int(line.op[line.start_us.argmax()])
    first = 3 - last
    reason = cause(graph, line, last)
    assert (reason.kind, reason.op, reason.waited_us) == ("device", first, 15 - 5)
    assert (
        f"gpu:0 was busy with {graph.names[first]} until then; its inputs were there 10.00 us before" in reason.sentence
    )


def test_a_queue_of_the_link_is_named_with_what_went_first():
    # Two tensors of one op at 5, to b on gpu:1 and c on gpu:2: the sender sends one after the other, 4 us each.
    graph = bl.OpGraph.from_edges([5, 1, 1], [(0, 1, 8), (0, 2, 8)], names=["a", "b", "c"])
    cluster = bl.Cluster.uniform(3, link=bl.Link(4.0, 0.0), comm="sequential")
    line = bl.simulate(graph, cluster, bl.Placement(device=[0, 1, 2]))
    kinds = {cause(graph, line, op).kind: cause(graph, line, op) for op in (1, 2)}
    assert set(kinds) == {"transfer", "queue"}
    assert "having waited 4.00 us in the queue of gpu:0 behind the tensor of a" in kinds["queue"].sentence
    assert "started at 13.00 us" in kinds["queue"].sentence  # 5 + 4 + 4


@pytest.mark.parametrize("comm", ["sequential", "parallel", "duplex"])
@pytest.mark.parametrize("seed", range(3))
def test_following_causes_is_the_critical_chain(comm, seed):
    graph = bl.generators.random_dag(40, seed=seed)
    cluster = bl.Cluster.uniform(3, link=bl.Link(3.0, 0.0)).replace(comm=comm)
    line = bl.simulate(graph, cluster, bl.place(graph, cluster, "random", seed=seed))
    op, chain = int(line.op[line.end_us.argmax()]), []
    while op >= 0:
        chain.append(op)
        reason = cause(graph, line, op)
        assert reason.waited_us >= 0
        op = reason.op
    assert chain[::-1] == critical_chain(graph, line).ops.tolist()


def sooner(graph, op, by, tensor=-1):
    """The graph with one op that takes less time, or one tensor that has fewer bytes."""
    duration, size = graph.duration_us.copy(), graph.tensor_bytes.copy()
    if tensor < 0:
        duration[op] -= by
    else:
        size[tensor] -= by
    return graph.replace(duration_us=duration, tensor_bytes=size)


@pytest.mark.parametrize("comm", ["sequential", "parallel", "duplex"])
@pytest.mark.parametrize("seed", range(2))
def test_an_op_starts_sooner_if_what_is_blamed_takes_less(comm, seed):
    """Of every op that waited for one thing alone: the simulator agrees that it was this thing."""
    graph = bl.generators.random_dag(40, seed=seed)
    cluster = bl.Cluster.uniform(3, link=bl.Link(3.0, 0.001)).replace(comm=comm)
    placement = bl.place(graph, cluster, "random", seed=seed)
    line = bl.simulate(graph, cluster, placement, scheduler="fifo")
    began = dict(zip(line.op.tolist(), line.start_us.tolist(), strict=True))
    tried = set()
    for op in range(graph.n):
        reason = cause(graph, line, op)
        assert reason.kind != "idle"  # a simulated device never idles while an op is ready
        if reason.kind == "start" or reason.waited_us < 1.0:
            continue
        transfer_rows = [row for row in (reason.transfer, reason.behind) if row >= 0]
        for tensor in line.transfers.tensor[transfer_rows].tolist() if transfer_rows else [-1]:
            # A tenth of a microsecond less of the op, or of a transfer (100 bytes); more if the tensor is sent twice.
            resimulated = bl.simulate(
                sooner(graph, reason.op, 0.1 if tensor < 0 else 100, tensor), cluster, placement, "fifo"
            )
            assert began[op] - float(resimulated.start_us[resimulated.op == op][0]) > 0.0999, reason
        tried.add(reason.kind)
    assert {"device", "queue" if comm != "parallel" else "transfer"} <= tried


def test_the_view_says_why_for_one_op_and_draws_its_neighbours(diamond, split):
    view = TimelineView()
    view.show(diamond, [split])
    view.selected = [3]
    assert view.why == cause(diamond, split, 3).sentence and (view.inputs, view.outputs) == ([1, 2], [])
    view.selected = [0]
    assert (view.inputs, view.outputs) == ([], [1, 2]) == neighbours(diamond, 0)
    view.selected = [0, 3]
    assert view.why == "" and view.inputs == view.outputs == []
    view.focus = 3  # the clicked one, which the other came along with
    assert view.why == cause(diamond, split, 3).sentence
    view.selected = [0, 1]
    assert view.why == ""


def test_an_op_that_did_not_run_has_no_cause(diamond, split):
    other_graph = bl.OpGraph.from_edges([1] * 6)
    assert cause(other_graph, split, 5) is None
