"""Compare, run, explain, sweep and export from the model's side; no widget, no TensorFlow."""

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from fewer import slow

import baechi_lab as bl
from baechi_lab.placers.registry import placer_class
from baechi_lab.widgets.comparing import compare_placers, difference
from baechi_lab.widgets.guard import Guard
from baechi_lab.widgets.model import WorkbenchModel
from baechi_lab.widgets.setting import Setting
from baechi_lab.widgets.tasks import Tasks


@pytest.fixture
def graph():
    return bl.generators.layered_dag(60, seed=4)


@pytest.fixture
def tasks(graph):
    model = WorkbenchModel(graph, Setting(bl.Cluster.uniform(3)), inline=True)
    model.compute_now()
    return Tasks(model)


NAMES = ["single", "m-topo", "m-etf"]


def test_the_table_is_the_library_s(tasks, graph):
    events = []
    tasks.model.on("table", events.append)
    tasks.compare(NAMES)
    assert len(events) == 1
    setting = tasks.model.setting
    expected = bl.compare(graph, setting.cluster, NAMES, passes=setting.passes, progress=False)
    columns = [c for c in expected.columns if c not in ("place_seconds", "measured_us")]
    assert events[0][columns].equals(expected[columns])


def test_rows_come_as_they_end(graph):
    """Each placer's row is there before the next placer begins."""
    model = WorkbenchModel(graph, Setting(bl.Cluster.uniform(2), passes=()), inline=True)
    outcome, events = model.compute_now(), []
    table = compare_placers(
        outcome,
        model.memo,
        NAMES,
        lambda text, share: events.append(text),
        lambda rows: events.append(list(rows["placer"])),
    )
    steps = [text for text in events if isinstance(text, list) or text.startswith("comparing")]
    assert steps == [
        "comparing: single",
        NAMES[:1],
        "comparing: m-topo",
        NAMES[:2],
        "comparing: m-etf",
        NAMES,
    ]
    for shares, makespan, balance in zip(table["busy_shares"], table["makespan_us"], table["balance"], strict=True):
        busy = shares.mean(axis=1) * makespan
        assert busy.sum() == pytest.approx(graph.duration_us.sum(), rel=1e-4)
        assert busy.mean() / busy.max() == pytest.approx(balance, rel=1e-4)


def test_rows_are_shown_as_they_end_and_not_after_a_cancel(graph):
    import threading

    model = WorkbenchModel(graph, Setting(bl.Cluster.uniform(2), passes=()))
    outcome = model.compute_now()
    tasks, shown, gate = Tasks(model), [], threading.Event()
    model.on("table", lambda table: shown.append(list(table["placer"])))
    tasks.compare(NAMES)
    assert tasks.worker.wait(30)
    assert shown == [NAMES[:1], NAMES[:2], NAMES, NAMES]
    tasks.start("waiting", lambda ticket: gate.wait(10), lambda nothing: None)
    tasks.take_comparison(outcome, tasks.table[:1])  # a row of what was cancelled before
    assert len(shown) == 4
    gate.set()
    assert tasks.worker.wait(30)


def test_a_placer_that_fails_is_a_row(graph):
    model = WorkbenchModel(graph, Setting(bl.Cluster.uniform(2), passes=()), inline=True)
    outcome = model.compute_now()
    small = replace(outcome, setting=outcome.setting.replace(cluster=bl.Cluster.uniform(2, memory_bytes=1)))
    table = compare_placers(small, model.memo, ["m-etf"])
    assert not table["feasible"][0] and table["error"][0]


@pytest.mark.slow
def test_an_error_of_one_placer_is_its_row_and_goes_with_its_cause(tasks, monkeypatch):
    """Also one that no placer should raise: a `TypeError`."""
    with monkeypatch.context() as broken:
        broken.setattr(placer_class("m-topo"), "assign", lambda *_: len(1))
        tasks.compare(NAMES)
    error = "TypeError: object of type 'int' has no len()"
    assert tasks.table["error"].fillna("").tolist() == ["", error, ""]
    assert tasks.table["makespan_us"].isna().tolist() == [False, True, False] and tasks.model.problem is None
    tasks.compare(NAMES)
    assert not tasks.table["error"].any() and tasks.table["makespan_us"].notna().all()


