"""What the workbench says first: numbers against one device and the setting before, what is wrong, and what mends it."""

import html
import re
from dataclasses import replace

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.graph.units import format_us
from baechi_lab.memo import Memo
from baechi_lab.placers.auto import Attempt, winner_info
from baechi_lab.step_summary import change_in_words
from baechi_lab.widgets import advice
from baechi_lab.widgets.codegen import cluster_code, from_code, to_code
from baechi_lab.widgets.compute import source
from baechi_lab.widgets.explaining import rule_in_words
from baechi_lab.widgets.guard import Problem
from baechi_lab.widgets.model import WorkbenchModel, first_setting
from baechi_lab.widgets.panels.fit_panel import fit_subject
from baechi_lab.widgets.panels.header import facts_of, mood, why_other, why_won
from baechi_lab.widgets.setting import Setting
from baechi_lab.widgets.views.verdict_view import VerdictView
from tests.helpers.messages import receive, shown_text


@pytest.fixture
def forked():
    """Two independent ops of 10 us and a sink of 5, 100 bytes between them; the passes make one group of it."""
    return bl.OpGraph.from_edges([10, 10, 5], [(0, 2, 100), (1, 2, 100)])


@pytest.fixture
def two():
    """Two devices of 1000 bytes; a transfer costs 2."""
    return bl.Cluster.uniform(2, memory_bytes=1000, link=bl.Link(2.0, 0.0), comm="parallel")


GROUPING = ("coplacement", "fusion")


def computed(graph, cluster, **fields):
    model = WorkbenchModel(graph, Setting(cluster, **fields), inline=True)
    model.compute_now()
    assert all(len(one.cause) <= advice.MOST_CHARACTERS for one in model.advice)
    return model


def test_bug_numbers_were_removed_before_new_ones_came(diamond, pair):
    """All below the header moved up for a moment, and a click on Undo missed it."""
    bench = bl.Workbench(diamond, pair, placer="single", passes=())
    bench.model.inline = True
    shown_values = []
    bench.header.facts.observe(lambda change: shown_values.append(change["new"]), "value")
    bench.header.verdict.observe(lambda change: shown_values.append(change["new"]), "parts")
    bench.model.change(placer="m-topo")
    bench.model.undo()
    assert len(shown_values) > 2 and all(shown_values)


def test_steps_stand_beside_one_device_and_the_setting_before(diamond, pair):
    model = computed(diamond, pair, placer="single", passes=())
    facts = facts_of(model.outcome, model.before)
    assert ("", "as fast as one device") in facts and "against the setting before" not in dict(facts)
    model.move([2], 1)
    # 5 + 10 + 10 + 5 = 30 on one device; c on the other ends at 17, its output is there at 19, d ends at 24.
    facts = facts_of(model.outcome, model.before)
    assert ("", "1.25 times faster than one device") in facts  # 30 / 24
    assert ("against the setting before", "-20%") in facts  # 24 / 30 - 1
    assert mood(model.outcome) == "good"
    assert dict(facts)["placed by"].startswith("single + 1 op moved by hand in ")
    model.undo()
    assert ("against the setting before", "+25%") in facts_of(model.outcome, model.before)  # 30 / 24 - 1


def test_bug_a_quick_placer_took_0_seconds(diamond, pair):
    outcome = computed(diamond, pair, placer="single", passes=()).outcome
    for seconds, text in ((0.000012, "12.00 us"), (0.0034, "3.40 ms"), (1.156, "1.16 s")):
        timed = replace(outcome, base=outcome.base.replace(seconds=seconds))
        assert ("placed by", f"single in {text}") in facts_of(timed)


def test_errors_name_the_labels_of_the_screen(diamond, pair):
    bench = bl.Workbench(diamond, pair, placer="single", passes=())
    bench.setting.memory.value = "8GB, 4GB, 2GB"
    problem = "memory has 3 entries for 2 devices; the setting stays as it was"
    assert bench.model.problem.sentence == problem and problem in bench.header.problem.value
    bench.setting.memory.value = "-8"
    assert "memory_bytes" not in bench.model.problem.sentence
    bench.setting.replicas.value = "2"
    assert "micro_batches" not in bench.model.problem.sentence


def test_a_scheduler_and_a_schedule_take_each_other_s_place(diamond, pair):
    """A schedule leaves a scheduler nothing to choose, so that both together are an error of `bl.simulate`."""
    bench = bl.Workbench(diamond, pair, placer="contiguous", passes=())
    bench.model.inline = True
    bench.setting.schedule.value = "1f1b"
    bench.setting.scheduler.value = "pct"
    assert bench.setting.schedule.value == "" and bench.model.setting.scheduler == "pct"
    assert bench.model.problem is None
    # "as planned" is the order of the placement where it has one; "planned" beside it was an error where it has none.
    assert "planned" not in [value for _, value in bench.setting.scheduler.options]
    bench.setting.schedule.value = "gpipe"
    assert bench.setting.scheduler.value == "" and bench.model.setting.schedule == "gpipe"


@pytest.mark.slow
def test_bug_explore_swept_whole_batches_beside_a_step_in_micro_batches():
    graph = bl.generators.pipeline([4.0, 6.0], [8.0, 12.0])
    cluster = bl.Cluster.uniform(2, memory_bytes="1GB", link=bl.Link(1.0, 0.0))
    bench = bl.Workbench(graph, cluster, placer="contiguous", passes=(), micro_batches=4, schedule="1f1b")
    bench.model.inline = True
    bench.explore.devices.value, bench.explore.placers.value = "2", "contiguous"
    bench.explore.start.click()
    assert (
        bench.tasks.rows["makespan_us"].tolist() == [bench.outcome.timeline.makespan_us] * 2
    )  # of two sizes of memory
    bench.setting.micro.value = "2"
    assert bench.explore.micro.value == "2"
    bench.explore.micro.value = "2, 8"  # typed: the setting no longer changes it
    bench.setting.micro.value = "4"
    assert bench.explore.micro.value == "2, 8"


def test_bug_a_move_to_a_device_that_the_setting_no_longer_has(diamond, pair):
    """The result on the screen stays where the next setting has none: with its buttons for all of its devices."""
    bench = bl.Workbench(diamond, pair.resized(3), placer="single", passes=())
    bench.model.inline = True
    bench.model.change(cluster=pair.with_memory(1))
    assert bench.model.stale and bench.outcome.setting.cluster.n == 3
    with pytest.raises(bl.InvalidInput, match="gpu:2 is no device of the setting, which has 2"):
        bench.model.move([0], 2)


def test_what_auto_says_agrees_with_a_step_that_does_not_fit(diamond, pair):
    """The answers that `auto` compares are steps of groups; the step on the screen is one of ops."""
    outcome = computed(diamond, pair, placer="auto", passes=()).outcome
    assert "that fit with each group as one op" not in why_won(outcome)
    tight = bl.simulate(diamond, pair.with_memory(1), outcome.placement)
    assert "that fit with each group as one op" in why_won(replace(outcome, timeline=tight))


def test_ops_that_were_moved_by_hand_are_counted(pair):
    """Three ops of one scope are one entry of `moves`, and so is the op of them that goes back."""
    graph = bl.OpGraph.from_edges([1.0] * 4, names=["x", "s/a", "s/b", "s/c"])
    model = computed(graph, pair, placer="single", passes=())
    here = int(model.outcome.placement.device[0])
    model.move([1, 2, 3], 1 - here, "s")
    assert model.outcome.moved_by_hand == 3 and len(model.setting.moves) == 1
    model.move([2], here)
    assert model.outcome.moved_by_hand == 2 and len(model.setting.moves) == 2


def test_bug_steps_of_other_batches_were_held_against_each_other(diamond, pair):
    model = computed(diamond, pair, placer="single", passes=())
    model.change(placer="m-topo")
    current, before = model.outcome, model.before
    assert "against the setting before" in dict(facts_of(current, before))
    larger = replace(current, setting=current.setting.replace(batch_size=64))
    assert "against the setting before" not in dict(facts_of(larger, before))
    assert "against the setting before" not in dict(facts_of(current, larger))
    measured = replace(current, setting=current.setting.replace(profile="measured"))  # costs of another kind
    assert "against the setting before" not in dict(facts_of(measured, before))
    model.change(micro_batches=2)  # of a stored graph: twice its step
    assert "against the setting before" not in dict(facts_of(model.outcome, current))


def test_costs_are_told_as_the_graph_has_them_not_as_the_setting(diamond, pair):
    """The default "rtx2080" was shown for graphs that were profiled for something else; their expected error was not shown."""
    estimate = {
        "hardware": {"gpu": "a100"},
        "precision": "fp32",
        "expected_error": {"a100": {"linear": 0.05, "model": 0.14}},
    }
    bench = bl.Workbench(diamond.replace(info={"estimate": estimate}), pair, placer="single", passes=())
    assert dict(facts_of(bench.outcome))["costs"] == "estimated for a100 (mean error 14%)"
    assert (
        bench.setting.hardware.layout.display == "none"
        and "those in the given graph" in bench.setting.source_note.value
    )
    assert "costs" not in dict(facts_of(computed(diamond, pair, placer="single", passes=()).outcome))
    measured = diamond.replace(
        info={"measured": {"step_us": [30.0, 33.0], "others_share": 0.0, "cores": 2, "busy": False}}
    )
    facts = dict(facts_of(computed(measured, pair, placer="single", passes=()).outcome))
    assert facts["costs"] == "measured here, 2 repeats of 30.00 us to 33.00 us"


