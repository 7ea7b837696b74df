"""Views, panels and the workbench as ipywidgets, without a browser: traits in, model changes out."""

import asyncio
import html
import json
import re
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.comparison import DEFAULT_PLACERS
from baechi_lab.graph.units import exact_bytes, format_us
from baechi_lab.widgets import GraphView, MemoryView, TimelineView
from baechi_lab.widgets.advice import Advice
from baechi_lab.widgets.glossary import meaning
from baechi_lab.widgets.guard import Problem
from baechi_lab.widgets.panels.params_form import ParamsForm
from baechi_lab.widgets.panels.parts import table
from baechi_lab.widgets.setting import LINKS
from baechi_lab.widgets.views.chart_view import ChartView
from baechi_lab.widgets.views.table_view import Column, TableView
from tests.helpers.messages import receive, shown_text


@pytest.fixture
def bench(diamond, pair):
    """A workbench that computes at once."""
    workbench = bl.Workbench(diamond, pair, placer="single", passes=())
    workbench.model.inline = True
    return workbench


# -- views ----------------------------------------------------------------------------------------------


def test_graph_view_opens_folds_and_keeps_the_selection(diamond, split):
    view = GraphView()
    view.show_graph(diamond)
    view.show_timeline(split)
    scope = view.tree.names.index("s")
    assert len(view.scene.nodes) == 4  # three boxes are few: the scope is open
    view.select_ops([1])
    view.command({"type": "close", "nodes": view.selected})
    assert len(view.scene.nodes) == 3 and view.selected == [scope] and view.selected_ops == [1]
    view.command({"type": "open", "nodes": view.selected})
    assert len(view.scene.nodes) == 4 and view.selected_ops == [1]
    assert np.frombuffer(view.marks["chosen"], "<i4").sum() == 1
    assert np.frombuffer(view.paint["device"], "<u1").max() == 1


def test_a_search_lists_and_selects_nothing_unasked(diamond, split):
    view = GraphView()
    view.show_graph(diamond)
    view.show_timeline(split)
    view.command({"type": "search", "text": "S/"})
    assert view.found["rows"] == [[1, "s/b"], [2, "s/c"]] and view.found["total"] == 2 and view.selected_ops == []
    view.command({"type": "search", "text": "s/", "next": True})
    assert view.selected_ops == [1] and view.focus == view.selected and view.found["at"] == 0
    view.command({"type": "search", "text": "s/", "next": True})
    assert view.selected_ops == [2]
    view.command({"type": "go", "op": 1})
    assert view.selected_ops == [1] and view.found["at"] == 0
    view.command({"type": "select_found"})
    assert view.selected_ops == [1, 2]
    view.command({"type": "search", "text": "nothing"})
    assert view.found["total"] == 0 and view.selected_ops == [1, 2]


def test_a_click_selects_the_group_and_says_so(diamond, split):
    """b of scope s and d are one group of the coarse graph: a click on either selects both, and a search tells how many move."""
    coarse = bl.OpGraph.from_edges(
        [5, 15, 10], [(0, 1, 8), (0, 2, 8)], names=["a", "s/b", "s/c"], group_of=[0, 1, 2, 1]
    )
    view = GraphView()
    view.show_graph(diamond, coarse)
    view.show_timeline(split)
    b, d = (view.tree.names.index(name) for name in ("s/b", "d"))
    view.selected = [b]  # as a click in the browser does
    assert view.selected == sorted([b, d]) and view.selected_ops == [1, 3]
    assert view.selection_text == "s/b, which moves with its group of 2 ops (coarse graph)"
    view.selected = [view.tree.names.index("s/c")]
    assert view.selection_text == "s/c" and view.selected_ops == [2]
    view.search("s/")
    assert (view.found["total"], view.found["moving"]) == (2, 3)


def test_a_box_more_leaves_the_others_with_what_was_selected_of_them(diamond, split):
    """c of the closed scope s is selected; d beside it adds d alone, and what is told to take time are these two ops."""
    view = GraphView()
    view.show_graph(diamond)
    view.show_timeline(split)
    view.open_nodes(())
    view.choose([2])
    s, d = (view.tree.names.index(name) for name in ("s", "d"))
    assert view.selected == [s] and view.chosen_us == diamond.duration_us[2]
    view.selected = sorted([s, d])  # as a click with Shift does
    assert view.selected_ops == [2, 3] and view.chosen_us == diamond.duration_us[2] + diamond.duration_us[3]
    view.selected = [s]  # as a click does: the whole box
    assert view.selected_ops == [1, 2]


def test_a_selected_scope_is_named_with_what_moves_along(pair):
    graph = bl.OpGraph.from_edges(
        [1] * 4,
        [(0, 1, 4), (1, 2, 4), (2, 3, 4)],
        names=["n/w", "n/x", "m/y", "m/z"],
        colocation=[0, -1, 0, -1],
        colocation_names=("n/w",),
    )
    view = GraphView()
    view.show_graph(graph)
    view.open_nodes(())
    view.selected = [view.tree.names.index("n")]
    assert view.selected_ops == [0, 1, 2]
    assert view.selection_text == "n (2 ops), which move with the rest of their group: 3 ops in all (colocation n/w)"


@pytest.mark.slow
def test_never_more_boxes_than_the_limit(split):
    graph = bl.generators.random_dag(4000, seed=0)
    view = GraphView()
    view.show_graph(graph)
    assert len(view.scene.nodes) <= 24
    for _ in range(4):
        view.command({"type": "open", "nodes": view.scene.nodes.tolist()})
        assert 24 < len(view.scene.nodes) <= 300
    assert "at most 300 boxes are drawn" in view.status
    view.command({"type": "open_all"})
    assert len(view.scene.nodes) <= 300
    view.reveal([1234])  # deep inside: shown as a box of its own all the same
    assert view.selected == [view.tree.leaf_of[1234]] == view.focus and len(view.scene.nodes) <= 300


