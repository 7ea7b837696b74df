"""The workbench's state without widgets: settings as code, undo, moves, background work, stale results."""

import asyncio
import json
import threading
import warnings

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.graph.formats.traces.loading import InferredDependencies
from baechi_lab.graph.step import BuiltFrom
from baechi_lab.placers.registry import make_placer
from baechi_lab.widgets import model as model_module
from baechi_lab.widgets.advice import Advice
from baechi_lab.widgets.background import Background
from baechi_lab.widgets.codegen import from_code, to_code
from baechi_lab.widgets.guard import Guard, Problem
from baechi_lab.widgets.history import History
from baechi_lab.widgets.model import WorkbenchModel, first_setting
from baechi_lab.widgets.moves import move, shortest_names
from baechi_lab.widgets.setting import Setting, link_name, stored_graphs, with_speeds
from baechi_lab.widgets.tasks import Tasks
from tests.helpers.messages import shown_text


def model_of(graph, cluster, **fields):
    """A model that computes at once, with its first outcome."""
    model = WorkbenchModel(graph, Setting(cluster, passes=(), **fields), inline=True)
    model.compute_now()
    return model


# -- settings and code ----------------------------------------------------------------------------------

SETTINGS = [
    Setting(bl.Cluster.uniform(4)),
    Setting(
        bl.Cluster.uniform(2, memory_bytes="2GB", kind="cpu", speed=0.5),
        source="file:data/x.json.gz",
        recompute="3GB",
        passes=(),
    ),
    Setting(
        bl.Cluster.uniform(3).replace(comm="duplex"),
        source="model:gnmt",
        batch_size=64,
        model_params={"layers": 2},
        hardware="a100",
        recompute="sqrt",
        placer="m-sct",
        params={"threshold": 0.2},
        scheduler="fifo",
        forward_only=True,
        moves=(("a/b", "gpu:1"), ("c/", "gpu:0")),
    ),
    Setting(
        bl.Cluster((bl.Device("x", "gpu", 5), bl.Device("y", "cpu", 7, 0.5)), [[bl.Link(0, 0), bl.Link(1, 2)]] * 2)
    ),
    Setting(
        bl.Cluster.uniform(4),
        source="model:gnmt",
        batch_size=64,
        placer="contiguous",
        params={"objective": "throughput"},
        micro_batches=8,
        schedule="gpipe",
        replicas=2,
    ),
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_code_reads_back_to_the_same_setting(setting):
    assert from_code(to_code(setting, export="folder")) == setting


def test_code_runs_and_gives_the_shown_numbers(diamond, pair):
    model = model_of(diamond, pair, placer="m-topo")
    model.move([2], 1)
    scope = {"graph": diamond}
    exec(model.code(), scope)
    assert scope["timeline"].makespan_us == model.outcome.timeline.makespan_us
    assert np.array_equal(scope["placement"].device, model.outcome.placement.device)


def test_code_makes_what_the_workbench_was_opened_with_or_says_what_to_supply(diamond, pair):
    """A given step of a benchmark model is built; of a traced one and of a graph the code says which variable it needs."""
    from baechi_lab.models.registry import make_model

    params = make_model("mlp", layers=4, batch_size=8).get_params()
    empty = {"graph_def": b"", "inputs": (), "outputs": (), "example_inputs": (), "variables": (), "initial_values": ()}
    step = bl.Step("mine", **empty, built_from=BuiltFrom("mlp", params))
    model = WorkbenchModel(step, first_setting(step, pair, {"placer": "m-topo"}))
    model.refresh = lambda: None  # nothing is computed
    assert "step = bl.models.build('mlp', layers=4, batch_size=8)\n" in model.code()
    model.load_code(model.code().replace("'m-topo'", "'m-etf'"))
    assert (model.setting.source, model.setting.batch_size, model.setting.placer) == ("given", 8, "m-etf")
    model.load_code(model.code().replace("layers=4", "layers=3"))  # another model than the given one
    assert (model.setting.source, dict(model.setting.model_params)) == ("model:mlp", {"layers": 3})
    traced = WorkbenchModel(bl.Step("mine", **empty), Setting(pair))
    assert "# step: your training step" in traced.code() and "bl.profile(step" in traced.code()
    assert "# graph: your graph" in model_of(diamond, pair).code()


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_code_of_micro_batches_runs_and_gives_the_shown_numbers(replicas):
    graph = bl.generators.with_backward(bl.generators.chain(6, seed=1))
    pipeline = {"micro_batches": 4, "schedule": "1f1b", "replicas": replicas}
    model = model_of(graph, bl.Cluster.uniform(4, link=bl.Link(5.0, 0.0)), placer="contiguous", **pipeline)
    scope = {"graph": graph}
    exec(model.code(), scope)
    assert scope["timeline"].makespan_us == model.outcome.timeline.makespan_us
    assert scope["placement"] == model.outcome.placement
    assert from_code(model.code()) == model.setting


@pytest.mark.parametrize("matrix", [False, True])
def test_code_keeps_what_a_message_takes_of_the_processors(matrix):
    link = bl.Link(3.0, 0.5, overhead_us=2.5)
    cluster = bl.Cluster.uniform(2, link=link)
    setting = Setting(cluster.replace(link=[[link, link], [bl.Link(1.0, 0.0), link]]) if matrix else cluster)
    assert "overhead_us=2.5" in to_code(setting)
    assert from_code(to_code(setting)).cluster == setting.cluster


def test_code_of_a_model_is_eight_lines():
    setting = Setting(bl.Cluster.uniform(4), source="model:gnmt", batch_size=128)
    assert len(to_code(setting, export="placed_training").splitlines()) == 8


CODE = "cluster = bl.Cluster.uniform(2)\ncoarse = bl.optimize(graph, cluster, {})\nplacement = bl.place(coarse, cluster, {})\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import os\nos.remove('x')", "os.remove"),
        ("cluster = bl.Cluster.uniform(2)\nx = 1 + 1", "line 2"),
        ("cluster = bl.Cluster.uniform(2)", "no line places"),
        ("placement = bl.place(graph, cluster, 'm-etf')", "no line makes the cluster"),
        ("cluster = (", "not Python"),
        ("cluster = bl.Cluster.uniform(2, memory=3)", "memory"),
        ("cluster = bl.Cluster.uniform(open('x'))", "open(...) cannot stand here"),
        ("cluster = bl.Cluster.uniform(0)", "number of devices is 0"),
        ("def place():\n    while True: pass", "line 1"),
        ("x = " + "-" * 100_000 + "1", "nested too deeply"),
        ("\ud800", "no such text"),
        (CODE.format("passes=3", "'m-etf'"), "passes is 3"),
        (CODE.format("passes=('x',)", "'m-etf'"), "unknown pass 'x'"),
        (CODE.format("forward_only=7", "'m-etf'"), "forward_only is 7"),
        (CODE.format("", "['m-etf']"), "unknown placer"),
        (CODE.format("", "'m-etf', **{'seed': 1}"), "** is not"),
        (CODE.format("", "'m-etf'") + "bl.move(placement, graph, cluster, 3)", "moves is 3"),
        (CODE.format("", "'m-etf'") + "bl.simulate(graph, cluster, placement, scheduler='x')", "unknown scheduler 'x'"),
        (
            CODE.format("", "'m-etf'") + "bl.simulate(graph, cluster, placement, micro_batches='x')",
            "micro_batches is 'x'",
        ),
        (CODE.format("", "'m-etf'") + "bl.models.build('nothing')", "unknown model 'nothing'"),
        (CODE.format("", "'m-etf'") + "bl.models.build('mlp', batch_size='a')", "batch_size is 'a'"),
        (CODE.format("", "'m-etf'") + "bl.profile(step, mode='x')", "profile mode 'x'"),
    ],
)
def test_foreign_code_is_refused_and_never_run(text, sentence):
    with pytest.raises(bl.InvalidInput) as error:
        from_code(text)
    assert sentence in str(error.value)


