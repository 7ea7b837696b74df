"""Bars, idle time, critical chain and memory steps, against sums done by hand (times: see `split` in conftest)."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.viz.shades import shades
from baechi_lab.widgets.bars import bar_columns, build_bars
from baechi_lab.widgets.levels import level_columns, memory_rows, peaks, steps
from baechi_lab.widgets.pictures import graph_picture, memory_picture, page, timeline_picture
from baechi_lab.widgets.schedule import critical_chain, idle


def test_idle_time_and_bubbles(split):
    first, second = idle(split, np.ones(len(split.op), bool))
    # Device 0: a 0-5, b 5-15, d 19-24 of 24 us: idle 24 - 20 = 4, all of it one bubble between b and d.
    assert (first.idle_us, first.bubbles, first.bubble_us, first.longest_us) == (4.0, 1, 4.0, 4.0)
    assert first.share == pytest.approx(4 / 24)
    # Device 1: only c, 7-17: idle 14, no gap between two ops.
    assert (second.idle_us, second.bubbles) == (14.0, 0)


def test_critical_chain_with_its_transfers(diamond, split):
    chain = critical_chain(diamond, split)
    # d waits for c's tensor (19), c for a's (7): a -> transfer -> c -> transfer -> d.
    assert chain.ops.tolist() == [0, 2, 3]
    sent_by = [(diamond.names[diamond.tensor_producer[split.transfers.tensor[k]]]) for k in chain.transfers]
    assert sent_by == ["a", "s/c"]


def test_critical_chain_through_a_busy_device():
    graph = bl.OpGraph.from_edges([3, 4, 5])
    line = bl.simulate(graph, bl.Cluster.uniform(1), bl.Placement(device=[0, 0, 0]))
    assert critical_chain(graph, line).ops.tolist() == [0, 1, 2]


def test_critical_chain_ends_with_zero_durations_and_without_ops():
    graph = bl.OpGraph.from_edges([0, 0, 0], [(0, 1, 4), (1, 2, 4)])
    line = bl.simulate(graph, bl.Cluster.uniform(1), bl.Placement(device=[0, 0, 0]))
    assert len(critical_chain(graph, line).ops) >= 1
    empty = bl.OpGraph.from_edges([])
    line = bl.simulate(empty, bl.Cluster.uniform(1), bl.Placement(device=np.zeros(0, int)))
    assert len(critical_chain(empty, line).ops) == 0


@pytest.mark.parametrize("seed", range(5))
def test_chain_explains_the_makespan_on_random_graphs(seed):
    graph = bl.generators.random_dag(40, seed=seed)
    cluster = bl.Cluster.uniform(3, link=bl.Link(5.0, 0.001), comm="parallel")
    placement = bl.Placement(device=np.random.default_rng(seed).integers(0, 3, graph.n))
    line = bl.simulate(graph, cluster, placement)
    chain = critical_chain(graph, line)
    transfers = line.transfers
    length = sum(line.end_us[k] - line.start_us[k] for k in chain.ops)
    length += sum(transfers.end_us[k] - transfers.start_us[k] for k in chain.transfers)
    # In parallel mode nothing else waits: op times and transfers of the chain fill the whole step.
    assert length == pytest.approx(line.makespan_us)


def test_bars_have_lanes_for_ops_and_transfers(diamond, split):
    bars = build_bars(diamond, [split], critical_chain(diamond, split))
    kinds = [(lane["label"], lane["kind"]) for lane in bars.lanes]
    assert kinds == [("gpu:0", "ops"), ("gpu:0", "transfers"), ("gpu:1", "ops"), ("gpu:1", "transfers")]
    lane = lambda k: slice(int(bars.pointer[k]), int(bars.pointer[k + 1]))  # noqa: E731
    assert bars.start_us[lane(0)].tolist() == [0, 5, 19] and bars.op[lane(0)].tolist() == [0, 1, 3]
    # gpu:0 sends a at 5 (to gpu:1) and receives c from 17 to 19 (from gpu:1).
    assert list(zip(bars.start_us[lane(1)], bars.end_us[lane(1)], strict=True)) == [(5, 7), (17, 19)]
    assert bars.peer[lane(1)].tolist() == [1, -1 - 1]
    assert bars.critical[lane(0)].tolist() == [True, False, True]
    columns = bar_columns(bars)
    assert np.frombuffer(columns["longest"], "<f8").tolist() == [10, 2, 10, 2]


def test_measured_below_simulated_with_ops_matched_by_name(diamond, split):
    from dataclasses import replace

    measured = replace(split, origin="measured", op_names=("s/b", "s/c", "d", "extra"), op=np.array([3, 0, 1, 2]))
    bars = build_bars(diamond, [split, measured])
    assert [lane["heading"] for lane in bars.lanes if lane["heading"]] == ["Simulated", "Measured"]
    below = slice(int(bars.pointer[4]), int(bars.pointer[5]))
    # "extra" is no op of the graph; "s/b" and "d" are 1 and 3.
    assert bars.op[below].tolist() == [-1, 1, 3]
    assert bars.names[-1] == "extra"


def test_peak_names_the_op_that_took_the_last_byte(diamond, split):
    first, second = peaks(memory_rows([split]))
    assert (first.bytes, second.bytes) == tuple(split.peak_bytes.tolist())
    assert second.name in ("a", "s/c") and first.op >= 0


def test_thinned_steps_keep_every_peak():
    graph = bl.generators.random_dag(400, seed=3)
    line = bl.simulate(graph, bl.Cluster.uniform(2), bl.Placement(device=np.arange(400) % 2))
    for d in range(2):
        time, levels = steps(line, d, limit=20)
        assert len(time) <= 2 * 20
        assert levels.sum(axis=1).max() == line.peak_bytes[d]
        assert levels[-1].tolist() == line.memory.levels(d)[1][-1].tolist()


def test_level_columns_point_into_each_device(split):
    columns = level_columns(memory_rows([split]))
    pointer = np.frombuffer(columns["pointer"], "<i4")
    assert pointer[-1] == len(np.frombuffer(columns["time"], "<f8")) == len(split.memory)


def test_pictures_are_svg_with_device_names(diamond, split):
    from xml.etree import ElementTree

    from baechi_lab.viz.nested.scene import build_paint, build_scene
    from baechi_lab.viz.nested.tree import build_tree

    scene = build_scene(diamond, build_tree(diamond), frozenset())
    paint = build_paint(diamond, scene, split)
    pictures = [
        ("Graph", *graph_picture(scene, paint, split.device_names)),
        ("Timeline", *timeline_picture(build_bars(diamond, [split]), split.device_names)),
        ("Memory", *memory_picture([split])),
    ]
    drawn = page(pictures)
    root = ElementTree.fromstring(drawn)
    text = "".join(root.itertext())
    assert "Timeline" in text and text.count("gpu:1") == 3 and float(root.get("height")) > 400


def test_bug_saved_pictures_were_white_on_dark_pages(diamond):
    from xml.etree import ElementTree

    svg = "{http://www.w3.org/2000/svg}"
    pair, names = bl.Cluster.uniform(2), []
    for graph in (diamond, bl.OpGraph.from_edges([1, 2], [(0, 1, 8)])):
        root = ElementTree.fromstring(bl.Workbench(graph, pair, placer="m-topo", passes=()).picture())
        mask = root.find(f".//{svg}mask")
        names.append(mask.get("id"))
        assert f"url(#{names[-1]})" in {group.get("mask") for group in root.iter(f"{svg}g")}
        next(parent for parent in root.iter() if mask in list(parent)).remove(mask)
        assert {e.get("fill").lower() for e in root.iter(f"{svg}rect")} & {"#ffffff", "white"} == set()
        for color in {e.get("fill") for e in root.iter(f"{svg}text")}:
            light = _luminance(color)
            assert 1.05 / (light + 0.05) >= 4.5 and (light + 0.05) / (_luminance("#111111") + 0.05) >= 4, color
    assert names[0] != names[1]  # a page may show both pictures, and takes the first mask of an id


def _luminance(color):
    """Relative luminance (WCAG 2.1)."""
    channels = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(part * weight for part, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


def test_a_picture_of_64_devices_names_those_that_work(diamond):
    from xml.etree import ElementTree

    bench = bl.Workbench(diamond, bl.Cluster.uniform(64), placer="single", passes=())
    texts = [e.text for e in ElementTree.fromstring(bench.picture()).iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("gpu:0") == 3 and "gpu:1 to gpu:63 idle" in texts and "gpu:1" not in texts
    assert bench.memory.devices == ["gpu:0"]
    busy = bl.simulate(bl.OpGraph.from_edges([1] * 64), bl.Cluster.uniform(64), bl.Placement(device=range(64)))
    view = bl.widgets.GraphView()
    view.show_graph(bl.OpGraph.from_edges([1] * 64))
    view.show_timeline(busy)
    marks = ElementTree.fromstring(view.picture()).iter("{http://www.w3.org/2000/svg}text")
    places = {e.text: float(e.get("x")) for e in marks if e.text and e.text.startswith("gpu:")}
    assert len(places) == 64 and max(places.values()) < 920


def test_shades_are_distinct_and_outputs_have_the_device_colour():
    colors = shades("#0072B2")
    assert len(set(colors)) == 4 and colors[1] == "#0072B2"


def test_measured_memory_lies_beside_the_simulated_with_ops_matched_by_name(split):
    from dataclasses import replace

    from baechi_lab.widgets import MemoryView

    # As measured: the same log under other op numbers, twice as long, every byte doubled.
    log = replace(split.memory, op=3 - split.memory.op, delta=2 * split.memory.delta, time_us=2 * split.memory.time_us)
    names = ("/job:localhost/replica:0/task:0/device:GPU:0", "/job:localhost/replica:0/task:0/device:GPU:1")
    measured = replace(
        split,
        origin="measured",
        op_names=split.op_names[::-1],
        memory=log,
        device_names=names,
        peak_bytes=2 * split.peak_bytes,
    )
    view = MemoryView()
    view.show([split, measured], 48.0)
    assert view.devices == ["gpu:0", "gpu:0", "gpu:1", "gpu:1"]
    assert view.origins == ["simulated", "measured"] * 2 and view.colors[0] == view.colors[1] != view.colors[2]
    simulated, real = view.peaks[0], view.peaks[1]
    assert (real["bytes"], real["time_us"]) == (2 * simulated["bytes"], 2 * simulated["time_us"])
    assert (real["op"], real["name"]) == (simulated["op"], simulated["name"])  # numbers of the graph, whoever measured
    assert (simulated["measured_bytes"], simulated["measured_parts"]) == (real["bytes"], real["parts"])
    assert real["parts"] == tuple(2 * x for x in simulated["parts"]) and sum(real["parts"]) == real["bytes"]
    assert real["measured_bytes"] == 0  # the mark is on the simulated row
    assert view.picture().count(">measured<") == view.picture().count(">measured peak<") == 2


def test_bug_memory_of_devices_that_hold_nothing_took_most_of_the_room(diamond):
    """One device of four is used, and three empty rows were below it; each run of empty devices is told in words."""
    four = bl.Cluster.uniform(4)
    view = bl.widgets.MemoryView()
    for devices, rows, words in (
        ([0, 0, 0, 0], ["gpu:0"], "gpu:1 to gpu:3 hold nothing"),
        ([1, 1, 3, 3], ["gpu:1", "gpu:3"], "gpu:0, gpu:2 hold nothing"),
        ([0, 1, 3, 3], ["gpu:0", "gpu:1", "gpu:3"], "gpu:2 holds nothing"),
        ([0, 1, 2, 3], ["gpu:0", "gpu:1", "gpu:2", "gpu:3"], ""),
    ):
        view.show(bl.simulate(diamond, four, bl.Placement(device=devices)))
        assert (view.devices, view.empty_devices) == (rows, words)


def test_a_run_that_measured_no_memory_adds_no_rows(split):
    from dataclasses import replace

    silent = replace(split, origin="measured", memory=type(split.memory).none(), peak_bytes=0 * split.peak_bytes)
    assert (
        len(memory_rows([split, silent])) == 2 and len(memory_rows([silent])) == 1
    )  # of devices that hold nothing, the first