@pytest.mark.slow
def test_a_large_graph_opens_collapsed():
    names = [f"layer{k % 8}/step{k // 8 % 100}/op{k}" for k in range(22_800)]
    graph = bl.OpGraph.from_edges(np.ones(22_800), [(k, k + 1, 4) for k in range(22_799)], names=names)
    view = GraphView()
    view.show_graph(graph)
    assert 8 <= len(view.scene.nodes) <= 260
    assert int(np.frombuffer(view.nodes["size"], "<i4").sum()) == 22_800


def test_views_of_an_empty_graph():
    graph = bl.OpGraph.from_edges([])
    line = bl.simulate(graph, bl.Cluster.uniform(1), bl.Placement(device=np.zeros(0, int)))
    view, bars, memory = GraphView(), TimelineView(), MemoryView()
    view.show_graph(graph)
    view.show_timeline(line)
    bars.show(graph, [line])
    memory.show(line)
    assert view.picture() and bars.picture() and memory.picture()


def test_every_view_has_a_static_picture(diamond, split):
    view, bars, memory = GraphView(), TimelineView(), MemoryView()
    assert "image/svg+xml" not in view._repr_mimebundle_()[0]
    view.show_graph(diamond)
    view.show_timeline(split)
    bars.show(diamond, [split])
    memory.show(split)
    for each in (view, bars, memory):
        assert each._repr_mimebundle_()[0]["image/svg+xml"].startswith("<svg")


def test_a_view_is_displayed_as_widget_and_as_a_picture_of_its_own(monkeypatch, diamond, split):
    """In one output nbconvert and JupyterLab would prefer the widget, and show nothing once its kernel is gone."""
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, **_: shown.append(data))
    view = TimelineView()
    view.show(diamond, [split])
    draw = view.picture
    monkeypatch.setattr(view, "picture", lambda: shown.append("drawn") or draw())
    view._ipython_display_()
    live, drawn, picture_data, style = shown
    assert drawn == "drawn"  # once, and after the live widget was sent
    monkeypatch.undo()
    monkeypatch.setattr(IPython.display, "display", lambda data, **_: shown.append(data))
    assert style["text/html"].startswith("<style")
    assert "application/vnd.jupyter.widget-view+json" in live and "image/svg+xml" not in live
    # The picture has a class, by which a style hides it while the widget lives.
    picture = re.sub(r'^<svg class="bl-picture-\w+" ', "<svg ", picture_data["image/svg+xml"])
    assert set(picture_data) == {"image/svg+xml", "text/plain"} and picture == view.picture()
    shown.clear()
    TimelineView()._ipython_display_()
    assert len(shown) == 1  # nothing to draw yet


def test_a_workbench_says_in_words_what_it_shows(diamond, pair):
    bench = bl.Workbench(diamond, pair, placer="single", passes=())
    assert repr(bench) == bench.in_words() == f"<Workbench: {diamond.name!r} placed by single on 2 devices, 30.00 us>"


def test_the_workbench_s_picture_has_its_numbers(diamond, pair):
    drawn = bl.Workbench(diamond, pair, placer="single", passes=()).picture()
    assert "step time 30.00 us" in drawn and "placed by single" in drawn and "4 ops" in drawn


@pytest.mark.slow
def test_what_was_said_of_a_move_goes_with_it(diamond, pair):
    bench = bl.Workbench(diamond, pair, placer="single", passes=())
    bench.model.inline = True
    node = int(bench.graph.scene.nodes[-1])
    receive(bench.graph, type="move", nodes=[int(node)], device=1)
    assert "moved to gpu:1" in bench.graph.status
    receive(bench.graph, type="undo")
    assert bench.graph.status == ""


def test_timeline_view_gives_a_chrome_trace(diamond, split):
    import json

    view = TimelineView()
    view.show(diamond, [split])
    events = json.loads(view.chrome_trace())
    listed = events["traceEvents"] if isinstance(events, dict) else events
    assert {e["name"] for e in listed} >= {"a", "s/b", "s/c", "d"}


def test_colours_of_the_page_are_those_of_the_figures():
    """Curves that are no device's have the figures' colours on light pages, and every colour has a form for dark ones."""
    from baechi_lab.viz.colors import OKABE_ITO, SERIES
    from baechi_lab.widgets.charts import CURVES

    light, dark = str(MemoryView._css).split("vscode-dark", 1)
    for name, color in zip(CURVES, SERIES, strict=True):
        assert f"{name[4:-1]}: {color.lower()};" in light
    shown = [color for rules in (light, dark) for color in re.findall(r"--bl-series-\d: (#\w+)", rules)]
    assert not {color.upper() for color in shown} & set(OKABE_ITO)
    assert {"--bl-danger", "--bl-good", "--bl-text", "--bl-background"} <= set(re.findall(r"--bl-[a-z]+", dark))


def test_scripts_load_nothing_from_the_network_and_do_not_import():
    for view in (GraphView, TimelineView, MemoryView, ChartView, TableView):
        text = str(view._esm).replace("http://www.w3.org/2000/svg", "")  # the name of a namespace, which is not loaded
        assert "http://" not in text and "https://" not in text and "\nimport " not in text
        assert text.count("export default") == 1


# -- panels ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_hardware_brings_its_memory_and_link(bench):
    """Memory and links of no hardware, or of the hardware before, are replaced; those that were chosen stay."""
    panel = bench.setting
    bench.model.change(cluster=bl.Cluster.uniform(2))
    panel.hardware.value = "h100"
    cluster = bench.model.setting.cluster
    assert (cluster.link, cluster.memory_bytes.tolist()) == (LINKS["nvlink4"], [80 * 10**9] * 2)
    assert panel.link.value == "nvlink4"
    panel.hardware.value = "l4"
    cluster = bench.model.setting.cluster
    assert (cluster.link, cluster.memory_bytes.tolist()) == (LINKS["pcie4"], [24 * 10**9] * 2)
    panel.link.value = "infiniband-ndr"
    panel.memory.value = "1GB"
    panel.hardware.value = "h100"
    cluster = bench.model.setting.cluster
    assert (cluster.link, cluster.memory_bytes.tolist()) == (LINKS["infiniband-ndr"], [10**9] * 2)