def test_moves_belong_to_their_placement(pair):
    setting = Setting(pair, moves=(("a", "gpu:1"),))
    assert setting.replace(placer="m-topo").moves == ()
    assert setting.replace(scheduler="fifo").moves == setting.moves
    assert setting.replace(cluster=pair.resized(1)).moves == ()
    assert setting.replace(cluster=pair.with_memory(5)).moves == setting.moves


def test_setting_refuses_an_unknown_source(pair):
    with pytest.raises(bl.InvalidInput, match="given"):
        Setting(pair, source="models:gnmt")


def test_resizing_keeps_devices_and_takes_new_names():
    cluster = bl.Cluster((bl.Device("gpu:1", "gpu", 4), bl.Device("fast", "gpu", 8, 2.0)))
    assert cluster.resized(4).names == ("gpu:1", "fast", "gpu:0", "gpu:2")
    assert cluster.resized(3).devices[2].speed == 2.0
    assert cluster.resized(1).names == ("gpu:1",)


def test_bug_a_resized_cluster_of_machines_lost_its_network():
    """Three of four devices are two on one machine and one on another; a fifth stands beside the fourth."""
    inside, network = bl.Link(1.0, 0.0), bl.Link(50.0, 0.0)
    cluster = bl.Cluster.machines(4, 2, memory_bytes="1GB", link=inside, network=network)
    assert cluster.resized(2) == bl.Cluster.uniform(2, memory_bytes="1GB", link=inside, comm="duplex")
    smaller, larger = cluster.resized(3), cluster.resized(5)
    assert [smaller.link_between(0, b) for b in (1, 2)] == [inside, network]
    assert [larger.link_between(a, 4) for a in range(4)] == [network, network, inside, inside]
    assert larger.resized(4) == cluster


