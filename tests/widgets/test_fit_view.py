"""The options of a fit, as points with timelines and beside the memory view."""

import dataclasses
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab import viz
from baechi_lab.fitting.record import Fit, FitOption
from baechi_lab.graph.units import format_us
from baechi_lab.internal_warnings import collected_notes
from baechi_lab.memo import Memo
from baechi_lab.widgets import FitView, Workbench
from baechi_lab.widgets.panels.fit_panel import option_columns, option_setting, unlike
from baechi_lab.widgets.setting import Setting
from tests.helpers.messages import shown_text


def graph():
    return bl.generators.with_backward(bl.generators.chain(9, size_bytes=100_000, duration_us=100.0, seed=0))


def test_a_point_leads_to_its_timeline():
    answer = bl.fit(graph(), bl.Cluster.uniform(1, memory_bytes="600kB", link=bl.Link(5.0, 0.0001)))
    figure = viz.fit_options(answer)
    numbers = [n for trace in figure.data if trace.customdata is not None for n in trace.customdata]
    tried = [k for k, option in enumerate(answer.options) if option.timeline is not None]
    view = FitView(answer)
    drawn = [series for series in view.points.spec["series"] if not series["dash"]]
    assert sorted(numbers) == sorted(k for series in drawn for k in series["ids"]) == tried
    # The same points as in the figure, hollow where an option does not fit.
    for series in drawn:
        trace = next(t for t in figure.data if t.name == series["name"])
        assert series["x"] == list(trace.x) and series["y"] == list(trace.y) and series["ids"] == list(trace.customdata)
        assert series["hollow"] == [not answer.options[k].fits for k in series["ids"]]
    recomputation = next(series for series in drawn if series["name"] == "recomputation")
    view.points.clicked = recomputation["ids"][0]  # as a click in the browser does
    option = answer.options[recomputation["ids"][0]]
    assert view.shown is option and view.timeline.timelines == (option.timeline,) and view.timeline in view.children
    assert "bl.recompute" in view.words.value


def test_as_the_output_of_a_cell_it_begins_with_the_best_option_which_a_saved_notebook_shows(monkeypatch):
    """Notebook 34 had no picture of it."""
    outputs = []
    monkeypatch.setattr("IPython.display.display", lambda data, **_: outputs.append(data))
    answer = bl.fit(graph(), bl.Cluster.uniform(1, memory_bytes="600kB", link=bl.Link(5.0, 0.0001)))
    view = FitView(answer)
    view._ipython_display_()
    assert view.shown is answer.best
    [picture] = [output["image/svg+xml"] for output in outputs if "image/svg+xml" in output]
    assert answer.best.kind in picture and all(name in picture for name in answer.best.timeline.device_names)


def test_marimo_shows_the_points_and_the_timeline_of_the_best(monkeypatch):
    """It showed a timeline without a placement, and no points to choose one."""
    monkeypatch.setitem(sys.modules, "marimo", SimpleNamespace(vstack=list, md=str))
    view = FitView(bl.fit(graph(), bl.Cluster.uniform(1, memory_bytes="600kB", link=bl.Link(5.0, 0.0001))))
    _, *shown = view._display_()
    assert shown == [view.points, view.timeline] and view.timeline.timelines == (view.answer.best.timeline,)
    option_index = next(
        k for k, option in enumerate(view.answer.options) if option.timeline and option is not view.answer.best
    )
    view.points.clicked = option_index
    assert view.timeline.timelines == (view.answer.options[option_index].timeline,)


def test_a_limit_far_above_the_peaks_is_told_instead_of_drawn():
    """Peaks of kilobytes beside a limit of gigabytes were one point at 0 GB."""
    near, far = (
        bl.fit(graph(), bl.Cluster.uniform(1, memory_bytes=size), every_option=True) for size in ("1.2MB", "8GiB")
    )
    assert FitView(near).points.spec["rules"] and len(viz.fit_options(near).layout.shapes) == 1
    spec, figure = FitView(far).points.spec, viz.fit_options(far)
    assert spec["rules"] == [] and not figure.layout.shapes
    assert (
        spec["x"] == figure.layout.xaxis.title.text == "peak of the fullest device (kB); a device has 8.59 GB = 8 GiB"
    )