def test_moves_by_hand_get_a_row_of_their_own(tasks):
    tasks.model.move([0], 2)
    tasks.compare(["m-etf"])
    assert tasks.table["placer"].tolist() == ["m-etf", "current"]
    assert tasks.table["makespan_us"][1] == tasks.model.outcome.timeline.makespan_us


@pytest.mark.slow
def test_using_a_row_makes_it_current(tasks):
    tasks.use("single")
    assert tasks.model.outcome.placement.placer == "single"
    tasks.model.move([0], 1)
    tasks.use("single")
    assert tasks.model.setting.moves == ()


def test_two_placements_side_by_side(diamond, pair):
    model = WorkbenchModel(diamond, Setting(pair, placer="single", passes=()), inline=True)
    outcome_before = model.compute_now()
    model.move([2], 1)
    change = difference(outcome_before, model.outcome)
    assert (change.names, change.before, change.after) == (("s/c",), ("gpu:0",), ("gpu:1",))
    assert change.ops.tolist() == [2]
    model.change(cluster=bl.Cluster.uniform(3))
    assert difference(outcome_before, model.outcome) is None


def test_holding_another_placer(tasks):
    tasks.hold("single")
    assert tasks.pinned.placement.placer == "single" and tasks.model.setting.placer == "m-etf"
    tasks.release()
    assert tasks.pinned is None


def test_the_decision_log_places_every_group_once(tasks):
    tasks.explain()
    log = tasks.log
    assert sorted(d.chosen.op for d in log.decisions) == list(range(log.coarse.n))
    assert np.array_equal(log.placement.device, tasks.model.outcome.base.device)
    assert len(log.placed_until(len(log) - 1)) == tasks.model.outcome.graph.n
    rows = log.rows(0)
    assert [r[3] for r in rows].count("chosen") == 1
    assert log.coarse.names[log.decisions[0].chosen.op] in log.sentence(0)