def test_speeds_and_link_names(pair):
    assert with_speeds(pair, [0.5]).speed.tolist() == [0.5, 0.5]
    with pytest.raises(bl.InvalidInput, match="2 devices"):
        with_speeds(pair, [1.0, 1.0, 1.0])
    assert link_name(bl.Cluster.uniform(2)).startswith("PCIe") and link_name(pair) == ""


def test_stored_graphs_are_found_beside_the_notebook(tmp_path):
    (tmp_path / "data").mkdir()
    bl.save_graph(bl.OpGraph.from_edges([1]), tmp_path / "data" / "one.json.gz")
    assert stored_graphs(tmp_path) == ["data/one.json.gz"]


# -- history --------------------------------------------------------------------------------------------


def test_history_forgets_what_was_undone_when_something_new_comes(pair):
    one, two, three = (Setting(pair, scheduler=s) for s in (None, "fifo", "planned"))
    history = History(one)
    history.push(two)
    assert history.undo() and history.current is one and not history.undo()
    assert history.redo() and history.current is two
    history.undo()
    history.push(three)
    assert not history.can_redo and history.current is three


def test_undo_and_redo_of_a_move(diamond, pair):
    model = model_of(diamond, pair, placer="single")
    before = model.outcome.timeline.makespan_us
    assert before == 30
    model.move([2], 1)
    # a 0-5, b 5-15, c 7-17 on the other device, d at 19: 24 us.
    assert model.outcome.timeline.makespan_us == 24
    assert model.undo() and model.outcome.timeline.makespan_us == before and model.setting.moves == ()
    assert model.redo() and model.outcome.timeline.makespan_us == 24


# -- moves ----------------------------------------------------------------------------------------------


def test_moves_take_colocated_ops_along():
    graph = bl.OpGraph.from_edges([1, 1, 1], names=["w", "x", "y"], colocation=[0, 0, -1], colocation_names=("g",))
    cluster = bl.Cluster.uniform(2)
    assert move(bl.Placement(device=[0, 0, 0]), graph, cluster, {"w": "gpu:1"}).device.tolist() == [1, 1, 0]


def test_a_move_to_a_forbidden_device_says_why():
    graph = bl.OpGraph.from_edges(
        [1, 1],
        names=["w", "x"],
        colocation=[0, 0],
        colocation_names=("g",),
        allowed=[0, -1],
        allowed_sets=(("gpu:0",),),
    )
    cluster = bl.Cluster.uniform(2)
    with pytest.raises(bl.InfeasiblePlacement, match=r"'x' cannot move to gpu:1: .*may run only on gpu:0"):
        move(bl.Placement(device=[0, 0]), graph, cluster, {"x": "gpu:1"})


def test_unknown_ops_and_devices_are_named(diamond, pair):
    placement = bl.Placement(device=[0] * 4)
    with pytest.raises(bl.UnknownOpError, match="'zz'"):
        move(placement, diamond, pair, {"zz": "gpu:1"})
    with pytest.raises(bl.UnknownNameError, match="gpu:7"):
        move(placement, diamond, pair, {"a": "gpu:7"})


def test_scopes_move_whole_and_are_written_short(diamond, pair):
    assert shortest_names(diamond, [1, 2], "s") == ("s/",)
    assert shortest_names(diamond, [1], "s") == ("s/b",)
    assert move(bl.Placement(device=[0] * 4), diamond, pair, {"s/": "gpu:1"}).device.tolist() == [0, 1, 1, 0]


