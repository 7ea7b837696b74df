"""Pipelines, advice and remedies of the workbench in a real browser, against the library's numbers."""

from __future__ import annotations

import json

import jupyter_browser as jb
import pytest
from whole_screen import tab

import baechi_lab as bl
from baechi_lab.graph.units import format_us
from baechi_lab.step_summary import against_one_device
from baechi_lab.viz.shades import PHASES
from baechi_lab.widgets.coloring import phase_legend
from baechi_lab.widgets.model import WorkbenchModel
from baechi_lab.widgets.setting import HARDWARE_PRESETS, Setting

pytestmark = [
    pytest.mark.ui,
    pytest.mark.skipif(bool(jb.missing()), reason=jb.missing() or "-"),
    pytest.mark.timeout(280),
]

SETUP = """
import baechi_lab as bl
graph = bl.generators.pipeline([8.0] * 4, [8.0] * 4, weight_us=[8.0] * 4, output_bytes=4)
cluster = bl.Cluster.machines(4, 2, link=bl.Link(1.0, 1e-4), network=bl.Link(5.0, 1e-2))
bench = bl.Workbench(graph, cluster, placer="contiguous", passes=(), micro_batches=4, schedule="zb-h1")
"""
TIMELINE = 'canvas[aria-label="Timeline"]'


@pytest.fixture(scope="module")
def page(lab, lab_page):
    """Errors of the page end the tests that caused them."""
    with jb.lab_page_for_file(lab_page, 1600, 1000) as opened:
        yield opened


def test_phases_are_in_the_legend_machines_over_their_lanes_and_bubbles_in_the_title(lab, page):
    """Four stages on two machines of two devices; each of F, B and W takes 8 us for each of 4 micro-batches and stages."""
    names: dict[str, bl.Workbench] = {}
    exec(SETUP, names)
    timeline = names["bench"].timeline.timelines[0]
    phases = {row["label"]: row for row in phase_legend(timeline)}
    assert {label: row["time"] for label, row in phases.items()} == pytest.approx(dict.fromkeys(PHASES, 128.0))
    jb.open_notebook(page, lab.add_notebook("pipelines.ipynb", [SETUP, "bench"]))
    jb.run_all(page, TIMELINE, 120_000)
    tab(page, "Timeline")
    page.wait_for_selector(".bl-panes.bl-at-timeline")
    share = float((timeline.idle_us / timeline.makespan_us).mean())
    title = f"simulated {format_us(timeline.makespan_us)}, {share:.0%} bubbles"
    page.wait_for_selector(f'.bl-view:has({TIMELINE}):has-text("{title}")')
    for label, row in phases.items():
        key = f'.bl-key[title="{label}: {format_us(row["time"])} in all"]'
        page.wait_for_selector(key)
        color = page.locator(f"{key} .bl-swatch").evaluate("(box) => getComputedStyle(box).backgroundColor")
        assert color == "rgb({}, {}, {})".format(*bytes.fromhex(row["color"][1:]))
        hatch = page.locator(f"{key} .bl-swatch").evaluate("(box) => getComputedStyle(box).backgroundImage")
        assert ("gradient" in hatch) == (label == PHASES[2])
    jb.eventually(page, lambda: _equal(page.locator(TIMELINE).get_attribute("data-headings"), "machine 1|machine 2"))
    assert page.problems == []


CHAIN = """
import baechi_lab as bl
graph = bl.generators.pipeline([8.0, 8.0], [16.0, 16.0], output_bytes=4)
cluster = bl.Cluster.uniform(2, link=bl.Link(1.0, 0.0))
bench = bl.Workbench(graph, cluster, placer="contiguous", passes=())
bench
"""


def shows_step(page, step_us):
    page.wait_for_selector(f'.bl-header .bl-facts:has-text("step time {format_us(step_us)}")')
    page.wait_for_selector(".bl-stale", state="detached")


def control(page, label):
    return page.locator(f'.bl-setting .widget-inline-hbox:has(label > :text-is("{label}"))')


