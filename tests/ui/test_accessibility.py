"""The workbench for a person without a mouse, or without eyes for it: roles, names, contrast (axe-core), and keys."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import jupyter_browser as jb
import pytest
from whole_screen import TABS, tab, themed

import baechi_lab as bl
from baechi_lab.graph.units import format_us

AXE = jb.ROOT / "tests" / "js" / "node_modules" / "axe-core" / "axe.min.js"
if not AXE.is_file() and (package := find_spec("axe_core_python")) and package.origin:
    AXE = Path(package.origin).with_name("axe.min.js")

pytestmark = [
    pytest.mark.ui,
    pytest.mark.skipif(bool(jb.missing()), reason=jb.missing() or "-"),
    pytest.mark.timeout(280),
]

CELL = """
import baechi_lab as bl
graph = bl.generators.gnmt(length=4, layers=2)
bench = bl.Workbench(graph, bl.Cluster.uniform(2), placer="m-topo")
bench
"""
GRAPH = 'canvas[aria-label="Graph"]'


@pytest.fixture(scope="module")
def page(lab, lab_page):
    with jb.lab_page_for_file(lab_page, 1280, 720) as opened:
        begin(opened, lab)
        yield opened


def begin(page, lab):
    page.set_viewport_size({"width": 1280, "height": 720})
    jb.open_notebook(page, lab.add_notebook("bench.ipynb", [CELL]))
    jb.run_all(page, GRAPH, 120_000)
    page.wait_for_function(f"() => Number(document.querySelector('{GRAPH}')?.dataset.frames) > 0")
    page.wait_for_selector(".bl-advice .bl-note")


ON_REQUEST = {"Compare": ("Compare", ".bl-lanes >> nth=4"), "Explore": ("Sweep", ".bl-chart-cell >> nth=0")}
"""Tabs that are empty until their button is pressed: its words, and what is there afterwards."""


def ask(page, name):
    """Fill the tab `name`, unless it is filled already."""
    words, shown = ON_REQUEST[name]
    tab(page, name)
    page.wait_for_selector(f".bl-panes.bl-at-{name.lower()}")
    if page.locator(f".bl-pane-{name.lower()} {shown}").count() == 0:
        page.click(f'.bl-pane-{name.lower()} button:text-is("{words}")')
        page.wait_for_selector(f".bl-pane-{name.lower()} {shown}", timeout=120_000)
    page.wait_for_selector('.bl-workbench button:text-is("Cancel")', state="hidden", timeout=120_000)


@pytest.mark.skipif(
    not AXE.is_file(), reason="axe-core is not installed: npm install in tests/js, or pip install axe-core-python"
)
def test_axe_finds_nothing_light_and_dark(page):
    page.evaluate(AXE.read_text())
    for name in ON_REQUEST:
        ask(page, name)
    # Of all rules, one looks at colours.
    for theme, rules in (("Light", {}), ("Dark", {"runOnly": ["color-contrast"]})):
        themed(page, theme)
        for name in TABS:
            tab(page, name)
            # Colours follow a theme, and parts a tab, later.
            selector = ".bl-workbench" if name == TABS[0] else ".bl-panes"  # all else is the same on each
            jb.eventually(page, lambda selector=selector, rules=rules: _assert_no_violation(page, selector, rules))
    themed(page, "Light")


def _assert_no_violation(page, selector, rules):
    violations = page.evaluate(
        "async ([selector, rules]) => (await axe.run(selector, rules)).violations", [selector, rules]
    )
    nodes = {v["id"]: [f"{node['html'][:160]} {node['any'][:1]}" for node in v["nodes"]][:3] for v in violations}
    assert nodes == {}


SENTENCES = """() => [...document.querySelectorAll('.bl-workbench, .bl-workbench [title], .bl-workbench [aria-label]')]
  .filter((e) => e.getClientRects().length).flatMap((e) => [e.title, e.ariaLabel, e.matches('.bl-workbench') ? e.innerText : ''])
  .join(' ').replace(/\\s+/g, ' ')"""


def test_the_first_two_minutes_are_as_the_page_says(page):
    """Every sentence that docs/first-two-minutes.md quotes stands on the tab that it names."""
    text = (jb.ROOT / "docs" / "first-two-minutes.md").read_text()
    assert re.search(r"```python\n(.*?)```", text, re.DOTALL)[1].split("bl.Workbench")[1].strip() in CELL.replace(
        "\n", " "
    )
    rows = re.findall(r"^\| (\w+) \|.*\| “(.+)” \|$", text, re.MULTILINE)
    assert len(rows) == text.count("“") >= 15
    for name, sentence in rows:
        tab(page, name)
        if name in ON_REQUEST:
            ask(page, name)
        jb.eventually(page, lambda sentence=sentence: _is_said(page, sentence))


def _is_said(page, sentence):
    assert sentence in page.evaluate(SENTENCES), sentence


def test_tabs_and_folds_say_what_they_are_and_obey_keys(page):
    tab(page, "Graph")
    tabs = page.locator('.bl-workbench [role="tab"]')
    assert tabs.all_inner_texts() == list(TABS)
    selected = page.locator('.bl-workbench [role="tab"][aria-selected="true"]')
    assert selected.inner_text() == "Graph" and page.locator('.bl-panes[role="tabpanel"]').count() == 1
    selected.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector('.bl-workbench [role="tab"][aria-selected="true"]:text-is("Timeline")')
    page.keyboard.press("Home")
    page.wait_for_selector(".bl-panes.bl-at-graph")
    fold = page.locator(".bl-setting button[aria-expanded]").first
    before = fold.get_attribute("aria-expanded")
    fold.focus()
    page.keyboard.press("Enter")
    page.wait_for_function(
        "(before) => document.querySelector('.bl-setting button[aria-expanded]').ariaExpanded !== before", arg=before
    )
    page.keyboard.press("Enter")


def test_bug_each_placer_was_a_tab_stop(page):
    """The placers to compare are one stop; arrows go from one to the next, and the stop stays where one was."""
    tab(page, "Compare")
    fold = page.locator('.bl-pane-compare button[aria-label="Placers"]')
    if fold.get_attribute("aria-expanded") == "false":
        fold.click()
    boxes = page.locator(".bl-pane-compare .bl-choices input[type=checkbox]")
    boxes.first.wait_for(state="visible")
    count = boxes.count()
    at = "() => [...document.querySelectorAll('.bl-pane-compare .bl-choices input')].indexOf(document.activeElement)"
    fold.focus()
    for key, place in (("Tab", 0), ("ArrowRight", 1), ("End", count - 1), ("ArrowRight", 0), ("ArrowLeft", count - 1)):
        page.keyboard.press(key)
        assert page.evaluate(at) == place, key
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.textContent") == "Compare"
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(at) == count - 1
    before = boxes.last.is_checked()
    page.keyboard.press("Space")
    assert boxes.last.is_checked() is not before
    page.keyboard.press("Space")


def test_the_graph_is_ten_tab_stops_away_and_its_boxes_are_reached_by_arrows(page):
    tab(page, "Graph")
    page.wait_for_selector(".bl-panes.bl-at-graph")
    page.evaluate("() => { const f = document.querySelector('.bl-workbench'); f.tabIndex = -1; f.focus(); }")
    stops = []
    for _ in range(12):
        page.keyboard.press("Tab")
        stops.append(
            page.evaluate(
                "() => { const at = document.activeElement; return `${at.tagName} ${at.ariaLabel || at.textContent}`; }"
            )
        )
        if stops[-1] == "CANVAS Graph":
            break
    assert stops[-1] == "CANVAS Graph" and len(stops) <= 10, stops
    # Advice is one stop, too: an arrow leads to the button of the second, if there is one, and back.
    advice = page.locator(".bl-one-advice button:visible")
    advice.first.focus()
    for key, place in (("ArrowRight", advice.count() - 1), ("ArrowLeft", 0)):
        page.keyboard.press(key)
        assert advice.nth(place).evaluate("(button) => button === document.activeElement"), key
    page.locator(GRAPH).focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(f"() => Number(document.querySelector('{GRAPH}').dataset.chosen) > 0")
    live, selections = page.locator(f".bl-view:has({GRAPH}) .bl-live"), set()
    page.wait_for_selector(f".bl-view:has({GRAPH}) .bl-live:has-text('Selected: ')")

    def several_were_selected():
        selections.add(live.inner_text())
        assert len(selections) > 1

    for key in ("ArrowDown", "ArrowRight", "ArrowDown", "ArrowRight", "ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
        jb.await_drawing(page)
        selections.add(live.inner_text())
    jb.eventually(page, several_were_selected)
    assert all(text.startswith("Selected: ") for text in selections), selections
    page.keyboard.press("Escape")


def test_keys_are_listed_and_a_table_stands_for_the_picture(page):
    tab(page, "Graph")
    page.wait_for_selector(".bl-panes.bl-at-graph")
    page.locator(GRAPH).focus()
    page.keyboard.press("?")
    keys = page.locator(f".bl-view:has({GRAPH}) .bl-keys")
    keys.wait_for(state="visible")
    assert "mark the critical path" in keys.inner_text()
    page.keyboard.press("Escape")
    keys.wait_for(state="hidden")
    assert page.evaluate("() => document.activeElement.ariaLabel") == "Graph"
    described = page.locator(GRAPH).get_attribute("aria-describedby")
    assert "nested boxes" in page.locator(f"[id='{described}']").text_content()
    assert page.locator(GRAPH).get_attribute("role") == "application"
    page.click(f'.bl-view:has({GRAPH}) button:text-is("Table")')
    rows = page.locator(f".bl-view:has({GRAPH}) .bl-rows-table tbody tr")
    rows.first.wait_for()
    assert rows.count() == int(page.locator(GRAPH).get_attribute("data-nodes"))
    page.click(f'.bl-view:has({GRAPH}) button:text-is("Table")')


def test_bug_letters_are_no_commands_of_the_notebook(page):
    """x cut the cell with the workbench, a added one, m made it Markdown; an arrow on a button left the workbench."""
    cells = "() => window.jupyterapp.shell.currentWidget.content.widgets.map((cell) => cell.model.type)"
    focused = "() => document.activeElement.outerHTML"
    for target in (GRAPH, f'.bl-view:has({GRAPH}) button:text-is("Open all")', '.bl-pane-graph [role="separator"]'):
        page.locator(target).focus()
        before = page.evaluate(focused)
        for key in ("x", "a", "m", "d", "d", "ArrowDown"):
            page.keyboard.press(key)
            assert page.evaluate(cells) == ["code"] and page.evaluate(focused)[:20] == before[:20]
    page.locator(GRAPH).focus()
    page.keyboard.press("Escape")


def test_results_and_errors_are_announced(page):
    ask(page, "Explore")
    announced(page, "18 combinations computed")
    memory = page.locator('.bl-setting .widget-inline-hbox:has(label > :text-is("memory each")) input')
    memory.fill("nonsense")
    memory.press("Enter")
    page.wait_for_selector('.bl-header [role="alert"]:has-text("is not an amount of memory")')
    page.click('.bl-header button:text-is("Dismiss")')
    memory.fill("7GB")
    memory.press("Enter")
    announced(page, "^step .*, fits, placed by m-topo$")
    assert page.problems == []


FOCUS = """() => {  // the label of what has the focus, and whether one sees that it has it
  const at = document.activeElement, style = getComputedStyle(at), { top, bottom } = at.getBoundingClientRect();
  const ring = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1;
  const marked = ring || (at.matches('.bl-splitter') && style.backgroundColor !== 'rgba(0, 0, 0, 0)');
  const label = at.ariaLabel || at.labels?.[0]?.textContent || at.textContent;
  return [label.trim(), marked && top >= 0 && bottom <= innerHeight];
}"""


def go_to(page, label, key="Tab", most_presses=24):
    """Presses a key until what has this label has the focus; all on the way shows that it has it. Returns the presses."""
    stops = []
    while len(stops) < most_presses:
        page.keyboard.press(key)
        at, is_seen = page.evaluate(FOCUS)
        assert is_seen, f"no mark of the focus on {at!r}"
        stops.append(at)
        if at == label:
            return len(stops)
    raise AssertionError(f"{label!r} is more than {most_presses} times {key} away: {stops}")


def announced(page, pattern):
    """Waits until a status of the workbench matches, as a screen reader would say it, and returns the match."""

    def first_match():
        statuses = page.locator('.bl-workbench [role="status"], .bl-workbench [aria-live]').all_text_contents()
        matches = [match for text in statuses if (match := re.search(pattern, text))]
        assert matches, (pattern, statuses)
        return matches[0]

    return jb.eventually(page, first_match)


AT = "() => document.activeElement.textContent.trim()"
STEPS = "() => [...document.querySelectorAll('.bl-verdict-bar button')].indexOf(document.activeElement)"


def test_bug_the_focus_was_lost_with_what_had_it(page):
    """Cancel is hidden at the end of a computation, Undo is disabled at the first setting, and new results replace a bar."""
    assert page.evaluate("() => document.querySelectorAll('.bl-workbench').length") == 1
    cancel = page.locator('.bl-strip button:text-is("Cancel")')
    jb.eventually(page, lambda: _focus_cancel(page, cancel))  # what earlier tests asked for may end now, and hide it
    jb.execute(page, "bench.header._progress(('', -1.0))")
    cancel.wait_for(state="hidden")
    jb.await_drawing(page)
    assert page.evaluate("() => document.activeElement.closest('.bl-strip') !== null"), page.evaluate(AT)[:80]
    page.locator(".bl-verdict-bar button").nth(1).focus()
    jb.execute(page, "bench.header.verdict.bound_text = 'another bound'")
    page.wait_for_selector('.bl-verdict-bound-text:has-text("another bound")', state="attached")
    assert page.evaluate(STEPS) == 1, page.evaluate(AT)[:80]
    jb.execute(page, "bench.model.change(placer='m-etf')")
    announced(page, "placed by m-etf")
    undo, redo = (page.locator(f'.bl-strip button:text-is("{name}")') for name in ("Undo", "Redo"))
    undo.focus()
    while undo.is_enabled():
        page.keyboard.press("Enter")
        jb.settle(page)
    assert page.evaluate(AT) == "Redo" and redo.is_enabled()


def _focus_cancel(page, cancel):
    jb.execute(page, "bench.header._progress(('under way', 0.5))")
    cancel.wait_for(state="visible")
    cancel.focus()
    assert page.evaluate(AT) == "Cancel"


TICKS = """() => Object.fromEntries([...document.querySelectorAll('.bl-pane-compare .bl-choices .widget-checkbox')]
  .map((box) => [box.textContent.replace('\u200b', ''), box.querySelector('input').checked]))"""


def test_all_is_done_with_keys_alone(page, lab):
    """Opens the workbench, chooses a graph and a placer, inspects an op, moves it, undoes that, compares, and saves a plan."""
    page.evaluate("() => document.querySelectorAll('.bl-workbench').forEach((e) => e.remove())")
    page.evaluate("() => window.jupyterapp.shell.currentWidget.content.activate()")
    page.keyboard.press("Shift+Enter")
    page.wait_for_selector(f"{GRAPH}[data-frames]", timeout=60_000)
    announced(page, "placed by m-topo")
    page.wait_for_selector(".bl-setting select")  # the setting comes after the first picture
    page.evaluate("() => { const f = document.querySelector('.bl-workbench'); f.tabIndex = -1; f.focus(); }")
    assert go_to(page, "Graph", most_presses=10) and page.evaluate("() => document.activeElement.role") == "tab"
    assert go_to(page, "Graph", most_presses=8) and page.evaluate("() => document.activeElement.tagName") == "CANVAS"
    # Another graph, and another placer.
    go_to(page, "model / graph", most_presses=4)
    page.keyboard.press("End")
    graph, cluster = bl.load_graph(jb.ROOT / "data" / "inception_v3-batch64.json.gz"), bl.Cluster.uniform(2)
    assert page.evaluate("() => document.activeElement.selectedOptions[0].text") == "inception_v3-batch64.json.gz"
    groups = bl.optimize(graph, cluster)
    step_us = {name: _step_us(graph, cluster, bl.place(groups, cluster, name)) for name in ("m-topo", "m-etf")}
    announced(page, f"step time {format_us(step_us['m-topo'])}, fits, placed by m-topo")
    go_to(page, "placer", most_presses=8)
    # Not by letters: of these, the browser takes only those together that come within a second.
    options = page.evaluate("() => [...document.activeElement.options].map((option) => option.text)")
    for _ in range(abs(options.index("m-etf") - options.index("m-topo"))):
        page.keyboard.press("ArrowDown" if options.index("m-etf") > options.index("m-topo") else "ArrowUp")
    announced(page, f"step time {format_us(step_us['m-etf'])}, fits, placed by m-etf")
    # An op is found by its name, its details are shown, and it goes to the other device and back.
    go_to(page, "search ops by name", "Shift+Tab")
    placement = bl.place(groups, cluster, "m-etf")
    longest = int(graph.duration_us.argmax())
    page.keyboard.type(graph.names[longest])
    page.keyboard.press("Enter")
    page.wait_for_selector(f'.bl-details-name:has-text("{graph.names[longest]}")')
    go_to(page, "Graph", most_presses=8)
    announced(page, f"Selected: {graph.names[longest]}")
    other_device = 1 - int(placement.on(graph).device[longest])
    page.keyboard.press(str(other_device + 1))
    moved_placement = bl.move(placement, graph, cluster, [("@" + graph.names[longest], cluster.names[other_device])])
    announced(page, f"step time {format_us(_step_us(graph, cluster, moved_placement))}, fits, placed by m-etf")
    announced(page, rf"moved to {cluster.names[other_device]}.*Undo takes it back")
    page.keyboard.press("Control+z")
    announced(page, f"step time {format_us(step_us['m-etf'])}, fits, placed by m-etf")
    # The other parts are beside the tab of this one.
    go_to(page, "Graph", "Shift+Tab", most_presses=12)
    for _ in range(TABS.index("Compare")):
        page.keyboard.press("ArrowRight")
    page.wait_for_selector('.bl-panes.bl-at-compare button:text-is("Compare")')
    go_to(page, "Placers", most_presses=8)
    page.keyboard.press("Tab")
    for name, is_ticked in page.evaluate(TICKS).items():
        if is_ticked is not (name in step_us):
            page.keyboard.press("Space")
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")  # folds them away
    page.wait_for_selector(".bl-pane-compare input[type=checkbox] >> nth=0", state="hidden")
    go_to(page, "Compare", most_presses=1)
    page.keyboard.press("Enter")
    fastest = min(step_us, key=step_us.__getitem__)
    announced(page, f"^2 placements compared, the fastest that fits: {fastest}, {format_us(step_us[fastest])}")
    go_to(page, "Compare", "Shift+Tab", most_presses=10)
    page.keyboard.press("End")
    page.wait_for_selector('.bl-panes.bl-at-export button:text-is("Show the plan")')
    go_to(page, "Show the plan", most_presses=14)
    page.keyboard.press("Enter")
    page.wait_for_selector('.bl-pane-export button:text-is("Save the plan"):enabled')
    go_to(page, "Save the plan", most_presses=4)
    page.keyboard.press("Enter")
    file = lab.folder / announced(page, r"Written: (\S+)").group(1)
    assert file.read_text().startswith("digraph")
    assert page.problems == []


def _step_us(graph, cluster, placement):
    return bl.simulate(graph, cluster, placement).makespan_us


def test_one_sentence_instead_of_broken_links_when_the_kernel_is_gone(page):
    """The last in this file: it restarts the kernel, which knows the widgets no more."""
    page.evaluate(
        "async () => { await window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart(); }"
    )
    page.wait_for_selector(".bl-workbench.jupyter-widgets-disconnected", timeout=30_000)
    content = page.evaluate("() => getComputedStyle(document.querySelector('.bl-workbench'), '::after').content")
    assert content == '"kernel gone: last result shown, run the cell to continue"'
    icons = page.evaluate(
        "() => [...document.querySelectorAll('.bl-workbench, .bl-workbench *')].filter((e) => "
        "e.classList.contains('jupyter-widgets-disconnected') && getComputedStyle(e, '::before').display !== 'none').length"
    )
    assert icons == 0
