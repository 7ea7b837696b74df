"""Details, heat, lanes and memory of the workbench in a real browser, against numbers of the library.

With BAECHI_LAB_SCREENSHOTS=1, screenshots are stored in .pytest_cache/screenshots/.
"""

from __future__ import annotations

import re

import jupyter_browser as jb
import numpy as np
import pytest
from whole_screen import CONTRAST, bytes_beside, is_themed, tab, texts_of, themed

import baechi_lab as bl
from baechi_lab.graph.units import format_bytes, format_bytes_beside, format_us, format_us_beside
from baechi_lab.memo import Memo
from baechi_lab.step_summary import change_in_words
from baechi_lab.viz.nested.tree import build_tree
from baechi_lab.widgets.causes import cause
from baechi_lab.widgets.compute import compute
from baechi_lab.widgets.heat import CRITICAL, HEATS, MOVED, TIME, format_heat, op_heat
from baechi_lab.widgets.heat import MEMORY as MEMORY_HEAT
from baechi_lab.widgets.levels import live_bytes
from baechi_lab.widgets.panels.fit_panel import option_columns
from baechi_lab.widgets.panels.parts import MOST_SHOWN
from baechi_lab.widgets.panels.plan_form import RUNTIMES
from baechi_lab.widgets.schedule import critical_chain
from baechi_lab.widgets.setting import HARDWARE_PRESETS, Setting
from baechi_lab.widgets.views.memory_view import MOST_LIVE
from baechi_lab.widgets.waiting import KINDS, waits

pytestmark = [
    pytest.mark.ui,
    pytest.mark.skipif(bool(jb.missing()), reason=jb.missing() or "-"),
    pytest.mark.timeout(280),
]

SETUP = """
import baechi_lab as bl
graph = bl.generators.random_dag(60, seed=1)
graph = graph.replace(output_shapes=tuple(f"f32[{n + 1},{n}]" for n in range(graph.n)))
cluster = bl.Cluster.uniform(4, memory_bytes="1GB", link=bl.Link(5.0, 1e-4))
"""
FIGURES = """
from baechi_lab import viz
alone = bl.simulate(graph, cluster, bl.place(graph, cluster, "single"))
for figure in (viz.gantt(alone), viz.memory(alone), viz.fit_options(bl.fit(graph, cluster, every_option=True))):
    figure.show()
"""
CELLS = [SETUP, 'bench = bl.Workbench(graph, cluster, placer="m-etf", passes=())\nbench', FIGURES]
CLUSTER = bl.Cluster.uniform(4, memory_bytes="1GB", link=bl.Link(5.0, 1e-4))
GRAPH, TIMELINE, MEMORY = (f'canvas[aria-label="{name}"]' for name in ("Graph", "Timeline", "Memory"))


@pytest.fixture(scope="module")
def page(lab, lab_page):
    """The workbench, drawn. Errors of the page end the tests that caused them."""
    with jb.lab_page_for_file(lab_page, 1600, 1000) as opened:
        begin(opened, lab)
        yield opened


def begin(page, lab):
    page.set_viewport_size({"width": 1600, "height": 1000})
    jb.open_notebook(page, lab.add_notebook("panes.ipynb", CELLS))
    jb.run_first(page, 2, GRAPH, 120_000)  # with the figures, every frame of the page takes longer
    page.wait_for_function(f"() => Number(document.querySelector('{GRAPH}')?.dataset.frames) > 0")
    page.evaluate("() => document.querySelector('.bl-workbench').scrollIntoView({ block: 'start' })")
    jb.settle(page)  # the kernel answers no click before the last cell has ended


@pytest.fixture(scope="module")
def outcome():
    """The library's side of the page."""
    names: dict = {}
    exec(SETUP, names)
    graph, cluster = names["graph"], names["cluster"]
    return graph, bl.simulate(graph, cluster, bl.place(graph, cluster, "m-etf"))


def shot(page, name, themes=("Dark", "Light")):
    """Texts can be read in the themes; a screenshot of each. `themes` is short where another shot has the same texts."""
    for theme in sorted(themes, key=lambda theme: not is_themed(page, theme)):  # a change of the theme draws all anew
        themed(page, theme)
        jb.eventually(page, lambda: _assert_readable(page))
        jb.screenshot(page, f"panes-{name}-{theme.lower()}")


THEMES_AT_HEIGHT = {720: ["Dark", "Light"], 1000: ["Light"]}
"""By the height of a screen: the texts and their colours are the same on another one."""


def _assert_readable(page):
    assert page.evaluate(CONTRAST) == []


SIZE = """(selector) => {
  const { x, y, width, height, bottom } = document.querySelector(selector).getBoundingClientRect();
  return { x, y, width, height, bottom };
}"""


def _size(page, selector):
    jb.settle(page)
    return page.evaluate(SIZE, selector)


@pytest.mark.parametrize("tab_name", ["Timeline", "Run"])
def test_memory_fills_what_the_timeline_leaves_on_the_full_screen(page, tab_name):
    tab(page, tab_name)
    page.click('.bl-tabs button[aria-label="full screen"]')
    page.wait_for_function("() => document.fullscreenElement?.matches('.bl-workbench')")

    def memory_fills_its_pane():
        panes, words = _size(page, ".bl-panes"), _size(page, f".bl-view:has({MEMORY}) > .bl-live")
        assert 0 <= panes["bottom"] - words["bottom"] < 12

    jb.eventually(page, memory_fills_its_pane)
    # The rows share the room: the lowest row's tooltip and the time axis are where they are drawn.
    box = page.locator(MEMORY).bounding_box()
    assert box["height"] > 4 * 74 + 20
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + box["height"] - 30)
    page.wait_for_selector(f'.bl-view:has({MEMORY}) .bl-tooltip:has-text("gpu:3 at ")')
    shot(page, f"full-screen-{tab_name.lower()}", ["Light"])
    page.click('.bl-tabs button[aria-label="full screen"]')
    page.wait_for_function("() => !document.fullscreenElement")
    tab(page, "Graph")
    assert page.problems == []