def test_the_setting_panel_changes_the_model(bench):
    panel = bench.setting
    panel.placer.value = "m-etf"
    assert bench.model.setting.placer == "m-etf" and bench.outcome.placement.placer == "m-etf"
    panel.devices.value = 3
    assert bench.outcome.timeline.device_names == ("gpu:0", "gpu:1", "gpu:2")
    panel.memory.value = "500 B, 500 B, 900 B"
    assert bench.model.setting.cluster.memory_bytes.tolist() == [500, 500, 900]
    panel.speeds.value = "2"
    assert bench.model.setting.cluster.speed.tolist() == [2, 2, 2]
    panel.comm.value = "duplex"
    panel.scheduler.value = "fifo"
    panel.link.value = "free (no cost)"
    setting = bench.model.setting
    assert (setting.cluster.comm, setting.scheduler, setting.cluster.link) == ("duplex", "fifo", bl.Link(0.0, 0.0))
    panel.passes["fusion"].value = True
    assert setting.passes == () and bench.model.setting.passes == ("fusion",)


@pytest.mark.slow
def test_undo_puts_the_controls_back(bench):
    bench.setting.devices.value = 4
    changes = []
    for one in (bench.header.undo, bench.header.redo):
        one.observe(lambda change: changes.append((change.owner.description, change.new)), "disabled")
    bench.header.undo.click()
    assert bench.setting.devices.value == 2
    assert changes == [("Redo", False), ("Undo", True)]  # the page gives the focus of Undo to what is enabled then
    bench.header.redo.click()
    assert bench.setting.devices.value == 4


def test_nonsense_in_a_control_is_shown_and_taken_back(bench):
    bench.setting.memory.value = "lots"
    assert "not an amount of memory" in bench.header.problem.value and "<details>" in bench.header.problem.value
    assert bench.setting.memory.value == "1 kB"
    bench.header.dismiss.click()
    assert bench.header.problem_row.layout.display == "none"
    for count in ("0", "100000", "2.5", "", "1" * 5000):
        bench.setting.count.value = count
        assert "it must be a whole number from 1 to 64; the setting stays as it was" in bench.header.problem.value
        assert bench.setting.count.value == "2" and bench.model.setting.cluster.n == 2
    bench.setting.count.value = "20"  # more than the slider reaches
    assert bench.model.setting.cluster.n == bench.setting.devices.value == 20
    for steps in (0, 100_000):
        bench.run.steps.value = steps
        assert f"steps is &#x27;{steps}&#x27;; it must be a whole number from 1 to 10,000" in bench.header.problem.value
        assert bench.run.steps.value == 20
    before = bench.model.setting
    for count in ("9000000", str(10**40)):  # their ops would need more memory than machines have
        bench.setting.micro.value = count
        assert "ops each, the workbench takes at most 2,500,000; the setting stays" in bench.header.problem.value
        assert bench.setting.micro.value == "" and bench.model.setting is before and not bench.model.stale


def test_bug_the_message_on_a_rejected_value_stayed_when_another_tab_was_opened(bench):
    def is_shown():
        return bench.header.problem_row.layout.display != "none"

    bench.setting.memory.value = "lots"
    assert is_shown()
    bench.tabs.choose("Explore")
    assert not is_shown()
    bench.explore.devices.value = "two"
    bench.explore.start.click()
    assert is_shown() and "not a list of whole numbers" in bench.header.problem.value
    bench.tabs.choose("Fit")
    assert not is_shown()
    bench.model.fail(Problem("what the result on the screen lacks", ""))  # not the fault of a typed value
    bench.tabs.choose("Graph")
    assert is_shown()


def named(form):
    """The controls of a form by their names; a name is an element that has the explanation as its title."""
    return {re.sub("<.*?>", "", c.description): c for c in form.widget.children}


def test_parameters_come_from_the_placer_s_own_object(bench):
    bench.setting.placer.value = "m-sct"
    controls = named(bench.setting.params)
    assert {"threshold", "solver", "reservation"} <= set(controls) and "explain" not in controls
    controls["threshold"].value = "0.3"
    assert dict(bench.model.setting.params) == {"threshold": 0.3}
    assert bench.outcome.base.params["threshold"] == 0.3
    controls = named(bench.setting.params)
    for nonsense, sentence in (
        ("7", "threshold is 7.0"),
        ("nonsense", "it must be a number"),
        ("1e999", "threshold is inf"),
    ):
        named(bench.setting.params)["threshold"].value = nonsense
        assert sentence in bench.header.problem.value
        assert dict(bench.model.setting.params) == {"threshold": 0.3}  # what is in force, and what the control says
        assert named(bench.setting.params)["threshold"].value == "0.3"
    bench.setting.placer.value = "contiguous"
    named(bench.setting.params)["caps"].value = "wide"
    assert "caps is (&#x27;wide&#x27;,); it must hold numbers" in bench.header.problem.value
    named(bench.setting.params)["caps"].value = "2, 3"
    assert dict(bench.model.setting.params) == {"caps": (2, 3)}


def test_a_control_says_what_is_in_force(bench):
    for control, text, shown in ((bench.setting.speeds, "", "1"), (bench.setting.replicas, "0", "1")):
        control.value = text
        assert control.value == shown
    assert "replicas is 0" in bench.header.problem.value


