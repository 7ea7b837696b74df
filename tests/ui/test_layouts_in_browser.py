"""The view of layouts in a real browser, against the rows of `bl.layouts`.

With BAECHI_LAB_SCREENSHOTS=1, screenshots, light and dark, are stored in .pytest_cache/screenshots/.
"""

from __future__ import annotations

import jupyter_browser as jb
import numpy as np
import pytest
from whole_screen import themed

import baechi_lab as bl
from baechi_lab.widgets.layouts_view import layout_columns

pytestmark = [
    pytest.mark.ui,
    pytest.mark.skipif(bool(jb.missing()), reason=jb.missing() or "-"),
    pytest.mark.timeout(280),
]

SETUP = """
import baechi_lab as bl
config = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4,
          "num_attention_heads": 8, "vocab_size": 8000}
cluster = bl.Cluster.machines(8, 8, kind="h100")
choices = [bl.Layout(dp=8, zero=1, micro_batch=2), bl.Layout(dp=8, zero=3, micro_batch=2), bl.Layout(pp=2, dp=4, zero=1)]
answer = bl.layouts(config, cluster, global_batch=16, sequence_length=512, layouts=choices)
"""
CELLS = [SETUP, "from baechi_lab.widgets import LayoutsView\nLayoutsView(answer)"]
AXE = jb.ROOT / "tests" / "js" / "node_modules" / "axe-core" / "axe.min.js"
COLLECTIVES = ("/reduce_scatter", "/all_gather", "/all_gather/backward", "/all_reduce")
TIMELINE = 'canvas[aria-label="Timeline"]'


def test_a_row_of_the_table_shows_its_timeline_with_collectives(lab, lab_page):
    names: dict[str, object] = {}
    exec(SETUP, names)
    answer = names["answer"]
    columns = layout_columns(answer.rows)
    with jb.lab_page_for_file(lab_page, 1600, 1000) as page:
        jb.open_notebook(page, lab.add_notebook("layouts.ipynb", CELLS))
        jb.run_all(page, TIMELINE, 120_000)
        page.wait_for_selector(".bl-sorted-table tbody tr.bl-marked")
        rows = page.locator(".bl-sorted-table tbody tr")
        assert rows.count() == len(answer)
        for number in range(len(answer)):
            for column in columns:
                assert column.texts[number] in rows.nth(number).inner_text()
        for number, row in enumerate(answer.rows):
            rows.nth(number).locator('button:text-is("Show")').click()
            page.wait_for_selector(f".bl-sorted-table tbody tr:nth-child({number + 1}).bl-marked")
            page.wait_for_selector(f'.bl-note:has-text("{row.layout!r}")')
            lanes = str(3 * row.layout.pp)  # compute, collectives and transfers of every group of ranks
            page.wait_for_function(f"(n) => document.querySelector('{TIMELINE}').dataset.lanes === n", arg=lanes)
            title = bl.graph.units.format_us(row.step_us)
            page.wait_for_selector(f'.bl-view:has({TIMELINE}):has-text("{title}")')
            exposed, idle, busiest = _exposed_and_idle(row)
            page.wait_for_selector(f'.bl-note:has-text("up to {exposed} of a device")')
            page.wait_for_selector(f'.bl-note:has-text("for up to {idle} of the step, the busiest one for {busiest}")')
            # The same as in the columns of the table: what is exposed inside passes, and the bubble of the busiest device.
            in_passes = bl.graph.units.format_us(row.exposed_us)
            page.wait_for_selector(f'.bl-note:has-text("the passes of the busiest device hold {in_passes} more")')
            assert float(busiest.rstrip("%")) == pytest.approx(
                100 * (row.waiting_us - _update_us(row)) / row.step_us, abs=0.6
            )
        # The table sorts by memory.
        page.click('.bl-sort:has-text("memory")')
        page.wait_for_selector('th[aria-sort="ascending"]:has-text("memory")')
        least = min(range(len(answer)), key=lambda k: answer.rows[k].peak_bytes)
        jb.eventually(page, lambda: _assert_first(rows, columns[0].texts[least]))
        # The launch script of the shown row, with what the program cannot be told.
        plan = bl.write_layout(
            answer.rows[-1].layout, "torchtitan", model=names["config"], global_batch=16, sequence_length=512
        )
        page.locator('.widget-dropdown:has(label > :text-is("for")) select').select_option(
            label="torchtitan: TOML file"
        )
        page.click('button:text-is("Show the files")')
        page.wait_for_selector('.bl-note:has-text("torchtitan cannot be told:")')
        jb.eventually(page, lambda: _assert_texts(page.locator(".bl-code"), [plan.text.strip()]))
        jb.eventually(page, lambda: _assert_texts(page.locator("ul.bl-note li"), plan.unsupported))
        page.click('button:text-is("Write the files")')
        page.wait_for_selector('.bl-good:has-text("Written: layout/")')
        written = {path.name: path.read_bytes() for path in (lab.folder / "layout").iterdir()}
        assert {name: written[name] for name in plan.files} == plan.files and plan.unsupported
        # Without a mouse or eyes: at most ten Tab stops to the timeline, whatever the number of rows, and nothing for axe-core.
        page.evaluate("() => { const f = document.querySelector('.bl-panel'); f.tabIndex = -1; f.focus(); }")
        stops = []
        while len(stops) < 12 and "CANVAS Timeline" not in stops:
            page.keyboard.press("Tab")
            focused = (
                "() => { const e = document.activeElement; return `${e.tagName} ${e.ariaLabel || e.textContent}`; }"
            )
            stops.append(page.evaluate(focused))
        assert stops[-1] == "CANVAS Timeline" and len(stops) <= 10, stops
        if AXE.is_file():
            page.evaluate(AXE.read_text())
        for theme in ("Light", "Dark"):
            themed(page, theme)
            if AXE.is_file():
                jb.eventually(page, lambda: _assert_no_violation(page))
            jb.screenshot(page, f"layouts-{theme}", page.locator(".bl-panel").first)
        assert page.problems == []