def test_bug_the_line_below_the_memory_lay_below_the_pane(page):
    """Where there is no room, a row is as high as its three lines of text need, 62 pixels, and the time axis takes 20."""
    page.set_viewport_size({"width": 1280, "height": 720})
    tab(page, "Run")
    jb.eventually(page, lambda: _near(_size(page, MEMORY)["height"], 4 * 62 + 20))
    tab(page, "Graph")


def test_bug_peaks_below_the_memory_were_said_to_be_in_bytes(page, outcome):
    peaks = outcome[1].peak_bytes
    tab(page, "Run")
    words = page.locator(f".bl-view:has({MEMORY}) > .bl-live")
    texts = [f"gpu:{device}: peak {format_bytes_beside(peak, peaks.max())} at" for device, peak in enumerate(peaks)]
    jb.eventually(page, lambda: _holds(words.inner_text(), texts))
    tab(page, "Graph")


RECORD_TOPS = """(selector) => {  // where an element is in every frame from now on
  [window.tops, window.recording] = [new Set(), true];
  const part = document.querySelector(selector);
  const record = () => {
    window.tops.add(part.getBoundingClientRect().top);
    if (window.recording) requestAnimationFrame(record);
  };
  record();
}"""
TOPS = """() => {
  const top = (e) => e.getBoundingClientRect().top;
  const bench = document.querySelector('.bl-workbench');
  return [...bench.querySelectorAll('.bl-strip, canvas')].filter((e) => e.offsetParent).map((e) => top(e) - top(bench));
}"""


def control(page, label):
    """The control behind a label of the setting."""
    return page.locator(f'.bl-setting .widget-inline-hbox:has(label:text-is("{label}"), label > :text-is("{label}"))')


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (1600, 1000)])
def test_facts_keep_their_room(page, width, height):
    """A note on the answer, another number or a longer name takes no line of its own."""
    page.set_viewport_size({"width": width, "height": height})
    tab(page, "Graph")
    jb.settle(page)
    before = page.evaluate(TOPS)[:2]  # below the graph, lanes come and go
    for placer in ("auto", "single", "m-etf"):
        control(page, "placer").locator("select").select_option(placer)
        page.wait_for_selector(f'.bl-header .bl-facts:has-text("placed by {placer} in")')
        page.wait_for_selector(".bl-stale", state="detached")
        jb.settle(page)
        assert page.evaluate(TOPS)[:2] == before, placer
    page.set_viewport_size({"width": 1600, "height": 1000})
    assert page.problems == []


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (1600, 1000)])
def test_a_long_advice_takes_the_room_of_a_short_one(page, width, height):
    page.set_viewport_size({"width": width, "height": height})
    tab(page, "Graph")
    page.wait_for_selector(".bl-advice .bl-note")
    jb.settle(page)
    before = page.evaluate(TOPS)
    short = page.evaluate(
        """() => { const note = document.querySelector('.bl-advice .bl-note:not(:empty)'); const short = note.textContent;
        note.textContent = 'The passes left 16 groups, '.repeat(7); return short; }"""
    )
    jb.settle(page)
    during = page.evaluate(TOPS)
    page.evaluate("(text) => { document.querySelector('.bl-advice .bl-note:not(:empty)').textContent = text; }", short)
    assert during == before
    page.set_viewport_size({"width": 1600, "height": 1000})


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (1600, 1000)])
def test_an_error_with_a_remedy_moves_nothing(page, width, height):
    page.set_viewport_size({"width": width, "height": height})
    tab(page, "Graph")
    page.wait_for_selector(".bl-advice .bl-note")
    jb.settle(page)
    before = page.evaluate(TOPS)
    page.click('.bl-setting button:has-text("Advanced")')
    schedule = control(page, "schedule").locator("select")
    schedule.select_option("1f1b")
    page.wait_for_selector('.bl-header [role="alert"]:has-text("form no pipeline")')
    page.wait_for_selector('.bl-header button:text-is("Place stages")')
    jb.settle(page)
    during = page.evaluate(TOPS)
    shot(page, f"remedy-{height}", THEMES_AT_HEIGHT[height])
    # The reason why nothing fits is longer.
    page.evaluate("() => { document.querySelector('.bl-problem > span').textContent = 'names and bytes '.repeat(20); }")
    assert page.evaluate(TOPS) == during
    page.click('.bl-header button:text-is("Place stages")')
    page.wait_for_selector('.bl-header .bl-facts:has-text("placed by contiguous")')
    for _ in range(2):
        page.click('.bl-strip button:text-is("Undo")')
    page.wait_for_selector('.bl-header .bl-facts:has-text("placed by m-etf")')
    page.click('.bl-setting button:has-text("Advanced")')
    jb.settle(page)
    assert during == before
    page.set_viewport_size({"width": 1600, "height": 1000})
    assert page.problems == []


FACTS = """() => Object.fromEntries([...document.querySelectorAll('.bl-details dt')]
  .map((name) => [name.textContent, name.nextElementSibling.textContent]))"""


