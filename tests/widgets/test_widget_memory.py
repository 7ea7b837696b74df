"""The memory view's list of what is live: by hand, and always the level that is drawn."""

import json

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.widgets.levels import LiveBytes, live_bytes
from baechi_lab.widgets.views import MemoryView
from tests.helpers.messages import receive


@pytest.fixture
def line(pair):
    """a keeps 100 bytes; b needs 7 while it runs, 5-15; c runs 7-17 on the other device."""
    graph = bl.OpGraph.from_edges(
        [5, 10, 10, 5],
        [(0, 1, 8), (0, 2, 8), (1, 3, 8), (2, 3, 8)],
        names=["a", "s/b", "s/c", "d"],
        persistent_bytes=[100, 0, 0, 0],
        temp_bytes=[0, 7, 0, 0],
    )
    return bl.simulate(graph, pair, bl.Placement(device=[0, 0, 1, 0]))


def test_live_bytes_by_hand(line):
    assert live_bytes(line, 0, 10.0) == (
        LiveBytes(0, "a", "persistent", 100),
        LiveBytes(0, "a", "outputs", 8),
        LiveBytes(1, "s/b", "outputs", 8),
        LiveBytes(1, "s/b", "temporary", 7),
    )
    # a's tensor came to gpu:1 as a copy, beside the output that c writes.
    assert {(x.op, x.category, x.bytes) for x in live_bytes(line, 1, 10.0)} == {(0, "copies", 8), (2, "outputs", 8)}
    assert live_bytes(line, 1, 1.0) == ()


def test_they_sum_up_to_the_level_at_every_instant():
    graph = bl.generators.random_dag(60, seed=2)
    cluster = bl.Cluster.uniform(3, link=bl.Link(5.0, 1e-4))
    line = bl.simulate(graph, cluster, bl.place(graph, cluster, "m-etf"))
    for device in range(3):
        times, levels = line.memory.levels(device)
        for time in np.unique(times)[::7].tolist():
            last = int(np.searchsorted(times, time, side="right")) - 1
            assert sum(x.bytes for x in live_bytes(line, device, time)) == levels[last].sum()


def test_the_view_lists_what_is_live_and_forgets_it_with_its_timeline(line):
    view = MemoryView()
    view.show(line)
    receive(view, type="live", row=0, time_us=10.0)
    assert (view.live["row"], view.live["bytes"], view.live["count"]) == (0, 123, 4)
    assert view.live["rows"][0] == [0, "a", "persistent", 100] and json.dumps(view.live)
    view.show_live(9, 10.0)
    assert view.live == {}
    view.show_live(1, 10.0)
    view.show(line)
    assert view.live == {}


def test_a_limit_above_the_scale_leaves_room_over_the_peak(line):
    """Such a limit is a line at the upper edge.."""
    view = MemoryView()
    view.show(line)
    peak = int(line.peak_bytes.max())
    assert 3 * peak < 1000 and view.largest_bytes == pytest.approx(1.25 * peak)
    near = bl.simulate(*near_limit())
    view.show(near)
    assert view.largest_bytes >= 1.05 * near.memory_bytes.max()  # the limit is on the scale


def near_limit():
    graph = bl.OpGraph.from_edges([1.0], persistent_bytes=[80])
    return graph, bl.Cluster.uniform(1, memory_bytes=100), bl.Placement(device=[0])
