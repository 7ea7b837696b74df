"""The details pane: what it says of an op equals the timeline and the cost tables, and its links select."""

import json

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.graph.units import format_us
from baechi_lab.widgets.causes import cause
from baechi_lab.widgets.comparing import difference
from baechi_lab.widgets.details import MOST_TENSORS, op_details, selection_details
from baechi_lab.widgets.views.details_view import op_facts
from tests.helpers.messages import receive


@pytest.fixture
def bench(diamond):
    """The diamond on a device and one of half its speed, c moved to the slow one; 2 us per transfer."""
    devices = (bl.Device("gpu:0", "gpu", 1000), bl.Device("gpu:1", "gpu", 1000, speed=0.5))
    cluster = bl.Cluster(devices, bl.Link(2.0, 0.0), comm="parallel")
    bench = bl.Workbench(diamond, cluster, placer="single", passes=(), moves=(("s/c", "gpu:1"),))
    bench.model.inline = True
    return bench


def test_an_op_s_details_are_those_of_the_records(bench, diamond):
    details, line = op_details(bench.outcome, 2), bench.outcome.timeline
    # c starts when a's tensor is there (5 + 2), and takes 10 / 0.5.
    assert (details.name, details.op_type, details.device) == ("s/c", "MatMul", "gpu:1")
    assert details.shapes == "i64[1]" and "makes" not in dict(op_facts(op_details(bench.outcome, 3)))
    assert (details.start_us, details.end_us, details.copies, details.critical) == (7, 27, 1, True)
    assert details.why == cause(diamond, line, 2).sentence
    assert [(e.op, e.name, e.size_bytes, e.device) for e in details.inputs] == [(0, "a", 8, "gpu:0")]
    assert [(e.op, e.name, e.size_bytes, e.device) for e in details.outputs] == [(3, "d", 8, "gpu:0")]
    assert [(c.device, c.duration_us, c.chosen) for c in details.costs] == [("gpu:0", 10, False), ("gpu:1", 20, True)]
    assert details.output_sizes == (("0", 8),)


def test_a_device_that_an_op_may_not_use_has_no_cost():
    graph = bl.OpGraph.from_edges([3], allowed=[0], allowed_sets=(("gpu:1",),))
    bench = bl.Workbench(graph, bl.Cluster.uniform(2), placer="m-topo", passes=())
    first, second = op_details(bench.outcome, 0).costs
    assert np.isnan(first.duration_us) and (second.duration_us, second.chosen) == (3, True)
    bench.model.select([0])
    assert bench.details.sections[-1]["rows"][0]["text"] == "may not run here"


def test_many_readers_are_counted():
    count = MOST_TENSORS + 5
    graph = bl.OpGraph.from_edges([1] * (count + 1), [(0, k, 8) for k in range(1, count + 1)])
    bench = bl.Workbench(graph, bl.Cluster.uniform(1), placer="single", passes=())
    details = op_details(bench.outcome, 0)
    assert len(details.outputs) == MOST_TENSORS and details.more_outputs == 5


def test_links_select_and_lead_on(bench):
    assert bench.details.heading == "" and bench.details.hint
    bench.timeline.focus, bench.timeline.selected = 3, [3]  # a click on d
    assert bench.details.heading == "d" and bench.model.selection == (3,)
    reads = bench.details.sections[0]
    assert [(row["op"], row["name"], row["text"]) for row in reads["rows"]] == [
        (1, "s/b", "8 B, gpu:0"),
        (2, "s/c", "8 B, gpu:1"),
    ]
    receive(bench.details, type="go", op=2)
    assert bench.model.selection == (2,) and bench.details.heading == "s/c" and bench.timeline.selected == [2]
    assert dict(bench.details.facts)["runs"] == f"{format_us(7.0)} to {format_us(27.0)}"
    assert json.loads(json.dumps(bench.details.sections)) == bench.details.sections  # as the page is sent them
    leaf = int(bench.graph.tree.leaf_of[2])
    assert leaf in bench.graph.scene.nodes and bench.graph.selected == [leaf]
    bench.model.select(())
    assert bench.details.facts == [] and bench.details.hint


def test_the_numbers_of_the_pane_have_one_unit(pair):
    """Times that of the step of 241 ms, as the timeline has; bytes that of the largest tensor."""
    graph = bl.OpGraph.from_edges([241_000.0, 20.0, 150.0], [(0, 1, 2_500_000), (1, 2, 64_000)])
    bench = bl.Workbench(graph, bl.Cluster.uniform(1), placer="single", passes=())
    bench.model.select([1])
    facts, sections = dict(bench.details.facts), {one["title"]: one["rows"] for one in bench.details.sections}
    assert (facts["runs"], facts["takes"]) == ("241.00 ms to 241.02 ms", "0.02 ms")
    assert facts["why then"] == "started at 241.00 ms, when op0 ended"
    assert [row["text"] for row in sections["Time on each device"]] == ["0.02 ms"]
    assert [row["text"] for row in sections["Reads"] + sections["Read by"]] == ["2.50 MB, gpu:0", "0.06 MB, gpu:0"]
    bench.model.select([1, 2])
    assert bench.details.facts == [["time together", "0.17 ms"]]
    assert [row["text"] for row in bench.details.sections[0]["rows"]] == ["0.15 ms", "0.02 ms"]