def test_details_of_a_selected_op_and_a_link_to_its_input(page, outcome):
    """Every fact of the op, what it reads and makes, who reads that, and its time on every device."""
    graph, line = outcome
    details = page.locator(".bl-details")
    page.wait_for_selector('.bl-details:has-text("Select an op")')
    op = int(np.intersect1d(graph.consumers, graph.tensor_producer)[-1])  # it reads, and is read
    page.locator('input[aria-label="search ops by name"]').fill(graph.names[op])
    page.locator('input[aria-label="search ops by name"]').press("Enter")
    page.wait_for_selector(f'.bl-details-name:text-is("{graph.names[op]}")')
    page.click(".bl-found button:text-is('×')")
    row = int((line.op == op).argmax())
    time = lambda us: format_us_beside(float(us), line.makespan_us)  # noqa: E731 - one unit in all of the pane
    times = f"{time(line.start_us[row])} to {time(line.end_us[row])}"
    page.wait_for_selector(f'.bl-details:has-text("{times}")')
    pointer, tensors = graph.inputs
    device_of = line.device[np.argsort(line.op)]
    facts = page.evaluate(FACTS)
    assert facts["makes"] == graph.output_shapes[op] == f"f32[{op + 1},{op}]"
    assert facts["type"] == graph.op_types[op] and facts["device"] == f"gpu:{line.device[row]}"
    assert facts["takes"] == time(line.end_us[row] - line.start_us[row])
    assert facts["critical path"] == ("yes" if op in critical_chain(graph, line).ops else "no")
    assert facts["why then"] == cause(graph, line, op).sentence

    def rows(title):
        return details.locator(f'section[aria-label="{title}"] li').all_text_contents()

    read = tensors[pointer[op] : pointer[op + 1]]
    producers = graph.tensor_producer[read]
    output_tensors = np.flatnonzero(graph.tensor_producer == op)
    largest = max(
        *graph.tensor_bytes[read], *graph.tensor_bytes[output_tensors], graph.persistent_bytes[op], graph.temp_bytes[op]
    )
    size = lambda tensor: format_bytes_beside(int(graph.tensor_bytes[tensor]), int(largest))  # noqa: E731
    assert rows("Reads") == [
        f"{graph.names[p]}{size(t)}, gpu:{device_of[p]}" for p, t in zip(producers, read, strict=True)
    ]
    assert rows("Makes") == [f"tensor {graph.tensor_names[t]}{size(t)}" for t in output_tensors]
    readers = [int(r) for r, t in zip(graph.consumers, graph.edge_tensor, strict=True) if t in output_tensors]
    assert [text.split(", ")[-1] for text in rows("Read by")] == [f"gpu:{device_of[r]}" for r in readers]
    # The devices are equal: the op takes as long on each of them.
    assert rows("Time on each device") == [f"gpu:{d}{facts['takes']}" for d in range(4)]
    assert details.locator("li.bl-here").all_text_contents() == [f"gpu:{line.device[row]}{facts['takes']}"]
    producer = graph.names[int(producers[0])]
    shot(page, "details")
    details.locator(f'button.bl-link:text-is("{producer}")').first.click()
    page.wait_for_selector(f'.bl-details-name:text-is("{producer}")')
    tab(page, "Timeline")
    page.wait_for_selector(".bl-panes.bl-at-timeline")
    assert details.is_visible()
    page.click('.bl-strip button:text-is("▾ Details")')
    page.wait_for_selector(".bl-details-pane", state="hidden")
    page.click('.bl-strip button:text-is("▸ Details")')
    tab(page, "Compare")  # has no details that could be folded
    page.wait_for_selector(".bl-details-fold", state="hidden")
    tab(page, "Graph")
    page.wait_for_selector(".bl-details-fold")
    page.wait_for_selector(".bl-panes.bl-at-graph")
    page.locator(GRAPH).focus()
    page.keyboard.press("Escape")
    page.wait_for_selector('.bl-details-name:text-is("Details")')
    assert page.problems == []


def test_heat_colours_boxes_and_its_legend_says_the_hottest(page, outcome):
    graph, line = outcome
    owner = build_tree(graph).owner(build_tree(graph).visible(build_tree(graph).open_until(24)))
    page.click('.bl-toolbar:has(.bl-moves) button:text-is("Overview")')
    page.wait_for_function(f"(n) => document.querySelector('{GRAPH}').dataset.nodes === n", arg=str(owner.max() + 1))
    choice = page.locator('.bl-pane-graph select[aria-label="Colour"]')
    shown = compute(Setting(CLUSTER, placer="m-etf", passes=()), graph, Memo(8))
    for by in HEATS:
        choice.select_option(by)
        of_boxes = np.bincount(owner, op_heat(shown, by))
        hottest = f"{by} {int(of_boxes.argmax())}"
        page.wait_for_function(f"(hottest) => document.querySelector('{GRAPH}').dataset.heat === hottest", arg=hottest)
        page.wait_for_selector(f'.bl-heat-key:has-text("{format_heat(by, float(of_boxes.max()))}")')
        if by in (TIME, CRITICAL):
            shot(page, f"heat-{by.split()[0]}")
    sent_bytes = np.bincount(
        graph.tensor_producer[line.transfers.tensor], line.tensor_bytes[line.transfers.tensor], minlength=graph.n
    )
    moved_bytes = np.bincount(owner, sent_bytes)
    choice.select_option(MOVED)
    page.wait_for_function(
        f"(text) => document.querySelector('{GRAPH}').dataset.heat === text", arg=f"{MOVED} {int(moved_bytes.argmax())}"
    )
    page.wait_for_selector(f'.bl-heat-key:has-text("{format_bytes(int(moved_bytes.max()))}")')
    # Memory: what the ops of a box hold where and when a device is fullest; all boxes together hold the peaks.
    log, held_bytes = line.memory, np.zeros(graph.n)
    for device in range(4):
        of_device = np.flatnonzero(log.device == device)
        live_at = np.cumsum(log.delta[of_device])
        for entry in of_device[: int(live_at.argmax()) + 1].tolist():
            held_bytes[log.op[entry]] += log.delta[entry]
    assert held_bytes.sum() == line.peak_bytes.sum()
    box_bytes = np.bincount(owner, held_bytes)
    choice.select_option(MEMORY_HEAT)
    page.wait_for_selector(f'.bl-heat-key:has-text("{format_bytes(int(box_bytes.max()))}")')
    choice.select_option("")
    page.wait_for_selector(".bl-heat-key", state="hidden")
    assert page.problems == []


def test_idle_devices_are_one_line_and_lanes_are_stretched(page, outcome):
    tab(page, "Timeline")
    page.wait_for_selector(".bl-panes.bl-at-timeline")
    lanes = f"(n) => document.querySelector('{TIMELINE}').dataset.lanes === n"
    page.wait_for_function(lanes, arg="8")  # four devices, each with its transfers
    page.wait_for_selector('button:text-is("Fold idle")', state="hidden")
    placer = control(page, "placer").locator("select")
    placer.select_option("single")
    page.wait_for_function(lanes, arg="3")  # one device and its transfers, and "gpu:1 to gpu:3 idle"
    legend = page.locator(".bl-pane-timeline .bl-key")
    jb.eventually(page, lambda: _same(legend.all_inner_texts(), ["gpu:0"]))  # it waits for nothing
    shot(page, "lanes")
    page.locator(TIMELINE).focus()
    page.keyboard.press("i")
    page.wait_for_function(lanes, arg="8")
    height = page.locator(TIMELINE).bounding_box()["height"]
    page.keyboard.press("]")
    taller = f"(h) => document.querySelector('{TIMELINE}').clientHeight > h"
    page.wait_for_function(taller, arg=height)
    jb.settle(page)
    box = page.locator(TIMELINE).bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + 20, box["y"] + 140, steps=6)
    page.mouse.up()
    page.wait_for_function(taller, arg=box["height"])
    page.click('button:text-is("Fold idle")')
    page.wait_for_function(lanes, arg="3")
    placer.select_option("m-etf")
    page.wait_for_function(lanes, arg="8")
    words = {
        "transfer": "waits for a transfer",
        "queue": "waits in the queue of a link",
        "op": "waits for another device",
    }
    kinds = {KINDS[kind] for kind in waits(*outcome).kind}
    waiting = [text for kind, text in words.items() if kind in kinds]
    assert "queue" in kinds  # dashed lines
    jb.eventually(page, lambda: _same(legend.all_inner_texts()[4:], waiting))
    assert page.problems == []