def test_a_refused_move_leaves_history_and_result_alone():
    graph = bl.OpGraph.from_edges([1], names=["w"], allowed=[0], allowed_sets=(("gpu:0",),))
    model = model_of(graph, bl.Cluster.uniform(2))
    outcome = model.outcome
    with pytest.raises(bl.InfeasiblePlacement):
        model.move([0], 1)
    assert model.outcome is outcome and not model.history.can_undo


def test_a_move_that_does_not_fit_is_shown_with_its_reason():
    graph = bl.OpGraph.from_edges([1, 1], names=["w", "x"], persistent_bytes=[6, 6])
    model = model_of(graph, bl.Cluster.uniform(2, memory_bytes=10), placer="m-etf")
    device = int(model.outcome.placement.device[1])
    model.move([0], device)
    # 6 + 6 bytes of 10 on one device.
    assert "exceeds" in model.outcome.timeline.violations[0].message


# -- model ----------------------------------------------------------------------------------------------


def test_an_error_keeps_the_last_result_and_marks_it_stale(diamond, pair):
    model = model_of(diamond, pair)
    events = []
    model.on("problem", events.append)
    outcome = model.outcome
    model.change(cluster=pair.with_memory(1))
    assert model.stale and model.outcome is outcome
    assert isinstance(events[-1], Problem) and model.problem is events[-1] and "Traceback" in events[-1].details
    model.undo()
    assert not model.stale and model.problem is None


def test_selection_is_told_once(diamond, pair):
    model = model_of(diamond, pair)
    events = []
    model.on("selection", events.append)
    model.select([2, 1, 2])
    model.select([1, 2])
    assert events == [(1, 2)]


def test_only_what_changed_is_computed_again(diamond, pair):
    model = model_of(diamond, pair)
    base, bounds = model.outcome.base, model.outcome.bounds
    model.change(scheduler="fifo")
    assert model.outcome.base is base and model.outcome.bounds is bounds


def test_a_model_needs_something_to_work_on(pair):
    with pytest.raises(bl.InvalidInput, match="needs a graph"):
        WorkbenchModel(None, Setting(pair))
    with pytest.raises(bl.InvalidInput, match="not on int"):
        WorkbenchModel(3, Setting(pair))
    with pytest.raises(bl.InvalidInput, match="unknown setting 'plaser'"):
        first_setting(None, pair, {"plaser": "m-etf"})


def test_files_are_read_again_when_they_change(tmp_path, pair):
    path = tmp_path / "g.json"
    bl.save_graph(bl.OpGraph.from_edges([1]), path)
    model = WorkbenchModel(None, Setting(pair, source=f"file:{path}", passes=()), inline=True)
    assert model.compute_now().timeline.makespan_us == 1
    bl.save_graph(bl.OpGraph.from_edges([2]), path)
    import os

    os.utime(path, (1, 1))
    assert model.compute_now().timeline.makespan_us == 2


# -- a large graph --------------------------------------------------------------------------------------


@pytest.fixture
def large(monkeypatch):
    """A graph that counts as large, three devices, and the steps of m-etf and auto."""
    monkeypatch.setattr("baechi_lab.widgets.model.LARGE_GRAPH", 24)
    graph = bl.generators.layered_dag(24, seed=4)
    cluster = bl.Cluster.uniform(3, link=bl.Link(5.0, 1e-4))
    coarse = bl.optimize(graph, cluster)
    steps = {p: bl.simulate(graph, cluster, bl.place(coarse, cluster, p)).makespan_us for p in ("m-etf", "auto")}
    assert steps["auto"] < steps["m-etf"]
    return graph, Setting(cluster, placer="auto"), steps


async def _computed(model):
    while model.stale:
        await asyncio.sleep(0.01)


async def _refused(model):
    while model.problem is None:
        await asyncio.sleep(0.01)


def test_a_large_graph_shows_one_of_auto_s_placers_until_auto_has_its_result(large):
    """Only pictures and numbers are those of m-etf: history, code and tasks are those of the setting."""
    graph, setting, steps = large

    async def main():
        model, outcomes, texts = WorkbenchModel(graph, setting), [], []
        tasks = Tasks(model)
        model.on("outcome", lambda outcome: outcomes.append((outcome.base.placer, outcome.timeline.makespan_us)))
        model.on("progress", lambda progress: texts.append(progress[0]))
        model.open()
        assert model.preliminary and model.stale and model.advice == ()
        assert not model.worker.busy  # it begins after the cell, whose picture would take turns with it
        assert model.setting == setting and not model.history.can_undo and "'auto'" in model.code()
        await asyncio.sleep(0)
        with pytest.raises(bl.InvalidInput, match="not there yet"):
            tasks.compare(["single"])
        await _computed(model)
        assert outcomes == [("m-etf", steps["m-etf"]), (model.outcome.base.placer, steps["auto"])]
        assert not model.preliminary and model.before is None and not model.history.can_undo
        assert any("answers; m-etf is shown until then" in text for text in texts)

    asyncio.run(main())