def test_that_it_fits_is_no_good_news_beside_a_slower_step():
    chain = bl.OpGraph.from_edges([10, 10], [(0, 1, 8)], names=["a", "b"])
    model = computed(chain, bl.Cluster.uniform(2, link=bl.Link(100.0, 0.0)), placer="single", passes=())
    assert mood(model.outcome) == "good"
    model.move([1], 1)
    assert mood(model.outcome) == "note" and ("", "6 times slower than one device") in facts_of(model.outcome)
    # Where one device cannot hold it, a slower step is what there is.
    heavy = chain.replace(persistent_bytes=[600, 600])
    model.subject = heavy
    model.change(
        cluster=model.setting.cluster.with_memory(1000), placer="m-topo", moves=(("b", "gpu:1"), ("a", "gpu:0"))
    )
    assert mood(model.outcome) == "good"
    assert any("on which it does not fit" in sentence for _, sentence in facts_of(model.outcome))


def test_bug_one_device_was_judged_in_another_order_than_the_schedule_s():
    """Outputs of 60 bytes per micro-batch: all forward first they are 4 x 60, under 1F1B one at a time."""
    graph = bl.generators.pipeline([4.0], [8.0], activation_bytes=60)
    cluster = bl.Cluster.uniform(1, memory_bytes=200)
    model = computed(graph, cluster, placer="single", passes=(), micro_batches=4, schedule="1f1b")
    alone = bl.simulate(graph, cluster, bl.place(graph, cluster, "single"), micro_batches=4, schedule="1f1b")
    assert alone.feasible and model.outcome.one_device.peak_bytes.tolist() == alone.peak_bytes.tolist()
    assert model.outcome.timeline.makespan_us == model.outcome.one_device_us == alone.makespan_us
    assert not any("does not fit" in text for _, text in facts_of(model.outcome))


def test_it_starts_with_auto_and_says_whose_answer_it_took(diamond, pair):
    model = WorkbenchModel(diamond, first_setting(diamond, pair, {"passes": ()}), inline=True)
    outcome = model.compute_now()
    assert outcome.setting.placer == "auto" and outcome.base.info["winner"].split()[0] in why_won(outcome)
    fits = [row for row in outcome.base.info["table"] if row["feasible"]]
    assert f"the fastest of {len(fits)} that fit" in why_won(outcome)
    assert first_setting(diamond, pair, {"placer": "m-etf"}).placer == "m-etf"
    # A step is estimated for the devices that it is placed on.
    assert [
        first_setting(diamond, bl.Cluster.uniform(2, kind=kind), {}).hardware for kind in ("gpu", "NVIDIA A100", "cpu")
    ] == ["rtx2080", "a100", "cpu-core"]
    assert first_setting(diamond, bl.Cluster.uniform(2, kind="cpu"), {"hardware": "h100"}).hardware == "h100"


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["step", "throughput"])
def test_bug_auto_with_micro_batches_left_old_numbers_in_the_header(objective):
    """Its table has `step_us` or `period_us` instead of `makespan_us`."""
    graph, cluster = bl.generators.pipeline([4.0, 4.0], [8.0, 8.0], output_bytes=4), bl.Cluster.uniform(2)
    bench = bl.Workbench(graph, cluster, placer="auto", passes=())
    bench.model.inline = True
    params = {"placers": ("single", "contiguous"), "objective": objective}
    bench.model.change(micro_batches=4, schedule="1f1b", params=params)
    outcome = bench.outcome
    assert outcome.setting.micro_batches == 4 and bench.model.problem is None
    assert f"step time {format_us(outcome.timeline.makespan_us)}" in shown_text(bench.header.facts)
    assert "the fastest of 4 that fit; next:" in why_won(outcome)  # two placers on two graphs


def test_a_header_that_fails_shows_no_older_numbers(diamond, pair, monkeypatch):
    bench = bl.Workbench(diamond, pair, placer="single", passes=())
    bench.model.inline = True

    def fail(*_):
        raise ValueError("no facts")

    monkeypatch.setattr("baechi_lab.widgets.panels.header.facts_of", fail)
    bench.model.change(placer="m-topo")
    assert bench.header.facts.value == "" and "no facts" in bench.header.problem.value


@pytest.mark.slow
def test_groups_that_leave_nothing_to_divide_are_mended_by_one_click(forked, two):
    bench = bl.Workbench(forked, two, placer="m-etf", passes=GROUPING)
    assert bench.outcome.timeline.makespan_us == 10 + 10 + 5
    assert bench.model.worker.wait()  # advice that takes longer than the first picture comes after it
    first = bench.header.advice_rows[0]
    assert "1 group," in first.sentence.value and "25.0 -&gt; 17.0 us" in first.sentence.value
    assert first.widget.layout.display == "flex"
    bench.model.inline = True
    first.apply.click()
    assert bench.outcome.timeline.makespan_us == 10 + 2 + 5
    assert "-32%" in bench.header.facts.value  # 17 / 25 - 1
    # One click undoes it again; then it is offered as before.
    assert "Applied:" in first.sentence.value and first.apply.description == "Undo this"
    first.apply.click()
    assert bench.model.setting.passes == GROUPING and first.apply.description == "Place single ops"
    assert bench.outcome.timeline.makespan_us == 25


@pytest.mark.slow
@pytest.mark.parametrize("placer", ["m-etf", "auto"])
def test_passes_that_make_it_not_fit_are_left_out_and_it_is_said(forked, two, placer):
    heavy = forked.replace(persistent_bytes=[600, 600, 0])  # one group of 1200 bytes, devices of 1000 and 100s to spare
    bench = bl.Workbench(heavy, two, placer=placer, passes=GROUPING)
    assert bench.outcome.timeline.feasible and bench.header.problem_row.layout.display == "none"
    assert len(set(bench.outcome.placement.device[:2].tolist())) == 2
    assert "was found that fits: single ops were placed" in shown_text(bench.header.facts)
    code = {}  # what it shows as code does the same
    exec(bench.model.code().replace("# graph: your graph", "graph = heavy  #"), {"heavy": heavy}, code)
    assert code["timeline"].makespan_us == bench.outcome.timeline.makespan_us


def test_no_remedy_is_offered_where_there_is_none(two):
    graph = bl.OpGraph.from_edges([10], persistent_bytes=[5000])
    model = WorkbenchModel(graph, Setting(two, placer="m-etf"), inline=True)
    with pytest.raises(bl.InfeasiblePlacement) as error:
        model.compute_now()
    assert not hasattr(error.value, "remedy")
    alone = computed(bl.OpGraph.from_edges([10]), two, placer="m-etf")  # one op: no passes make two of it
    assert alone.advice == ()


@pytest.mark.slow
def test_finer_groups_are_offered_where_they_are_faster_and_it_is_said_by_how_much(forked):
    # In two groups at least, 10 us of the 25 go beside the other 10, for 2 us of sending.
    quick, slow = (bl.Cluster.uniform(2, link=bl.Link(us, 0.0), comm="parallel") for us in (2.0, 50.0))
    model = computed(forked, quick, passes=GROUPING)
    assert len(model.outcome.base.device) and model.outcome.coarse.n == 1 and model.outcome.timeline.makespan_us == 25
    assert model.advice[0].sentence.endswith(": 25.0 -> 17.0 us")  # 10, 2 on the way, 5
    model.change(**model.advice[0].changes)
    assert model.outcome.timeline.makespan_us == 17
    # A rule that gains nothing by finer groups, however fast it is: others may.
    model = computed(forked, quick, passes=GROUPING, placer="single")
    assert "by the fastest of 4 placers" in model.advice[0].sentence
    assert model.advice[0].sentence.endswith(": 25.0 -> 17.0 us")
    # Over a slow link one device is best in any case: the click that was offered changed nothing.
    model = computed(forked, slow, passes=GROUPING)
    assert model.outcome.coarse.n == 1 and all("micro_batches" in one.changes for one in model.advice)


@pytest.mark.parametrize("placer", ["m-etf", "auto"])
def test_auto_on_single_ops_is_offered_where_groups_are_placed(placer, monkeypatch):
    """17 joins of 10, 10 and 5 us, each one group: of two devices one works on nine, 225 us. Loads of ops can be 210 and 215."""
    edges = [(3 * k + branch, 3 * k + 2, 8) for k in range(17) for branch in (0, 1)]
    graph = bl.OpGraph.from_edges([10.0, 10.0, 5.0] * 17, edges)
    cluster = bl.Cluster.uniform(2, link=bl.Link(1.0, 0.0), comm="parallel")
    model = computed(graph, cluster, passes=GROUPING, placer=placer)
    assert model.outcome.coarse.n == 17 and model.outcome.timeline.makespan_us == 225
    one = model.advice[0]
    assert one.cause == "single ops instead of groups, placed by auto"
    step_us = bl.simulate(graph, cluster, bl.place(graph, cluster, "auto", optimized=False)).makespan_us
    assert one.after_us == step_us and 215 <= step_us < 225
    model.change(**one.changes)
    assert model.outcome.timeline.makespan_us == step_us
    model.undo()
    # Of a large graph only the quick placers are asked.
    monkeypatch.setattr(advice, "MOST_OPS_OF_AUTO", graph.n - 1)
    causes = [one.cause for one in advice.all_advice(model.outcome, None, Memo())]
    assert "single ops instead of groups, placed by the fastest of 4 placers" in causes