ALONE = """() => [...document.querySelectorAll('.bl-workbench .bl-toolbar')].filter((e) => e.offsetParent).flatMap((bar) => {
  const [table, keys] = ['Table', '?'].map((text) => [...bar.querySelectorAll('button')].find((b) => b.textContent === text));
  const widths = Array.from({ length: 200 }, (_, k) => 200 + 5 * k).filter((width) => {
    bar.style.width = `${width}px`;
    return Math.abs(table.getBoundingClientRect().top - keys.getBoundingClientRect().top) > 1;
  });
  bar.style.width = '';
  return widths;
})"""


def test_bug_the_button_of_the_keys_was_alone_on_its_line(page):
    """At some widths "?" was on the next line of a view's buttons, without the button "Table" that it belongs to."""
    tab(page, "Timeline")
    assert page.evaluate(ALONE) == []


ALONE_ON_A_LINE = """() => {
  const bars = [...document.querySelectorAll('.bl-workbench .bl-toolbar')].filter((e) => e.offsetParent);
  const middle = (e) => { const r = e.getBoundingClientRect(); return (r.top + r.bottom) / 2; };
  return bars.flatMap((bar) => {
    const table = [...bar.querySelectorAll('button')].find((b) => b.textContent === 'Table');
    const others = [...bar.querySelectorAll('button, select, input, .bl-title')].filter((e) => !e.closest('.bl-beside'));
    // Where a line has room for the buttons of the devices: beside the setting at 1280 pixels, the toolbar has 640.
    const widths = Array.from({ length: 200 }, (_, k) => 620 + 5 * k).filter((width) => {
      bar.style.width = `${width}px`;
      const seen = others.filter((e) => e.getClientRects().length);
      return !seen.some((e) => Math.abs(middle(e) - middle(table)) < 8);
    });
    bar.style.width = '';
    return widths;
  });
}"""


@pytest.mark.parametrize("name", ["Graph", "Timeline"])
def test_bug_the_buttons_table_and_keys_were_alone_on_their_line(page, name):
    """At some widths nothing else was on the last line of a view's toolbar, as at 1920 pixels."""
    tab(page, name)
    assert page.evaluate(ALONE_ON_A_LINE) == []


TWO_ADVICES = """(cause) => [2, 3].forEach((k) => {
  const row = document.querySelector(`.bl-messages > :nth-child(${k})`);
  const text = row.querySelector('.widget-html-content');
  row.before = [row.style.display, text.innerHTML];
  row.style.display = 'flex';
  text.innerHTML = `<div class="bl-note bl-advice-text"><span class="bl-advice-cause">${cause}</span>`
    + '<span class="bl-advice-change"> 422.8 -> 351.8 ms</span></div>';
})"""
TAKE_BACK_ADVICES = """() => [2, 3].forEach((k) => {
  const row = document.querySelector(`.bl-messages > :nth-child(${k})`);
  [row.style.display, row.querySelector('.widget-html-content').innerHTML] = row.before;
})"""
ADVICE_BOXES = """() => [2, 3].map((k) => document.querySelector(`.bl-messages > :nth-child(${k})`)).map((row) =>
  [row, row.querySelector('.bl-advice-change'), row.querySelector('button')].map((e) => {
    const r = e.getBoundingClientRect();
    return [r.left, r.right, r.top, r.bottom];
  }))"""


def test_bug_the_second_advice_was_hidden_on_a_low_screen(page):
    """At 1280 x 720 both stand beside each other in the room of one, and of a long one the numbers are whole."""
    tab(page, "Graph")
    page.set_viewport_size({"width": 1280, "height": 720})
    jb.settle(page)
    before = page.evaluate(TOPS)[:2]
    page.evaluate(TWO_ADVICES, "The passes left 16 groups, " * 5)
    boxes, during = page.evaluate(ADVICE_BOXES), page.evaluate(TOPS)[:2]
    page.evaluate(TAKE_BACK_ADVICES)
    page.set_viewport_size({"width": 1600, "height": 1000})
    assert during == before
    for row, change, button in boxes:
        assert row[0] < change[0] < change[1] <= button[0] <= button[1] <= row[1] and row[3] - row[2] < 32
        assert row[2] <= change[2] < change[3] <= row[3]
    (first, _, _), (second, _, _) = boxes
    assert first[1] <= second[0] and abs(first[2] - second[2]) < 1


