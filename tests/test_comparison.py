"""One row per placer, whatever happens to a row."""

from __future__ import annotations

import math

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.comparison import COLUMNS, summary
from baechi_lab.placers.base import Placer


@pytest.fixture
def graph():
    """Two independent ops of 10 and a sink of 5; outputs of 100 bytes."""
    return bl.OpGraph.from_edges([10, 10, 5], [(0, 2, 100), (1, 2, 100)])


@pytest.fixture
def cluster():
    """Two devices of 1000 bytes; a transfer costs 2."""
    return bl.Cluster.uniform(2, memory_bytes=1000, link=bl.Link(2.0, 0.0), comm="parallel")


def test_rows_by_hand(graph, cluster):
    table = bl.compare(graph, cluster, ["single", "m-etf"], progress=False)
    assert tuple(table.columns) == COLUMNS
    assert table["placer"].tolist() == ["single", "m-etf"]
    # single: 10 + 10 + 5. m-etf: both ops at once, one tensor moves for 2, then the sink.
    assert table["makespan_us"].tolist() == [10 + 10 + 5, 10 + 2 + 5]
    assert table["lower_bound_us"].tolist() == [10 + 2 + 5] * 2  # in turn would take longer, side by side pays 2
    assert table["gap"].tolist() == pytest.approx([25 / 17 - 1, 17 / 17 - 1])
    assert table["moved_bytes"].tolist() == [0, 100]
    assert table["transfers"].tolist() == [0, 1]
    assert table["balance"].tolist() == pytest.approx([(25 + 0) / 2 / 25, (15 + 10) / 2 / 15])
    assert table["feasible"].tolist() == [True, True]
    assert table["error"].tolist() == ["", ""]
    assert table["measured_us"].isna().all()


def test_peaks_are_those_of_the_simulator(graph, cluster):
    row = bl.compare(graph, cluster, ["single"], progress=False).iloc[0]
    timeline = bl.simulate(graph, cluster, bl.place(graph, cluster, "single"))
    assert row["device_peak_bytes"] == timeline.peak_bytes.tolist()
    assert row["peak_bytes"] == max(timeline.peak_bytes)


def test_compare_asks_five_placers_by_default(graph, cluster):
    table = bl.compare(graph, cluster, progress=False)
    assert table["placer"].tolist() == ["auto", "single", "m-topo", "m-etf", "m-sct"]
    assert table["winner"][0] and not table["winner"][1:].any()


def test_a_placer_without_placement_keeps_its_row(graph, cluster):
    tight = cluster.with_memory(150)  # the sink alone needs 200 bytes of inputs
    table = bl.compare(graph, tight, ["m-etf", "single"], progress=False)
    assert len(table) == 2
    assert not table["feasible"].any()
    assert all(table["error"])
    assert (table["lower_bound_us"] == 10 + 2 + 5).all()


def test_an_op_that_may_run_nowhere_is_said_in_every_row(graph, cluster):
    stuck = graph.replace(allowed=[0, -1, -1], allowed_sets=(("tpu",),))
    table = bl.compare(stuck, cluster, ["m-etf", "m-topo"], progress=False)
    assert table["lower_bound_us"].isna().all()
    assert table["error"].str.contains("tpu").all()


def test_memory_oblivious_placer_over_the_limit_is_infeasible_with_the_reason(graph, cluster):
    table = bl.compare(graph, cluster.with_memory(150), ["etf"], progress=False)
    row = table.iloc[0]
    assert not row["feasible"]
    assert "exceeds" in row["error"]
    assert row["makespan_us"] > 0


def test_any_error_of_a_placer_is_a_row(graph, cluster):
    class Broken(Placer):
        """Divides by zero."""

        name = "broken"

        def assign(self, graph, cluster):
            return 1 / 0

    table = bl.compare(graph, cluster, [Broken(), "single"], progress=False)
    assert table["error"].tolist() == ["ZeroDivisionError: division by zero", ""]
    assert math.isnan(table["makespan_us"][0])


