"""A PyTorch step in a real browser: opened, run and exported, compared with the library's numbers.

With BAECHI_LAB_SCREENSHOTS=1, screenshots are stored in .pytest_cache/screenshots/.
"""

from __future__ import annotations

import jupyter_browser as jb
import pytest
from whole_screen import TABS, faults, tab

import baechi_lab as bl
from baechi_lab.graph.units import format_us

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.ui,
    pytest.mark.torch,
    pytest.mark.skipif(bool(jb.missing()), reason=jb.missing() or "-"),
    pytest.mark.timeout(280),
]

SETUP = """
import baechi_lab as bl
step = bl.torch.models.build("gnmt", batch_size=6, length=2, vocabulary=7, width=4, layers=2)
cluster = bl.Cluster.uniform(2, memory_bytes="1GB")
"""
CELLS = [SETUP, 'bench = bl.Workbench(step, cluster, placer="m-topo", passes=())\nbench']


def test_a_torch_step_is_opened_run_and_exported(lab, lab_page):
    namespace = {}
    exec(SETUP, namespace)
    step, cluster = namespace["step"], namespace["cluster"]
    graph = bl.profile(step, hardware="rtx2080")
    placement = bl.place(graph, cluster, "m-topo")
    timeline = bl.simulate(graph, cluster, placement)
    with jb.lab_page_for_file(lab_page, 1280, 720) as page:
        jb.open_notebook(page, lab.add_notebook("torch.ipynb", CELLS))
        jb.run_all(page, 'canvas[aria-label="Graph"]', 120_000)
        facts = page.locator(".bl-header .bl-facts")
        for text in (f"step time {format_us(timeline.makespan_us)}", f"graph {graph.n} ops", "estimated for rtx2080"):
            facts.filter(has_text=text).wait_for()
        page.wait_for_selector('.bl-setting .bl-note:has-text("the training step gnmt has its own batch of 6")')
        # Run: measured beside simulated, and the measured timeline below the simulated one.
        tab(page, "Run")
        steps = page.locator('.bl-pane-run .widget-inline-hbox:has(label > :text-is("steps")) input')
        steps.fill("2")
        steps.press("Tab")
        page.click('.bl-pane-run button:text-is("Start")')
        page.wait_for_selector('.bl-pane-run .bl-note:has-text("Done.")', timeout=120_000)
        numbers = page.locator(".bl-pane-run .bl-facts")
        for text in (f"simulated for rtx2080 {format_us(timeline.makespan_us)}", "steps 2", "native (eager)"):
            numbers.filter(has_text=text).wait_for()
        page.wait_for_selector('.bl-title:has-text("measured")')
        jb.screenshot(page, "torch-run")
        # Export: the script as it would be written, and then written; a plan with what it cannot express.
        tab(page, "Export")
        page.click('.bl-pane-export button:text-is("Preview")')
        page.wait_for_selector('.bl-pane-export .bl-code:has-text("with torch alone")', timeout=60_000)
        page.click('.bl-pane-export button:text-is("Write the script")')
        page.wait_for_selector('.bl-good:has-text("Written")', timeout=60_000)
        shown_script = page.locator(".bl-pane-export .bl-code").first.inner_text()
        assert shown_script.strip() == (lab.folder / "placed_training" / "train.py").read_text().strip()
        plan = bl.write_plan(graph, placement, "device_map", model=step.model(), cluster=cluster)
        page.locator('.bl-pane-export .widget-inline-hbox:has(label > :text-is("plan for")) select').select_option(
            label="device_map: accelerate, transformers; needs the PyTorch model"
        )
        page.click('.bl-pane-export button:text-is("Show the plan")')
        jb.eventually(page, lambda: same_text(page.locator(".bl-pane-export .bl-code").last, plan.text))
        for sentence in plan.unsupported:
            page.locator(".bl-pane-export", has_text=sentence).wait_for()
        # Micro-batches cut the batch.
        micro_batch_input = page.locator('.bl-setting .widget-inline-hbox:has(label > :text-is("micro-batches")) input')
        micro_batch_input.fill("3")
        micro_batch_input.press("Tab")
        micro_batch_graph = bl.profile(step.micro_batches(3)[0], hardware="rtx2080")
        micro_batched = bl.simulate(
            micro_batch_graph, cluster, bl.place(micro_batch_graph, cluster, "m-topo"), micro_batches=3
        )
        facts.filter(has_text=f"step time {format_us(micro_batched.makespan_us)}").wait_for()
        for name in TABS:
            assert faults(page, name) == {}, name
            jb.screenshot(page, f"torch-{name.lower()}")
        assert page.problems == []


def same_text(element, text):
    assert element.inner_text().strip() == text.strip()