@pytest.mark.parametrize("schedule", [None, "1f1b"])
def test_bug_other_placers_are_tried_for_micro_batches(schedule):
    """Advice said nothing where `contiguous` is slower than the rules that cut a graph, not a line."""
    steps = {"micro_batches": 2} if schedule is None else {"micro_batches": 2, "schedule": schedule}
    graph = bl.generators.with_backward(bl.generators.random_dag(8, seed=6 if schedule is None else 1))
    cluster = bl.Cluster.uniform(2, link=bl.Link(1.0, 1e-6))
    model = computed(graph, cluster, passes=(), placer="contiguous" if schedule is None else "single", **steps)
    one = model.advice[0]
    words = "single ops, placed by the fastest of 6 placers"
    assert one.cause == (words if schedule is None else f"without a schedule, {words}")
    assert any(advised.cause == words for advised in model.advice)
    rules_us = [
        bl.simulate(graph, cluster, bl.place(graph, cluster, name), **steps).makespan_us
        for name in (("single", "m-topo", "m-etf", "metis") if schedule is None else ("single",))
    ]
    assert one.after_us <= min(rules_us) and one.after_us < one.before_us
    model.change(**one.changes)
    assert model.outcome.timeline.makespan_us == one.after_us


@pytest.mark.slow
@pytest.mark.parametrize("placer", ["m-topo", "auto"])
def test_finer_groups_are_tried_also_where_placing_took_long(forked, placer, monkeypatch):
    monkeypatch.setattr(advice, "SECONDS", -1.0)
    quick, slow = (bl.Cluster.uniform(2, link=bl.Link(us, 0.0), comm="parallel") for us in (2.0, 50.0))
    model = computed(forked, quick, passes=GROUPING, placer=placer)
    assert any("by the fastest of 4 placers" in one.sentence for one in model.advice)
    assert model.advice[0].sentence.endswith(": 25.0 -> 17.0 us")
    model.change(**model.advice[0].changes)
    assert model.outcome.timeline.makespan_us == 17 and model.setting.placer == "auto"
    # Over a slow link nothing is gained, so nothing is offered.
    slow_advice = computed(forked, slow, passes=GROUPING, placer=placer).advice
    assert all("micro_batches" in one.changes for one in slow_advice)


def test_a_slow_rule_is_told_of_groups_and_of_auto():
    # A chain on alternating devices: every step of it pays 100 us.
    chain = bl.OpGraph.from_edges([10, 10, 10], [(0, 1, 8), (1, 2, 8)])
    cluster = bl.Cluster.uniform(2, link=bl.Link(100.0, 0.0))
    model = computed(chain, cluster, placer="random", passes=(), params={"seed": 0})
    assert len(np.unique(model.outcome.placement.device)) == 2
    assert {"passes": ("colocation", "coplacement", "fusion")} in [one.changes for one in model.advice]
    assert model.advice[0].before_us == model.outcome.timeline.makespan_us and model.advice[0].after_us == 30
    model = computed(chain, cluster, placer="auto", passes=())
    assert model.advice == () and model.outcome.timeline.makespan_us == 30


@pytest.mark.slow
def test_a_placement_without_stages_is_mended_by_one_click():
    graph = bl.generators.unrolled_rnn(2, 3)
    bench = bl.Workbench(graph, bl.Cluster.uniform(2), placer="m-etf", micro_batches=4)
    bench.model.inline = True
    bench.setting.schedule.value = "1f1b"
    assert "form no pipeline" in bench.header.problem.value
    assert bench.header.advice_rows[0].widget.layout.display == "flex"
    bench.header.advice_rows[0].apply.click()
    pipeline = {"micro_batches": 4, "schedule": "1f1b"}
    placement = bl.place(graph, bl.Cluster.uniform(2), "contiguous", objective="step", **pipeline)
    line = bl.simulate(graph, bl.Cluster.uniform(2), placement, **pipeline)
    assert bench.outcome.timeline.makespan_us == line.makespan_us and bench.header.problem_row.layout.display == "none"


def test_a_file_that_cannot_be_read_leaves_the_setting(diamond, pair, tmp_path):
    bench = bl.Workbench(diamond, pair, placer="single", passes=())
    bench.model.inline = True
    broken = tmp_path / "broken.json"
    broken.write_text('{"kind": "graph"')
    before = bench.model.setting
    bench.setting.file.value = str(broken)
    assert "broken.json" in bench.header.problem.value
    assert bench.model.setting == before and not bench.model.history.can_undo and not bench.model.stale
    good = tmp_path / "good.json"
    bl.save_graph(bl.OpGraph.from_edges([3]), good)
    bench.setting.file.value = str(good)
    assert bench.outcome.timeline.makespan_us == 3


def test_memory_beyond_every_number_gets_a_sentence(diamond, pair):
    bench = bl.Workbench(diamond, pair, placer="single", passes=())
    for text in ("1e99GB", "1e9999999GB"):
        bench.setting.memory.value = text
        assert "too large" in bench.header.problem.value and bench.setting.memory.value == "1 kB"