def test_passes_place_groups_and_simulate_the_original(graph, cluster):
    table = bl.compare(graph, cluster, ["m-etf"], passes=("fusion",), progress=False)
    coarse = bl.optimize(graph, cluster, passes=("fusion",))
    placement = bl.place(coarse, cluster, "m-etf")
    assert table["makespan_us"][0] == bl.simulate(graph, cluster, placement).makespan_us


def test_parameters_by_name_and_by_object(graph, cluster):
    table = bl.compare(graph, cluster, [("m-sct", {"threshold": 0.2}), "m-sct"], progress=False)
    assert table["placer"][0] != table["placer"][1]
    assert "threshold=0.2" in table["placer"][0]
    assert len(bl.compare(graph, cluster, ["m-sct"], params={"m-sct": {"threshold": 0.3}}, progress=False)) == 1


def test_seed_is_welcome_where_nobody_needs_it(graph, cluster):
    assert len(bl.compare(graph, cluster, ["single"], seed=3, time_limit=1.0, progress=False)) == 1


def test_the_empty_graph_takes_no_time_and_has_no_gap(cluster):
    table = bl.compare(bl.OpGraph.from_edges([]), cluster, ["single", "m-topo"], progress=False)
    assert table["makespan_us"].tolist() == [0.0, 0.0]
    assert table["gap"].isna().all()
    assert table["balance"].tolist() == [1.0, 1.0]


def test_no_placers_is_an_empty_table(graph, cluster):
    table = bl.compare(graph, cluster, [], progress=False)
    assert len(table) == 0
    assert tuple(table.columns) == COLUMNS


@pytest.mark.parametrize(
    ("placers", "options", "message"),
    [
        (["m-etff"], {}, "did you mean 'm-etf'"),
        ("m-etf", {}, "must be a list"),
        (3, {}, "placers is 3; it must be a list"),
        (["m-sct"], {"treshold": 1}, "did you mean 'threshold'"),
        (["m-sct"], {"params": {"m-topo": {}}}, "placer in params"),
        (["m-sct"], {"measure": True}, "give step="),
        (["m-sct"], {"measure": True, "step": object(), "steps": 0}, "steps is 0"),
        (["m-sct"], {"workers": ["127.0.0.1:1"]}, "give measure=True"),
    ],
)
def test_bad_arguments_are_refused(graph, cluster, placers, options, message):
    with pytest.raises(bl.InvalidInput, match=message):
        bl.compare(graph, cluster, placers, progress=False, **options)


def test_graph_and_cluster_stay_as_they_were(graph, cluster):
    before = graph.content_key, cluster.content_key
    bl.compare(graph, cluster, ["m-etf"], progress=False)
    fresh = bl.OpGraph.from_edges([10, 10, 5], [(0, 2, 100), (1, 2, 100)])
    assert before == (fresh.content_key, cluster.content_key)
    assert np.array_equal(graph.duration_us, fresh.duration_us)


# -- measured columns --------------------------------------------------------------------------------------


def test_a_cluster_of_another_type_is_refused(graph):
    with pytest.raises(bl.InvalidInput, match="cluster is a int; give a"):
        bl.compare(graph, 2, ["single"], progress=False)


def test_placements_run_on_the_given_cluster_or_workers(cluster):
    from baechi_lab.comparison_runs import execution_target

    assert execution_target(cluster, None, None, ()) == {"backend": None}
    assert execution_target(cluster, None, None, ["h:1"]) == {"cluster": cluster, "backend": None, "workers": ("h:1",)}
    assert execution_target(cluster, "running", None, ()) == {"cluster": "running", "backend": None}


def test_rows_run_in_turns_and_a_failure_ends_its_row(monkeypatch, graph):
    """5 steps in 3 rounds: 1, 2, 2. Row 1 fails in the second round; what it measured in the first stays."""
    from baechi_lab import comparison_runs
    from baechi_lab.graph import Run

    runs_in_order = []

    def run(self, placement, steps):
        runs_in_order.append((placement, steps))
        if placement == "b" and len(runs_in_order) > 2:
            return Run(None, np.zeros(0), (), status="died", message="it fell over")
        return Run(None, np.full(steps, 2e-3 if placement == "a" else 3e-3), (), status="ok", message="")

    monkeypatch.setattr(comparison_runs._Runner, "__call__", run)
    columns = comparison_runs.measure_rows(graph, None, {0: "a", 1: "b"}, 5, {}, progress=False)
    assert runs_in_order == [("a", 1), ("b", 1), ("b", 2), ("a", 2), ("a", 2)]
    assert columns[0] == {"measured_us": 2e3, "measured_low_us": 2e3, "measured_high_us": 2e3, "error": ""}
    assert columns[1]["measured_us"] == 3e3 and columns[1]["error"] == "it fell over"


