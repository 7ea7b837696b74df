"""Lanes of the timeline: devices without work as one, and headings of machines and replicas."""

import baechi_lab as bl
from baechi_lab.widgets.bars import build_bars, idle_folds, lane_groups
from baechi_lab.widgets.views import TimelineView


def test_neighbours_without_op_and_transfer_are_folded(diamond):
    cluster = bl.Cluster.uniform(6, link=bl.Link(2.0, 0.0))
    line = bl.simulate(diamond, cluster, bl.Placement(device=[1, 1, 4, 1]))
    assert idle_folds(line) == ["gpu:0 idle", None, "gpu:2 to gpu:3 idle", "", None, "gpu:5 idle"]
    lanes = build_bars(diamond, [line]).lanes
    assert [(lane["folded"], lane["fold_label"]) for lane in lanes[4:8]] == [
        (True, "gpu:2 to gpu:3 idle"),
        (True, ""),
        (True, ""),
        (True, ""),
    ]


def test_an_empty_graph_is_one_line():
    graph = bl.OpGraph.from_edges([])
    line = bl.simulate(graph, bl.Cluster.uniform(10), bl.Placement(device=[]))
    assert idle_folds(line) == ["gpu:0 to gpu:9 idle", *[""] * 9]


def test_machines_and_replicas_have_headings():
    cluster = bl.Cluster.machines(6, 2, link=bl.Link(1.0, 1e-4), network=bl.Link(5.0, 1e-2))
    assert lane_groups(cluster) == ("machine 1", "machine 1", "machine 2", "machine 2", "machine 3", "machine 3")
    assert lane_groups(cluster, replicas=2) == ("replica 1",) * 3 + ("replica 2",) * 3
    assert lane_groups(bl.Cluster.uniform(6)) == lane_groups(bl.Cluster.uniform(1)) == ()
    graph = bl.OpGraph.from_edges([1] * 6)
    line = bl.simulate(graph, cluster, bl.Placement(device=range(6)))
    view = TimelineView()
    view.show(graph, [line, line], titles=["now", "before"], groups=lane_groups(cluster))
    headings = [lane["heading"] for lane in view.lanes if lane["heading"]]
    assert headings == ["now, machine 1", "machine 2", "machine 3", "before, machine 1", "machine 2", "machine 3"]


def test_the_workbench_shows_replicas():
    graph = bl.generators.random_dag(20, seed=1)
    bench = bl.Workbench(graph, bl.Cluster.uniform(4), placer="m-etf", passes=(), micro_batches=2, replicas=2)
    assert [lane["heading"] for lane in bench.timeline.lanes if lane["heading"]] == ["replica 1", "replica 2"]
