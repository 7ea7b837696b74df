"""Micro-batches on the way to the user: comparison, sweep, command line and chart."""

import json

import pytest

import baechi_lab as bl
from baechi_lab.cli import main
from baechi_lab.viz import gantt


@pytest.fixture
def graph():
    return bl.generators.pipeline([10.0, 10.0], [20.0, 20.0], output_bytes=100)


@pytest.fixture
def cluster():
    return bl.Cluster.uniform(2, link=bl.Link(0.0, 0.0), comm="parallel")


def test_compare(graph, cluster):
    table = bl.compare(graph, cluster, ["contiguous"], micro_batches=4, schedule="1f1b", batch_size=32, progress=False)
    row = table.iloc[0]
    assert row["makespan_us"] == (4 + 1) * 30.0
    assert row["samples_per_second"] == pytest.approx(32 * 1e6 / 150)
    assert row["lower_bound_us"] <= row["makespan_us"]
    with pytest.raises(bl.InvalidInput, match="batch_size is 30; it must be a multiple of micro_batches, which is 4"):
        bl.compare(graph, cluster, ["single"], micro_batches=4, batch_size=30, progress=False)
    with pytest.raises(bl.UnknownNameError, match="unknown schedule"):
        bl.compare(graph, cluster, ["single"], micro_batches=4, schedule="1f2b", progress=False)


def test_sweep(graph):
    rows = bl.sweep(
        lambda size: graph, batch_size=[8, 16], devices=[1], placer=["single"], micro_batches=4, schedule="gpipe",
        progress=False, executor="here",
    )  # fmt: skip
    assert rows["batch_size"].tolist() == [8, 16]
    assert rows["makespan_us"].tolist() == [4 * 60.0] * 2
    assert rows["samples_per_second"].tolist() == pytest.approx([8e6 / 240, 16e6 / 240])
    with pytest.raises(bl.InvalidInput, match="batch_size is 10; it must be a multiple"):
        bl.sweep(lambda size: graph, batch_size=[10], micro_batches=4, progress=False, executor="here")


def test_command_line(graph, tmp_path, capsys):
    bl.save_graph(graph, tmp_path / "g.json")
    given = [
        str(tmp_path / "g.json"),
        "--devices",
        "2",
        "--link-us-per-byte",
        "0",
        "--link-latency",
        "0",
        "--micro-batches",
        "8",
        "--schedule",
        "1f1b",
    ]
    given += ["--batch-size", "64", "--json"]
    assert main(["compare", *given, "--placers", "single,contiguous"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[0]["makespan_us"] == 8 * 60.0 and rows[0]["samples_per_second"] == pytest.approx(64e6 / 480)
    assert rows[1]["makespan_us"] < rows[0]["makespan_us"]
    assert main(["compare", *given, "--placers", "single", "--schedule", "nonsense"]) != 0
    assert "unknown schedule 'nonsense'" in capsys.readouterr().err


def test_chart_colours_by_micro_batch(graph, cluster):
    placed = bl.Placement(device=[0, 1, 0, 1])
    timeline = bl.simulate(graph, cluster, placed, micro_batches=3, schedule="1f1b")
    bars = [bar for bar in gantt(timeline, color_by="micro-batch").data if bar.y[0] in cluster.names]
    assert [len(set(bar.marker.color)) for bar in bars] == [3, 3]
    assert [len(set(bar.marker.color)) for bar in gantt(timeline).data if bar.y[0] in cluster.names] == [1, 1]
    with pytest.raises(bl.InvalidInput, match="color_by is 'op'"):
        gantt(timeline, color_by="op")
    with pytest.raises(bl.InvalidInput, match="a timeline has none"):
        gantt(bl.simulate(graph, cluster, placed), color_by="micro-batch")


def test_stage(graph, cluster):
    pipe = bl.Place("contiguous") | bl.Simulate(micro_batches=4, schedule="1f1b")
    result = pipe.run(graph, cluster)
    assert result.timeline.makespan_us == (4 + 1) * 30.0
    assert pipe.replace(simulate=bl.Simulate(micro_batches=8)).run(graph, cluster).recomputed == ("simulate",)
    with pytest.raises(bl.UnknownNameError, match="unknown schedule"):
        bl.Simulate(schedule="nonsense")