def test_params_form_reads_values_by_the_type_of_their_default():
    from dataclasses import dataclass

    @dataclass
    class Many:
        flag: bool = True
        count: int = 3
        share: float = 0.5
        word: str = "x"
        maybe: int | None = None

    events = []
    form = ParamsForm(lambda: events.append(form.values()))
    form.show(Many, {"count": 4})
    controls = named(form)
    assert (controls["count"].value, controls["maybe"].value) == ("4", "")
    controls["maybe"].value = "5"
    controls["flag"].value = False
    controls["share"].value = "1"
    assert events[-1] == {"flag": False, "count": 4, "share": 1.0, "maybe": 5}


def test_every_parameter_of_every_placer_says_what_it_is():
    from baechi_lab.placers.registry import PLACERS
    from baechi_lab.widgets.panels.params_form import ParamsForm

    form = ParamsForm(lambda: None)
    for name in PLACERS.names():
        form.show(PLACERS.find(name), {})
        assert [c for c in named(form) if len(named(form)[c].tooltip or "") < 12] == [], name


def test_terms_are_explained_where_they_are_said(bench):
    """By their place in the one glossary, in notes, heads of tables and the header."""
    bench.setting.placer.value = "m-topo"
    assert f'<abbr title="{meaning("Strawman")}">strawman</abbr>' in bench.setting.placer_note.value
    assert f'<abbr title="{html.escape(meaning("Bound, lower"))}">lower bound</abbr>' in bench.header.facts.value
    assert html.escape(meaning("Micro-batch")) in table(("micro-batches", "devices"), [["4", "2"]])


def test_the_header_shows_the_library_s_numbers(bench):
    from baechi_lab.graph.units import format_us

    assert format_us(bench.outcome.timeline.makespan_us) in bench.header.facts.value
    bench.model.move([3], 1)  # d reads b and c: two tensors, of 4 ops
    assert f"{len(bench.outcome.timeline.transfers)} transfers<" in bench.header.facts.value
    bench.model.move([2], 1)
    bench.model.move([1], 1)  # the tensor of a alone
    assert "in 1 transfer<" in bench.header.facts.value
    bench.model.change(cluster=bench.model.setting.cluster.with_memory(1))
    assert "out of date" in bench.header.mark.value and "bl-stale" in bench.header.facts.value


def test_selection_runs_through_all_views(bench):
    bench.timeline.selected = [2]
    assert bench.model.selection == (2,) and bench.graph.selected_ops == [2] and bench.memory.selected == [2]
    bench.graph.selected = [bench.graph.tree.names.index("a")]
    assert bench.timeline.selected == [0] and bench.model.selection == (0,)
    bench.memory.selected = [3]
    assert bench.graph.selected_ops == [3]


def test_moving_in_the_graph_moves_in_the_library(bench, diamond, pair):
    node = bench.graph.tree.names.index("s/c")
    receive(bench.graph, type="move", nodes=[node], device=1)
    assert bench.outcome.timeline.makespan_us == 24 and bench.model.setting.moves == (("s/c", "gpu:1"),)
    placement = bl.move(bl.place(diamond, pair, "single"), diamond, pair, {"s/c": "gpu:1"})
    assert np.array_equal(placement.device, bench.outcome.placement.device)
    receive(bench.graph, type="undo")
    assert bench.outcome.timeline.makespan_us == 30
    receive(bench.graph, type="redo")
    assert bench.outcome.timeline.makespan_us == 24


def test_a_refused_move_is_shown(pair):
    graph = bl.OpGraph.from_edges([1, 1], names=["w", "x"], allowed=[0, -1], allowed_sets=(("gpu:0",),))
    workbench = bl.Workbench(graph, pair, passes=())
    workbench.model.inline = True
    receive(workbench.graph, type="move", nodes=[workbench.graph.tree.names.index("w")], device=1)
    assert "cannot move to gpu:1" in workbench.header.problem.value


@pytest.mark.slow
def test_compare_panel(bench):
    bench.compare.compare.click()
    shown = bench.compare.rows
    cluster = bench.model.setting.cluster
    expected = bl.compare(bench.outcome.graph, cluster, list(DEFAULT_PLACERS), progress=False).set_index("placer")
    names = [head["name"] for head in shown.head]
    step = names.index("step time (us)")
    for row in shown.rows:
        assert row["keys"][step] == expected.loc[row["cells"][0], "makespan_us"] == float(row["cells"][step])
    notes = [note for row in shown.rows for note in row["notes"]]
    assert [note["text"] for note in shown.rows[0]["notes"]][-1] == "best"
    assert sum(note["text"] == "best" for note in notes) == 1
    assert sum(note["hint"].startswith("took the answer of") for note in notes) == 1
    # single: gpu:0 works all the time; the picture of the longest step fills its place.
    single = next(row for row in shown.rows if row["cells"][0] == "single")
    assert single["marked"] and single["span"] == 1.0 and single["label"] == "busy: gpu:0 100%, gpu:1 0%"
    assert [lane["d"] for lane in single["lanes"]] == ["M0 1v-1h60v1z", ""]
    bench.compare.hold.click()
    receive(shown, type="action", id="m-etf", action="Use")
    assert bench.outcome.placement.placer == "m-etf" and "ops are elsewhere" in bench.compare.pinned.value
    bench.compare.back.click()
    assert bench.outcome.placement.placer == "single"
    bench.model.change(scheduler="fifo")
    assert "another setting" in bench.compare.state.value and "bl-outdated" in bench.compare.compared._dom_classes


def test_a_click_goes_to_the_row_that_was_shown_there():
    """Rows of a comparison come one by one, the fastest first: a click that was on its way used another placer."""
    actions: list[int] = []
    view = TableView("placers", lambda row, action: actions.append(row))
    for names in (["b"], ["a", "b"]):
        view.show([Column("placer", names)], [{"id": name} for name in names])
    receive(view, type="action", id="b", action="Use")
    receive(view, type="action", id="gone", action="Use")
    assert actions == [1]