def test_a_change_ends_the_search_for_the_first_result(large):
    graph, setting, steps = large

    async def main():
        model, outcomes = WorkbenchModel(graph, setting), []
        model.open()
        model.on("outcome", lambda outcome: outcomes.append(outcome.setting.placer))
        model.change(placer="m-topo")
        assert model.stale and not model.preliminary
        await _computed(model)
        assert outcomes == ["m-topo"] and model.before is None
        model.undo()
        await _computed(model)
        assert model.outcome.timeline.makespan_us == steps["auto"] and model.before.setting.placer == "m-topo"

    asyncio.run(main())


def test_code_that_asks_for_the_outcome_of_a_large_graph_gets_auto_s(large):
    graph, setting, steps = large

    async def main():
        model = WorkbenchModel(graph, setting)
        model.open()
        assert model.final_outcome().timeline.makespan_us == steps["auto"] and not model.stale

    asyncio.run(main())
    model = WorkbenchModel(graph, setting)  # without a loop, on which a result could arrive later
    assert model.open().timeline.makespan_us == steps["auto"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("placer", "is_slow"),
    [pytest.param("m-sct", True, marks=pytest.mark.slow), ("search", True), ("m-topo", False), ("contiguous", False)],
)
def test_a_large_graph_is_drawn_before_a_slow_placer_has_its_result(large, placer, is_slow):
    """m-sct takes a minute on 22,856 ops, in which nothing was on the screen."""
    graph, setting, steps = large
    setting = setting.replace(placer=placer, params={"time_limit": 0.2} if placer == "search" else {})

    async def main():
        model = WorkbenchModel(graph, setting)
        model.open()
        assert model.preliminary == model.stale == is_slow and model.setting == setting
        if is_slow:
            assert model.outcome.timeline.makespan_us == steps["m-etf"] and not model.worker.busy
        await _computed(model)
        assert model.outcome.setting == setting and not model.preliminary and model.before is None

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("by_code", [False, True], ids=["later", "asked for by code"])
def test_bug_a_slow_placer_that_refuses_left_an_error_where_m_etf_fits(large, monkeypatch, by_code):
    """The placement of m-etf is on the screen and fits: the placer is changed to it, says so, and one undo takes it back."""
    graph, setting, steps = large

    def refuse(self, graph, cluster):
        raise bl.InfeasiblePlacement("op 'a' has no room")

    monkeypatch.setattr(type(make_placer("m-sct")), "assign", refuse)

    async def main():
        bench = bl.Workbench(graph, setting.cluster, placer="m-sct")
        assert bench.model.preliminary
        if by_code:
            assert bench.outcome.setting.placer == "m-etf"
        else:
            await asyncio.wait_for(_computed(bench.model), 20)
        model, header = bench.model, bench.header
        assert model.setting == setting.replace(placer="m-etf") == model.outcome.setting and model.problem is None
        assert model.outcome.timeline.makespan_us == steps["m-etf"] and model.before is None
        assert "placer (m-sct to m-etf) changed so that it fits" in shown_text(header.chip)
        header.undo_chip.click()
        await asyncio.wait_for(_refused(model), 20)
        assert model.setting.placer == "m-sct" and "no room" in model.problem.sentence
        assert header.chip_row.layout.display == "none"

    asyncio.run(main())


def test_an_unknown_parameter_of_a_slow_placer_ends_the_cell(large):
    graph, setting, _ = large

    async def main():
        with pytest.raises(bl.InvalidInput, match="speed"):
            WorkbenchModel(graph, setting.replace(placer="m-sct", params={"speed": 1})).open()

    asyncio.run(main())


@pytest.mark.parametrize("changes", [{"scheduler": "pct"}, {"params": {"optimized": False}}, {"micro_batches": 2}])
def test_what_auto_might_make_slower_than_its_placer_is_not_shown_first(large, changes):
    graph, setting, _ = large

    async def main():
        assert WorkbenchModel(graph, setting)._first_outcome() is not None
        assert WorkbenchModel(graph, setting.replace(**changes))._first_outcome() is None

    asyncio.run(main())


