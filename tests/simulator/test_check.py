"""`check` must find every rule broken: take a valid timeline, break one thing, and look at what it says."""

from dataclasses import replace

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.graph.opgraph import OVERWRITES, OWN, VIEW

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


# -- seeded violations: every kind of timeline, with one column changed ---------------------------------------------------


def pipelined(schedule):
    graph = bl.generators.pipeline(
        *([[3.0] * 2, [4.0] * 2] + [[2.0] * 2] * (schedule[:2] == "zb")), activation_bytes=70, parameter_bytes=1000
    )
    placement = bl.Placement(device=[0, 1] * (graph.n // 2))
    timeline = bl.simulate(graph, CLUSTER.with_memory(10000), placement, micro_batches=3, schedule=schedule)
    return bl.unroll(graph, 3), CLUSTER.with_memory(10000), placement, timeline


def replicated():
    graph = bl.generators.pipeline([3.0, 2.0], [6.0, 3.0], output_bytes=100, parameter_bytes=1000)
    cluster = bl.Cluster.uniform(3, memory_bytes=10000, link=bl.Link(0.5, 0.01))
    placement = bl.Placement(device=[0 if name[1] == "0" else 2 for name in graph.names], replicas=((0, 1),))
    timeline = bl.simulate(graph, cluster, placement, micro_batches=4, schedule="1f1b")
    return bl.unroll(graph, 4, placement), cluster, placement, timeline


def shared_buffers():
    graph = GRAPH.replace(reuse=[OWN, OVERWRITES, VIEW, OWN])
    return graph, CLUSTER, PLACEMENT, bl.simulate(graph, CLUSTER, PLACEMENT)


def with_collective():
    graph = GRAPH.replace(op_types=["MatMul", "all_reduce", "MatMul", "MatMul"])
    return graph, CLUSTER, PLACEMENT, bl.simulate(graph, CLUSTER, PLACEMENT)


TIMELINES = {
    "plain": lambda: (GRAPH, CLUSTER, PLACEMENT, TIMELINE),
    "shared buffers": shared_buffers,
    "collective": with_collective,
    "replicas": replicated,
    **{schedule: lambda schedule=schedule: pipelined(schedule) for schedule in ("gpipe", "1f1b", "zb-h1")},
}


def changed(values, k, by):
    values = np.array(values)
    values[k] += by
    return values


def without_row(record, keys, k):
    return replace(record, **{key: np.delete(getattr(record, key), k) for key in keys})


LOG = ("device", "time_us", "category", "delta", "op")
SEND = ("tensor", "source", "target", "start_us", "receive_us", "end_us")
CHANGES = {
    "a start that is no number": lambda t: replace(t, start_us=changed(t.start_us, 1, np.nan)),
    "an end that is infinite": lambda t: replace(t, end_us=changed(t.end_us, 1, np.inf)),
    "an infinite makespan": lambda t: replace(t, makespan_us=float("inf"), start_us=t.start_us + 1),
    "a makespan that is no number": lambda t: replace(t, makespan_us=float("nan")),
    "a transfer that is no number": lambda t: replace(
        t,
        transfers=replace(t.transfers, **{key: changed(getattr(t.transfers, key), 0, np.nan) for key in SEND[3:]}),
    ),
    "a missing transfer": lambda t: replace(t, transfers=without_row(t.transfers, SEND, 0)),
    "a higher peak": lambda t: replace(t, peak_bytes=changed(t.peak_bytes, 1, 1)),
    "a lower peak": lambda t: replace(t, peak_bytes=changed(t.peak_bytes, 0, -1)),
    "another log": lambda t: replace(t, memory=replace(t.memory, delta=changed(t.memory.delta, 2, 1))),
    "a log without its last row": lambda t: replace(t, memory=without_row(t.memory, LOG, len(t.memory) - 1)),
    "other bytes moved": lambda t: replace(t, tensor_bytes=changed(t.tensor_bytes, t.transfers.tensor[0], 1)),
    "one tensor less": lambda t: replace(
        t,
        tensor_bytes=t.tensor_bytes[: t.transfers.tensor.max()],
        tensor_producer=t.tensor_producer[: t.transfers.tensor.max()],
        transfers=bl.Transfers.none(),
    ),
    "another producer": lambda t: replace(t, tensor_producer=changed(t.tensor_producer, 0, 1)),
    "other names of ops": lambda t: replace(t, op_names=t.op_names[::-1]),
    "other names of devices": lambda t: replace(t, device_names=t.device_names[::-1]),
    "another lane": lambda t: replace(
        t, info={**t.info, "on_communication_lane": changed(t.on_communication_lane, 0, True)}
    ),
}
PIPELINE_CHANGES = {
    "another micro-batch": lambda t: {"micro_batch": np.roll(t.micro_batch, 1)},
    "a unit beyond the line": lambda t: {"unit": changed(t.unit, int(np.argmax(t.unit)), 1000)},
    "a unit before all": lambda t: {"unit": changed(t.unit, int(np.argmin(t.start_us)), -5)},
    "F and B exchanged": lambda t: {"schedule": t.schedule_lines.translate(str.maketrans("FB", "BF"))},
    "F and B of one micro-batch exchanged": lambda t: {
        "schedule": t.schedule_lines.replace("0F0", "x").replace("0B0", "0F0").replace("x", "0B0")
    },
    "stages on other devices": lambda t: {"stage_device": t.stage_device[::-1]},
    "another phase": lambda t: {"phase": changed(t.phase, int(np.argmin(t.start_us)), 1)},
    "B as W, or W as B": lambda t: {
        "phase": changed(t.phase, first := int(np.argmax(t.phase >= 2)), 5 - 2 * t.phase[first])
    },
}


@pytest.mark.parametrize("kind", TIMELINES)
def test_every_changed_column_is_found(kind):
    graph, cluster, placement, timeline = TIMELINES[kind]()
    assert bl.check(graph, cluster, placement, timeline) == ()
    with np.errstate(all="raise"):
        unnoticed = [
            what for what, change in CHANGES.items() if not bl.check(graph, cluster, placement, change(timeline))
        ]
    assert unnoticed == []


@pytest.mark.parametrize("kind", ["replicas", "gpipe", "1f1b", "zb-h1"])
def test_every_changed_column_of_a_pipeline_is_found(kind):
    graph, cluster, placement, timeline = TIMELINES[kind]()
    timelines = {
        what: replace(timeline, info={**timeline.info, **change(timeline)}) for what, change in PIPELINE_CHANGES.items()
    }
    assert [what for what, line in timelines.items() if not bl.check(graph, cluster, placement, line)] == []
    with pytest.raises(bl.InvalidInput, match=r"info\['phase'\] has 0 entries"):
        replace(timeline, info={**timeline.info, "phase": []})


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_bug_gradients_of_inputs_and_of_weights_could_be_exchanged(schedule, micro_batches):
    """Under a schedule that keeps both in one unit, of one micro-batch or of all: only who waits for an op tells its phase."""
    names = ["F0", "F1", "F2", "B2", "W2", "B1", "W1", "W0", "U0", "U1", "U2"]
    types = ["MatMul"] * 3 + ["Gradient"] * 5 + ["Update"] * 3
    forward_of = [-1, -1, -1, 2, 2, 1, 1, 0, -1, -1, -1]
    edges = [
        (0, 1, 8),
        (1, 2, 8),
        (2, 3, 8),
        (2, 4, 8),
        (3, 5, 8),
        (3, 6, 8),
        (5, 7, 8),
        (7, 8, 4),
        (6, 9, 4),
        (4, 10, 4),
    ]
    cluster = bl.Cluster.uniform(3)
    graph = bl.OpGraph.from_edges([3.0] * 11, edges, names=names, op_types=types, forward_of=forward_of)
    placement = bl.Placement(device=[0, 1, 2, 2, 2, 1, 1, 0, 0, 1, 2])
    timeline = bl.simulate(graph, cluster, placement, micro_batches=micro_batches, schedule=schedule)
    step_graph = bl.unroll(graph, micro_batches)
    assert bl.check(step_graph, cluster, placement, timeline) == ()
    for original in (3, 4, 5, 6):  # B2, W2, B1, W1
        copies = np.asarray(step_graph.copy_of) == original
        phase = np.where(copies, 5 - timeline.phase, timeline.phase)
        exchanged = replace(timeline, info={**timeline.info, "phase": phase})
        violations = bl.check(step_graph, cluster, placement, exchanged)
        assert {v.op for v in violations} == set(np.flatnonzero(copies).tolist())


def test_memory_by_equation_2_is_not_compared_with_the_rows():
    timeline = bl.simulate(GRAPH, CLUSTER, PLACEMENT, memory_rule="edges")
    assert timeline.peak_bytes.tolist() != TIMELINE.peak_bytes.tolist()
    assert bl.check(GRAPH, CLUSTER, PLACEMENT, timeline) == ()