def test_an_op_is_found_on_the_timeline_by_its_name(page, outcome):
    graph, timeline = outcome
    tab(page, "Timeline")
    text = max(graph.names, key=len)[:-1].upper()
    rows = zip(timeline.op.tolist(), timeline.start_us.tolist(), timeline.device.tolist(), strict=True)
    starts = {graph.names[op]: (start_us, device) for op, start_us, device in rows}
    names = sorted((name for name in graph.names if text.lower() in name.lower()), key=starts.__getitem__)
    assert len(names) > 2
    page.locator(TIMELINE).focus()
    page.keyboard.press("/")
    page.keyboard.type(text)
    selected, live = page.locator(".bl-details-name"), page.locator(f".bl-view:has({TIMELINE}) .bl-live")
    for key, number in (("Enter", 1), ("ArrowDown", 2), ("ArrowUp", 1), ("ArrowUp", len(names)), ("Enter", 1)):
        page.keyboard.press(key)
        page.wait_for_selector(f'.bl-details-name:text-is("{names[number - 1]}")')
        assert live.inner_text().startswith(f"{number} of {len(names)} ops with “{text}”"), selected.inner_text()
    # Keys that come faster than the kernel answers them lead on, and none is lost.
    for number in range(2, len(names) + 1):
        page.keyboard.press("ArrowDown")
        assert live.inner_text().startswith(f"{number} of {len(names)} ops with “{text}”")
    page.keyboard.press("Enter")
    page.wait_for_selector(f'.bl-details-name:text-is("{names[0]}")')
    # What lies beside the visible stretch of time is shifted into it.
    last, _ = starts[names[-1]]
    jb.execute(page, f"bench.timeline.window = [0.0, {last / 2}]")
    page.wait_for_function(f"() => document.querySelector('{TIMELINE}').dataset.frames")
    jb.settle(page)
    page.keyboard.press("ArrowUp")
    page.wait_for_selector(f'.bl-details-name:text-is("{names[-1]}")')
    page.keyboard.press("Control+a")
    page.keyboard.type("no such op")
    page.keyboard.press("Enter")
    # What arrives from the kernel later does not take its place.
    jb.execute(page, "bench.timeline.status = ' '.join(map(str, bench.timeline.window))")
    jb.settle(page)
    assert live.inner_text() == "no op's name contains “no such op”"
    page.locator(TIMELINE).focus()
    page.keyboard.press("Escape")
    jb.eventually(page, lambda: _window_has(live, last))
    jb.execute(page, "bench.timeline.window, bench.timeline.status = [], ''")
    page.keyboard.press("0")
    assert page.problems == []


def _window_has(locator, time_us):
    first, last = map(float, locator.inner_text().split())
    assert first <= time_us <= last


LINES_AND_TEXTS = """(canvas) => {
  const context = canvas.getContext('2d');
  const marks = canvas.drawnMarks = [];
  context.stroke = () => { marks.push(null); CanvasRenderingContext2D.prototype.stroke.call(context); };
  context.fillText = (text, x, y) => { marks.push(text); CanvasRenderingContext2D.prototype.fillText.call(context, text, x, y); };
}"""


def _lines_and_texts(page, canvas):
    """What a canvas draws next, in order: a text as itself, a line as None."""
    page.mouse.move(0, 0)
    canvas.evaluate(LINES_AND_TEXTS)
    canvas.hover()
    page.wait_for_function("(canvas) => canvas.drawnMarks.length", arg=canvas.element_handle())
    jb.await_drawing(page)
    remove = "(canvas) => { for (const name of ['stroke', 'fillText']) delete canvas.getContext('2d')[name]; }"
    canvas.evaluate(remove)
    return canvas.evaluate("(canvas) => canvas.drawnMarks")


def assert_ends(text, end):
    assert text.endswith(end), (text, end)


def test_memory_lists_live_tensors_and_shares_its_cursor(page, outcome):
    _, line = outcome
    tab(page, "Timeline")
    page.wait_for_selector(".bl-panes.bl-at-timeline")
    memory = page.locator(MEMORY)
    # Every row has its peak and its limit, also where that is far above; a scale of bytes; and a hatching per category.
    drawn = texts_of(page, "Memory")
    assert {f"peak {bytes_beside(int(peak), line.peak_bytes.max())}" for peak in line.peak_bytes} < drawn
    assert f"limit {format_bytes(10**9)}, above this scale" in drawn
    ticks = [text for text in drawn if re.fullmatch(r"[\d.]+ (B|kB|MB)", text)]
    assert ticks, drawn
    # No line crosses the label of a limit or of a tick: all lines of a row are drawn before its texts.
    order = _lines_and_texts(page, memory)
    limits = [k for k, mark in enumerate(order) if mark and mark.endswith(", above this scale")]
    assert len(limits) == np.count_nonzero(line.peak_bytes)
    for first in limits:
        last = next(k for k in range(first, len(order)) if order[k] and order[k].startswith("peak "))
        assert None not in order[first:last] and {*ticks} <= {*order[first:last]}
    hatch = "(swatches) => swatches.map((e) => getComputedStyle(e).backgroundImage.includes('gradient'))"
    hatched = page.locator(f".bl-view:has({MEMORY}) .bl-toolbar .bl-swatch").evaluate_all(hatch)
    assert hatched == [False, True, True, True]
    memory.focus()
    page.keyboard.press("l")
    fullest = int(line.peak_bytes.argmax())
    page.wait_for_selector(f'.bl-live-tensors b:has-text("{format_bytes(int(line.peak_bytes[fullest]))}")')
    times, levels = line.memory.levels(fullest)
    live_tensors = live_bytes(line, fullest, float(times[levels.sum(axis=1).argmax()]))
    first = page.locator(".bl-live-tensors li").first
    jb.settle(page)
    assert first.inner_text().startswith(format_bytes(live_tensors[0].bytes)) and first.inner_text().endswith(
        live_tensors[0].name
    )
    shot(page, "memory")
    first.locator("button").click()
    page.wait_for_selector(f'.bl-details-name:text-is("{live_tensors[0].name}")')
    jb.settle(page)
    box = memory.bounding_box()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 30)
    page.wait_for_function(f"() => Number(document.querySelector('{MEMORY}').dataset.cursor) > 0")
    same = f"() => document.querySelector('{MEMORY}').dataset.cursor === document.querySelector('{TIMELINE}').dataset.cursor"
    page.wait_for_function(same)
    assert 0 < float(memory.get_attribute("data-cursor")) < line.makespan_us
    # A click lists what is live there, and takes the tooltip away: the rows become lower.
    tooltip = page.locator(f".bl-stage:has({MEMORY}) .bl-tooltip")
    tooltip.wait_for()
    page.mouse.click(box["x"] + 0.6 * box["width"], box["y"] + 30)
    tooltip.wait_for(state="hidden")
    at_us = float(memory.get_attribute("data-cursor"))
    live_tensors = live_bytes(line, int(np.flatnonzero(line.peak_bytes)[0]), at_us)
    count = f", the {MOST_LIVE} largest of {len(live_tensors)}" if len(live_tensors) > MOST_LIVE else ""
    live = format_bytes(sum(tensor.bytes for tensor in live_tensors))
    jb.eventually(page, lambda: assert_ends(page.locator(".bl-live-tensors b").inner_text(), f": {live}{count}"))
    page.mouse.move(2, 2)
    page.wait_for_function(f"() => document.querySelector('{TIMELINE}').dataset.cursor === ''")
    page.click('.bl-live-tensors button:text-is("×")')
    page.wait_for_selector(".bl-live-tensors", state="hidden")
    assert page.problems == []