# -- background -----------------------------------------------------------------------------------------


def test_the_newest_job_wins():
    events, reports = [], []
    gate = threading.Event()
    worker = Background(events.append, lambda text, share: None)
    worker.submit(lambda ticket: gate.wait(5) and "old", reports.append)
    worker.submit(lambda ticket: "new", reports.append)
    assert worker.wait(5)
    gate.set()
    assert reports == ["new"] and events == [] and not worker.busy


def test_debounced_jobs_run_once():
    finished = []
    worker = Background(finished.append, lambda text, share: None, delay=0.05)
    for k in range(5):
        worker.submit(lambda ticket, k=k: finished.append(k), lambda result: None)
    worker.wait(5)
    assert finished == [4]


def test_cancelling_drops_the_result_and_stops_at_the_next_report():
    gate, reached, events = threading.Event(), [], []
    worker = Background(events.append, lambda text, share: None)

    def work(ticket):
        gate.wait(5)
        ticket.report("next")
        reached.append(True)

    worker.submit(work, events.append)
    assert worker.cancel() and not worker.cancel()
    gate.set()
    worker.wait(5)
    assert reached == [] and events == []


def test_errors_of_work_and_of_its_reception_are_shown():
    shown = []
    worker = Background(shown.append, lambda text, share: None)
    worker.submit(lambda ticket: 1 / 0, lambda result: None)
    worker.wait(5)
    worker.submit(lambda ticket: 1, lambda result: [][result])
    worker.wait(5)
    assert [p.sentence.split(":")[0] for p in shown] == ["ZeroDivisionError", "IndexError"]


def test_guard_shows_our_sentences_plainly_and_lets_interrupts_pass():
    shown = []
    with Guard(shown.append) as guard:
        raise bl.InvalidInput("batch_size is 0")
    assert guard.failed and shown[0].sentence == "batch size is 0"  # the label on the screen
    with pytest.raises(KeyboardInterrupt), Guard(shown.append):
        raise KeyboardInterrupt


def test_results_arrive_on_the_loop():
    results = []

    async def main():
        worker = Background(results.append, lambda text, share: None)
        arrived = asyncio.Event()

        def on_result(result):
            results.append((result, threading.current_thread() is threading.main_thread()))
            arrived.set()

        worker.submit(lambda ticket: threading.current_thread() is threading.main_thread(), on_result)
        await asyncio.wait_for(arrived.wait(), 5)

    asyncio.run(main())
    assert results == [(False, True)]


def test_whole_groups_are_written_with_one_name(diamond, pair):
    coarse = bl.OpGraph.from_edges(
        [5, 20, 5], [(0, 1, 8), (1, 2, 8)], names=["a", "s", "d"], group_of=[0, 1, 1, 2], source_key=diamond.key
    )
    placement = bl.place(coarse, pair, "single")
    assert shortest_names(diamond, [1, 2, 3], "", placement.group_of) == ("@s/b", "d")
    assert shortest_names(diamond, [1, 3], "", placement.group_of) == ("s/b", "d")
    assert move(placement, diamond, pair, {"@s/c": "gpu:1"}).device.tolist() == [0, 1, 1, 0]
    assert move(bl.Placement(device=[0] * 4), diamond, pair, {"@s/c": "gpu:1"}).device.tolist() == [0, 0, 1, 0]


@pytest.mark.slow
def test_bug_a_search_started_from_a_worse_rule_than_what_was_shown(tmp_path):
    """It starts from what is shown, moves by hand included, never returns a longer step of the ops, and is all in the code."""
    graph, cluster = bl.generators.gnmt(length=4, layers=2), bl.Cluster.uniform(2)
    model = WorkbenchModel(graph, Setting(cluster, placer="auto", passes=("colocation", "fusion")), inline=True)
    before = model.compute_now().timeline.makespan_us
    model.change(placer="search", params={"time_limit": None, "evaluations": 3, "workers": 1})
    assert model.setting.start.placer == "auto" and model.outcome.timeline.makespan_us <= before
    namespace = {}
    exec(model.code().replace("# graph: your graph", "graph = given  #"), {"given": graph}, namespace)
    assert namespace["timeline"].makespan_us == model.outcome.timeline.makespan_us
    assert model.code().count("bl.place(") == 2 and from_code(model.code()) == model.setting
    # Another setting of the same search starts from the same rule there; another placer starts anew.
    assert model.setting.replace(cluster=bl.Cluster.uniform(3)).start.cluster.n == 3
    assert model.setting.replace(placer="m-etf").start is None
    model.undo()
    op = model.outcome.graph.names[0]
    other_device = cluster.names[1 - int(model.outcome.placement.device[0])]
    model.change(moves=((op, other_device),))
    shown = model.outcome.timeline.makespan_us
    model.change(placer="search", params={"time_limit": None, "evaluations": 3, "workers": 1})
    assert model.setting.start.moves == ((op, other_device),)
    assert model.outcome.timeline.makespan_us <= shown and from_code(model.code()) == model.setting


