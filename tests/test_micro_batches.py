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


def test_compare_takes_micro_batches(graph, cluster):
    table = bl.compare(graph, cluster, ["contiguous"], micro_batches=4, schedule="1f1b", batch_size=32, progress=False)
    row = table.iloc[0]
    assert row["makespan_us"] == (4 + 1) * 30.0
    assert row["samples_per_second"] == pytest.approx(32 * 1e6 / 150)
    assert row["lower_bound_us"] <= row["makespan_us"]
    with pytest.raises(bl.InvalidInput, match="batch_size is 30; it must be a multiple of micro_batches, which is 4"):
        bl.compare(graph, cluster, ["single"], micro_batches=4, batch_size=30, progress=False)
    with pytest.raises(bl.UnknownNameError, match="unknown schedule"):
        bl.compare(graph, cluster, ["single"], micro_batches=4, schedule="1f2b", progress=False)


def test_comparison_command_and_sweep_ask_for_the_shortest_step(tmp_path, capsys):
    """Loads [21, 19, 5, 15] forward and twice that backward: 573 us for 8 micro-batches; the best single step is 180 us, of one
    device, and 8 of them take 1440."""
    layers = [8.0, 11.0, 2.0, 1.0, 18.0, 5.0, 4.0, 11.0]
    graph = bl.generators.pipeline(layers, [2 * us for us in layers], output_bytes=4)
    cluster = bl.Cluster.uniform(4, link=bl.Link(0.0, 0.0), comm="parallel")
    pipeline = {"micro_batches": 8, "schedule": "1f1b"}
    step_us = bl.place(graph, cluster, "contiguous", objective="step", **pipeline).info["step_us"]
    assert step_us <= 573
    assert bl.compare(graph, cluster, ["contiguous"], progress=False, **pipeline)["makespan_us"].tolist() == [step_us]
    latency = bl.compare(graph, cluster, ["contiguous"], progress=False, objective="latency", **pipeline)
    assert latency["makespan_us"][0] > step_us
    rows = bl.sweep(
        graph, devices=4, placer="contiguous", cluster=cluster, passes=(), progress=False, executor="here", **pipeline
    )
    assert rows["makespan_us"].tolist() == [step_us]
    bl.save_graph(graph, tmp_path / "g.json")
    bl.save_cluster(cluster, tmp_path / "c.json")
    arguments = [
        "compare",
        str(tmp_path / "g.json"),
        "--cluster",
        str(tmp_path / "c.json"),
        "--placers",
        "contiguous",
        "--json",
    ]
    assert main([*arguments, "--micro-batches", "8", "--schedule", "1f1b"]) == 0
    assert [row["makespan_us"] for row in json.loads(capsys.readouterr().out)] == [step_us]


def test_sweeps_take_micro_batches(graph):
    rows = bl.sweep(
        lambda size: graph,
        batch_size=[8, 16],
        devices=[1],
        placer=["single"],
        micro_batches=4,
        schedule="gpipe",
        progress=False,
        executor="here",
    )
    assert rows["batch_size"].tolist() == [8, 16]
    assert rows["makespan_us"].tolist() == [4 * 60.0] * 2
    assert rows["samples_per_second"].tolist() == pytest.approx([8e6 / 240, 16e6 / 240])
    with pytest.raises(bl.InvalidInput, match="batch_size is 10; it must be a multiple"):
        bl.sweep(lambda size: graph, batch_size=[10], micro_batches=4, progress=False, executor="here")