def test_plans_for_other_runtimes_are_shown_with_what_they_lose(page, outcome):
    """Every format's plan is that of `bl.write_plan`, or the reason why it has none."""
    graph, line = outcome
    placement = bl.place(graph, CLUSTER, "m-etf")
    tab(page, "Export")
    copy = page.locator('button:text-is("Copy the plan")')
    assert copy.is_disabled()  # there is no plan yet, and it looks like the other disabled button
    faint = "(button) => getComputedStyle(button).opacity"
    assert copy.evaluate(faint) == page.locator('button:text-is("Save the plan")').evaluate(faint) < "1"
    choice = page.locator('.bl-pane-export .widget-inline-hbox:has(label > :text-is("plan for")) select')
    for name, runtime in RUNTIMES.items():
        choice.select_option(label=f"{name}: {runtime}")
        page.click('button:text-is("Show the plan")')
        try:
            plan = bl.write_plan(graph, placement, name, cluster=CLUSTER, timeline=line if name == "chakra" else None)
        except bl.BaechiLabError as error:
            refusal = page.locator(f'.bl-pane-export .bl-bad:has-text("No plan for {name}: ")')
            assert " ".join(str(error).split())[:60] in refusal.inner_text()
            continue
        code = page.locator(".bl-pane-export .bl-code").last
        jb.eventually(page, lambda code=code, plan=plan: _same_text(code, plan.text))
        page.wait_for_selector('button:text-is("Copy the plan"):enabled')
        for sentence in plan.unsupported:
            page.locator(".bl-pane-export", has_text=sentence).wait_for()
    shot(page, "export")
    assert page.problems == []


def _same(values, expected):
    assert values == expected


def _same_text(element, text):
    cut = ["..."] if len(text) > MOST_SHOWN else []
    assert element.text_content().split() == [*text[:MOST_SHOWN].split(), *cut]


SETTING_LABELS = """() => [...document.querySelectorAll('.bl-setting :is(label, .bl-switch)')].filter((e) => e.textContent.trim())
  .map((e) => [e.textContent.trim(), e.title || e.querySelector('[title]')?.title || ''])"""


UNFOLDED_IN_SIGHT = """() => {
  const pane = document.querySelector('.bl-setting').getBoundingClientRect();
  const label = [...document.querySelectorAll('.bl-setting label')].find((e) => e.textContent === 'link').getBoundingClientRect();
  return label.height > 0 && label.top > pane.top && label.bottom < pane.bottom;
}"""


def test_the_setting_has_two_levels_and_hardware_is_one_choice(page, outcome):
    """Model, hardware, placer and one control of micro-batches; all else unfolds. Every word has a tooltip.

    While results arrive, the strip with Undo stays where it is: it moved up for some frames, away from clicks.
    """
    graph, line = outcome
    tab(page, "Graph")
    jb.settle(page)
    first_level = ["hardware", "devices", "memory each", "placer", "micro-batches"]
    assert all(control(page, label).is_visible() for label in first_level)
    advanced = ["speeds", "link", "transfers", "forward only", "recompute", "scheduler", "schedule", "replicas"]
    assert not any(control(page, label).is_visible() for label in advanced)
    page.set_viewport_size({"width": 1280, "height": 720})
    page.click('.bl-setting button:has-text("Advanced")')
    # On a low screen only the head of what was unfolded was in sight.
    page.wait_for_function(UNFOLDED_IN_SIGHT)
    page.set_viewport_size({"width": 1600, "height": 1000})
    for label in advanced:
        control(page, label).wait_for()
    labels = dict(page.evaluate(SETTING_LABELS))
    assert {*first_level, *advanced, "colocation", "fusion"} <= set(labels)
    assert [label for label, hint in labels.items() if len(hint) < 8 or hint == label] == []
    page.click('.bl-setting button:has-text("Advanced")')
    hardware = control(page, "hardware").locator("select")
    page.evaluate("() => document.querySelector('.bl-workbench').scrollIntoView({ block: 'start' })")
    jb.settle(page)
    page.evaluate(RECORD_TOPS, ".bl-workbench .bl-strip")
    presets = list(HARDWARE_PRESETS.items())[::3]
    for name, preset in presets:
        hardware.select_option(name)
        cluster = preset.cluster
        step_us = bl.simulate(graph, cluster, bl.place(graph, cluster, "m-etf")).makespan_us
        page.wait_for_selector(f'.bl-header .bl-facts:has-text("step time {format_us(step_us)}")')
        page.wait_for_selector(".bl-stale", state="detached")
    for _ in presets:
        page.click('.bl-strip button:text-is("Undo")')
    page.wait_for_selector(f'.bl-header .bl-facts:has-text("step time {format_us(line.makespan_us)}")')
    page.wait_for_selector(".bl-stale", state="detached")
    assert len(page.evaluate("() => { window.recording = false; return [...window.tops]; }")) == 1
    assert page.problems == []