def _assert_texts(elements, texts):
    assert [text.strip() for text in elements.all_inner_texts()] == list(texts)


def _update_us(row):
    """Returns the microseconds of the update, which is no pass, on the busiest device."""
    names = np.array(row.timeline.op_names)[row.timeline.op]
    update = np.char.find(names, "update") >= 0
    lengths = row.timeline.end_us - row.timeline.start_us
    return max(lengths[update & (row.timeline.device == device)].sum() for device in range(row.layout.pp))


def _exposed_and_idle(row):
    """Returns texts of the longest time of a lane in which collectives run and no op, and of the largest and least idle share.

    Counted from the timeline: op rows and collective rows of every device as intervals.
    """
    timeline = row.timeline
    on_lane = np.isin(
        np.array(timeline.op_names)[timeline.op], [n for n in timeline.op_names if n.endswith(COLLECTIVES)]
    )
    instants = np.unique(np.concatenate([timeline.start_us, timeline.end_us]))
    middle, width = (instants[1:] + instants[:-1]) / 2, np.diff(instants)

    def busy(rows):
        spans = zip(timeline.start_us[rows], timeline.end_us[rows], strict=True)
        return np.any([(start < middle) & (middle < end) for start, end in spans], axis=0)

    exposed, idle = [], []
    for device in range(row.layout.pp):
        on_device = timeline.device == device
        computes = busy(on_device & ~on_lane)
        exposed.append(width[busy(on_device & on_lane) & ~computes].sum())
        idle.append(1 - width[computes].sum() / timeline.makespan_us)
    return bl.graph.units.format_us(max(exposed)), f"{max(idle):.0%}", f"{min(idle):.0%}"


def _assert_no_violation(page):
    violations = page.evaluate("async () => (await axe.run('.bl-panel')).violations")
    assert {v["id"]: [f"{node['html'][:160]} {node['any'][:1]}" for node in v["nodes"]][:3] for v in violations} == {}


def _assert_first(rows, text):
    assert text in rows.first.inner_text()