def test_advice_micro_batches_and_presets_have_the_library_s_numbers(lab, page):
    """A chain of 8, 8, 16 and 16 us: eight steps take 384 us, and less as micro-batches. One click applies, another undoes."""
    names: dict[str, object] = {}
    exec(CHAIN, names)
    graph, cluster = names["graph"], names["cluster"]
    model = WorkbenchModel(graph, Setting(cluster, placer="contiguous", passes=()), inline=True)
    model.compute_now()
    # Of two ways to run eight micro-batches, under 1F1B and in the order of readiness, the faster one is advised.
    (advice,) = model.advice
    jb.open_notebook(page, lab.add_notebook("chain.ipynb", [CHAIN]))
    jb.run_all(page, TIMELINE, 120_000)
    shows_step(page, 48.0)
    page.locator(f".bl-advice:has-text({json.dumps(advice.sentence[1:])})").locator("button").click()
    stages = bl.place(graph, cluster, "contiguous", objective="step", micro_batches=8, schedule="1f1b")
    under_1f1b = bl.simulate(graph, cluster, stages, micro_batches=8, schedule="1f1b")
    placers = advice.changes["params"]["placers"]
    placement = bl.place(graph, cluster, "auto", placers=placers, objective="step", micro_batches=8)
    pipelined = bl.simulate(graph, cluster, placement, micro_batches=8, scheduler=advice.changes["scheduler"])
    assert pipelined.makespan_us == advice.after_us < under_1f1b.makespan_us < advice.before_us == 8 * 48
    shows_step(page, pipelined.makespan_us)
    page.click('.bl-advice:has-text("Applied: ") button:text-is("Undo this")')
    shows_step(page, 48.0)
    # The best of several placers for a step in micro-batches.
    control(page, "placer").locator("select").select_option("auto")
    micro_batches = control(page, "micro-batches").locator("input")
    micro_batches.fill("4")
    micro_batches.press("Enter")
    placement = bl.place(graph, cluster, "auto", objective="step", micro_batches=4)
    step_us = bl.simulate(graph, cluster, placement, micro_batches=4).makespan_us
    shows_step(page, step_us)
    page.wait_for_selector('.bl-header .bl-facts:has-text("auto took the answer of")')
    # The timeline is that of the numbers above it.
    page.wait_for_selector(
        f'.bl-view:has({TIMELINE}) .bl-title:has-text("simulated {format_us(step_us)}")', state="attached"
    )
    assert not page.locator('.bl-header [role="alert"]').is_visible()
    # Another cluster is one choice.
    preset = "4 x RTX 4090, PCIe"
    cluster = HARDWARE_PRESETS[preset].cluster
    control(page, "hardware").locator("select").select_option(preset)
    placement = bl.place(graph, cluster, "auto", objective="step", micro_batches=4)
    shows_step(page, bl.simulate(graph, cluster, placement, micro_batches=4).makespan_us)
    jb.eventually(page, lambda: _equal(control(page, "memory each").locator("input").input_value(), "24 GB"))
    assert page.problems == []


TIGHT_PIPELINE = """
graph = bl.generators.pipeline([4.0, 4.0], [8.0, 8.0], activation_bytes=60)
small = bl.Cluster.uniform(2, memory_bytes=300, link=bl.Link(1.0, 0.0))
pipeline = {"micro_batches": 4, "schedule": "1f1b"}
"""


def test_one_device_is_judged_in_the_order_of_the_schedule(page):
    """Two activations of 60 bytes per micro-batch: 120 at a time under 1F1B, 480 where all forward passes come first.

    It goes on with the workbench of the test above.
    """
    names: dict = {"bl": bl}
    exec(TIGHT_PIPELINE, names)
    graph, small, pipeline = names["graph"], names["small"], names["pipeline"]
    alone = bl.simulate(graph, small, bl.place(graph, small, "single"), **pipeline)
    free = bl.simulate(graph, small, bl.Placement(device=alone.device[:1].repeat(graph.n)), micro_batches=4)
    assert alone.feasible and not free.feasible
    placement = bl.place(graph, small, "contiguous", objective="step", **pipeline)
    line = bl.simulate(graph, small, placement, **pipeline)
    change = "bench.model.subject = graph; bench.model.change(cluster=small, placer={!r}, params={{}}, passes=(), **pipeline)"
    jb.execute(page, f"{TIGHT_PIPELINE}{change.format('contiguous')}")
    shows_step(page, line.makespan_us)
    facts = page.locator(".bl-header .bl-facts")
    jb.eventually(page, lambda: _holds(facts.inner_text(), against_one_device(line.makespan_us, alone.makespan_us)))
    assert "does not fit" not in facts.inner_text()
    control(page, "placer").locator("select").select_option("single")
    shows_step(page, alone.makespan_us)
    jb.eventually(page, lambda: _holds(facts.inner_text(), "as fast as one device", "fits"))
    assert "does not fit" not in facts.inner_text()
    # In the order of what is ready, one device holds four micro-batches at once.
    page.click('.bl-setting button:has-text("Advanced")')
    control(page, "schedule").locator("select").select_option("what is ready first")
    page.wait_for_selector('.bl-header:has-text("does not fit")')
    page.click('.bl-setting button:has-text("Advanced")')
    assert page.problems == []


ORDERED = """
graph = bl.OpGraph.from_edges([10.0, 10.0, 10.0], [(1, 2, 8)], names=["x", "y", "z"])
bench.model.subject = graph
bench.model.change(
    cluster=bl.Cluster.uniform(2, link=bl.Link(1.0, 0.0)), placer="single", micro_batches=None, schedule=None, scheduler="fifo")
"""