# -- what a move would change -----------------------------------------------------------------------------


def test_moves_are_simulated_before_they_are_made():
    """A chain of 5 and 10 us on one device. On another the second op starts 2 us later, on the third the graph may not run."""
    graph = bl.OpGraph.from_edges(
        [5, 10], [(0, 1, 8)], allowed=np.array([-1, 0], dtype=np.int32), allowed_sets=(("gpu",),)
    )
    devices = [bl.Device("a", "gpu", 10**9), bl.Device("b", "gpu", 10**9), bl.Device("c", "cpu", 10**9)]
    model = model_of(graph, bl.Cluster(tuple(devices), bl.Link(2.0, 0.0)), placer="single")
    events = []
    model.on("previews", events.append)
    model.preview_moves((1,))
    assert events[0] == {} and {name: (p.change, p.sentence) for name, p in events[1].items()} == {
        "b": ("+13%", "step time 15.0 -> 17.0 us"),
        "c": ("–", "may not run there"),
    }
    model.move([1], 1)
    assert model.outcome.timeline.makespan_us == 17
    model.preview_moves((1,))
    assert events[-1]["a"].change == "-12%"
    model.preview_moves(())
    assert events[-1] == {}


def test_a_move_that_does_not_fit_says_so():
    graph = bl.OpGraph.from_edges([5, 10], [(0, 1, 8)], persistent_bytes=[60, 60])
    model = model_of(graph, bl.Cluster.uniform(2, memory_bytes=100, link=bl.Link(2.0, 0.0)), placer="m-etf")
    events = []
    model.on("previews", events.append)
    model.preview_moves((1,))
    (preview,) = events[-1].values()
    assert preview.change == "full" and preview.sentence.endswith("it does not fit in memory")


def test_a_move_of_one_op_moves_its_colocation_group():
    """a and b of 5 us each are colocated and follow each other; a tensor of 8 bytes leads to c (10 us), 2 us away.

    Whether a alone is selected (as Explain does) or both: a and b go together. On the other device c starts 2 us later.
    """
    graph = bl.OpGraph.from_edges(
        [5, 5, 10], [(0, 1, 8), (1, 2, 8)], names=["a", "b", "c"], colocation=[0, 0, -1], colocation_names=("group",)
    )
    bench = bl.Workbench(graph, bl.Cluster.uniform(2, link=bl.Link(2.0, 0.0)), placer="single", passes=())
    bench.model.inline = True
    for ops in ([0], [0, 1]):
        bench.model.select(ops)
        assert bench.graph.previews["gpu:1"] == ["+10%", "step time 20.0 -> 22.0 us"]
        assert bench.graph.moved_ops == [0, 1]
    bench.model.select([0])
    assert bench.graph.selection_text == "a, which moves with its group of 2 ops (colocation group)"
    bench._command("move", {"nodes": bench.graph.selected, "device": 1})
    assert bench.graph.status.startswith("2 ops moved to gpu:1: a, which moves with its group")
    assert bench.outcome.timeline.makespan_us == 22


def test_a_move_that_breaks_the_pipeline_says_why():
    """A chain of three on one device: its middle on another one turns the pipeline back. The last op may go there."""
    graph = bl.OpGraph.from_edges([10, 10, 10], [(0, 1, 8), (1, 2, 8)])
    model = model_of(graph, bl.Cluster.uniform(2), placer="single", micro_batches=4, schedule="1f1b")
    events = []
    model.on("previews", events.append)
    model.preview_moves((1,))
    assert events[-1]["gpu:1"].change == "–" and "turns back from 'op1'" in events[-1]["gpu:1"].sentence
    model.preview_moves((2,))
    assert events[-1]["gpu:1"].change.endswith("%")


# -- warnings ------------------------------------------------------------------------------------------


