"""The table of layouts and the lanes of the chosen one, against the rows of `bl.layouts`."""

import html
import json
import re

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.cli import main
from baechi_lab.widgets import LayoutsView
from baechi_lab.widgets.bars import build_bars
from baechi_lab.widgets.schedule import computing, critical_chain, exposed_us, idle
from baechi_lab.widgets.waiting import KINDS, statistics, waits

LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 8000,
}
CHOICES = [
    bl.Layout(dp=8, zero=1, micro_batch=2),
    bl.Layout(dp=8, zero=3, micro_batch=2),
    bl.Layout(pp=2, dp=4, zero=1),
    bl.Layout(tp=2, pp=4, sequence_parallel=True),
]


def table(memory_bytes="80GB", layouts=CHOICES):
    cluster = bl.Cluster.machines(8, 8, kind="h100", memory_bytes=memory_bytes)
    return bl.layouts(LLAMA, cluster, global_batch=16, sequence_length=512, layouts=layouts)


@pytest.fixture
def overlapping():
    """On one device: a 0-10, b 10-14 beside all_reduce 10-16, c 16-21, all_gather 21-28."""
    graph = bl.OpGraph.from_edges(
        [10, 6, 4, 5, 7],
        [(0, 1, 8), (0, 2, 8), (1, 3, 8), (2, 3, 8), (3, 4, 8)],
        names=["a", "reduce", "b", "c", "gather"],
        op_types=["MatMul", "all_reduce", "MatMul", "MatMul", "all_gather"],
    )
    return graph, bl.simulate(graph, bl.Cluster.uniform(1), bl.Placement(device=[0] * 5))


def test_collectives_have_a_lane_and_what_they_expose_is_idle_time(overlapping):
    graph, line = overlapping
    assert line.makespan_us == 28.0
    computes = computing(graph, line)
    # The device computes 10 + 4 + 5 of 28 us; 14-16 and 21-28 it waits for collectives.
    assert exposed_us(line, computes).tolist() == [9.0]
    (device,) = idle(line, computes)
    assert (device.idle_us, device.bubbles, device.bubble_us) == (9.0, 1, 2.0)
    bars = build_bars(graph, [line])
    assert [lane["kind"] for lane in bars.lanes] == ["ops", "collectives", "transfers"]
    assert bars.pointer.tolist() == [0, 3, 5, 5]
    assert [bars.names[k] for k in bars.label] == ["a", "b", "c", "reduce", "gather"]
    assert (bars.lanes[0]["busy_us"], bars.lanes[1]["collectives_us"], bars.lanes[1]["exposed_us"]) == (19.0, 13.0, 9.0)
    gaps = waits(graph, line)
    rows = zip(gaps.start_us, gaps.end_us, gaps.kind, gaps.source, strict=True)
    assert [(a, b, KINDS[k], graph.names[s]) for a, b, k, s in rows] == [
        (14.0, 16.0, "collective", "reduce"),
        (21.0, 28.0, "collective", "gather"),
    ]
    (numbers,) = statistics(graph, line, gaps, 0.0, 28.0)
    assert (numbers.busy_us, numbers.idle_us, numbers.ops, numbers.waited["collective"]) == (19.0, 9.0, 3, 9.0)
    assert critical_chain(graph, line).ops.tolist() == [0, 1, 3, 4]


def test_a_device_without_collectives_has_no_lane_for_them():
    graph = bl.OpGraph.from_edges([5, 6], [(0, 1, 8)])
    line = bl.simulate(graph, bl.Cluster.uniform(2), bl.Placement(device=[0, 1]))
    assert [lane["kind"] for lane in build_bars(graph, [line]).lanes] == ["ops", "transfers"] * 2