@pytest.mark.slow
@pytest.mark.parametrize("placer", slow(["single", "hash", "m-topo", "heft", "auto"], "single", "hash", "heft"))
def test_every_placer_can_be_explained(tasks, placer):
    tasks.model.change(placer=placer)
    tasks.explain()
    log = tasks.log
    assert sorted(log.order.tolist()) == list(range(log.coarse.n)) and log.logged_by_placer == (placer == "m-topo")
    for step in (0, len(log) // 2, len(log) - 1):
        pair = log.decisions[step].chosen
        assert pair.op == log.order[step] and pair.device == tasks.model.outcome.base.device[pair.op]
        rows = log.rows(step)
        assert rows[0][0] == log.coarse.names[pair.op] and [r[3] for r in rows].count("chosen") == 1
        subject, count = log.coarse.names[pair.op], len(log.coarse.members[pair.op])
        subject = subject if count == 1 else f"the group of {subject}, {count} of the {log.op_count} ops,"
        assert log.sentence(step).startswith(f"Decision {step + 1} of {len(log)}: {subject} goes to")
        assert log.sentence(step).endswith(".") and ".." not in log.sentence(step)
        assert log.step_of(int(log.ops(step)[0])) == step


def test_a_log_too_long_for_the_twin_is_replayed(monkeypatch, tasks):
    from baechi_lab.widgets import explaining

    tasks.explain()
    log = tasks.log
    monkeypatch.setattr(explaining, "MOST_OPS", 5)
    tasks.explain()
    replayed = tasks.log
    assert log.logged_by_placer and not replayed.logged_by_placer and len(replayed) == len(log)
    assert np.array_equal(replayed.placement.device, log.placement.device)


def test_a_sweep_of_the_current_graph(tasks):
    events = []
    tasks.model.on("sweep", events.append)
    tasks.sweep({"devices": [1, 2], "memory_bytes": ["8GB"], "placer": ["m-etf"]})
    assert len(events[-1]) == 2 and tasks.rows is events[-1]


def test_a_stored_graph_can_neither_run_nor_be_exported(tasks):
    with pytest.raises(bl.InvalidInput, match="cannot be run"):
        tasks.run(3)
    with pytest.raises(bl.InvalidInput, match="no training script"):
        tasks.export("x")


def test_nothing_runs_on_a_stale_result(tasks):
    tasks.model.stale = True
    with pytest.raises(bl.InvalidInput, match="has no result: change it, or press Compute"):
        tasks.compare(NAMES)


def test_a_run_reports_steps_as_they_come(monkeypatch, tasks):
    """The executor is replaced: what is tested is what the workbench does with its callbacks."""
    import baechi_lab.executors as executors

    class Result:
        def __init__(self, phase, seconds):
            self.phase, self.seconds = phase, seconds

    def execute(step, placement, steps, *, on_step, cancel, graph, warmup):
        on_step(Result("warmup", 9.0))
        for k in range(steps):
            on_step(Result("measured", 0.1 * (k + 1)))
        times = np.array([0.1, 0.2, 0.3])
        return bl.Run(replace(outcome.timeline, origin="measured"), times, (), "ok")

    monkeypatch.setitem(executors.__dict__, "execute", execute)
    step = bl.Step("s", b"", (), (), (), (), ())
    outcome = replace(tasks.model.outcome, step=step)
    tasks.model.outcome = outcome
    tasks.runner.pause = 0.0
    events, ended, reports = [], [], []
    tasks.model.on("task", reports.append)
    tasks.model.on("live", lambda live: events.append((live.phase, list(live.seconds))))
    tasks.model.on("run", ended.append)
    tasks.run(3)
    assert tasks.worker.wait(20)
    assert events[0] == ("warmup", []) and events[3] == ("measured", pytest.approx([0.1, 0.2, 0.3]))
    assert tasks.run_of(outcome).median_seconds == pytest.approx(0.2) and len(ended) == 1
    assert reports[1:5] == [("warmup steps", 0), *((f"step {k} of 3", k / 3) for k in (1, 2, 3))] and reports[-1] == (
        "",
        -1.0,
    )
    # It is still there after the setting went elsewhere and came back, and belongs to no other placement.
    same_run = replace(outcome, placement=outcome.placement.replace(info={}))
    assert same_run is not outcome and tasks.run_of(same_run) is tasks.run_of(outcome)
    elsewhere = outcome.placement.replace(device=(outcome.placement.device + 1) % 3)
    assert tasks.run_of(replace(outcome, placement=elsewhere)) is None
    # The measured time appears in the next table.
    tasks.compare(["m-etf"])
    assert tasks.table["measured_us"][0] == pytest.approx(0.2e6)


def test_fast_steps_are_drawn_now_and_then_and_all_at_the_end(monkeypatch, tasks):
    """A step of a millisecond costs less than its picture: an interface that draws each of them hears no Stop."""
    import baechi_lab.executors as executors

    drawn = []

    class Result:
        phase, seconds = "measured", 0.001

    def execute(step, placement, steps, *, on_step, **options):
        for _ in range(steps):
            on_step(Result())
        return bl.Run(replace(outcome.timeline, origin="measured"), np.full(steps, 0.001), (), "ok")

    monkeypatch.setitem(executors.__dict__, "execute", execute)
    outcome = replace(tasks.model.outcome, step=bl.Step("s", b"", (), (), (), (), ()))
    tasks.model.outcome = outcome
    tasks.runner.pause = 1e9
    tasks.model.on("live", lambda live: drawn.append((len(live.seconds), live.run is not None)))
    tasks.run(1000)
    assert tasks.worker.wait(20)
    assert drawn == [(1, False), (1000, True)]


def test_a_run_in_micro_batches_is_not_one_of_the_whole_step(tasks):
    outcome = tasks.model.outcome
    run = bl.Run(outcome.timeline, np.array([0.1]), (), "ok")
    tasks.measured_runs = [(outcome, run)]
    pipelined = replace(outcome, setting=replace(outcome.setting, micro_batches=2, schedule="gpipe"))
    assert tasks.run_of(outcome) is run and tasks.run_of(pipelined) is None


def test_the_interval_encloses_the_median():
    from baechi_lab.widgets.running import LiveRun

    live = LiveRun(1.0, [0.5, 0.6, 0.55, 0.58, 0.52])
    low, high = live.interval()
    assert low <= live.median <= high and live.median == 0.55


def test_bug_tracing_was_the_reason_of_a_traced_step_that_took_less():
    from types import SimpleNamespace

    from baechi_lab.widgets.panels.run_panel import traced_in_words
    from baechi_lab.widgets.running import LiveRun

    def sentence(traced_us):
        return traced_in_words(
            LiveRun(1e-4, [8e-3], run=SimpleNamespace(timeline=SimpleNamespace(makespan_us=traced_us)))
        )

    assert sentence(9000.0).endswith("whose median is 8.00 ms: tracing takes time of its own.")
    assert sentence(376.5).endswith("whose median is 8.00 ms: single steps differ, most of all on a busy machine.")


def test_a_second_task_does_not_push_the_first_aside(graph):
    import threading

    model = WorkbenchModel(graph, Setting(bl.Cluster.uniform(2), passes=()))
    model.compute_now()
    tasks, gate, events = Tasks(model), threading.Event(), []
    model.on("table", events.append)
    tasks.start("waiting", lambda ticket: gate.wait(10), lambda result: None)
    with pytest.raises(bl.InvalidInput, match="waiting is still under way"):
        tasks.compare(["single"])
    with Guard(model.fail):
        tasks.compare(["single"])
    assert "waiting is still under way" in model.problem.sentence
    tasks.cancel()
    gate.set()
    assert model.problem is None  # it stayed there until somebody dismissed it
    tasks.compare(["single"])
    assert tasks.worker.wait(30) and [len(table) for table in events] == [1, 1]  # as it ended, and the whole table


@pytest.mark.parametrize(
    ("placer", "most_ops", "executor"), [("single", 60, "here"), ("single", 59, None), ("search", 60, None)]
)
def test_only_a_sweep_that_is_short_starts_no_processes(monkeypatch, graph, placer, most_ops, executor):
    from baechi_lab import sweeps
    from baechi_lab.widgets import tasks as module

    model, executors = WorkbenchModel(graph, Setting(bl.Cluster.uniform(2), passes=())), []
    model.compute_now()
    tasks = Tasks(model)
    monkeypatch.setattr(module, "MOST_OPS_HERE", most_ops)
    monkeypatch.setattr(sweeps, "sweep", lambda *args, **options: executors.append(options.get("executor")))
    tasks.sweep({"devices": [2], "memory_bytes": ["8GB"], "placer": [placer]})
    assert tasks.worker.wait(30) and executors == [executor]


def test_stopping_a_sweep_keeps_its_rows(graph):
    model = WorkbenchModel(graph, Setting(bl.Cluster.uniform(2), passes=()))
    model.compute_now()
    tasks, events = Tasks(model), []
    model.on("task", events.append)
    model.on("sweep", lambda rows: tasks.cancel())
    tasks.sweep({"devices": [1, 2, 3, 4], "memory_bytes": ["8GB"], "placer": ["single"]})
    assert tasks.worker.wait(30)
    assert 1 <= len(tasks.rows) < 4 and not tasks.worker.busy
    assert ("1 of 4 combinations", 0.25) in events


# -- cancelling in the middle of a placer -----------------------------------------------------------------

SLOW = {
    "search": {"time_limit": 3600.0},
    "exact": {"time_limit": 3600.0, "warm_start": 0.0},
    "hierarchical": {"time_limit": 3600.0},
    "auto": {"workers": 1},
}
"""Placers that would go on for an hour (`auto`: has many placers to ask) unless somebody stops them."""


@pytest.mark.slow
@pytest.mark.parametrize("placer", SLOW)
def test_a_slow_placer_stops_in_the_middle(placer):
    from baechi_lab.memo import Memo
    from baechi_lab.widgets.background import Cancelled
    from baechi_lab.widgets.compute import place_under

    needs = {"exact": "ortools", "hierarchical": "tensorflow"}.get(placer, "numpy")
    if find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    graph, cluster = bl.generators.random_dag(26, seed=6), bl.Cluster.uniform(4)
    events = []

    def report(text, *_):
        events.append(text)
        if len(events) == 3:
            raise Cancelled

    with pytest.raises(Cancelled):
        place_under(Setting(cluster, placer=placer, params=SLOW[placer], passes=()), graph, Memo(), report)
    assert len(events) == 3 and all(text.startswith(f"{placer}: ") for text in events)


def test_cancelling_a_slow_placer_ends_its_thread_and_keeps_the_last_result():
    import threading

    graph, began = bl.generators.random_dag(200, seed=6), threading.Event()
    model = WorkbenchModel(graph, Setting(bl.Cluster.uniform(4), passes=()))
    first = model.compute_now()
    model.on("progress", lambda progress: began.set() if "simulations" in progress[0] else None)
    waiting = []
    model.on("waiting", waiting.append)
    model.change(placer="search", params={"time_limit": 3600.0})
    assert waiting == [
        "search works up to 3600 s, or until it is stopped: set its limits under Advanced, then press Compute"
    ]
    assert not model.worker.busy and model.stale  # it starts when its limits were seen
    model.refresh()
    assert began.wait(120)
    model.cancel()
    assert not model.worker.busy  # the interface is free at once,
    assert model.worker.wait(60)  # and the placer itself ends long before its hour is over
    assert model.outcome is first and model.stale
    model.change(placer="m-topo", params={})
    assert model.worker.wait(60)
    assert model.outcome.placement.placer == "m-topo" and not model.stale


@pytest.mark.slow
def test_stopping_an_anytime_placer_keeps_its_best():
    import threading

    graph, best = bl.generators.random_dag(200, seed=6), threading.Event()
    model = WorkbenchModel(graph, Setting(bl.Cluster.uniform(4), passes=()))
    model.compute_now()
    model.on(
        "progress", lambda progress: best.set() if np.isfinite([us for _, us in model.worker.points]).any() else None
    )
    model.change(placer="search", params={"time_limit": 3600.0})
    model.refresh()
    assert best.wait(120)
    points = model.worker.points
    model.enough()
    assert model.worker.wait(60) and not model.stale  # long before its hour is over
    assert model.outcome.placement.placer == "search"
    best_us = [us for _, us in points if np.isfinite(us)]
    timeline = model.outcome.timeline
    assert timeline.makespan_us <= best_us[0] * (1 + 1e-9) and sorted(best_us, reverse=True) == best_us
    for step_through_history in (model.undo, model.redo):  # what was found comes back without another search
        step_through_history()
        assert model.worker.wait(60) and not model.stale
    assert model.outcome.timeline is timeline


def test_a_cancelled_comparison_has_no_row_for_the_cancellation(tasks):
    from baechi_lab.widgets.background import Cancelled
    from baechi_lab.widgets.comparing import compare_placers

    def report(text, *_):
        if "simulations" in text:
            raise Cancelled

    with pytest.raises(Cancelled):
        compare_placers(tasks.model.outcome, tasks.model.memo, ["single", "search"], report)


def test_what_a_placer_reports_does_not_count_in_what_is_remembered(graph):
    from baechi_lab.memo import Memo
    from baechi_lab.widgets.compute import place_under

    memo, setting = Memo(), Setting(bl.Cluster.uniform(2), placer="auto", passes=())
    events = []
    first = place_under(setting, graph, memo, lambda text, *_: events.append(text))
    count = len(events)
    assert count > 0 and place_under(setting, graph, memo, lambda text, *_: events.append(text)) is first
    assert len(events) == count


def test_the_table_is_shown_best_first(graph):
    import pandas as pd

    from baechi_lab.widgets.comparing import best_first

    table = pd.DataFrame(
        {
            "placer": ["none", "tight", "slow", "fast"],
            "makespan_us": [float("nan"), 1.0, 9.0, 5.0],
            "feasible": [False, False, True, True],
        }
    )
    assert best_first(table)["placer"].tolist() == ["fast", "slow", "tight", "none"]


@pytest.mark.slow
def test_a_job_that_runs_when_the_process_ends_comes_to_its_own_end():
    """The end of the process waits for it: in the middle of a solver it would abort."""
    program = (
        "import threading, time\n"
        "from baechi_lab.widgets.background import Background\n"
        "background, started = Background(print, print), threading.Event()\n"
        "def work(ticket):\n"
        "    started.set()\n"
        "    time.sleep(0.2)\n"
        "    print('ended', flush=True)\n"
        "background.submit(work, print)\n"
        "started.wait()\n"
    )
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "ended\n", "")