def test_the_button_beside_the_memory_view():
    bench = Workbench(graph(), bl.Cluster.uniform(1, memory_bytes="1GB"))
    bench.model.inline = True
    bench.fit.ask.click()
    assert bench.fit.answer.fits and "Yes: 1 device" in shown_text(bench.fit.state)
    heads = [head["name"] for head in bench.fit.rows.head]
    texts = [" ".join(row["cells"]) for row in bench.fit.rows.rows]
    assert any("recomputation" in text for text in texts)
    assert any("choose a model in Setting" in text for text in texts)
    assert not any("a function that takes" in text for text in texts)
    # Nothing is known of samples; all steps have one unit, and so have all peaks of devices.
    assert heads[:4] == ["option", "choice", "fits", "step time (ms)"] and "samples/s" not in heads
    assert [row["marked"] for row in bench.fit.rows.rows].count(True) == 1
    assert all(head["hint"] for head in bench.fit.rows.head)
    # One click changes the setting so that it has the step and the peaks of the row; one undo takes it back.
    setting, options = bench.model.setting, bench.fit.answer.options
    usable = [k for k, row in enumerate(bench.fit.rows.rows) if row["actions"]]
    assert {options[k].kind for k in usable} >= {"recomputation"}
    assert not any(options[k].kind == "offloading" or not options[k].fits for k in usable)
    for k in usable:
        bench.fit.rows.on_action(k, "Use")
        timeline = bench.outcome.timeline
        assert (timeline.makespan_us, timeline.peak_bytes.tolist()) == (options[k].step_us, options[k].peak_bytes)
        assert "another setting" in shown_text(bench.fit.outdated) and "bl-outdated" in bench.fit.results._dom_classes
        bench.model.undo()
        assert bench.model.setting == setting and not shown_text(bench.fit.outdated)


def test_an_option_that_saves_nothing_is_a_setting_without_a_note():
    """What recomputation saves stands in the row; the note is for those who ask for it in Setting."""
    peak_at_end = graph().replace(temp_bytes=[0] * (graph().n - 1) + [50_000_000])
    cluster = bl.Cluster.uniform(1)
    option = next(o for o in bl.fit(peak_at_end, cluster, every_option=True).options if o.choice == "keep='sqrt'")
    with collected_notes() as notes:
        assert option_setting(option, Setting(cluster), peak_at_end, Memo()).recompute == "sqrt"
    assert notes == []
    with collected_notes() as notes:
        bl.recompute(peak_at_end, "sqrt")
    assert "saves nothing" in notes[0]


def test_bug_steps_and_peaks_of_options_had_several_units():
    """Steps of 1.5 s and 20 ms; peaks of 2 GB beside 3 MB and 0 B; the host has a column of its own."""
    cluster = bl.Cluster([bl.Device("gpu:0", "gpu", 8 << 30), bl.Device("host", "host", 8 << 30)], bl.Link(1.0, 0.0))
    options = []
    for step_us, peak, host_peak in ((1.5e6, 2_000_000_000, 0), (2e4, 3_000_000, 1_000_000_000)):
        graph = bl.OpGraph.from_edges([step_us], persistent_bytes=[peak])
        timeline = bl.simulate(graph, cluster, bl.Placement(device=[0]))
        timeline = dataclasses.replace(timeline, peak_bytes=np.array([peak, host_peak]))
        options.append(FitOption("offloading", graph=graph, cluster=cluster, timeline=timeline))
    columns = {column.name: column for column in option_columns(options)}
    assert list(columns["step time (s)"].texts) == ["1.500", "0.020"] and columns["step time (s)"].number
    assert columns["peak of each device (GB)"].texts == ["2.00", "<0.01"]
    assert columns["host (GB)"].texts == ["0", "1"]


