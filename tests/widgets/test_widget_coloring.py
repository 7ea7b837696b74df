"""What bars are coloured by, and two placements on one axis."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.viz.colors import CLASSES, OTHER_COLOR, device_colors
from baechi_lab.widgets.coloring import BATCH, MOST_CLASSES, choices, coloring
from baechi_lab.widgets.schedule import critical_chain
from baechi_lab.widgets.views import TimelineView


def test_no_class_has_a_device_s_colour():
    assert not {*CLASSES, OTHER_COLOR} & set(device_colors(32)) and len(set(CLASSES)) == len(CLASSES)


def test_types_and_scopes_by_their_time(diamond):
    colors = coloring(diamond, "op type")  # MatMul 20 us, Add and Const 5 each
    assert colors.labels[0] == "MatMul" and colors.time_us == (20, 5, 5) and colors.kind.tolist()[1:3] == [0, 0]
    # Six scopes of four ops each, the first the longest: 4 x 6 us.
    names = [f"layer{k // 4}/op{k}" for k in range(24)]
    graph = bl.OpGraph.from_edges([6 - k // 4 for k in range(24)], [(k, k + 1, 8) for k in range(23)], names=names)
    colors = coloring(graph, "scope")
    assert colors.labels == tuple(f"layer{k}" for k in range(6)) and colors.time_us[0] == 24
    assert colors.kind.tolist() == [k // 4 for k in range(24)]


def test_types_beyond_the_last_colour_are_one():
    many = MOST_CLASSES + 3
    graph = bl.OpGraph.from_edges(np.arange(many, 0, -1), op_types=tuple(f"T{k}" for k in range(many)))
    colors = coloring(graph, "op type")
    assert colors.labels == (*(f"T{k}" for k in range(MOST_CLASSES)), "3 others") and colors.colors[-1] == OTHER_COLOR
    assert colors.kind.tolist() == [*range(MOST_CLASSES), *[MOST_CLASSES] * 3] and colors.time_us[-1] == 3 + 2 + 1


def test_parts_of_a_training_step():
    graph = bl.OpGraph.from_edges(
        [0, 5, 9, 1],
        [(0, 1, 4), (1, 2, 4), (2, 3, 4)],
        forward_of=[-1, -1, 1, -1],
        op_types=["Variable", "MatMul", "MatMulGrad", "Update"],
    )
    colors = coloring(graph, "pass")
    assert [colors.labels[k] for k in colors.kind] == ["done once before", "forward", "backward", "update"]


def test_the_critical_path_is_the_chain(diamond, split):
    chain = critical_chain(diamond, split)
    colors = coloring(diamond, "critical path", chain.ops)
    assert np.flatnonzero(colors.kind == 1).tolist() == chain.ops.tolist() and colors.time_us == (10, 20)


def test_micro_batches_of_unrolled_graphs_only(diamond):
    assert BATCH not in choices(diamond)
    with pytest.raises(bl.InvalidInput, match="color_by is 'micro-batch'; this graph can be coloured by device, op"):
        coloring(diamond, BATCH)
    unrolled = bl.unroll(diamond, 3)
    colors = coloring(unrolled, BATCH)
    batch = np.asarray(unrolled.micro_batch)
    assert choices(unrolled)[-1] == BATCH and colors.labels == ("0", "1", "2", "done once")
    assert colors.kind[batch >= 0].tolist() == batch[batch >= 0].tolist()


def test_more_micro_batches_than_colours_begin_anew(diamond):
    colors = coloring(bl.unroll(diamond, MOST_CLASSES + 1), BATCH)
    assert colors.labels[:2] == (f"0, {MOST_CLASSES}", "1") and len(colors.labels) == MOST_CLASSES + 1


def test_the_view_takes_classes_and_goes_back_to_devices(diamond, split):
    view = TimelineView()
    view.show(diamond, [bl.simulate(diamond, bl.Cluster.uniform(9), bl.Placement(device=[7] * 4))])
    assert [one["label"] for one in view.legend] == ["gpu:7"]  # the others do nothing
    view.show(diamond, [split], critical_chain(diamond, split))
    assert view.kinds == b"" and [one["label"] for one in view.legend] == ["gpu:0", "gpu:1"]
    assert [one["time"] for one in view.legend] == [20, 10]
    view.color_by = "op type"
    assert list(view.kinds) == coloring(diamond, "op type").kind.tolist() and view.legend[0]["label"] == "MatMul"
    view.color_by = "critical path"
    assert list(view.kinds) == [1, 0, 1, 1]
    view.color_by = "device"
    assert view.kinds == b"" and view.batches == b""


def test_micro_batches_reach_the_view_and_what_cannot_be_shown_is_devices(diamond, split):
    unrolled = bl.unroll(diamond, 2)
    line = bl.simulate(unrolled, bl.Cluster.uniform(2), bl.Placement(device=np.arange(unrolled.n) % 2))
    view = TimelineView()
    view.show(unrolled, [line])
    view.color_by = BATCH
    assert np.frombuffer(view.batches, "<i4").tolist() == np.maximum(unrolled.micro_batch, -1).tolist()
    view.show(diamond, [split])
    assert view.color_by == "device" and view.batches == b""


def test_two_placements_on_one_axis_with_what_moved(diamond, pair, split):
    other_timeline = bl.simulate(diamond, pair, bl.Placement(device=[0, 1, 1, 0]))
    view = TimelineView()
    view.show(diamond, [split, other_timeline], titles=["now", "before"], against=1)
    bars = view.drawn_bars
    # Only b differs: gpu:0 now, gpu:1 (device 1, told as 2) before.
    moved_bars = {(int(bars.op[k]), int(bars.elsewhere[k])) for k in np.flatnonzero(bars.elsewhere)}
    assert moved_bars == {(1, 2), (1, 1)} and view.makespans == {
        "now": split.makespan_us,
        "before": other_timeline.makespan_us,
    }
    assert [lane["heading"] for lane in view.lanes if lane["heading"]] == ["now", "before"]
    view.show(diamond, [split])
    assert not view.drawn_bars.elsewhere.any()


@pytest.mark.slow
def test_the_workbench_offers_the_setting_before_the_held_one_and_rows_of_compare():
    graph = bl.generators.random_dag(60, seed=1)
    bench = bl.Workbench(graph, bl.Cluster.uniform(3, link=bl.Link(5.0, 1e-4)), placer="m-topo", passes=())
    bench.model.inline = True
    first = bench.outcome
    assert bench.timeline.choices == []
    bench.model.change(placer="m-etf")
    bench.timeline.against = "before"
    current = bench.outcome
    bars = bench.timeline.drawn_bars
    moved_ops = np.flatnonzero(first.placement.device != current.placement.device)
    assert bench.timeline.makespans == {
        "m-etf": current.timeline.makespan_us,
        "before: m-topo": first.timeline.makespan_us,
    }
    assert np.unique(bars.op[bars.elsewhere > 0]).tolist() == moved_ops.tolist()
    bench.tasks.compare(["m-etf", "m-sct"])
    assert [key for key, _ in bench.timeline.choices] == ["before", "row:m-sct"]
    bench.timeline.against = "row:m-sct"
    step = bench.tasks.table.set_index("placer").loc["m-sct", "makespan_us"]
    assert bench.timeline.makespans["m-sct"] == step
    bench.tasks.hold()
    assert [key for key, _ in bench.timeline.choices] == ["before", "row:m-sct"]  # what is current is not offered
    bench.model.change(cluster=bl.Cluster.uniform(2))  # other devices: the rows are of another setting
    assert [key for key, _ in bench.timeline.choices] == ["before", "held"]
    assert bench.timeline.against == "" and len(bench.timeline.makespans) == 1 and bench.model.problem is None


def test_a_pipeline_has_shades_of_its_devices_and_a_key_per_phase():
    names = ["forward0", "forward1", "backward1", "backward0"]
    graph = bl.OpGraph.from_edges(
        [4.0, 4.0, 8.0, 8.0],
        [(0, 1, 8), (1, 2, 8), (2, 3, 8)],
        names=names,
        forward_of=np.array([-1, -1, 1, 0], dtype=np.int32),
    )
    cluster = bl.Cluster.uniform(2, link=bl.Link(0.0, 0.0))
    placement = bl.Placement(device=[0, 1, 1, 0])
    timeline = bl.simulate(graph, cluster, placement, micro_batches=2, schedule="1f1b")
    view = TimelineView()
    view.show(bl.unroll(graph, 2), [timeline])
    phases = np.frombuffer(view.phases, dtype=np.uint8)
    assert {name.split("/")[0]: int(phases[k]) for k, name in enumerate(timeline.op_names)} == {
        "forward0": 1,
        "forward1": 1,
        "backward1": 2,
        "backward0": 2,
    }
    assert len(view.phase_colors) == 4 * 2 and view.phase_colors[::4] == view.colors
    keys = {key["label"]: key["time"] for key in view.legend if "hatched" in key}
    assert keys == {"forward": 2 * 8, "backward": 2 * 16}
    view.show(graph, [bl.simulate(graph, cluster, placement)])
    assert view.phases == b"" and view.phase_colors == []
