"""The workbench as a Voila page, and what is left of it in a notebook whose kernel is gone."""

from __future__ import annotations

import importlib.util

import jupyter_browser as jb
import pytest

import baechi_lab as bl
from baechi_lab.graph.units import format_us

pytestmark = [
    pytest.mark.ui,
    pytest.mark.skipif(bool(jb.missing()), reason=jb.missing() or "-"),
    pytest.mark.timeout(280),
]

CELLS = [
    """
import baechi_lab as bl
graph = bl.generators.layered_dag(60, seed=4)
cluster = bl.Cluster.uniform(3)
bench = bl.Workbench(graph, cluster, placer="m-topo", passes=())
bench
"""
]


@pytest.fixture(autouse=True)
def _kernels_are_forked(server, monkeypatch):
    """A kernel of a new program imports for seconds what the fork server of JupyterLab has imported."""
    monkeypatch.setenv("JUPYTER_PATH", str(server.data_folder))


def step_time(placer: str) -> str:
    """What the page must show."""
    graph, cluster = bl.generators.layered_dag(60, seed=4), bl.Cluster.uniform(3)
    return format_us(bl.simulate(graph, cluster, bl.place(graph, cluster, placer)).makespan_us)


@pytest.mark.skipif(importlib.util.find_spec("voila") is None, reason="Voila is not installed")
def test_voila_serves_the_workbench(tmp_path, browser):
    with jb.running_voila(tmp_path, CELLS) as address, jb.browser_page(browser, 1400, 1600) as page:
        page.goto(address, timeout=120_000)
        page.wait_for_selector(f".bl-facts:has-text('step time {step_time('m-topo')}')", timeout=120_000)
        page.wait_for_function(
            "() => Number(document.querySelector('canvas[aria-label=\"Graph\"]')?.dataset.frames) > 0", timeout=60_000
        )
        select = page.locator(
            '.bl-setting .widget-inline-hbox:has(label:text-is("placer"), label > :text-is("placer")) select'
        )
        select.select_option("m-etf")
        page.wait_for_selector(f".bl-facts:has-text('step time {step_time('m-etf')}')", timeout=60_000)
        pictures = page.locator(".jp-RenderedSVG")
        assert not any(pictures.nth(k).is_visible() for k in range(pictures.count()))
        jb.screenshot(page, "11-voila")


def test_nbconvert_shows_the_picture_without_any_script(tmp_path, browser):
    """Executed, converted, and opened where nothing can be loaded: the workbench is a picture with its device names."""
    import nbformat
    from nbclient import NotebookClient
    from nbconvert import HTMLExporter

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELLS[0])])
    NotebookClient(notebook, timeout=200, kernel_name="python3").execute()
    html, _ = HTMLExporter().from_notebook_node(notebook)
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    with jb.browser_page(browser, 1200, 1400) as page:
        page.route("**/*", lambda route: route.abort() if route.request.url.startswith("http") else route.continue_())
        page.goto(f"file://{tmp_path}/page.html")
        picture = page.locator(".jp-RenderedSVG")
        picture.first.wait_for(state="visible", timeout=30_000)
        box = picture.first.bounding_box()
        assert box["width"] > 500 and box["height"] > 500
        jb.screenshot(page, "12-nbconvert")