def test_peaks_and_times_of_options_have_one_base_the_step_as_it_is():
    """Peaks were compared with the same placement without the option, times with the step as it is."""
    cluster = bl.Cluster.uniform(1, link=bl.Link(5.0, 0.0001))
    answer = bl.fit(graph(), cluster, every_option=True)
    columns = {column.name: column for column in option_columns(answer.options)}
    assert {"fullest device (kB), against as it is", "gives up, against as it is"} < set(columns)
    fullest = columns["fullest device (kB), against as it is"]
    peaks = [int(option.timeline.peak_bytes[0]) for option in answer.options if option.timeline]
    assert fullest.texts[0] == f"{peaks[0] / 1e3:,.0f}"
    savings = [k for k, option in enumerate(answer.options) if option.kind == "recomputation" and option.timeline]
    assert savings
    for k in savings:
        peak = int(answer.options[k].timeline.peak_bytes.max())
        change = f"{(peak / peaks[0] - 1) * 100:+.0f}%" if peak < peaks[0] else "no change"
        assert (fullest.values[k], fullest.texts[k]) == (peak, f"{peak / 1e3:,.0f}\xa0({change})")
        assert answer.options[k].gives_up.startswith("gains nothing") == (peak == peaks[0])
    devices = next(k for k, option in enumerate(answer.options) if option.kind == "more devices")
    assert fullest.texts[devices].endswith("(no change)") and answer.options[devices].gives_up.startswith(
        "gains nothing"
    )


@pytest.mark.slow
def test_the_step_of_a_graph_is_told_apart_from_that_of_its_micro_batches():
    """Of a graph alone nobody knows the batch: it said "in one batch" beside a step of eight micro-batches."""
    bench = Workbench(graph(), bl.Cluster.uniform(2), placer="contiguous", passes=(), micro_batches=8, schedule="1f1b")
    step_us = bench.outcome.timeline.makespan_us
    sentence = f"As it is, the graph runs once; the {format_us(step_us)} above are of 8 micro-batches."
    assert unlike(bl.fit(graph(), bl.Cluster.uniform(2), every_option=True), bench.outcome) == sentence


def test_steps_have_the_unit_of_the_step_as_it_is():
    """The header said 164.23 ms, and the row of the same step 0.164 s, because another row took a second."""
    options = []
    for step_us in (164_230.0, 1_005_000.0):
        alone = bl.OpGraph.from_edges([step_us])
        cluster = bl.Cluster.uniform(1)
        timeline = bl.simulate(alone, cluster, bl.Placement(device=[0]))
        options.append(FitOption("as it is", graph=alone, cluster=cluster, timeline=timeline))
    columns = {column.name: column for column in option_columns(options)}
    assert list(columns["step time (ms)"].texts) == ["164.2", "1,005.0"]


@pytest.mark.slow
def test_a_model_has_other_batches_too():
    """The panel asked for another batch of the graph alone, which does not say what that costs."""
    pytest.importorskip("tensorflow")
    bench = Workbench(bl.models.build("mlp", batch_size=32), bl.Cluster.uniform(1, memory_bytes="1GB"))
    bench.model.inline = True
    bench.fit.ask.click()
    options_by_kind = {option.kind: option for option in bench.fit.answer.options}
    assert options_by_kind["as it is"].batch_size == 32 and options_by_kind["as it is"].samples_per_second > 0
    assert options_by_kind["smaller batch"].fits and options_by_kind["smaller batch"].choice == "batch 16"
    assert (
        options_by_kind["micro-batches"].fits
        and "bl.models.build('mlp', batch_size=16" in options_by_kind["micro-batches"].command
    )
    plain = bl.profile(bl.models.build("mlp", batch_size=16), mode="estimated", hardware="rtx2080")
    assert options_by_kind["smaller batch"].graph.key == plain.key
    # Their buttons change the batch and the micro-batches.
    for kind, batch_size, micro_batches in (("smaller batch", 16, None), ("micro-batches", 32, 2)):
        option = options_by_kind[kind]
        bench.fit.rows.on_action(bench.fit.answer.options.index(option), "Use")
        setting, timeline = bench.model.setting, bench.outcome.timeline
        assert (setting.batch_size, setting.micro_batches) == (batch_size, micro_batches)
        assert (timeline.makespan_us, timeline.peak_bytes.tolist()) == (option.step_us, option.peak_bytes)