def test_the_table_has_the_rows_and_the_chosen_one_its_timeline():
    answer = table()
    view = LayoutsView(answer)
    assert view.row is answer.best and (view.row.dp, view.row.tp, view.row.ep) == (8, 1, 1)
    head = [column["name"].split(" (")[0] for column in view.table.head]
    assert head == ["layout", "step time", "bound", "memory", "fits", "exposed", "bubble", "why"]
    for shown, row in zip(view.table.rows, answer.rows, strict=True):
        assert shown["keys"][1:4] == [row.step_us, row.lower_bound_us, row.peak_bytes]
        assert shown["keys"][5:7] == [row.exposed_us, row.waiting_us / row.step_us]
    assert [row["marked"] for row in view.table.rows] == [True, False, False, False]
    for number, row in enumerate(answer.rows):
        view.table.on_action(number, "Show")  # as the button in the browser does
        assert view.row is row and view.timeline.timelines[0].makespan_us == pytest.approx(row.step_us)
        assert [one["marked"] for one in view.table.rows] == [k == number for k in range(len(answer))]
        kinds = [lane["kind"] for lane in view.timeline.lanes]
        lanes = 3 if row.layout.dp > 1 else 2
        assert len(kinds) == lanes * row.layout.pp and ("collectives" in kinds) == (lanes == 3)
        # What a device computes is no longer than the step, and idle time has a reason.
        drawn = view.timeline.timelines[0]
        reasons = view.timeline._waits[0].sums(row.layout.pp, 0.0, drawn.makespan_us)
        idle_us = [lane["idle_us"] for lane in view.timeline.lanes if lane["kind"] == "ops"]
        assert reasons.sum(axis=1) == pytest.approx(idle_us)
        if lanes == 3 and row.layout.pp == 1:  # one group of ranks waits for nothing but its collectives
            assert view.timeline.lanes[0]["exposed_us"] == pytest.approx(idle_us[0]) == pytest.approx(reasons[0, -1])
    assert view.children[-2:] == (view.timeline, view.form.widget) and len(view.children) == 5
    assert answer.accuracy in view.children[1].value


def test_layouts_that_do_not_fit_say_so_and_can_be_shown():
    view = LayoutsView(table(memory_bytes="100MB"))
    assert view.row is None and "No layout fits" in view.words.value
    assert all(row["cells"][4] == "no" and row["cells"][3].startswith("✗") for row in view.table.rows)
    view.show(1)
    assert view.row is view.answer.rows[1] and "bl-bad" in view.words.value and len(view.timeline.timelines) == 1


@pytest.mark.parametrize("format", ["accelerate", "deepspeed", "megatron", "torchtitan"])
def test_the_form_writes_what_the_command_writes(format, tmp_path, capsys, monkeypatch):
    """Files and what they cannot express are those of `baechi-lab layouts --write`, for machines of two devices."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    arguments = "layouts config.json --hardware h100 --devices 4 --per-machine 2 --global-batch 4 --sequence-length 512"
    assert main([*arguments.split(), "--write", format, "-o", "by_command"]) == 0
    not_written = capsys.readouterr().err
    cluster = bl.Cluster.machines(4, 2, kind="h100")
    overlaps = dict.fromkeys(("overlap_gather", "overlap_tensor"), format == "megatron")
    view = LayoutsView(bl.layouts("config.json", cluster, global_batch=4, sequence_length=512, **overlaps))
    view.form.format.value, view.form.folder.value = format, "by_view"
    view.form.write.click()
    names = sorted(path.name for path in (tmp_path / "by_command").iterdir())
    assert len(names) > 1 and names == sorted(path.name for path in (tmp_path / "by_view").iterdir())
    for name in names:
        assert (tmp_path / "by_view" / name).read_bytes() == (tmp_path / "by_command" / name).read_bytes()
    assert "bl-good" in view.form.state.value and "by_view" in view.form.state.value
    sentences = [line.removeprefix("not written: ") for line in not_written.splitlines() if "not written: " in line]
    assert re.findall("<li>(.*?)</li>", view.form.unsupported.value) == [html.escape(s) for s in sentences]


def test_the_form_says_why_there_are_no_files():
    view = LayoutsView(table(memory_bytes="100MB"))
    view.form.show.click()
    assert "Press Show in a row first" in view.form.state.value and view.form.copy.text == ""
    view = LayoutsView(table())
    view.form.format.value = "deepspeed"
    view.form.show.click()
    plan = bl.write_layout(view.row.layout, "deepspeed", model=LLAMA, global_batch=16, sequence_length=512)
    assert view.form.copy.text == plan.text and html.escape(plan.text) in view.form.text.value
    view.form.folder.value = " "
    view.form.write.click()
    assert "folder is empty" in view.form.state.value and "bl-bad" in view.form.state.value
    view.show(2)  # what is shown belongs to another layout
    assert view.form.text.value == view.form.state.value == view.form.copy.text == ""


@pytest.mark.slow
def test_a_row_that_was_only_bounded_is_simulated_when_it_is_shown():
    cluster = bl.Cluster.machines(8, 8, kind="h100")
    answer = bl.layouts(LLAMA, cluster, global_batch=64, sequence_length=512)
    number = next(k for k, row in enumerate(answer.rows) if row.step_us is None and row.fits)
    view = LayoutsView(answer)
    assert view.table.rows[number]["cells"][1] == "" and view.table.rows[number]["keys"][1] is None
    view.show(number)
    makespan_us = view.timeline.timelines[0].makespan_us
    assert makespan_us >= answer.rows[number].lower_bound_us * (1 - 1e-9)
    assert np.isfinite(makespan_us) and "simulated here" in view.words.value
