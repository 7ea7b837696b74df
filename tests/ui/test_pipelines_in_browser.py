"""A pipeline in the workbench in a real browser: its phases and its bubbles, against the library's timeline."""

from __future__ import annotations

import jupyter_browser as jb
import pytest
from whole_screen import tab

import baechi_lab as bl
from baechi_lab.graph.units import format_us
from baechi_lab.viz.shades import PHASES
from baechi_lab.widgets.coloring import phase_legend

pytestmark = [
    pytest.mark.ui,
    pytest.mark.skipif(bool(jb.missing()), reason=jb.missing() or "-"),
    pytest.mark.timeout(280),
]

SETUP = """
import baechi_lab as bl
graph = bl.generators.with_backward(bl.generators.chain(8, size_bytes=1000, duration_us=100.0, seed=0))
cluster = bl.Cluster.uniform(2, link=bl.Link(1.0, 1e-4))
bench = bl.Workbench(graph, cluster, placer="contiguous", passes=(), micro_batches=4, schedule="1f1b")
"""
TIMELINE = 'canvas[aria-label="Timeline"]'


def test_phases_are_in_the_legend_and_bubbles_in_the_title(lab):
    names: dict[str, bl.Workbench] = {}
    exec(SETUP, names)
    timeline = names["bench"].timeline.timelines[0]
    phases = {row["label"]: row for row in phase_legend(timeline)}
    assert set(phases) == set(PHASES[:2])
    with jb.browser_page(1600, 1000) as page:
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
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
        assert problems == []