@pytest.mark.slow
def test_many_devices_are_compared_by_the_fullest_and_by_those_that_work(diamond):
    """64 bars and lanes for each placer could not be told apart, and their legend covered the chart."""
    bench = bl.Workbench(diamond, bl.Cluster.uniform(64), placer="single", passes=())
    bench.model.inline = True
    bench.compare.compare.click()
    (peaks,) = bench.compare.peaks.spec["series"]
    expected = bl.compare(diamond, bench.model.setting.cluster, list(DEFAULT_PLACERS), progress=False)
    fullest = dict(zip(expected["placer"], expected["peak_bytes"], strict=True))
    assert peaks["name"] == "fullest device" and peaks["y"] == [fullest[name] for name in bench.compare.names]
    single = next(row for row in bench.compare.rows.rows if row["cells"][0] == "single")
    assert [lane["d"] for lane in single["lanes"]] == ["M0 1v-1h60v1z"]


def test_a_placer_without_a_placement_is_a_row_without_buttons(bench):
    table = bl.compare(bench.outcome.graph, bl.Cluster.uniform(2, memory_bytes=1), ["m-etf"], progress=False)
    table["busy_shares"] = [None]
    bench.tasks.table_of = bench.outcome
    bench.compare.show(table)
    (row,) = bench.compare.rows.rows
    assert (
        row["notes"][0]["text"] == "no placement" and row["notes"][0]["hint"] and row["actions"] == row["lanes"] == []
    )
    assert row["cells"][1] == "" and row["keys"][1] is None


@pytest.mark.slow
def test_bug_candidates_that_are_not_listed_were_counted_without_commas():
    bench = bl.Workbench(bl.OpGraph.from_edges([1] * 300), bl.Cluster.uniform(4), placer="m-etf", passes=())
    bench.model.inline = True
    bench.explain.start.click()
    listed = bench.explain.candidates.value.count("<tr") - 1
    assert f"and {1200 - listed:,} more" in bench.explain.candidates.value and listed < 200  # 300 ops on 4 devices


def test_explain_panel_lights_what_is_placed(bench):
    bench.setting.placer.value = "m-etf"
    bench.explain.start.click()
    assert bench.explain.slider.max == 4 and bench.model.selection == (0,)
    assert list(bench.timeline.dim) == [0, 1, 1, 1]
    bench.explain.after.click()
    assert list(bench.timeline.dim).count(0) == 2 and "candidate" in bench.explain.candidates.value
    bench.explain.close.click()
    assert bench.timeline.dim == b"" and bench.graph.dim == b""
    bench.setting.placer.value = "single"
    assert "replayed" in bench.explain.sentence.value
    bench.explain.start.click()
    bench.model.select([3])
    bench.explain.find.click()
    assert bench.explain.slider.value == 4 and "Decision 4 of 4: d goes to" in bench.explain.sentence.value


def test_a_sweep_that_ends_without_a_row_is_not_said_to_be_starting(bench):
    panel, tasks = bench.explore, bench.tasks
    before, tasks.job = panel.state.value, "the sweep"
    bench.model.emit("task", ("starting the sweep", 0.0))
    assert "starting the sweep" in panel.state.value
    bench.model.emit("task", ("", -1.0))  # as after an error
    assert panel.state.value == before


@pytest.mark.slow
def test_that_nothing_fits_is_said_when_the_sweep_is_over(bench, monkeypatch):
    """The first rows are those with the least memory: that none of them fits is no answer yet."""
    panel, tasks = bench.explore, bench.tasks
    rows = bl.sweep(bench.model.outcome.graph, cluster=bench.model.setting.cluster, memory_bytes=[1], placer=["m-etf"])
    tasks.job = "the sweep"
    monkeypatch.setattr(tasks.worker, "_ticket", object())
    bench.model.emit("task", ("1 of 2 combinations", 0.5))
    panel.show(rows)
    assert "nothing fits so far" in panel.verdict.value and "bl-bad" not in panel.verdict.value
    # What is left to do is said until the end, also while another setting is shown.
    assert "1 of 2 combinations" in panel.state.value
    bench.model.change(placer="m-topo")
    assert "1 of 2 combinations" in panel.state.value
    monkeypatch.setattr(tasks.worker, "_ticket", None)
    panel.show(rows)
    assert "no setting fits" in panel.verdict.value and "bl-bad" in panel.verdict.value
    assert f"{len(rows)} combinations computed, 0 of them fit." in panel.state.value


def test_a_row_of_a_sweep_opens_as_it_was_swept(diamond, pair):
    """Opening a row simulates its step again, whatever was changed since the sweep, and whatever the screen showed before it.

    The sweep has a schedule, so a scheduler of the setting is not for it. On one device two steps of 30 us take 60.
    """
    bench = bl.Workbench(diamond, pair, placer="single", passes=(), scheduler="pct")
    bench.model.inline = True
    panel = bench.explore
    panel.devices.value, panel.micro.value, panel.schedules.value = "1", "2", "1f1b"
    panel.placers.value, panel.memory.value = "single", "1kB"
    panel.start.click()
    assert panel.table["makespan_us"].tolist() == [60.0] and not panel.outdated
    bench.model.change(cluster=pair.replace(link=bl.Link(5.0, 0.0)), passes=("fusion",), moves=(("d", "gpu:1"),))
    assert panel.outdated and "another setting" in panel.state.value and "bl-outdated" in panel.results._dom_classes
    assert "faster" not in panel.verdict.value  # two settings that do other work
    panel.open_row(0)
    assert bench.model.problem is None and bench.outcome.timeline.makespan_us == 60
    setting = bench.model.setting
    assert (setting.passes, setting.moves, setting.schedule, setting.scheduler) == ((), (), "1f1b", None)
    assert setting.cluster.link == pair.link and not panel.outdated and "another" not in panel.state.value
    panel.devices.value = "none"
    panel.start.click()
    assert "No sweep was started" in panel.state.value and "1 combination computed" in panel.state.value