@pytest.mark.slow
def test_the_header_s_placement_is_one_of_the_tries(monkeypatch):
    """Fit said 711 ms as it is below a header that said 666 ms."""
    monkeypatch.setattr(
        "baechi_lab.placers.memory_trades.best_of_placers.place_on_memory_ladder", lambda *arguments: []
    )  # what beats the header here
    wide = bl.generators.layered_dag(60, seed=3)
    bench = Workbench(wide, bl.Cluster.uniform(3, memory_bytes="1GB"))
    bench.model.inline = True
    few = bl.fit(wide, bench.outcome.setting.cluster).options[0].step_us
    assert bench.outcome.timeline.makespan_us < few
    bench.fit.ask.click()
    first = bench.fit.answer.options[0]
    assert first.step_us == bench.outcome.timeline.makespan_us and first.command == "placement"
    assert "The first row has the placement above. The others have the fastest of single, m-topo" in shown_text(
        bench.fit.state
    )
    # A worse one in the header: what is faster here says so.
    bench.model.change(placer="random")
    bench.fit.ask.click()
    assert bench.fit.answer.options[0].step_us == few < bench.outcome.timeline.makespan_us
    assert "placed by" in shown_text(bench.fit.state) and "above)" in bench.fit.state.value
    # What to write in code is no advice for whoever looks at a form.
    assert bench.fit.answer.caveat and "time_limit=" not in shown_text(bench.fit.state)


def test_bug_the_header_s_placement_in_another_order_was_called_the_same():
    """x before y by number: 10 + 10 + 1 + 10 us; under pct y is first, whose reader waits: 10 + 1 + 10."""
    wide = bl.OpGraph.from_edges([10.0] * 3, [(1, 2, 8)], names=["x", "y", "z"])
    cluster = bl.Cluster.uniform(2, link=bl.Link(1.0, 0.0))
    bench = Workbench(wide, cluster, placer="single", passes=(), scheduler="pct")
    bench.model.inline = True
    bench.model.move([2], 1 - int(bench.outcome.placement.device[2]))
    placement = bench.outcome.placement
    line = bl.simulate(wide, cluster, placement, scheduler="fifo")
    assert (bench.outcome.timeline.makespan_us, line.makespan_us) == (21, 31)
    option = FitOption("as it is", "2 devices", "nothing", command="placement", placement=placement, timeline=line)
    assert "in the order of the placement itself (+48% against the 21.00 us above)" in unlike(
        Fit((option,)), bench.outcome
    )


@pytest.mark.slow
def test_where_nothing_fits_the_button_says_what_would():
    """It waited for a result, which there never is."""
    bench = Workbench(graph(), bl.Cluster.uniform(1, memory_bytes="600kB", link=bl.Link(5.0, 0.0001)))
    assert (
        bench.model.worker.wait() and bench.outcome.setting.cluster.n == 2
    )  # it opens with a device more, and says so
    assert "devices (1 to 2) changed so that it fits" in shown_text(bench.header.chip)
    bench.model.inline = True
    bench.model.undo()
    assert bench.model.stale and "Fit shows what would make it fit" in bench.header.problem.value
    assert bench.header.ask_fit.layout.display == "inline-flex"
    bench.header.ask_fit.click()  # one click leads to the recomputation that fits
    assert bench.tabs.chosen == "Fit"
    assert (
        not bench.fit.answer.fits
        and bench.fit.answer.best is not None
        and any(row["cells"][0] == "recomputation" for row in bench.fit.rows.rows)
    )
    bench.setting.speeds.value = "nonsense"  # another problem, for which Fit knows nothing
    assert bench.header.problem_row.layout.display == "flex" and bench.header.ask_fit.layout.display == "none"