def test_bug_another_op_of_the_selected_group_kept_the_details_of_the_first():
    """A click on it selects the same group, so that nothing was renewed."""
    graph = bl.OpGraph.from_edges([5.0, 6.0, 7.0], [(0, 1, 8), (1, 2, 8)], colocation=[0] * 3, colocation_names=("w",))
    bench = bl.Workbench(graph, bl.Cluster.uniform(2), placer="single", passes=())
    for op in (0, 2, 1):
        bench.timeline.focus, bench.timeline.selected = op, [op]  # a click, or the next hit of a search
        assert bench.model.selection == (0, 1, 2) and bench.timeline.selected == [0, 1, 2]
        assert bench.details.heading == graph.names[op]


@pytest.mark.slow
def test_a_new_result_renews_the_details(bench):
    bench.model.select([2])
    bench.model.change(moves=())
    assert dict(bench.details.facts)["device"] == "gpu:0" and dict(bench.details.facts)["takes"] == format_us(10.0)


def test_several_ops_are_summed_and_the_longest_listed(bench):
    bench.model.select([0, 1, 2])
    details = selection_details(bench.outcome, [0, 1, 2])
    # a 5, b 10, and c 10 / 0.5 on the slow device
    assert (details.count, details.duration_us) == (3, 35) and details.longest[0] == (2, "s/c", 20.0)
    assert bench.details.heading == "3 ops" and [r["op"] for r in bench.details.sections[0]["rows"]] == [2, 1, 0]
    receive(bench.details, type="go", op=0)
    assert bench.details.heading == "a"


def test_bug_boxes_selections_and_legends_had_the_times_of_a_device_of_speed_1(bench):
    """c takes 10 / 0.5 us where it is: the box around b and c 30, as the heat and the timeline say."""
    bench.graph.open_nodes(())
    scene, paint = bench.graph.scene, bench.graph.paint
    boxes = [scene.tree.names[node] for node in scene.nodes.tolist()]
    assert dict(zip(boxes, np.frombuffer(paint["time"], "<f8"), strict=True)) == {"a": 5, "s": 30, "d": 5}
    assert paint["notes"].decode().split("\n")[boxes.index("s")] == "2 ops · 30.00 us"
    assert "2 ops · 30.00 us" in bench.graph.picture()
    share = np.frombuffer(paint["share"], "<f4")  # of the box of b and c
    assert share == pytest.approx([10 / 30, 20 / 30], abs=1e-4)
    bench.model.select([1, 2])
    assert bench.graph.chosen_us == 30
    bench.timeline.color_by = "op type"
    assert (bench.timeline.legend[0]["label"], bench.timeline.legend[0]["time"]) == ("MatMul", 30)
    bench.tasks.hold()
    bench.model.change(moves=())
    assert bench.graph.chosen_us == 20  # both on the fast device
    change = difference(bench.tasks.pinned, bench.outcome)
    assert (change.names, change.duration_us.tolist()) == (("s/c",), [20])


def test_the_clicked_op_of_a_group_is_the_one_that_is_described():
    graph = bl.OpGraph.from_edges([4, 6], [(0, 1, 8)], colocation=[0, 0], colocation_names=("w",))
    bench = bl.Workbench(graph, bl.Cluster.uniform(2), placer="single", passes=())
    bench.graph.selected = [int(bench.graph.tree.leaf_of[1])]
    assert bench.model.selection == (0, 1) and bench.details.heading == "op1"


def test_a_copy_of_a_micro_batch_is_described_as_itself(diamond, pair):
    bench = bl.Workbench(diamond, pair, placer="single", passes=(), micro_batches=2)
    executed_graph, line = bench.outcome.executed_graph, bench.outcome.timeline
    second = int(bench.outcome.copies([1])[1])
    bench.timeline.focus, bench.timeline.selected = second, [second]
    start = float(line.start_us[line.op == second][0])
    assert bench.details.heading == executed_graph.names[second]
    assert dict(bench.details.facts)["runs"].startswith(format_us(start))
    assert dict(bench.details.facts)["makes"] == "f32[1,2]"
    assert op_details(bench.outcome, second).copies == 2