def test_a_handful_of_groups_for_many_devices_is_noticed(two):
    # 40 ops in pairs that must stay together: 20 groups are enough for 2 devices, not for 8.
    from baechi_lab.step_summary import group_work, too_coarse

    graph = bl.OpGraph.from_edges([1.0] * 40)
    names = tuple(f"g{k}" for k in range(20))
    paired = bl.OpGraph.from_edges([1.0] * 40, colocation=[k // 2 for k in range(40)], colocation_names=names)
    coarse = bl.optimize(paired, two, passes=("colocation",))
    assert len(group_work(coarse)) == 20
    assert not too_coarse(graph, coarse, two) and too_coarse(graph, coarse, bl.Cluster.uniform(8))
    assert not too_coarse(graph, graph, bl.Cluster.uniform(8))


@pytest.mark.slow
def test_bug_a_bubble_below_zero():
    """0.2 + 0.7 + 0.1 us in the order of time are less than their sum in the order of ops: the share was shown as -0.0%."""
    graph = bl.OpGraph.from_edges([0.1, 0.7, 0.2], [(2, 1, 8), (1, 0, 8)])
    outcome = bl.Workbench(graph, bl.Cluster.uniform(1), placer="single", passes=()).outcome
    assert float(outcome.timeline.busy_us.sum()) > outcome.timeline.makespan_us
    rows = bl.sweep(graph, devices=[1], placer=["single"], passes=(), executor="here", progress=False)
    assert outcome.bubble == rows["bubble"][0] == 0.0


@pytest.mark.slow
def test_micro_batches_schedule_and_replicas_are_the_library_s():
    graph = bl.generators.unrolled_rnn(2, 3)
    cluster = bl.Cluster.uniform(2)
    pipeline = {"micro_batches": 4, "schedule": "1f1b"}
    bench = bl.Workbench(graph, cluster, placer="contiguous", passes=(), **pipeline)
    placement = bl.place(graph, cluster, "contiguous", objective="step", **pipeline)
    line = bl.simulate(graph, cluster, placement, **pipeline)
    outcome = bench.outcome
    assert outcome.timeline.makespan_us == line.makespan_us
    assert outcome.bubble == pytest.approx(1 - float(line.busy_us.sum()) / (2 * line.makespan_us))
    assert f"bubble</abbr> <b>{outcome.bubble:.0%}</b>" in bench.header.facts.value
    # An op selected in the graph is selected in every micro-batch of the timeline, and back.
    op = int(np.flatnonzero(np.bincount(np.asarray(outcome.executed_graph.copy_of)) == 4)[0])
    bench.model.select([op])
    assert len(bench.timeline.selected) == 4 and bench.graph.selected_ops == [op]
    assert outcome.originals(bench.timeline.selected).tolist() == [op]
    bench.model.inline = True
    bench.setting.replicas.value = "2"
    assert bench.model.setting.replicas == 2 and bench.outcome.placement.replicas == ((0, 1),)
    rows = bl.sweep(
        graph,
        devices=2,
        placer="contiguous",
        memory_bytes=int(cluster.memory_bytes[0]),
        cluster=cluster,
        passes=(),
        replicas=2,
        progress=False,
        executor="here",
        params={"contiguous": {"objective": "step"}},
        **pipeline,
    )
    assert bench.outcome.timeline.makespan_us == rows["makespan_us"][0]
    bench.setting.replicas.value = "3"
    assert "cannot be divided" in bench.header.problem.value and bench.setting.replicas.value == "2"


@pytest.fixture
def training_chain():
    """A chain of 32 ops in layers of four, and its backward pass, with a peak of 32 MiB on one device."""
    chain = bl.generators.chain(32, size_bytes=(1 << 20, 1 << 20))
    return bl.generators.with_backward(chain.replace(names=[f"layer{op // 4}/{op}" for op in range(chain.n)]))


@pytest.mark.slow
@pytest.mark.parametrize("value", ["sqrt", "boundaries", "24MiB"])
def test_a_recomputed_step_is_the_library_s(training_chain, value):
    bench = bl.Workbench(training_chain, bl.Cluster.uniform(2), placer="m-etf", passes=())
    bench.model.inline = True
    bench.setting.recompute.value = value
    argument = {"budget": value} if "MiB" in value else {"keep": value}
    graph = bl.recompute(training_chain, **argument)
    line = bl.simulate(graph, bench.outcome.setting.cluster, bl.place(graph, bench.outcome.setting.cluster, "m-etf"))
    assert bench.outcome.graph.key == graph.key and bench.outcome.timeline.makespan_us == line.makespan_us
    plain = bl.place(training_chain, bl.Cluster.uniform(2), "m-etf")
    plain_us = bl.simulate(training_chain, bl.Cluster.uniform(2), plain).makespan_us
    change = change_in_words(line.makespan_us, plain_us)
    assert f"against the setting before</abbr> <b>{change}" in bench.header.facts.value and change.startswith("+")
    scope = {"graph": training_chain}
    exec(bench.model.code(), scope)
    assert scope["timeline"].makespan_us == line.makespan_us
    # Fit compares ways to save memory with the step in which nothing is computed again.
    subject = fit_subject(bench.model.setting, lambda at: source(at, training_chain, bench.model.memo))
    assert subject.graph is training_chain
    bench.setting.recompute.value = ""
    assert bench.outcome.graph is training_chain


def test_other_values_of_recompute_are_rejected(training_chain):
    bench = bl.Workbench(training_chain, bl.Cluster.uniform(2), placer="m-etf", passes=())
    bench.setting.recompute.value = "root"
    assert "recompute is 'root'; it must be 'boundaries' or 'sqrt'" in bench.model.problem.sentence
    assert bench.setting.recompute.value == ""


@pytest.mark.parametrize("placer", ["single", "m-etf", "auto"])
def test_where_nothing_fits_recomputation_is_offered_with_its_step(training_chain, placer):
    model = computed(training_chain, bl.Cluster.uniform(1), placer=placer, passes=())
    smaller_cluster = bl.Cluster.uniform(1, memory_bytes="24MiB")
    model.change(cluster=smaller_cluster)
    remedy = model.problem.remedy
    assert "24 MiB" not in remedy.cause and "with recomputation it fits" in remedy.cause
    model.apply(remedy)
    timeline = model.outcome.timeline
    assert model.problem is None and timeline.feasible and timeline.makespan_us == remedy.after_us
    keep = model.setting.recompute
    assert keep in remedy.button and model.outcome.graph.key == bl.recompute(training_chain, keep).key
    assert format_us(remedy.after_us) in remedy.cause
    # A workbench that is opened so has the remedy applied.
    opened = WorkbenchModel(training_chain, Setting(smaller_cluster, placer=placer, passes=()), inline=True)
    opened.on("fitted", (sentences := []).append)
    opened.open()
    assert opened.outcome.timeline.makespan_us == remedy.after_us
    assert sentences == [f"recompute (nothing to {keep}) changed so that it fits"]


@pytest.mark.slow
def test_the_button_recomputes_where_nothing_fits_and_the_next_click_undoes_it(training_chain):
    bench = bl.Workbench(training_chain, bl.Cluster.uniform(1), placer="single", passes=())
    bench.model.inline = True
    bench.model.change(cluster=bl.Cluster.uniform(1, memory_bytes="24MiB"))
    advice_row, setting = bench.header.advice_rows[0], bench.model.setting
    assert bench.model.stale and advice_row.apply.description == "Recompute (boundaries)"
    advice_row.apply.click()
    graph = bl.recompute(training_chain, "boundaries")
    line = bl.simulate(graph, setting.cluster, bl.place(graph, setting.cluster, "single"))
    assert line.feasible and bench.outcome.timeline.makespan_us == line.makespan_us
    assert bench.model.setting.recompute == "boundaries" and advice_row.apply.description == "Undo this"
    assert f"step time <b>{format_us(line.makespan_us)}" in re.sub("<(?!b>)[^>]*>", "", bench.header.facts.value)
    advice_row.apply.click()
    assert bench.model.setting == setting and bench.model.stale


@pytest.mark.slow
def test_recomputation_is_advised_beside_a_placement_that_does_not_fit(training_chain):
    """A placement that was made by hand exceeds the memory, and has a step to compare with."""
    cluster = bl.Cluster.uniform(2, memory_bytes="20MiB")
    model = computed(training_chain, cluster, placer="m-etf", passes=())
    model.move(range(training_chain.n), 0)
    assert not model.outcome.timeline.feasible
    (suggestion,) = (one for one in model.advice if "recomputation" in one.cause)
    assert suggestion.before_us == model.outcome.timeline.makespan_us
    model.apply(suggestion)
    assert model.outcome.timeline.feasible and model.outcome.timeline.makespan_us == suggestion.after_us


def sweep_rows(**columns):
    import pandas as pd

    rows = pd.DataFrame(columns)
    settings = {
        "batch_size": None,
        "micro_batches": None,
        "schedule": None,
        "replicas": 1,
        "devices": 2,
        "error": "",
        "groups": 5,
    }
    return rows.assign(**{k: v for k, v in settings.items() if k not in rows})


def test_more_memory_and_a_longer_step_are_explained():
    from baechi_lab.widgets.sweep_reasons import surprises

    rows = sweep_rows(
        placer=["contiguous"] * 3,
        memory_bytes=[2e9, 4e9, 8e9],
        makespan_us=[9.0, 5.0, 6.0],
        feasible=[True] * 3,
        groups=[6088, 6088, 1111],
    )
    (sentence,) = surprises(rows)
    assert sentence.startswith("contiguous on 2 devices: 6.00 us with 8 GB each, 5.00 us with 4 GB")
    assert "1,111 groups of forward ops instead of 6,088" in sentence
    assert "does not try all placements" in surprises(rows.assign(groups=7))[0]
    assert surprises(rows[:2]) == []
    # Five rules that all get slower at 4 and again at 8 GB: one sentence, where three of ten cases were told.
    many = sweep_rows(
        placer=[name for name in "abcde" for _ in range(3)],
        memory_bytes=[2e9, 4e9, 8e9] * 5,
        feasible=[True] * 15,
        makespan_us=[5.0, 6.0, 7.0] * 4 + [5.0, 6.0, 9.0],
    )
    (sentence,) = surprises(many)
    assert sentence.startswith("e on 2 devices: 9.00 us with 8 GB each, 5.00 us with 2 GB; d on 2 devices: 7.00 us")
    assert "; 2 more settings likewise: this placer does not" in sentence


def test_a_heat_map_has_the_best_of_every_cell():
    from baechi_lab.widgets.charts import heat_map, varied_axes

    rows = sweep_rows(
        placer=["a", "a", "b", "b", "b"],
        memory_bytes=[2e9, 4e9, 2e9, 4e9, 4e9],
        devices=[1, 1, 1, 1, 2],
        makespan_us=[float("nan"), 3000.0, 5000.0, 4000.0, 2000.0],
        feasible=[False, True, True, True, True],
        peak_bytes=[None, 2e9, 1e9, 1e9, 2e9],
    )
    assert varied_axes(rows) == ["devices", "memory", "placer"]
    spec, notes = heat_map(rows, "memory", "placer", "step time")
    assert (spec["title"], spec["labels"], spec["rows"]) == ("step time (ms)", ["2 GB", "4 GB"], ["a", "b"])
    cells = {(c["x"], c["y"]): (c["text"], c["id"], c["fits"], c["front"], round(c["good"], 3)) for c in spec["cells"]}
    assert cells == {
        (0, 0): ("", 0, False, False, 0.0),
        (1, 0): ("3", 1, True, False, 0.667),  # (5 - 3) / (5 - 2)
        (0, 1): ("5", 2, True, False, 0.0),
        (1, 1): ("2", 4, True, True, 1.0),  # on 4 GB the better of 1 and 2 devices
    }
    assert notes.startswith("Each cell is the best over all values of devices.") and "n × beside a point" in notes
    shares, _ = heat_map(rows.assign(bubble=[0.5, 0.25, 0.5, 0.125, 0.125]), "placer", "", "bubble: idle share")
    assert (shares["title"], [c["text"] for c in shares["cells"]]) == ("bubble: idle share (%)", ["25.0", "12.5"])
    # Equal numbers on the screen have one colour, although rows differ by 0.01%: of the largest, 10% fade a colour.
    even, _ = heat_map(rows.assign(makespan_us=[None, 5000.0, 5000.5, 5000.5, 5000.5]), "memory", "placer", "step time")
    assert [round(c["good"], 3) for c in even["cells"]] == [0.0, 1.0, 0.999, 0.999]
    one_row, _ = heat_map(rows, "devices", "", "step time")
    assert one_row["rows"] == [""] and [c["id"] for c in one_row["cells"]] == [1, 4]


def test_bug_a_cell_of_the_heat_map_hid_the_equal_row_on_the_front():
    from baechi_lab.widgets.charts import heat_map

    rows = sweep_rows(
        placer=["a", "a"],
        memory_bytes=[8e9, 4e9],
        makespan_us=[5.0, 5.000000000000001],
        feasible=[True, True],
        peak_bytes=[2e9, 1e9],
    )
    (cell,) = heat_map(rows, "placer", "", "step time")[0]["cells"]
    assert (cell["id"], cell["front"]) == (1, True)


def test_the_pareto_front_of_a_sweep():
    from baechi_lab.widgets.charts import pareto_chart, pareto_front

    rows = sweep_rows(
        placer=["a", "b", "a", "b", "a", "a"],
        memory_bytes=[4e9] * 6,
        peak_bytes=[3e9, 2e9, 2e9, 1e9, 1e9, None],
        makespan_us=[10.0, 20.0, 20.0, 30.0, 5.0, None],
        feasible=[True, True, True, True, False, False],
    )
    # The row of 5 us does not fit; two rows are alike; 30 us is the smallest in memory.
    assert pareto_front(rows) == [0, 1, 2, 3]
    assert pareto_front(rows.assign(makespan_us=[10.0, 20.0, 20.000000000000004, 30.0, 5.0, None])) == [0, 1, 2, 3]
    spec = pareto_chart(rows)
    assert (spec["x"], spec["y"]) == ("peak memory (GB)", "step time (us)")
    front, a, b = spec["series"]
    assert (front["x"], front["y"]) == ([3.0, 2.0, 2.0, 1.0], [10.0, 20.0, 20.0, 30.0])
    assert (a["ids"], a["hollow"], b["ids"]) == ([0, 2, 4], [False, False, True], [1, 3])
    # Of batches of 1 and 4 samples, the time of a sample counts: 10 against 30 / 4 us.
    two_batches = rows.assign(batch_size=[1, 1, 1, 4, 1, 1])
    assert pareto_front(two_batches) == [3] and pareto_chart(two_batches)["y"] == "time per sample (us)"


def test_bug_kilobytes_on_an_axis_of_gigabytes():
    from baechi_lab.widgets.charts import heat_map

    rows = sweep_rows(
        placer=["a", "a"],
        memory_bytes=[75_000, 150_000],
        makespan_us=[0.5, 0.4],
        peak_bytes=[60_000, 60_000],
        feasible=[True, True],
    )
    spec, _ = heat_map(rows, "memory", "", "peak memory")
    assert (spec["title"], spec["cells"][0]["text"]) == ("peak memory (kB)", "60")
    assert spec["cells"][0]["tip"].endswith(": 60.00 kB")


def test_a_step_of_no_time_and_one_op_has_no_bubble(pair):
    outcome = bl.Workbench(bl.OpGraph.from_edges([0.0]), pair, micro_batches=2, schedule="1f1b").outcome
    assert why_won(outcome).endswith("(the same)")  # all steps are 0 us
    facts = dict(facts_of(outcome))
    assert (facts["step time"], facts["graph"]) == ("0 us", "1 op") and "bubble" not in facts


def test_a_column_has_one_unit():
    from baechi_lab.viz.layout import BYTES, UNITS
    from baechi_lab.widgets.panels.explore_panel import sweep_columns
    from baechi_lab.widgets.views.table_view import PERCENT, quantity

    nan = float("nan")
    assert quantity("step", [2.5e6, 1e3, nan], UNITS).texts == ("2.5000", "0.0010", "")
    assert quantity("step", [2.5e6, 1e3, nan], UNITS).values == (2.5e6, 1e3, None)
    assert quantity("step", [2.5e6, 0.5], UNITS).texts == ("2.5000", "<0.0001")
    assert quantity("moved", [0, 12_000_000], BYTES).texts == ("0", "12")
    assert quantity("step", [333e3, 351.7e3], UNITS).texts == ("333.0", "351.7")
    assert quantity("step", [15.6e3, 2e6], UNITS).texts == ("0.016", "2.000")
    assert quantity("step", [799.02e3, 1.15e6], UNITS).texts == ("0.799", "1.150")  # as the header's 799.02 ms
    assert quantity("samples/s", [47_140.3, 1_326_912.7]).texts == ("47,140", "1,326,913")
    assert quantity("gap", [1.05, 0.012, 0.0], PERCENT).texts == ("105.0", "1.2", "0.0")
    assert quantity("none", [None, nan]).texts == ("", "")
    took = quantity("took", [1.156e6, 532.0, 4.0], ((1e3, "ms"),), most_decimals=1)
    assert took.name == "took (ms)" and took.texts == ("1,156.0", "0.5", "<0.1")
    rows = sweep_rows(
        placer=["a", "a"],
        memory_bytes=[4 << 30, 8 << 30],
        makespan_us=[50.0, 4000.0],
        peak_bytes=[1e9, 5e8],
        samples_per_second=[None, None],
        bubble=[0.25, 0.5],
        feasible=[True, False],
    )
    columns = {column.name: list(column.texts) for column in sweep_columns(rows.assign(error=["", "too small"]))}
    assert columns["step time (ms)"] == ["0.050", "4.000"] and columns["peak (GB)"] == ["1.000", "0.500"]
    assert columns["memory (GB)"] == ["4.29", "8.59"] and columns["bubble (%)"] == ["25", "50"]
    assert columns["why not"] == ["", "too small"] and "samples/s" not in columns


def test_more_devices_than_the_setting_takes_are_no_sweep(diamond, pair):
    bench = bl.Workbench(diamond, pair, placer="single", passes=())
    bench.explore.devices.value = "2, 999"
    bench.explore.start.click()
    assert "devices is '999'; it must be a whole number from 1 to 64" in html.unescape(bench.header.problem.value)


def test_bug_refusals_outlived_their_cause(diamond, pair):
    bench = bl.Workbench(diamond, pair, placer="single", passes=())
    bench.model.inline = True
    bench.setting.memory.value = "nonsense"
    assert bench.header.problem_row.layout.display == "flex"
    bench.model.change(placer="single")  # what is there already is what is wanted
    assert bench.header.problem_row.layout.display == "none"
    bench.model.fail(bench.model.problem or Problem("the result is not there yet", ""))
    bench.model.change(placer="m-topo")
    assert bench.model.problem is None


def test_bug_the_same_plan_on_another_equal_device_is_no_other_plan(diamond, pair):
    from baechi_lab.widgets.bars import build_bars
    from baechi_lab.widgets.comparing import difference

    first, second = (bl.simulate(diamond, pair, bl.Placement(device=[d] * 4)) for d in (0, 1))
    assert not build_bars(diamond, [first, second], against=1).elsewhere.any()
    slower = pair.replace(devices=(pair.devices[0], replace(pair.devices[1], speed=0.5)))
    third = bl.simulate(diamond, slower, bl.Placement(device=[1] * 4))
    assert build_bars(diamond, [first, third], against=1).elsewhere.any()
    far_timeline = bl.simulate(diamond, pair, bl.Placement(device=[0, 1, 0, 0]))
    assert (build_bars(diamond, [first, far_timeline], against=1).elsewhere > 0).sum() == 2  # b, in both
    model = computed(diamond, pair, placer="single", passes=())
    before = model.outcome
    model.move([0, 1, 2, 3], 1 - int(before.placement.device[0]))
    assert len(difference(before, model.outcome).ops) == 0


def test_the_picture_of_a_saved_notebook_follows_the_setting(diamond, pair):
    bench = bl.Workbench(diamond, pair, placer="single", passes=())
    bench.model.inline = True
    events = []
    bench._shown_outputs = (type("Handle", (), {"update": lambda self, output, raw: events.append(output)})(),) * 2
    bench.model.change(placer="m-topo")
    picture, words = events
    assert picture["text/plain"] == bench.in_words() and "placed by m-topo" in picture["image/svg+xml"].replace(
        "  ", " "
    )
    assert f">{html.escape(bench.in_words()[1:-1])}</p>" in words["text/html"]


def test_the_same_devices_in_another_order_are_not_called_the_same():
    from types import SimpleNamespace

    from baechi_lab.widgets.panels.compare_panel import same_in_words

    def outcome(scheduler, step):
        setting = SimpleNamespace(schedule=None, scheduler=scheduler, placer="single", micro_batches=None)
        return SimpleNamespace(
            setting=setting, timeline=SimpleNamespace(makespan_us=step), base=bl.Placement(device=[0])
        )

    assert same_in_words(outcome("fifo", 5.0), outcome("pct", 5.0)) == "the two placements are the same"
    text = same_in_words(outcome("fifo", 5.0), outcome("pct", 7.0))
    assert "every op is on the same device" in text and "(fifo against pct)" in text
    assert text.endswith("5.00 us and 7.00 us")


def test_explain_says_ties_jumps_and_holds_starts_against_the_timeline():
    from baechi_lab.widgets.explaining import explain

    # 9 bytes of parameters each: a device of 20 bytes holds two of the three.
    graph = bl.OpGraph.from_edges([5, 7, 7], [(0, 1, 0), (0, 2, 0)], persistent_bytes=[9, 9, 9])
    cluster = bl.Cluster.uniform(2, memory_bytes=20, link=bl.Link(100.0, 0.0))
    bench = bl.Workbench(graph, cluster, placer="m-etf", passes=())
    log = explain(bench.outcome)
    assert log.sentence(0) == "Decision 1 of 3: op0 goes to gpu:0, starting at 0 us: earliest start 0 us."
    assert log.tie(0).startswith("A tie: 1 other pair of op and device could start then too; the lower number")
    assert log.against_timeline(0, bench.outcome.timeline) == ""
    # b starts on the device of a at 5 us; c would start there at 12 us, but for the memory.
    assert [log.is_interesting(k) for k in range(3)] == [False, False, True]
    assert log.next_interesting(0) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("placer", "params", "rule"),
    [
        (
            "scotch",
            {"imbalance": 0.2},
            "few bytes between devices, and even work. The busiest computes 1 times the mean.",
        ),
        (
            "metis",
            {"imbalance": (0.1,)},
            "few bytes between devices, and even work. The busiest computes 1 times the mean.",
        ),
        (
            "contiguous",
            {"caps": (1.0,)},
            "cut where few bytes cross. The busiest computes 1 times the mean.",
        ),
        (
            "single",
            {},
            "The rule of single: everything on the one device that runs it fastest, of those with room for it.",
        ),
        ("auto", {"placers": ("single",)}, "The rule of single: everything on"),
    ],
)
def test_bug_explain_said_that_the_placer_s_own_rule_decided(placer, params, rule):
    """Says which rule, with the work of the busiest device."""
    from baechi_lab.widgets.explaining import explain

    pytest.importorskip("pymetis")
    graph = bl.OpGraph.from_edges([5, 5, 5, 5], [(0, 1, 8), (2, 3, 8)])
    bench = bl.Workbench(graph, bl.Cluster.uniform(2), placer=placer, params=params, passes=())
    log = explain(bench.outcome)
    assert rule in log.rule
    texts = [text for k in range(len(log)) for text in (log.tie(k), log.decisions[k].reason)]
    assert any(text.startswith("A tie: ") for text in texts) and not any("own rule" in text for text in texts)


def test_a_group_is_told_with_the_ops_of_the_whole_graph(forked, two):
    """ "group of 8 ops" beside "10 ops in 2 groups" did not say that the 8 are among the 10."""
    from baechi_lab.widgets.explaining import explain

    bench = bl.Workbench(forked, two, placer="m-etf", passes=GROUPING)
    assert dict(facts_of(bench.outcome))["graph"] == f"{forked.n} ops in {bench.outcome.coarse.n} group"
    assert f"the group of {forked.names[0]}, {forked.n} of the {forked.n} ops, goes to" in explain(
        bench.outcome
    ).sentence(0)


@pytest.mark.slow
def test_numbers_beside_each_other_have_the_unit_of_the_largest():
    """The bound was in ms beside a step of seconds."""
    graph = bl.OpGraph.from_edges([8e5, 8e5], [(0, 1, 8)])
    cluster = bl.Cluster.uniform(2, link=bl.Link(4e5, 0.0))
    bench = bl.Workbench(graph.replace(duration_us=np.array([8e5, 1e5])), cluster, placer="single", passes=())
    facts = dict(facts_of(bench.outcome))
    assert (facts["step time"], facts["lower bound"]) == ("900.00 ms", "900.00 ms")
    two_ops = bl.OpGraph.from_edges([9e5, 9e5])
    bench = bl.Workbench(two_ops, cluster, placer="single", passes=())
    facts = dict(facts_of(bench.outcome))
    assert (facts["step time"], facts["lower bound"]) == ("1.80 s", "0.90 s")
    assert bench.header.verdict.bound_text == "lower bound 0.90 s"


def test_bug_an_annealed_placement_was_said_to_follow_the_rule_of_its_start():
    """Also one on fewer devices, of which the winner's name says how many before it says that it was annealed."""
    name = "scotch for 2 devices, annealed"
    attempt = Attempt(name, "raw", "fifo", 1.0, 0, True, 0.0, rule="scotch", annealed=True)
    placement = bl.Placement(device=[0], placer="auto", info=winner_info(attempt))
    assert placement.info["winner"] == "scotch for 2 devices, annealed on the ops, scheduler fifo"
    rule = rule_in_words(placement, bl.OpGraph.from_edges([1]), bl.Cluster.uniform(1))
    assert rule.startswith("auto annealed the placement of scotch: it moved ops")


@pytest.mark.slow
def test_the_order_stands_beside_the_placer(diamond, pair):
    """One name of a placer had several steps: in the header, in Compare and in Explore devices work in different orders."""
    from baechi_lab.widgets.comparing import order_name

    bench = bl.Workbench(diamond, pair, placer="m-etf", passes=(), scheduler="pct")
    bench.model.inline = True
    assert dict(facts_of(bench.outcome))["order"] == "pct"
    bench.model.change(scheduler=None)
    assert dict(facts_of(bench.outcome))["order"] == "planned"
    bench.tasks.compare(["m-etf", "hash", "auto"])
    orders = dict(zip(bench.tasks.table["placer"], bench.tasks.table["order"], strict=True))
    scheduler = bl.place(diamond, pair, "auto").info["winner_scheduler"]
    assert orders == {"m-etf": "planned", "hash": "fifo", "auto": scheduler or "planned"}
    pills = {row["cells"][0]: [note["text"] for note in row["notes"]] for row in bench.compare.rows.rows}
    assert "planned" in pills["m-etf"] and "fifo" in pills["hash"]
    pipeline = bl.Workbench(diamond, pair, placer="single", passes=(), micro_batches=4, schedule="gpipe")
    assert dict(facts_of(pipeline.outcome))["order"] == "gpipe, 4 micro-batches"
    assert (
        order_name(pipeline.model.setting.replace(schedule=None, micro_batches=1), bl.Placement(device=[0]))
        == "fifo, 1 micro-batch"
    )


def test_explore_says_the_order_of_its_rows(diamond, pair):
    bench = bl.Workbench(diamond, pair, placer="m-etf", passes=(), scheduler="pct")
    bench.model.inline = True
    bench.explore.devices.value, bench.explore.placers.value = "2", "m-etf"
    bench.explore.start.click()
    head = [column["name"] for column in bench.explore.rows.head]
    assert [row["cells"][head.index("order")] for row in bench.explore.rows.rows] == [
        "pct",
        "pct",
    ]  # two sizes of memory
    assert "m-etf in the order pct: step time" in shown_text(bench.explore.verdict)
    # Under a schedule, rows that have none are in the order of their placement.
    bench.explore.micro.value, bench.explore.schedules.value = "2", "gpipe"
    bench.explore.start.click()
    head = [column["name"] for column in bench.explore.rows.head]
    assert {row["cells"][head.index("order")] for row in bench.explore.rows.rows} == {"gpipe"}


@pytest.mark.slow
def test_explore_says_what_auto_placed_and_the_order_of_every_row(forked, two):
    """`auto` was faster than the placer whose answer it took, and both rows said "own"."""
    bench = bl.Workbench(forked, two, placer="single", passes=GROUPING)
    bench.model.inline = True
    bench.explore.devices.value, bench.explore.memory.value = "2", "1GB"
    bench.explore.placers.value = "auto, m-etf, hash"
    bench.explore.start.click()
    head = [column["name"] for column in bench.explore.rows.head]
    rows = [[row["cells"][head.index(name)] for name in ("placed", "order")] for row in bench.explore.rows.rows]
    placed = bl.place(bl.optimize(forked, two.with_memory("1GB"), passes=GROUPING), two.with_memory("1GB"), "auto")
    winner, _, order = placed.info["winner"].partition(", scheduler ")
    assert (
        rows == [[winner.replace(" given", ""), order], ["1 group", "planned"], ["1 group", "fifo"]] and order == "fifo"
    )


@pytest.mark.slow
def test_bug_compare_advised_groups_of_which_none_fits():
    """Each placer repeated that smaller groups were placed, beside the advice to place groups."""
    chain = bl.generators.with_backward(bl.generators.chain(12, size_bytes=40_000_000, duration_us=900.0, seed=3))
    bench = bl.Workbench(chain, bl.Cluster.uniform(4, memory_bytes="200MB"), placer="m-topo")
    bench.model.inline = True
    assert bench.outcome.coarse is chain and bench.outcome.base.finer_groups
    bench.tasks.compare(["m-topo", "m-etf"])
    notes = bench.tasks.table.attrs["notes"]
    assert [text for text in notes if "(m-topo, m-etf)" in text] == [
        f"{bench.outcome.base.finer_groups} (m-topo, m-etf)"
    ]
    assert any("one device alone takes 20.70 ms" in text for text in notes)  # 23 ops of 900 us
    assert not any("place groups of them" in text for text in notes)


def test_bug_a_gap_of_rounding_errors_was_a_tenth_of_a_percent():
    """The header said 0.0%, the column <0.1: of 2e-16, the rounding of a sum, and of 0.04%."""
    import pandas as pd

    from baechi_lab.comparison import COLUMNS
    from baechi_lab.widgets.panels.compare_panel import compared_columns

    rows = [
        dict.fromkeys(COLUMNS, 1.0) | {"placer": name, "gap": gap}
        for name, gap in (("a", 2e-16), ("b", 4e-4), ("c", 0.0604))
    ]
    table = pd.DataFrame(rows).assign(speedup=1.0, feasible=True)
    gaps = next(column for column in compared_columns(table) if column.name == "gap (%)")
    assert list(gaps.texts) == ["0.0", "0.0", "6.0"]


@pytest.mark.slow
def test_explore_offers_the_number_of_devices_of_the_setting(diamond):
    bench = bl.Workbench(diamond, bl.Cluster.uniform(8), placer="single", passes=())
    bench.model.inline = True
    assert bench.explore.devices.value == "2, 4, 8"
    bench.model.change(cluster=bl.Cluster.uniform(2))
    assert bench.explore.devices.value == "1, 2, 4"
    bench.explore.devices.value = "3"  # what was typed stays
    bench.model.change(cluster=bl.Cluster.uniform(16))
    assert bench.explore.devices.value == "3"


@pytest.mark.slow
def test_the_step_of_ops_beside_the_best_that_a_search_of_groups_told():
    """The search moves groups as one op each; the step is that of their ops, and whoever kept the best reads why it differs."""
    graph, cluster = bl.generators.gnmt(length=4, layers=2), bl.Cluster.uniform(2)
    params = {"time_limit": None, "evaluations": 40}
    bench = bl.Workbench(graph, cluster, placer="search", params=params, passes=("colocation", "fusion"))
    coarse = bl.optimize(graph, cluster, passes=("colocation", "fusion"))
    events = []
    placement = bl.place(coarse, cluster, "search", callback=events.append, **params)
    step = bl.simulate(graph, cluster, placement).makespan_us
    assert bench.outcome.as_groups_us == bl.simulate(coarse, cluster, placement).makespan_us == events[-1].makespan_us
    assert abs(step / events[-1].makespan_us - 1) > 0.005  # or there would be nothing to say
    text = f"search found {format_us(events[-1].makespan_us)} with each group as one op"
    assert text in shown_text(bench.header.facts) and format_us(step) in why_other(bench.outcome)
    # Ops placed one by one, and placers that tell no best, have nothing to explain.
    alone = bl.Workbench(graph, cluster, placer="search", params=params, passes=())
    ruled = bl.Workbench(graph, cluster, placer="m-etf", passes=("colocation", "fusion"))
    assert why_other(alone.outcome) == why_other(ruled.outcome) == ""


@pytest.mark.slow
def test_progress_is_held_against_the_limit():
    from baechi_lab.placers.search.placer import Progress
    from baechi_lab.stages import Place
    from baechi_lab.widgets.compute import Placing

    events = []
    placing = Placing(Place("search", time_limit=20), lambda *progress: events.append(progress))
    placing.take_progress(Progress(5.0, 12345, 2000.0, "m-etf"))
    assert events == [("search: 5.0 of 20 s, 2.00 ms from m-etf, 12,345 simulations", 0.25, (5.0, 2000.0))]
    # The planner builds networks before it has any answer.
    events.clear()
    learning = Placing(
        Place("hierarchical", time_limit=20, updates=1, groups=2), lambda *progress: events.append(progress)
    )
    learning(bl.OpGraph.from_edges([1, 2], [(0, 1, 8)]), bl.Cluster.uniform(2))
    assert events[0] == ("hierarchical: 0 of 20 s, no answer yet", 0.0) and len(events) == 2


# -- the verdict, advice, and settings that fit -------------------------------------------------------------------------


def _fork():
    """op0 of 5 us sends two tensors: one to op1 of 1 us, one to op2 of 9 us."""
    import networkx

    graph = networkx.DiGraph()
    for k, us in enumerate((5.0, 1.0, 9.0)):
        graph.add_node(k, name=f"op{k}", duration_us=us)
    graph.add_edge(0, 1, size_bytes=8, tensor="a")
    graph.add_edge(0, 2, size_bytes=8, tensor="b")
    return graph


@pytest.mark.slow
def test_many_devices_with_little_of_the_step_are_one_part_of_the_verdict():
    """A chain over 41 devices, 60 us on the first and 1 us on each other; a link costs nothing."""
    cluster = bl.Cluster.uniform(41, link=bl.Link(0.0, 0.0))
    graph = bl.OpGraph.from_edges([60.0] + [1.0] * 40, [(k, k + 1, 4) for k in range(40)])
    moves = tuple(zip(graph.names, cluster.names, strict=True))
    view = VerdictView()
    view.show(computed(graph, cluster, placer="single", passes=(), moves=moves).outcome)
    assert [(part["label"], part["kind"]) for part in view.parts] == [("gpu:0", "compute"), ("40 devices", "compute")]
    assert [part["share"] for part in view.parts] == pytest.approx([0.6, 0.4])
    assert view.parts[1]["text"] == "40 devices: 40.00 us, 40% of the step; each of them has less than 3%"


def test_the_verdict_divides_the_step_by_what_its_critical_path_does(diamond, pair):
    """c on the second device: a 0-5, 2 on the way, c 7-17, 2 on the way, d 19-24, and the bound where it lies."""
    bench = bl.Workbench(diamond, pair, placer="single", passes=(), moves=(("s/c", "gpu:1"),))
    share_us = {piece["label"]: piece["share"] * 24 for piece in bench.header.verdict.parts}
    assert share_us == pytest.approx({"gpu:0": 5 + 5, "gpu:1": 10, "transfers": 2 + 2})
    assert bench.header.verdict.bound == pytest.approx(bench.outcome.lower_bound_us / 24)
    assert "step time 24.00 us, fits, placed by single" in bench.header.verdict.announcement
    receive(bench.header.verdict, type="zoom", part=1)  # c, from 7 to 17, and 15 % of that around it
    assert bench.timeline.window == pytest.approx([5.5, 18.5]) and bench.tabs.chosen == "Timeline"
    # A queue: two tensors leave one after the other, the second waits for the first.
    fork = bl.OpGraph.from_networkx(_fork())
    serial = bl.Cluster.uniform(3, link=bl.Link(2.0, 0.0), comm="sequential")
    bench = bl.Workbench(fork, serial, placer="single", passes=(), moves=(("op1", "gpu:1"), ("op2", "gpu:2")))
    share_us = {
        piece["label"]: piece["share"] * bench.outcome.timeline.makespan_us for piece in bench.header.verdict.parts
    }
    assert share_us == pytest.approx({"gpu:0": 5, "queueing": 2, "transfers": 2, "gpu:2": 9})


@pytest.mark.parametrize("seed", range(3))
def test_the_verdict_s_parts_add_up_and_hold_every_transfer_of_the_path(seed):
    from baechi_lab.step_summary import step_parts
    from baechi_lab.widgets.schedule import critical_chain

    graph = bl.generators.random_dag(60, seed=seed)
    cluster = bl.Cluster.uniform(3, link=bl.Link(20.0, 0.001), comm=("parallel", "sequential", "duplex")[seed])
    timeline = bl.simulate(graph, cluster, bl.place(graph, cluster, "hash"))
    chain, transfers = critical_chain(graph, timeline), timeline.transfers
    sums = {}
    for piece in step_parts(timeline, chain.ops, chain.transfers):
        sums[piece.kind] = sums.get(piece.kind, 0.0) + piece.us
        assert 0 <= piece.window_us[0] < piece.window_us[1] <= timeline.makespan_us * (1 + 1e-12)
    assert sum(sums.values()) == pytest.approx(timeline.makespan_us)
    lasted = transfers.end_us - np.maximum(transfers.start_us, transfers.receive_us)
    assert sums.get("transfer", 0.0) == pytest.approx(lasted[chain.transfers].sum())
    assert sums["compute"] == pytest.approx((timeline.end_us - timeline.start_us)[chain.ops].sum())


def test_another_order_is_advised_with_the_step_that_comes():
    """x before y by number: 10 + 10 + 1 + 10; y first, whose reader waits: 10 + 1 + 10."""
    graph = bl.OpGraph.from_edges([10.0, 10.0, 10.0], [(1, 2, 8)], names=["x", "y", "z"])
    cluster = bl.Cluster.uniform(2, link=bl.Link(1.0, 0.0))
    model = computed(graph, cluster, placer="single", passes=(), scheduler="fifo", moves=(("z", "gpu:1"),))
    on = int(model.outcome.placement.device[0])
    model.change(moves=(("z", cluster.names[1 - on]),))
    assert model.outcome.timeline.makespan_us == 31
    (first, *_) = model.advice
    assert first.sentence == "same placement, order pct: 31.0 -> 21.0 us"
    model.change(**first.changes)
    assert model.outcome.timeline.makespan_us == first.after_us == 21


def test_groups_of_forward_ops_are_advised_where_they_are_faster():
    """Forward ops f, g and backward ops df, dg of 10 us. With this seed `random` places three of them on one device: 30 us.
    Of the forward ops it places one on each; if backward ops go where their forward ops are, all takes 20 us.
    """
    names, link = ["f", "g", "df", "dg"], bl.Link(1.0, 0.0)
    pairs = {"forward_of": [-1, -1, 0, 1], "persistent_bytes": [100] * 4}
    graph = bl.OpGraph.from_edges([10.0] * 4, [(0, 2, 1), (1, 3, 1)], names=names, **pairs)
    cluster, rule = bl.Cluster.uniform(2, link=link), {"placer": "random", "params": {"seed": 6}}
    model = computed(graph, cluster, passes=("colocation",), forward_only=False, **rule)
    assert model.outcome.timeline.makespan_us == 30
    first = model.advice[0]
    assert first.sentence.startswith("forward only: backward ops go where their forward ops are")
    assert first.sentence.endswith(": 30.0 -> 20.0 us")
    assert [one.after_us for one in model.advice].count(20.0) == 1  # other changes lead to the same step
    model.change(**first.changes)
    assert model.outcome.timeline.makespan_us == 20
    # The other way round nothing is gained, so backward ops on their own are no advice.
    assert all("forward only" not in one.sentence for one in model.advice)


@pytest.mark.slow
def test_all_advice_is_what_comes_of_it():
    for seed in range(4):
        graph = bl.generators.layered_dag(40, seed=seed)
        for placer, passes in (("m-topo", ()), ("hash", GROUPING), ("auto", GROUPING)):
            model = computed(graph, bl.Cluster.uniform(3, link=bl.Link(5.0, 0.0)), placer=placer, passes=passes)
            for one in model.advice:
                steps = one.changes.get("micro_batches", 1)
                assert one.after_us < one.before_us == pytest.approx(steps * model.outcome.timeline.makespan_us)
                model.change(**one.changes)
                assert model.outcome.timeline.makespan_us == pytest.approx(one.after_us)
                model.undo()


def test_large_graphs_are_placed_again_for_advice():
    """5,002 ops that wait for nobody, half of 3 us and half of 1, each of 1 byte: m-topo fills the first device up to
    2,501 + 1 bytes, which takes 2501 * 3 + 1 us; two devices can share 10,004 us. A change of the setting ends the search.
    """
    graph = bl.OpGraph.from_edges(np.repeat([3.0, 1.0], 2501), persistent_bytes=np.ones(5002, dtype=int))
    model = computed(graph, bl.Cluster.uniform(2), placer="m-topo", passes=())
    one, *_ = model.advice
    assert (one.before_us, one.after_us) == (7504, 5002)
    model.change(**one.changes)
    assert model.outcome.timeline.makespan_us == 5002
    model.undo()
    reports: list[str] = []
    advice.all_advice(model.outcome, None, Memo(), lambda text, *_: reports.append(text))
    assert any("of 4 answers" in text for text in reports)


def test_a_chain_is_advised_to_use_micro_batches():
    """A chain of 8, 8, 16 and 16 us: 48 us however it is divided; of eight such, two devices can work on two at once.

    Of the two ways to do so, under 1F1B and as ops become ready, the faster one is advised: both have the same button.
    """
    graph = bl.generators.pipeline([8.0, 8.0], [16.0, 16.0], output_bytes=4)
    cluster = bl.Cluster.uniform(2, link=bl.Link(1.0, 0.0))
    model = computed(graph, cluster, placer="contiguous", passes=())
    (one,) = model.advice
    assert one.cause == "one device works at a time; 8 such steps at once as micro-batches, order fifo"
    assert one.details == "auto asks single, m-topo, m-etf, contiguous, metis, scotch"
    assert one.button == "Use 8 micro-batches"
    assert one.before_us == 8 * model.outcome.timeline.makespan_us
    stages = bl.place(graph, cluster, "contiguous", objective="step", micro_batches=8, schedule="1f1b")
    under_1f1b = bl.simulate(graph, cluster, stages, micro_batches=8, schedule="1f1b")
    # The second device begins after 8 us and a transfer, works 8 * 24 us without a gap, and the first one ends the step.
    assert one.after_us == (8 + 1) + 8 * 24 + (1 + 16) < under_1f1b.makespan_us < one.before_us
    model.change(**one.changes)
    assert model.outcome.timeline.makespan_us == one.after_us


def test_bug_micro_batches_were_advised_only_in_stages_under_1f1b():
    """Two branches of 10 us that join: `contiguous` cuts their line, and nothing overlaps as it does branch by branch."""
    branch = [(0, 1, 8), (1, 2, 8), (2, 3, 8)]
    edges = [*branch, *((a + 4, b + 4, n) for a, b, n in branch), (3, 8, 8), (7, 8, 8)]
    graph = bl.generators.with_backward(bl.OpGraph.from_edges([10.0] * 9, edges))
    model = computed(graph, bl.Cluster.uniform(2, link=bl.Link(40.0, 0.0)), placer="single", passes=())
    best, *_ = (one for one in model.advice if "micro_batches" in one.changes)
    stages = {"placer": "contiguous", "passes": (), "micro_batches": 8, "schedule": "1f1b"}
    model.change(**stages)
    assert "micro-batches, order" in best.cause and best.after_us < model.outcome.timeline.makespan_us


def test_advice_is_handed_on_as_it_is_found():
    """What is better is handed on while other changes are still to be tried, and the last of it is what the search returns."""
    graph = bl.generators.layered_dag(40, seed=1)
    cluster = bl.Cluster.uniform(3, link=bl.Link(5.0, 0.0))
    outcome = computed(graph, cluster, placer="hash", passes=GROUPING).outcome
    events: list[object] = []
    advised = advice.all_advice(outcome, None, Memo(), lambda text, *_: events.append(text), events.append)
    handed_on = [event for event in events if isinstance(event, tuple)]
    assert len(handed_on) > 1 and handed_on[-1] == advised[: len(handed_on[-1])]
    assert events.index(handed_on[0]) < max(k for k, event in enumerate(events) if isinstance(event, str))
    gains = [min(one.after_us for one in shown) for shown in handed_on]
    assert gains == sorted(gains, reverse=True)


@pytest.mark.slow
def test_a_workbench_does_not_open_on_an_error(two):
    """Two ops of 600 bytes: not on one device of 1000. Four of 600: not on two devices either."""
    pair_of_ops = bl.OpGraph.from_edges([10, 10], [(0, 1, 8)], persistent_bytes=[600, 600])
    bench = bl.Workbench(pair_of_ops, two, placer="single", passes=())
    bench.model.inline = True
    assert bench.outcome.timeline.feasible and bench.model.setting.placer == "auto"
    assert "placer changed so that it fits" in shown_text(bench.header.chip)
    assert bench.header.chip_row.layout.display == "flex" and bench.header.problem_row.layout.display == "none"
    bench.header.undo_chip.click()
    assert bench.model.setting.placer == "single" and bench.header.chip_row.layout.display == "none"
    four = bl.OpGraph.from_edges([10] * 4, persistent_bytes=[600] * 4)
    bench = bl.Workbench(four, two, placer="auto", passes=())
    assert bench.outcome.timeline.feasible and bench.model.setting.cluster.n == 4
    assert "devices (2 to 4) changed so that it fits" in shown_text(bench.header.chip)
    # What fits nowhere opens with the graph and the reason, and the picture for readers says so.
    huge = bl.OpGraph.from_edges([10], persistent_bytes=[5000])
    bench = bl.Workbench(huge, two, placer="auto", passes=())
    assert bench.outcome is None and "needs 5.00 kB" in bench.header.problem.value
    assert "needs 5.00 kB" in bench.picture() and bench.timeline.span_us == 0.0
    # The other parts do not ask to wait for what never comes, and once the reason is dismissed, the header still says it.
    with pytest.raises(bl.InvalidInput, match="no placement of this setting fits"):
        bench.tasks.compare(["single"])
    bench.explain.start.click()
    assert "no placement of this setting fits" in bench.header.problem.value
    bench.header.dismiss.click()
    assert "no placement of this setting fits" in shown_text(bench.header.facts)
    # A sweep over larger memories finds what fits: one op of 10 us.
    bench.model.inline = True
    assert bench.explore.stop.disabled
    bench.explore.memory.value, bench.explore.devices.value, bench.explore.placers.value = "1kB, 8kB", "1", "single"
    bench.explore.start.click()
    assert bench.explore.table["feasible"].tolist() == [False, True]
    assert bench.explore.table["makespan_us"].tolist()[1] == 10.0


@pytest.mark.slow
def test_a_hardware_preset_is_one_click_and_the_rest_is_advanced(diamond, pair):
    from baechi_lab.widgets.setting import HARDWARE_PRESETS

    bench = bl.Workbench(diamond, pair, placer="single", passes=())
    bench.model.inline = True
    folds = {fold.title.title: fold.unfolded for fold in bench.setting.widget.children}
    assert folds == {"Model": True, "Hardware": True, "Placer": True, "Advanced": False}
    assert bench.setting.preset.value == "as given below"
    bench.setting.preset.value = "8 x H100, NVLink"
    cluster = bench.model.setting.cluster
    assert cluster.n == 8 and set(cluster.memory_bytes.tolist()) == {80_000_000_000} and bench.outcome.timeline.feasible
    assert bench.setting.devices.value == 8 and bench.setting.preset.value == "8 x H100, NVLink"
    bench.setting.devices.value = 4
    assert bench.setting.preset.value == "as given below" and bench.model.setting.cluster.n == 4
    for name, preset in HARDWARE_PRESETS.items():
        cluster_of_preset = preset.cluster
        assert cluster_of_preset.n == preset.devices * preset.machines, name
        inside = cluster_of_preset.link_between(0, 1)
        assert (cluster_of_preset.link_between(0, cluster_of_preset.n - 1) == inside) == (preset.machines == 1)
        code = cluster_code(cluster_of_preset)  # 64 links with their numbers were no code that anybody reads
        assert len(code) < 140
        assert from_code(to_code(Setting(cluster_of_preset))).cluster == cluster_of_preset
    # One control for micro-batches: the placer's own form has none.
    bench.setting.placer.value = "contiguous"
    assert not {"micro_batches", "schedule"} & set(bench.setting.params._fields)
    hints = [control.description for _, control in bench.setting.params._fields.values()]
    assert any("an even share of the work" in text for text in hints)