def test_another_order_of_the_same_placement_is_advised_with_its_step(page):
    """x before y by number: 10 + 10 + 1 + 10; y first, whose reader waits: 10 + 1 + 10.

    The workbench is that of the tests above.
    """
    jb.execute(page, ORDERED)
    shows_step(page, 30.0)
    jb.execute(page, "bench.model.change(moves=(('z', 'gpu:1'),))")
    shows_step(page, 31.0)
    page.locator('.bl-advice:has-text("ame placement, order pct: 31.0 -> 21.0 us")').locator("button").click()
    shows_step(page, 21.0)
    page.click('.bl-advice:has-text("Applied: ") button:text-is("Undo this")')
    shows_step(page, 31.0)
    assert page.problems == []


def _holds(text, *pieces):
    assert all(piece in text for piece in pieces), text


def _equal(value, expected):
    assert value == expected


TIGHT = """
import baechi_lab as bl
graph = bl.OpGraph.from_edges([10, 10], [(0, 1, 8)], persistent_bytes=[600, 600])
bench = bl.Workbench(graph, bl.Cluster.uniform(2, memory_bytes=1000), placer="single", passes=())
bench
"""


def test_a_start_that_does_not_fit_opens_on_its_remedy(lab, page):
    """Two ops of 600 bytes are not on one device of 1000: another placer is taken, said so, and undone by one click."""
    names: dict[str, object] = {}
    exec(TIGHT, names)
    cluster = bl.Cluster.uniform(2, memory_bytes=1000)
    line = bl.simulate(names["graph"], cluster, bl.place(names["graph"], cluster, "auto"))
    jb.open_notebook(page, lab.add_notebook("tight.ipynb", [TIGHT]))
    jb.run_all(page, '.bl-advice:has-text("placer changed so that it fits")', 120_000)
    shows_step(page, line.makespan_us)
    assert not page.locator('.bl-header [role="alert"]').is_visible()
    page.click('button:text-is("Undo that")')
    page.wait_for_selector('.bl-header [role="alert"]:has-text("fit")')
    page.wait_for_selector('button:text-is("Undo that")', state="hidden")
    assert page.problems == []


LARGE = """
import pathlib, time
import baechi_lab as bl
from baechi_lab.placers.auto import Auto
from baechi_lab.widgets import model
model.LARGE_GRAPH, assign = 24, Auto.assign

def assign_later(self, graph, cluster):
    while not pathlib.Path("auto-may-end").exists():
        time.sleep(0.05)
    return assign(self, graph, cluster)

Auto.assign = assign_later
graph = bl.generators.layered_dag(24, seed=4)
bench = bl.Workbench(graph, bl.Cluster.uniform(3, link=bl.Link(5.0, 1e-4)))
bench
"""


def test_a_large_graph_is_drawn_before_auto_has_its_result(lab, page):
    """First the step of m-etf, then that of auto; nothing to undo, and no setting before."""
    graph, cluster = bl.generators.layered_dag(24, seed=4), bl.Cluster.uniform(3, link=bl.Link(5.0, 1e-4))
    coarse = bl.optimize(graph, cluster)
    first_us, final_us = (
        bl.simulate(graph, cluster, bl.place(coarse, cluster, placer)).makespan_us for placer in ("m-etf", "auto")
    )
    assert final_us < first_us
    jb.open_notebook(page, lab.add_notebook("large.ipynb", [LARGE]))
    jb.run_all(page, f'.bl-stale .bl-facts:has-text("step time {format_us(first_us)}")', 120_000)
    page.wait_for_selector('.bl-strip :text("m-etf is shown until then")')
    page.wait_for_function("() => Number(document.querySelector('canvas[aria-label=\"Graph\"]')?.dataset.nodes) > 0")
    page.wait_for_selector(f'.bl-view:has({TIMELINE}) .bl-title:has-text("simulated {format_us(first_us)}")')
    # The setting is that of auto, and nothing else works on a placement that is not its own.
    tab(page, "Export")
    jb.eventually(page, lambda: _holds(page.locator(".bl-workbench textarea").input_value(), "'auto'"))
    tab(page, "Compare")
    page.click('.bl-pane-compare button:text-is("Compare")')
    page.wait_for_selector('.bl-header [role="alert"]:has-text("the result is not there yet")')
    (lab.folder / "auto-may-end").touch()
    page.wait_for_selector('.bl-header .bl-facts:has-text("auto took the answer of")')
    shows_step(page, final_us)
    page.wait_for_selector('.bl-header [role="alert"]', state="hidden")
    assert "against the setting before" not in page.locator(".bl-header .bl-facts").inner_text()
    assert page.locator('.bl-strip button:text-is("Undo")').is_disabled()
    assert page.problems == []