@pytest.mark.tensorflow
@pytest.mark.subprocess
@pytest.mark.slow
def test_simulated_and_measured_on_a_local_cluster():
    tf = pytest.importorskip("tensorflow")
    weights = [tf.Variable(np.eye(32, dtype=np.float32)) for _ in range(2)]

    def product(x):
        for weight in weights:
            x = x @ weight
        return tf.reduce_sum(x)

    step = bl.trace(product, np.ones((8, 32), np.float32))
    graph = bl.profile(step, mode="estimated", hardware="cpu-core")
    with bl.LocalCluster(2, trusted_users=True) as local:
        table = bl.compare(graph, local, ["single", "m-topo"], step=step, measure=True, steps=2, progress=False)
        second_table = bl.compare(
            graph, local.cluster, ["single"], step=step, measure=True, steps=1, workers=local.addresses, progress=False
        )
    assert table["error"].tolist() == ["", ""] and second_table["error"].tolist() == [""]
    assert (table["makespan_us"] > 0).all() and (table["measured_us"] > 0).all()
    assert (table["measured_low_us"] <= table["measured_us"]).all()
    assert (table["measured_us"] <= table["measured_high_us"]).all()
    # The cluster is closed: every row says so, none is lost.
    after_close = bl.compare(graph, local, ["single"], step=step, measure=True, steps=1, progress=False)
    assert (
        after_close["measured_us"].isna().all()
        and after_close["error"].str.contains("has ended; make a new LocalCluster").all()
    )


def test_ctrl_c_ends_a_comparison(monkeypatch):
    """An anytime placer ends its search and answers; the comparison went on with the next."""
    from baechi_lab.placers.search.placer import Search

    def interrupted(self, graph, cluster):
        return bl.Placement(device=[0] * graph.n, interrupted=True)

    monkeypatch.setattr(Search, "assign", interrupted)
    graph = bl.OpGraph.from_edges([1, 2], [(0, 1, 4)])
    with pytest.raises(KeyboardInterrupt):
        bl.compare(graph, bl.Cluster.uniform(2), ["search", "single"], progress=False)


# -- against one device ------------------------------------------------------------------------------------


def test_rows_stand_beside_one_device(graph, cluster):
    table = bl.compare(graph, cluster, ["m-etf"], progress=False)
    assert table["one_device_us"].tolist() == [10 + 10 + 5] and table["speedup"].tolist() == [25 / 17]
    assert table.attrs["notes"] == ()  # 17 against 25: nothing to warn of


def test_one_device_is_named_even_where_it_does_not_fit(graph, cluster):
    table = bl.compare(graph, cluster.with_memory(300), ["single", "m-etf"], progress=False)
    assert table["one_device_us"].tolist() == [25, 25]


def test_splits_that_are_all_slower_than_one_device_are_said():
    # A chain of two, held apart: 10 + 100 (the transfer) + 10 against 10 + 10.
    graph = bl.OpGraph.from_edges([10, 10], [(0, 1, 8)])
    cluster = bl.Cluster.uniform(2, link=bl.Link(100.0, 0.0))
    (note,) = bl.compare(graph, cluster, [RoundRobin()], progress=False).attrs["notes"]
    assert "20.00 us" in note and "6 times slower than one device" in note and "--optimize" in note
    assert bl.compare(graph, bl.Cluster.uniform(1), ["m-etf"], progress=False).attrs["notes"] == ()


