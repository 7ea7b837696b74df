"""Heat overlays: values by hand on the diamond, sums over boxes, and what the view is sent."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.widgets.heat import CRITICAL, HEATS, IDLE, MEMORY, MOVED, TIME, format_heat, op_heat


@pytest.fixture
def bench(diamond, pair):
    """a 0-5, b 5-15 and d 19-24 on gpu:0, c 7-17 on gpu:1; a's tensor travels 5-7, c's 17-19."""
    bench = bl.Workbench(diamond, pair, placer="single", passes=(), moves=(("s/c", "gpu:1"),))
    assert bench.outcome.timeline.makespan_us == 24
    bench.model.inline = True
    return bench


def test_heat_of_every_kind_by_hand(bench):
    heat = {by: op_heat(bench.outcome, by).tolist() for by in HEATS}
    assert heat[TIME] == [5, 10, 10, 5]
    # gpu:0 is fullest from 5: outputs of a and b; gpu:1 from 7: a's copy and c's output.
    assert heat[MEMORY] == [8 + 8, 8, 8, 0]
    # gpu:1 waits 0-7 for a; gpu:0 waits 15-19 for c; gpu:1 has nothing left after 17.
    assert heat[IDLE] == [7, 0, 4, 0]
    assert heat[MOVED] == [8, 0, 8, 0]
    # The critical path: a 0-5, its transfer 5-7, c 7-17, its transfer 17-19, d 19-24.
    assert heat[CRITICAL] == pytest.approx([7 / 24, 0, 12 / 24, 5 / 24])


def test_critical_shares_are_the_step_where_its_path_never_idles():
    graph = bl.generators.random_dag(80, seed=4)
    bench = bl.Workbench(graph, bl.Cluster.uniform(3, link=bl.Link(5.0, 1e-4)), placer="m-topo", passes=())
    shares = op_heat(bench.outcome, CRITICAL)
    assert 0.5 < shares.sum() <= 1 + 1e-9
    on_path = np.zeros(graph.n, dtype=bool)
    on_path[bench.outcome.critical] = True
    assert not shares[~on_path].any()
    gaps = op_heat(bench.outcome, IDLE).sum()
    assert 0 < gaps <= bench.outcome.timeline.idle_us.sum() + 1e-6


def test_bug_the_memory_of_a_box_was_every_allocation_of_a_step():
    """Ten outputs of 100 bytes one after the other, of which two are live at a time, beside weights of 50."""
    graph = bl.generators.chain(10, size_bytes=100, seed=0)
    graph = graph.replace(persistent_bytes=[50] + [0] * 9)
    bench = bl.Workbench(graph, bl.Cluster.uniform(1), placer="single", passes=())
    assert op_heat(bench.outcome, MEMORY).sum() == 50 + 2 * 100 == bench.outcome.timeline.peak_bytes[0]


def test_micro_batches_are_summed_and_weights_counted_once(diamond, pair):
    bench = bl.Workbench(diamond, pair, placer="single", passes=(), micro_batches=3)
    assert op_heat(bench.outcome, TIME).sum() == bench.outcome.timeline.busy_us.sum()
    assert op_heat(bench.outcome, MEMORY).sum() == bench.outcome.timeline.peak_bytes.sum()


def test_boxes_have_the_sums_of_their_ops_and_the_hottest_is_one(bench):
    view = bench.graph
    view.heat_by = TIME
    scene = view.scene
    sums = np.bincount(scene.owner, [5, 10, 10, 5])
    assert np.frombuffer(view.heat["share"], "<f4").tolist() == pytest.approx((sums / sums.max()).tolist())
    assert view.heat["texts"].decode().split("\n") == [format_heat(TIME, us) for us in sums.tolist()]
    assert view.heat["most"] == format_heat(TIME, float(sums.max()))
    view.command({"type": "open_all"})
    assert np.frombuffer(view.heat["share"], "<f4").tolist().count(1.0) == 2 and len(view.scene.nodes) == 4
    bench.model.change(moves=())
    view.heat_by = MOVED
    assert np.frombuffer(view.heat["share"], "<f4").tolist() == [0, 0, 0, 0]  # nothing moves on one device
    view.heat_by = ""
    assert view.heat == {}


def test_unknown_heat_is_refused(bench):
    with pytest.raises(bl.InvalidInput, match="heat is 'warmth'; it must be one of time, memory"):
        op_heat(bench.outcome, "warmth")