def test_the_command_takes_micro_batches(graph, tmp_path, capsys):
    bl.save_graph(graph, tmp_path / "g.json")
    arguments = [
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
    arguments += ["--batch-size", "64", "--json"]
    assert main(["compare", *arguments, "--placers", "single,contiguous"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[0]["makespan_us"] == 8 * 60.0 and rows[0]["samples_per_second"] == pytest.approx(64e6 / 480)
    assert rows[1]["makespan_us"] < rows[0]["makespan_us"]
    assert main(["compare", *arguments, "--placers", "single", "--schedule", "nonsense"]) != 0
    assert "unknown schedule 'nonsense'" in capsys.readouterr().err


def test_chart_colours_by_micro_batch(graph, cluster):
    placement = bl.Placement(device=[0, 1, 0, 1])
    timeline = bl.simulate(graph, cluster, placement, micro_batches=3, schedule="1f1b")
    bars = [bar for bar in gantt(timeline, color_by="micro-batch").data if bar.y[0] in cluster.names]
    assert [len(set(bar.marker.color)) for bar in bars] == [3, 3]
    # By device, its shades are the phases: forward and backward.
    assert [len(set(bar.marker.color)) for bar in gantt(timeline).data if bar.y[0] in cluster.names] == [2, 2]
    with pytest.raises(bl.InvalidInput, match="color_by is 'op'"):
        gantt(timeline, color_by="op")
    with pytest.raises(bl.InvalidInput, match="a timeline has none"):
        gantt(bl.simulate(graph, cluster, placement), color_by="micro-batch")


def test_the_simulate_stage_takes_micro_batches(graph, cluster):
    pipe = bl.Place("contiguous") | bl.Simulate(micro_batches=4, schedule="1f1b")
    result = pipe.run(graph, cluster)
    assert result.timeline.makespan_us == (4 + 1) * 30.0
    assert pipe.replace(simulate=bl.Simulate(micro_batches=8)).run(graph, cluster).recomputed == ("simulate",)
    with pytest.raises(bl.UnknownNameError, match="unknown schedule"):
        bl.Simulate(schedule="nonsense")


def pieces(size: int) -> bl.OpGraph:
    """Two layers of 1 us forward and 2 us backward per sample."""
    return bl.generators.pipeline([float(size)] * 2, [2.0 * size] * 2, output_bytes=8 * size)


def test_sweep_over_micro_batches_schedules_and_replicas():
    """8 samples on 2 devices; equal stages: M micro-batches of 3 * 8 / M us on each, M + 1 of which make a step."""
    rows = bl.sweep(
        pieces,
        batch_size=8,
        devices=2,
        placer="contiguous",
        micro_batches=[1, 2, 4, 3],
        schedule=["gpipe", "1f1b"],
        cluster=bl.Cluster.uniform(1, link=bl.Link(0.0, 0.0), comm="parallel"),
        progress=False,
        executor="here",
        passes=(),
        params={"contiguous": {"objective": "step"}},
    )
    assert rows["micro_batches"].tolist() == [1, 1, 2, 2, 4, 4, 3, 3]
    assert rows["schedule"].tolist() == ["gpipe", "1f1b"] * 4
    assert rows["makespan_us"].tolist()[:6] == [48.0, 48.0, 36.0, 36.0, 30.0, 30.0]
    assert rows["samples_per_second"].tolist()[:6] == pytest.approx([8e6 / us for us in (48, 48, 36, 36, 30, 30)])
    assert rows["bubble"].tolist()[:6] == pytest.approx([1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 5, 1 / 5])  # 1 / (M + 1)
    assert rows["batch_size"].tolist() == [8] * 8
    assert not rows["feasible"][6:].any()
    assert set(rows["error"][6:]) == {"batch_size is 8; it must be a multiple of micro_batches, which is 3"}


def test_sweep_over_replicas():
    """4 devices: two stages twice (2 micro-batches of 6 us each on a stage: 18 us) against two stages on two of them."""
    link = bl.Link(0.0, 0.0)
    rows = bl.sweep(
        pieces,
        batch_size=8,
        devices=[4, 3],
        placer="contiguous",
        micro_batches=4,
        schedule="1f1b",
        replicas=[1, 2, 4],
        cluster=bl.Cluster.uniform(1, link=link, comm="parallel"),
        progress=False,
        executor="here",
        passes=(),
        params={"contiguous": {"objective": "step"}},
    )
    assert rows["replicas"].tolist() == [1, 2, 4] * 2
    assert rows["makespan_us"].tolist()[:3] == [
        30.0,
        18.0,
        12.0,
    ]  # alone: 4 micro-batches of 12 us on 4 devices at once
    assert rows["bubble"][2] == 0.0
    assert (rows["gap"][:3] >= 0).all()
    assert rows["error"][4] == "replicas is 2; the 3 devices cannot be divided among so many"
    with pytest.raises(bl.InvalidInput, match="replicas is 0"):
        bl.sweep(pieces, batch_size=8, replicas=0, progress=False, executor="here")


def test_sweep_rebuilds_models_by_name_at_the_size_of_a_micro_batch(monkeypatch):
    built = []

    def graph_of(name, size, profiling):
        built.append(size)
        return pieces(size)

    monkeypatch.setattr("baechi_lab.sweeps.work.model_graph", graph_of)
    options = {"devices": 1, "placer": "single", "progress": False, "executor": "here", "micro_batches": [1, 2, 4]}
    rows = bl.sweep("mlp", batch_size=8, **options)
    assert built == [8, 4, 2]
    assert rows["makespan_us"].tolist() == [48.0] * 3  # one device: 6 us a sample, however they are divided
    built.clear()
    assert bl.sweep("mlp", **options)["batch_size"].tolist() == [built[0]] * 3  # the model's own
    assert built == [built[0], built[0] // 2, built[0] // 4]


def test_sweep_on_the_command_line(tmp_path, capsys):
    bl.save_graph(pieces(2), tmp_path / "g.json")
    arguments = [
        "sweep",
        str(tmp_path / "g.json"),
        "--devices",
        "2",
        "--placers",
        "contiguous",
        "--micro-batches",
        "2,4",
    ]
    assert main([*arguments, "--schedule", "gpipe,1f1b", "--replicas", "1,2", "--jobs", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(r["micro_batches"], r["replicas"], r["schedule"]) for r in rows][:3] == [
        (2, 1, "gpipe"),
        (2, 1, "1f1b"),
        (2, 2, "gpipe"),
    ]
    assert all(0 <= r["bubble"] < 1 for r in rows)
    assert main([*arguments, "--schedule", "gpipe", "--jobs", "1"]) == 0
    assert "bubble" in capsys.readouterr().out