@pytest.mark.parametrize(
    ("pane_name", "pane", "key", "side"),
    [
        ("setting", ".bl-setting", "ArrowRight", "width"),
        ("details", ".bl-details-pane", "ArrowLeft", "width"),
        ("graph", f".bl-view:has({GRAPH})", "ArrowDown", "height"),
    ],
)
def test_a_splitter_is_moved_by_keys_and_by_the_mouse(page, pane_name, pane, key, side):
    """An arrow is 16 pixels, a drag goes as far as the mouse. What one part gets its neighbour gives, and Escape undoes it."""
    tab(page, "Graph")
    edge = page.locator(f'.bl-splitter[aria-label$="of the {pane_name}"]')
    before, canvas = _size(page, pane), _size(page, GRAPH)
    edge.focus()
    page.keyboard.press(key)
    page.keyboard.press(key)
    jb.eventually(page, lambda: _near(_size(page, pane)[side], before[side] + 32))
    if side == "width":
        _near(_size(page, GRAPH)["width"], canvas["width"] - 32)
    assert edge.get_attribute("aria-valuenow") == str(round(_size(page, pane)[side]))
    bar = edge.bounding_box()
    x, y = bar["x"] + bar["width"] / 2, bar["y"] + bar["height"] / 2
    dx, dy = {"setting": (48, 0), "details": (-48, 0), "graph": (0, 48)}[pane_name]
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + dx, y + dy, steps=4)
    page.mouse.up()
    jb.eventually(page, lambda: _near(_size(page, pane)[side], before[side] + 80))
    shot(page, f"splitter-{pane_name}", ["Light"])
    edge.focus()
    page.keyboard.press("Escape")
    jb.eventually(page, lambda: _near(_size(page, pane)[side], before[side]))
    assert page.problems == []


def _fills(size, width, height):
    assert (size["x"], size["y"], size["width"], size["height"]) == (0, 0, width, height)


def _holds(text, pieces):
    assert all(piece in text for piece in pieces), text


def _near(size, expected_size):
    assert abs(size - expected_size) <= 1.5, (size, expected_size)


def test_the_graph_fills_its_pane_and_the_full_screen(page):
    """No empty room below the graph where nothing else is shown there, nor a scroll within the workbench."""
    tab(page, "Graph")
    for height in (720, 840):
        page.set_viewport_size({"width": 1600, "height": height})
        panes, view = _size(page, ".bl-panes"), _size(page, ".bl-pane-graph > .bl-splitter")
        assert 0 <= panes["bottom"] - view["bottom"] < 4
    scrolls = "() => { const e = document.querySelector('.bl-panes'); return e.scrollHeight - e.clientHeight; }"
    assert page.evaluate(scrolls) == 0
    windowed = _size(page, GRAPH)
    page.click('.bl-tabs button[aria-label="full screen"]')
    page.wait_for_function("() => document.fullscreenElement?.matches('.bl-workbench')")
    jb.eventually(page, lambda: _fills(_size(page, ".bl-workbench"), 1600, 840))
    full_size = _size(page, GRAPH)
    assert full_size["width"] > windowed["width"] and full_size["height"] > windowed["height"]
    shot(page, "full-screen", ["Light"])
    page.click('.bl-tabs button[aria-label="full screen"]')
    page.wait_for_function("() => !document.fullscreenElement")
    page.set_viewport_size({"width": 1600, "height": 1000})
    assert page.problems == []


@pytest.mark.parametrize("height", [720, 1000])
def test_an_error_moves_nothing(page, height):
    page.set_viewport_size({"width": 1600, "height": height})
    tab(page, "Graph")
    page.wait_for_selector(".bl-advice .bl-note")
    jb.settle(page)
    before = page.evaluate(TOPS)
    memory = control(page, "memory each").locator("input")
    amount = memory.input_value()
    memory.fill("nonsense")
    memory.press("Enter")
    page.wait_for_selector('.bl-header [role="alert"]:has-text("is not an amount of memory")')
    jb.settle(page)
    during = page.evaluate(TOPS)
    shot(page, f"error-{height}", THEMES_AT_HEIGHT[height])
    page.click('.bl-header button:text-is("Dismiss")')
    page.wait_for_selector('.bl-header [role="alert"]', state="hidden")
    jb.settle(page)
    assert (during, page.evaluate(TOPS)) == (before, before)
    memory.fill(amount)
    memory.press("Enter")
    jb.settle(page)
    page.set_viewport_size({"width": 1600, "height": 1000})
    assert page.problems == []


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (1600, 1000)])
def test_a_warning_is_shown_as_a_note_and_moves_nothing(page, width, height):
    """Something warned of in the background of an action, as a trace that is opened warns of inferred dependencies."""
    page.set_viewport_size({"width": width, "height": height})
    tab(page, "Graph")
    page.wait_for_selector(".bl-advice .bl-note")
    jb.settle(page)
    before = page.evaluate(TOPS)
    text = f"step.json: what depends on what is inferred {height}, " + "an op waits for the one before it, " * 8
    warns = f"""import warnings
from baechi_lab.graph.formats.traces.loading import InferredDependencies
with warnings.catch_warnings(action="always"), bench.model.noting():
    warnings.warn({text!r}, InferredDependencies)
"""
    jb.execute(page, warns)
    page.wait_for_selector(
        f'.bl-notes[role="status"]:has-text("note: step.json: what depends on what is inferred {height}")'
    )
    jb.settle(page)
    during = page.evaluate(TOPS)
    assert page.locator(".bl-one-advice").first.is_visible()  # the first advice stays beside the note
    shot(page, f"note-{height}", THEMES_AT_HEIGHT[height])
    page.click(".bl-notes summary")  # the whole text, where the user asks for it
    assert page.evaluate(
        "() => { const e = document.querySelector('.bl-notes summary span'); return e.scrollWidth <= e.clientWidth; }"
    )
    page.click('.bl-notes-row button:text-is("Dismiss")')
    page.wait_for_selector(".bl-notes-row", state="hidden")
    jb.settle(page)
    assert (during, page.evaluate(TOPS)) == (before, before)
    page.set_viewport_size({"width": 1600, "height": 1000})
    assert page.problems == []


def test_charts_below_a_table_fill_a_high_screen(page):
    tab(page, "Compare")
    page.locator('.bl-pane .jupyter-button:visible:text-is("Compare")').first.click()
    page.wait_for_selector(".bl-pane-compare .bl-chart svg", timeout=120_000)
    chart = ".bl-pane-compare .bl-chart svg"
    for height, chart_height in ((720, 184), (1000, 1000 - 128 - 480)):
        page.set_viewport_size({"width": 1600, "height": height})
        jb.eventually(page, lambda expected=chart_height: _near(_size(page, chart)["height"], expected))
    page.set_viewport_size({"width": 1600, "height": 1000})
    assert page.problems == []