@pytest.fixture
def trace_file(tmp_path):
    """Three kernels without tensors: what waits for what is inferred, and a warning says so."""
    event = {"ph": "X", "cat": "kernel", "dur": 8, "pid": 0, "tid": 7, "args": {"device": 0, "stream": 7}}
    events = [{**event, "name": f"k{k}", "ts": 10 * k} for k in range(3)]
    (tmp_path / "step.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return tmp_path / "step.json"


@pytest.mark.slow
@pytest.mark.filterwarnings("default::UserWarning")
def test_what_a_trace_warns_of_is_on_the_screen_while_its_graph_is_shown(trace_file, diamond, pair, capfd):
    bench = bl.Workbench(None, pair, source=f"file:{trace_file}", placer="single", passes=())
    header, model = bench.header, bench.model
    assert "note: " in header.notes.value and "is inferred from the order" in header.notes.value
    assert header.notes_row.layout.display == "flex" and "inferred" not in capfd.readouterr().err
    model.inline = True
    model.change(placer="m-etf")  # the graph is cached, and does not warn again
    assert header.notes_row.layout.display == "flex"
    header.dismiss_notes.click()
    assert header.notes_row.layout.display == "none" and model.notes == ()
    # A trace that is chosen later: the note goes and comes with its graph.
    bench = bl.Workbench(diamond, pair, placer="single", passes=())
    header, model = bench.header, bench.model
    model.inline = True
    assert header.notes_row.layout.display == "none"
    trace_file.with_name("other.json").write_bytes(trace_file.read_bytes())
    model.change(source=f"file:{trace_file.with_name('other.json')}")
    assert "other.json: what depends on what" in header.notes.value and len(model.notes) == 1
    model.undo()
    assert header.notes_row.layout.display == "none"
    model.redo()
    assert header.notes_row.layout.display == "flex"


@pytest.mark.filterwarnings("always::UserWarning")
def test_advice_waits_a_moment_for_better_advice(monkeypatch):
    """Of advice that follows at once, the better one is shown; what a slow search has found by then does not wait for its end."""
    searched = threading.Event()
    ahead, better, best = (Advice(f"change {k}", "Change", {}, 100.0, 90.0 - k) for k in range(3))

    def search(outcome, subject, memo, report, on_advice):
        on_advice((ahead,))
        on_advice((better,))
        assert searched.wait(20)
        return (best,)

    monkeypatch.setattr(model_module, "all_advice", search)
    monkeypatch.setattr(model_module, "ADVICE_DELAY", 0.05)

    async def main():
        model = WorkbenchModel(bl.OpGraph.from_edges([5.0]), Setting(bl.Cluster.uniform(1), placer="single", passes=()))
        shown = []
        model.on("advice", shown.append)
        model.compute_now()
        while shown[-1:] != [(better,)]:
            await asyncio.sleep(0.01)
        searched.set()
        while shown[-1:] != [(best,)]:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        return shown

    assert asyncio.run(asyncio.wait_for(main(), 30)) == [(), (better,), (best,)]


def test_bug_what_advice_tried_was_noted_of_the_setting_on_the_screen():
    """Batch normalisations one after the other: micro-batches are advised, and are warned of once they are used."""
    graph = bl.generators.pipeline([8.0, 8.0], [16.0, 16.0], output_bytes=4)
    graph = graph.replace(op_types=("BatchNorm2d",) * graph.n)
    cluster = bl.Cluster.uniform(2, link=bl.Link(1.0, 0.0))
    model = WorkbenchModel(graph, Setting(cluster, placer="contiguous", passes=()), inline=True)
    with model.noting():
        model.compute_now()
    one = model.advice[0]
    assert model.notes == () and {advised.changes["micro_batches"] for advised in model.advice} == {8}
    with model.noting():
        model.apply(one)
    (note,) = model.notes
    assert "every micro-batch sees its own" in note
    model.undo()
    assert model.notes == ()
    model.redo()
    assert model.notes == (note,)


@pytest.mark.filterwarnings("default::UserWarning")
def test_notes_of_background_jobs_are_taken_and_foreign_warnings_are_not(recwarn):
    notes: list[str] = []
    background = Background(lambda problem: None, lambda *_: None, take_notes=notes.extend)

    def work(ticket):
        warnings.warn("4 ops have guessed costs", InferredDependencies, stacklevel=1)
        warnings.warn("of another package", RuntimeWarning, stacklevel=1)
        raise ValueError("an error loses no note")

    background.submit(work, lambda result: None)
    assert background.wait()
    assert notes == ["4 ops have guessed costs"]
    assert [str(w.message) for w in recwarn] == ["of another package"]