@pytest.mark.slow
def test_explore_panel_sweeps_and_takes_the_best(bench):
    panel = bench.explore
    assert panel.batches.disabled  # a graph has one batch size
    assert panel.placers.value == "single, m-etf, contiguous"  # that of the header first, to compare others with
    own_bytes = int(bench.model.setting.cluster.memory_bytes.max())  # of the setting, and half: not what never fits
    offered = [bl.Cluster.uniform(1, memory_bytes=size) for size in panel.memory.value.split(", ")]
    assert [int(c.memory_bytes[0]) for c in offered] == [own_bytes // 2, own_bytes]
    panel.devices.value, panel.memory.value, panel.placers.value = "1, 2", "1kB", "m-etf"
    panel.start.click()
    expected = bl.sweep(
        bench.outcome.graph,
        devices=[1, 2],
        memory_bytes="1kB",
        placer="m-etf",
        cluster=bench.model.setting.cluster,
        passes=(),
        executor="here",
        progress=False,
    )
    # One device: 5 + 10 + 10 + 5. Two: c from 7 to 17 beside b from 5 to 15, whose tensor is there at 17; d 17 to 22.
    assert panel.table["makespan_us"].tolist() == expected["makespan_us"].tolist() == [30.0, 22.0]
    assert "bl-good" in panel.verdict.value and "faster" not in panel.verdict.value
    panel.take.click()
    assert bench.model.setting.cluster.n == 2 and bench.outcome.timeline.makespan_us == 22
    panel.show(panel.table[:1])  # 30 us at best, where the screen has 22
    assert "; the setting on the screen is faster, it takes 22.00 us" in panel.verdict.value
    assert "bl-note" in panel.verdict.value
    info = {"winner_scheduler": "pct"}
    bench.model.outcome = replace(bench.outcome, base=bench.outcome.base.replace(info=info))
    panel.show(panel.table[:1])
    assert "it takes 22.00 us: auto gave its placement the order pct" in shown_text(panel.verdict)
    panel.show(expected)
    # A cell of the heat map opens its setting, also a second time; so do a point and a row.
    cells = {cell["text"]: cell["id"] for cell in panel.chart.spec["cells"]}
    for _ in range(2):
        panel.chart.clicked = cells["30"]
        assert bench.model.setting.cluster.n == 1 and bench.outcome.timeline.makespan_us == 30
        panel.front.clicked = cells["22"]
        assert bench.model.setting.cluster.n == 2 and bench.outcome.timeline.makespan_us == 22
    receive(panel.rows, type="action", id=panel.rows.rows[0]["id"], action="Open")
    assert bench.outcome.timeline.makespan_us == 30
    # Further rows may come before a row while its click is on the way.
    panel.show(expected[1:])
    (label,) = (cell["id"] for cell in panel.chart.spec["cells"])
    assert [series["ids"] for series in panel.front.spec["series"]] == [[], [label]]
    panel.show(expected)
    panel.chart.clicked = label
    assert bench.outcome.timeline.makespan_us == 22
    panel.show(expected[:1])
    panel.front.clicked = label  # a row that is gone
    assert bench.outcome.timeline.makespan_us == 22 and panel.front.clicked == -1
    panel.devices.value = "two"
    panel.start.click()
    assert "not a list of whole numbers" in bench.header.problem.value


@pytest.mark.slow
def test_bug_rows_of_a_sweep_opened_another_cluster_than_they_were_computed_for():
    """Two machines, whose network costs 50 times what a link does: with it, a row of four devices is what it opens."""
    cluster = bl.Cluster.machines(4, 2, memory_bytes="1GB", link=bl.Link(1.0, 0.0), network=bl.Link(50.0, 0.0))
    graph = bl.generators.pipeline([8.0] * 4, [8.0] * 4, output_bytes=4)
    bench = bl.Workbench(graph, cluster, placer="m-topo", passes=())
    bench.model.inline = True
    panel = bench.explore
    panel.devices.value, panel.memory.value, panel.placers.value = "4, 3, 2", "1GB", "m-topo"
    panel.start.click()
    for number, row in enumerate(panel.table.itertuples()):
        panel.open_row(number)
        assert bench.outcome.timeline.makespan_us == row.makespan_us and not panel.outdated
    # The same devices on one machine are another cluster.
    one_machine = bl.Cluster.uniform(4, memory_bytes="1GB", link=bl.Link(1.0, 0.0), comm="duplex")
    bench.model.change(cluster=one_machine)
    assert panel.outdated


def test_export_panel_shows_code_that_reads_back(bench):
    assert bench.export.write.disabled  # a graph has no step
    bench.export.code.value = bench.code.replace("'single'", "'m-etf'")
    bench.export.read.click()
    assert bench.outcome.placement.placer == "m-etf" and "'m-etf'" in bench.export.code.value
    bench.export.code.value = "import os"
    bench.export.read.click()
    assert "no line makes the cluster" in bench.header.problem.value
    bench.export.code.value = bench.code.replace(
        "'m-etf')", "'m-etf')\nplacement = bl.move(placement, graph, cluster, [('z', 'gpu:1')])"
    )
    bench.export.read.click()
    assert (
        "no op &#x27;z&#x27;, and no ops below a scope of that name; the setting stays as" in bench.header.problem.value
    )
    assert bench.model.setting.moves == () and not bench.model.stale
    assert bench.export.preview.disabled  # a stored graph has no script


def test_run_panel_says_why_it_cannot_run(bench):
    assert bench.run.start.disabled and "cannot be run" in bench.run.state.value


def test_the_run_panel_shows_the_run_of_the_placement_that_is_there(bench):
    """Numbers of another placement, or beside what was promised before the ops were profiled here, are no comparison."""
    outcome = replace(bench.model.outcome, step=bl.Step("s", b"", (), (), (), (), ()))
    run = bl.Run(replace(outcome.timeline, origin="measured"), np.array([0.002, 0.002]), (), "ok")
    bench.model.outcome, bench.tasks.measured_runs = outcome, [(outcome, run)]
    bench.model.emit("run", (outcome, run))
    assert "simulated for rtx2080" in bench.run.numbers.value and "measured / simulated" not in bench.run.numbers.value
    # The same placement with costs measured here: the run is held against what is promised now.
    measured_outcome = replace(outcome, setting=replace(outcome.setting, profile="measured"))
    bench.model.outcome = measured_outcome
    bench.model.emit("outcome", measured_outcome)
    ratio = 0.002 / (measured_outcome.timeline.makespan_us / 1e6)
    assert f"measured / simulated</abbr> <b>{ratio:.2f}</b>" in bench.run.numbers.value
    assert "rtx2080" not in bench.run.numbers.value
    # Another placement, which was not run.
    moved_outcome = replace(
        measured_outcome,
        placement=measured_outcome.placement.replace(
            device=(measured_outcome.placement.device + 1) % measured_outcome.setting.cluster.n
        ),
    )
    bench.model.outcome = moved_outcome
    bench.model.emit("outcome", moved_outcome)
    assert bench.run.numbers.value == "" and bench.run.chart.spec == {} and "Not run yet" in bench.run.state.value
    # What ends now ran the placement before.
    bench.model.emit("run", (measured_outcome, run))
    assert bench.run.numbers.value == "" and "the placement before this one" in bench.run.state.value


def test_bug_a_run_was_held_against_transfers_over_a_preset_link(diamond):
    from baechi_lab.widgets.setting import LINKS

    cluster = bl.Cluster.uniform(2, link=LINKS["PCIe 3.0 through host memory"])
    bench = bl.Workbench(diamond, cluster, placer="single", passes=(), moves=(("s/c", "gpu:1"),))
    step = bl.Step("s", b"", (), (), (), (), ())
    measured_outcome = replace(bench.outcome, step=step, setting=bench.outcome.setting.replace(profile="measured"))
    run = bl.Run(replace(measured_outcome.timeline, origin="measured"), np.array([0.002, 0.002]), (), "ok")
    bench.model.outcome, bench.tasks.measured_runs = measured_outcome, [(measured_outcome, run)]
    bench.model.emit("run", (measured_outcome, run))
    assert "simulated for a link of PCIe 3.0" in bench.run.numbers.value
    assert "measured / simulated" not in bench.run.numbers.value
    assert "before the link is measured" in bench.run.likeness.value
    assert (bench.run.profile.layout.display, bench.run.link.layout.display) == ("none", "inline-flex")
    measured_link = measured_outcome.setting.cluster.replace(link=bl.Link(123.4, 0.001))
    measured = replace(measured_outcome, setting=measured_outcome.setting.replace(cluster=measured_link))
    bench.model.outcome, bench.tasks.measured_runs = measured, [(measured, run)]
    bench.model.emit("run", (measured, run))
    assert "measured / simulated" in bench.run.numbers.value and bench.run.likeness_row.layout.display == "none"


# -- workbench ------------------------------------------------------------------------------------------


def test_the_workbench_has_a_picture_for_saved_notebooks(bench):
    data, _ = bench._repr_mimebundle_()
    assert data["image/svg+xml"].startswith("<svg") and "application/vnd.jupyter.widget-view+json" in data


def test_a_workbench_refuses_what_it_cannot_open(pair):
    with pytest.raises(bl.InvalidInput, match="needs a graph"):
        bl.Workbench(None, pair)
    with pytest.raises(
        bl.InvalidInput, match=r"not on function; bl\.torch\.TorchStep makes the step of a PyTorch model"
    ):
        bl.Workbench(lambda x: x, pair)
    with pytest.raises(bl.InvalidInput, match="unknown setting"):
        bl.Workbench(bl.OpGraph.from_edges([1]), pair, colour="red")


def test_texts_are_escaped():
    assert "<script>" not in table(("<script>",), [["<script>"]])


def test_sizes_are_shown_exactly():
    assert [exact_bytes(s) for s in (8 << 30, 8 * 10**9, 1, 0)] == ["8 GiB", "8 GB", "1 B", "0 B"]


@pytest.mark.slow
def test_two_workbenches_are_independent(diamond, pair):
    """A second workbench does not listen to the first one's model."""
    one, two = bl.Workbench(diamond, pair, passes=()), bl.Workbench(diamond, pair, passes=())
    one.model.select([1])
    assert two.model.selection == () and two.timeline.selected == []


def test_bug_the_message_on_a_rejected_value_stayed_when_the_value_in_force_was_confirmed(bench):
    """After `x` the field says 1 again. Enter on 1 is no change, so nothing removed the message on `x`."""
    bench.setting.replicas.value = "x"
    assert "replicas is 'x'" in bench.model.problem.sentence and bench.setting.replicas.value == "1"
    receive(bench.setting.replicas, event="submit")
    assert bench.model.problem is None
    bench.setting.memory.value = "1 B"  # the result does not fit: that is not the message on a rejected value
    assert bench.model.problem is not None
    receive(bench.setting.memory, event="submit")
    assert bench.model.problem is not None


def test_a_setting_that_does_not_fit_opens_with_its_reason(diamond):
    graph = diamond.replace(persistent_bytes=[10] * 4)
    workbench = bl.Workbench(graph, bl.Cluster.uniform(2, memory_bytes=5), passes=())
    workbench.model.inline = True
    assert (
        workbench.outcome is None and "5 B" in workbench.header.problem.value and len(workbench.graph.scene.nodes) == 4
    )
    workbench.setting.memory.value = "1 kB"
    assert workbench.outcome.timeline.feasible and workbench.header.problem_row.layout.display == "none"


@pytest.mark.slow
def test_nbconvert_shows_the_picture_of_a_saved_notebook(bench):
    import nbformat
    from nbconvert import HTMLExporter

    data, _ = bench._repr_mimebundle_()
    cell = nbformat.v4.new_code_cell("bench", outputs=[nbformat.v4.new_output("display_data", data=data)])
    html, _ = HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
    assert "data:image/svg+xml;base64," in html


@pytest.mark.slow
def test_after_a_cancelled_computation_the_header_offers_to_compute():
    bench = bl.Workbench(bl.generators.random_dag(30, seed=1), passes=())
    retry_button = bench.header.again
    assert retry_button.layout.display == "none"
    bench.model.change(placer="single")
    assert retry_button.layout.display == "none"
    bench.header.cancel.click()
    assert bench.model.stale and retry_button.layout.display == "inline-flex"
    retry_button.click()
    assert bench.model.worker.wait(60)
    assert not bench.model.stale and retry_button.layout.display == "none"
    assert bench.outcome.placement.placer == "single"


def test_bug_cancelling_a_comparison_ended_the_search_for_advice(monkeypatch):
    """It never resumed; what it finds after the cancel is shown."""
    from baechi_lab.widgets import model as model_module

    gate, advice = threading.Event(), (Advice("another order", "Use it", {"scheduler": "pct"}, 2.0, 1.0),)

    def search(outcome, subject, memo, report, on_advice):
        assert gate.wait(30)
        report("", 0.5)  # a cancelled search ends here
        return advice

    monkeypatch.setattr(model_module, "all_advice", search)
    bench = bl.Workbench(bl.generators.random_dag(30, seed=1), passes=(), placer="m-etf")
    assert bench.model.worker.busy
    bench.tasks.start("the comparison", lambda ticket: gate.wait(30), lambda result: None)
    bench.header.cancel.click()
    assert not bench.tasks.worker.busy and bench.model.worker.busy
    gate.set()
    assert bench.model.worker.wait(30)
    assert bench.model.advice == advice and "another order" in bench.header.advice_rows[0].sentence.value.lower()


def controls_of(tree):
    """The nodes of a tree of controls by their labels."""
    below = [node for child in tree.get("children", ()) for node in controls_of(child).values()]
    return {node["label"]: node for node in (tree, *below) if node.get("label")}


def test_marimo_shows_setting_and_views_and_says_what_is_missing(bench, monkeypatch):
    """It shows no containers of ipywidgets: their controls are drawn once more, as elements of the page."""
    marimo = SimpleNamespace(vstack=list, hstack=lambda items, widths: items, md=str)
    monkeypatch.setitem(sys.modules, "marimo", marimo)
    sentence, header, verdict, (setting, views) = bench._display_()
    assert verdict is bench.header.verdict and "other tabs need JupyterLab" in sentence
    assert views[1:] == [bench.graph, bench.details, bench.timeline, bench.memory]
    assert not hasattr(bench.graph, "_display_")  # marimo's own way shows a view
    placer = controls_of(setting.tree)["placer"]
    assert placer["options"][placer["value"]] == "single"
    receive(setting, id=placer["id"], value=placer["options"].index("m-etf"))
    assert bench.outcome.placement.placer == "m-etf" and json.dumps(setting.tree)
    facts = str(header.tree)
    assert format_us(bench.outcome.timeline.makespan_us) in facts
    # A rejected input is shown as it was, with the reason in the header; folded controls come when they are unfolded.
    memory, answers = controls_of(setting.tree)["memory each"], setting.tree["answers"]
    receive(setting, id=memory["id"], value="nonsense")
    assert controls_of(setting.tree)["memory each"] == memory and setting.tree["answers"] == answers + 1
    assert "is not an amount of memory" in str(header.tree) and "link" not in controls_of(setting.tree)
    receive(setting, id=controls_of(setting.tree)["▸ Advanced"]["id"])
    fusion = controls_of(setting.tree)["fusion"]
    assert not fusion["pressed"]
    receive(setting, id=fusion["id"])
    assert bench.model.setting.passes == ("fusion",)
    receive(views[0], id=controls_of(views[0].tree)["Undo"]["id"])
    assert bench.model.setting.passes == () and not controls_of(setting.tree)["fusion"]["pressed"]


def test_static_pictures_have_words(bench):
    assert 'role="img"' in bench.picture() and "placed by single on 2 devices" in bench.picture().split("</title>")[0]
    assert 'aria-label="Timeline"' in bench.timeline.picture()


def test_bug_tooltips_of_parameters_spoke_of_none():
    """A control shows None as an empty text, and no control shows that word."""
    from baechi_lab.placers.registry import placer_class, placer_names
    from baechi_lab.widgets.panels.params_form import hints

    texts = {name: hints(placer_class(name)) for name in placer_names()}
    assert [text for of_placer in texts.values() for text in of_placer.values() if "None" in text] == []
    assert texts["coloc-rl"]["time_limit"] == "seconds for training, or empty."


@pytest.mark.slow
def test_tabs_that_are_hidden_at_first_are_made_when_the_page_has_drawn():
    """Most controls are in them, and each takes time in the kernel and in the page before the first picture."""

    async def opened():
        bench = bl.Workbench(bl.generators.unrolled_rnn(2, 3), bl.Cluster.uniform(2), placer="m-etf")
        panes = bench.panes.children
        assert [len(pane.children) > 0 for pane in panes] == [True] * 3 + [False] * 6
        bench.graph._execute_message(None, {"type": "drawn"}, [])
        panels = (bench.compare, bench.run, bench.explore, bench.explain, bench.fit, bench.export)
        assert [pane.children for pane in panes[3:]] == [(panel.widget,) for panel in panels]
        assert bench.export.code.value == bench.code
        bench.model.cancel()

    asyncio.run(opened())