def test_passes_that_leave_nothing_to_divide_are_said(graph, cluster):
    grouped = {"passes": ("coplacement", "fusion"), "progress": False}
    note, single_ops = bl.compare(graph, cluster, ["m-etf"], **grouped).attrs["notes"]  # 25 where 17 is possible
    assert "1 group" in note and "100%" in note
    assert (
        "one by one (passes=(), --no-optimize), ops take 17.00 us with m-etf, 1.47 times faster than one" in single_ops
    )
    # Where a transfer costs 1000, one device is the best there is.
    slow = cluster.replace(link=bl.Link(1000.0, 0.0))
    (note,) = bl.compare(graph, slow, ["m-etf"], **grouped).attrs["notes"]
    assert note == "no placement here is faster than one device, which takes 25.00 us: by the lower bound, none can be"


def test_bug_a_gap_below_a_half_percent_was_called_no_gap():
    """A chain of two ops of 1000 us takes 2000 at least. A third op of 6 us could run beside it; on one device it is 2006."""
    graph = bl.OpGraph.from_edges([1000, 1000, 6], [(0, 1, 8)])
    cluster = bl.Cluster.uniform(2, link=bl.Link(3.0, 0.0))
    (note,) = bl.compare(graph, cluster, [OnOneDevice()], progress=False, passes=()).attrs["notes"]
    assert note == (
        "no placement here is faster than one device, which takes 2.01 ms: by the lower bound, none takes less than 2.00 ms"
    )


def test_what_is_named_in_the_defaults_is_optimized(graph, cluster):
    named = ["auto", "single", "m-topo", "m-etf", "m-sct"]
    steps = [
        bl.compare(graph, cluster, **options, progress=False)["makespan_us"].tolist()
        for options in ({}, {"placers": named, "passes": ("colocation", "coplacement", "fusion")})
    ]
    assert steps[0] == steps[1]


def test_groups_that_do_not_fit_give_way_to_single_ops_and_it_is_said():
    # Two ops of 60 bytes in one group do not fit a device of 100; apart they take 1 + 4 + 1.
    graph = bl.OpGraph.from_edges([1, 1], [(0, 1, 8)], persistent_bytes=[60, 60])
    cluster = bl.Cluster.uniform(2, memory_bytes=100, link=bl.Link(4.0, 0.0))
    grouped = {"passes": ("coplacement", "fusion"), "progress": False}
    table = bl.compare(graph, cluster, ["m-etf", "auto"], **grouped)
    assert table["makespan_us"].tolist() == [6, 6] and table["feasible"].all()
    words = "no placement of groups by coplacement, fusion was found that fits: single ops were placed"
    assert table.attrs["notes"][-2:] == (f"m-etf: {words}", f"auto: {words}")
    (row,) = bl.sweep(
        graph,
        devices=2,
        memory_bytes=100,
        placer="m-etf",
        passes=("coplacement", "fusion"),
        cluster=cluster,
        executor="here",
        progress=False,
    ).to_dict("records")
    assert (row["makespan_us"], row["groups"], row["ops"], row["finer_groups"]) == (6, 2, 2, words)


class OnOneDevice(Placer):
    """Every op on the first device."""

    name = "together"

    def assign(self, graph, cluster):
        return bl.Placement(device=np.zeros(graph.n, dtype=int))


class RoundRobin(Placer):
    """Every op on the next device."""

    name = "apart"

    def assign(self, graph, cluster):
        return bl.Placement(device=np.arange(graph.n) % cluster.n)


def test_a_device_that_may_exceed_its_memory_on_workers_is_named():
    # As in tests/simulator/test_shared_memory.py: gpu:0 holds 44 bytes as simulated, 74 where it sends late.
    edges = [(0, 4, 30), (1, 2, 4), (2, 3, 40)]
    graph = bl.OpGraph.from_edges([1, 5, 1, 1, 1], edges).replace(reuse=[0] * 5)
    placement = bl.Placement(device=[0, 0, 0, 0, 1])
    for memory, notes in ((100, 0), (60, 1)):
        cluster = bl.Cluster.uniform(2, memory_bytes=memory, link=bl.Link(1.0, 0.0))
        row = summary(bl.simulate(graph, cluster, placement))
        assert row["feasible"] and row["peak_margin"] == 74 / 44 - 1
        assert len(row["runtime_notes"]) == notes and all("gpu:0" in note for note in row["runtime_notes"])