def test_ways_to_fit_have_the_library_s_steps_and_peaks(page, outcome):
    """Every row is an option of `bl.fit`, a faster step than the header's says so, and a slower one gives something up."""
    graph, line = outcome
    fit = bl.fit(graph, CLUSTER, every_option=True, placement=bl.place(graph, CLUSTER, "m-etf"))
    tab(page, "Fit")
    page.click('button:text-is("Will it fit?")')
    rows = page.locator(".bl-pane-fit .bl-table tr:not(:has(th))")
    rows.first.wait_for()
    columns = option_columns(fit.options)
    texts = [[cell.replace("\xa0", " ") for cell in cells] for cells in zip(*(c.texts for c in columns), strict=True)]

    def every_option_is_shown():
        cells = [row.replace("\xa0", " ").split("\t")[: len(columns)] for row in rows.all_inner_texts()]
        shown = [[cell.strip() for cell in row] for row in cells]
        assert shown == texts
        return shown

    shown = jb.eventually(page, every_option_is_shown)
    heads = page.locator(".bl-pane-fit .bl-table th").all_inner_texts()
    peaks = next(k for k, head in enumerate(heads) if head.startswith("peak of each device ("))
    assert heads[3].startswith("step time (") and not any(head.startswith("samples/s") for head in heads)
    aligned = "(rows) => rows.map((row) => getComputedStyle(row.cells[3]).textAlign)"
    assert set(rows.evaluate_all(aligned)) == {"right"}
    change = change_in_words(fit.options[0].step_us, line.makespan_us)
    page.wait_for_selector(
        f'.bl-pane-fit .bl-good:has-text("({change} against the {format_us(line.makespan_us)} above)")'
    )
    longer = [option for option in fit.options[1:] if option.step_us > 1.001 * fit.options[0].step_us]
    assert longer and all("more time" in option.gives_up for option in longer)
    shot(page, "fit")
    # A click on a point shows its step and code, which gives the step and the peaks that its row promises.
    option = next(option for option in fit.options if option.kind == "recomputation" and option.timeline)
    point = page.locator(f'.bl-pane-fit .bl-chart-hit[aria-label*="{format_us(option.step_us)}"]')
    point.first.focus()
    page.keyboard.press("Enter")
    words = page.locator(f'.bl-pane-fit .bl-note:has-text("{option.kind}, {option.choice_in_words}: ")')
    words.wait_for()
    page.wait_for_selector(f'.bl-pane-fit .bl-title:has-text("{format_us(option.step_us)}")')
    names = {"bl": bl, "graph": graph, "cluster": CLUSTER}
    placement = eval(words.inner_text().partition(": ")[2], names)  # noqa: S307 (our own text)
    timeline = bl.simulate(names["g"], CLUSTER, placement)
    assert (timeline.makespan_us, timeline.peak_bytes.tolist()) == (option.step_us, option.peak_bytes)
    unit_bytes = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1}[heads[peaks].partition("(")[2].rstrip(")")]
    assert f"{timeline.peak_bytes.max() / unit_bytes:.2f}" in shown[fit.options.index(option)][peaks].split(", ")
    # One click takes the row's setting, whose step is that of the row; the answer then says that it is of another setting.
    rows.nth(fit.options.index(option)).locator('button:text-is("Use")').click()
    page.wait_for_selector(f'.bl-header .bl-facts:has-text("step time {format_us(option.step_us)}")')
    page.wait_for_selector('.bl-pane-fit .bl-note:has-text("another setting")')
    shot(page, "fit-used", ["Light"])
    page.click('.bl-strip button:text-is("Undo")')
    page.wait_for_selector(f'.bl-header .bl-facts:has-text("step time {format_us(line.makespan_us)}")')
    page.wait_for_selector(".bl-pane-fit .bl-outdated", state="detached")
    assert page.problems == []


def test_figures_show_every_device_on_one_scale_without_a_background(page, outcome):
    """The plot of a device without ops is empty, but there; no legend lies below the buttons; a dark page shines through."""
    graph, _ = outcome
    alone = bl.simulate(graph, CLUSTER, bl.place(graph, CLUSTER, "single"))
    page.evaluate("() => [...document.querySelectorAll('.jp-Cell')].at(-1).scrollIntoView()")
    page.evaluate(
        """() => {
          window.jupyterapp.shell.currentWidget.content.activeCellIndex = 2;
          window.jupyterapp.commands.execute('notebook:run-cell');
        }"""
    )
    page.wait_for_function("() => document.querySelectorAll('.js-plotly-plot .main-svg').length >= 6")
    gantt, memory, _ = (page.locator(".js-plotly-plot").nth(k) for k in range(3))

    def figures_have_their_texts():
        assert {"gpu:0", "gpu:1", "gpu:2", "gpu:3"} < set(gantt.locator(".ytick").all_text_contents())
        assert format_us(alone.makespan_us) in gantt.locator(".gtitle").text_content()
        scales = [memory.locator(f".{axis}tick").all_text_contents() for axis in ("y", "y2", "y3", "y4")]
        assert scales[0] and scales == scales[:1] * 4
        peaks = " ".join(memory.locator(".annotation-text").all_text_contents())
        assert all(f"peak {format_bytes(int(peak))} of" in peaks for peak in alone.peak_bytes)

    jb.eventually(page, figures_have_their_texts)
    themed(page, "Dark")
    opaque = """() => [...document.querySelectorAll('.js-plotly-plot :is(.main-svg, .bg, .modebar-group)')].filter((e) => {
      const { backgroundColor, fill, fillOpacity } = getComputedStyle(e);
      return e.matches('.bg') ? fill !== 'none' && Number(fillOpacity) > 0 : !/, 0\\)$/.test(backgroundColor);
    }).length"""
    jb.eventually(page, lambda: _same(page.evaluate(opaque), 0))
    apart = """() => [...document.querySelectorAll('.js-plotly-plot')].every((plot) => {
      const [legend, buttons] = ['.legend', '.modebar'].map((part) => plot.querySelector(part)?.getBoundingClientRect());
      return !legend || !buttons || legend.top >= buttons.bottom || legend.right <= buttons.left;
    })"""
    jb.eventually(page, lambda: _same(page.evaluate(apart), True))
    jb.screenshot(page, "panes-figures-dark")
    themed(page, "Light")
    assert page.problems == []
