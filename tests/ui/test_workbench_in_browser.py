"""The workbench in a real JupyterLab and a real browser: what the page shows equals what the library computes.

With BAECHI_LAB_SCREENSHOTS=1, screenshots of every station are stored in .pytest_cache/screenshots/.
"""

from __future__ import annotations

import itertools
import json
import re
import urllib.request

import jupyter_browser as jb
import numpy as np
import pytest
from whole_screen import EMPTIED, FAULTS_OF_TAB, TABS, bytes_beside, faults, tab, texts_of, themed

import baechi_lab as bl
from baechi_lab.graph.units import format_bytes, format_bytes_beside, format_us, format_us_beside, times_in_one_unit
from baechi_lab.step_summary import against_one_device, change_in_words, one_device
from baechi_lab.viz.layout import UNITS, scale
from baechi_lab.viz.nested.tree import build_tree
from baechi_lab.widgets.causes import cause, neighbours
from baechi_lab.widgets.coloring import coloring
from baechi_lab.widgets.comparing import best_first
from baechi_lab.widgets.moves import all_moving_ops
from baechi_lab.widgets.schedule import critical_chain
from baechi_lab.widgets.waiting import KINDS, statistics, waits

pytestmark = [
    pytest.mark.ui,
    pytest.mark.skipif(bool(jb.missing()), reason=jb.missing() or "-"),
    pytest.mark.timeout(280),
]

CELLS = [
    """
import baechi_lab as bl
step = bl.models.build("mlp", batch_size=32)
cluster = bl.Cluster.uniform(2, memory_bytes="1GB", kind="cpu")
""",
    """
import threading
bench = bl.Workbench(step, cluster, hardware="cpu-core", placer="m-topo", passes=("colocation",))
threads = set()
for event in ("setting", "outcome"):
    bench.model.on(event, lambda _: threads.add(threading.current_thread() is threading.main_thread()))
bench""",
]


ENABLED = (
    "(text) => [...document.querySelectorAll('.bl-pane button')].some((b) => b.textContent === text && !b.disabled)"
)


# Typed and clicked before the kernel can answer the first letters: it must see all of them.
TYPE_AND_SWEEP = """(input, texts) => {
  const tell = (kind) => input.dispatchEvent(new Event(kind, { bubbles: true }));
  texts.forEach((text) => { input.value = text; tell('input'); });
  tell('change');  // a click elsewhere ends the text
  [...document.querySelectorAll('button')].find((button) => button.textContent === 'Sweep').click();
}"""


@pytest.fixture(scope="module")
def page(lab, lab_page):
    """The workbench, drawn. Errors of the page end the tests that caused them."""
    with jb.lab_page_for_file(lab_page, 1500, 2000) as opened:
        begin(opened, lab)
        yield opened


def begin(page, lab):
    page.set_viewport_size({"width": 1500, "height": 2000})
    jb.open_notebook(page, lab.add_notebook("bench.ipynb", CELLS))
    jb.run_all(page, 'canvas[aria-label="Memory"]', 120_000)
    page.wait_for_function("() => Number(document.querySelector('canvas[aria-label=\"Graph\"]')?.dataset.frames) > 0")


@pytest.fixture(scope="module")
def expected():
    """The library's side of the page."""
    step = bl.models.build("mlp", batch_size=32)
    return Expected(step)


class Expected:
    def __init__(self, step):
        self.step = step

    def graph(self, batch_size=32):
        step = self.step if batch_size == 32 else bl.models.build("mlp", batch_size=batch_size)
        return bl.profile(step, mode="estimated", hardware="cpu-core")

    def timeline(self, batch_size=32, devices=2, placer="m-topo", moves=()):
        graph = self.graph(batch_size)
        cluster = bl.Cluster.uniform(devices, memory_bytes="1GB", kind="cpu")
        placement = bl.place(bl.optimize(graph, cluster, passes=("colocation",)), cluster, placer)
        return bl.simulate(graph, cluster, bl.move(placement, graph, cluster, moves))

    def second_decision(self, placer):
        """The coarse graph, and what the placer decided second."""
        graph, cluster = self.graph(), bl.Cluster.uniform(2, memory_bytes="1GB", kind="cpu")
        coarse = bl.optimize(graph, cluster, passes=("colocation",))
        return coarse, bl.place(coarse, cluster, placer, explain=True).info["decisions"][1]


def shows(page, text, timeout=90_000):
    """Wait until the facts above the views hold `text`, and are not out of date."""
    page.wait_for_function(
        "(text) => { const f = document.querySelector('.bl-header .bl-facts'); return f && f.textContent.includes(text) "
        "&& !document.querySelector('.bl-stale'); }",
        arg=text,
        timeout=timeout,
    )


def _equal(value, expected_value):
    assert value == expected_value
    return value


def _holds(text, *texts):
    assert all(piece in text for piece in texts), text
    return text


def _at_most(value, limit):
    assert value <= limit


def grid(x, y, width, height, columns, rows):
    """Places on the page at equal distances, in an order in which neighbours are far apart: a box is hit early."""
    count = columns * rows
    numbers = (233 * k % count for k in range(count))  # a prime
    return [(x + width * (k % columns) / columns, y + height * (k // columns) / rows) for k in numbers]


def control(page, label):
    """The control behind a label of the setting."""
    return page.locator(f'.bl-setting .widget-inline-hbox:has(label:text-is("{label}"), label > :text-is("{label}"))')


def test_the_first_picture_shows_the_library_s_numbers(page, expected):
    line = expected.timeline()
    shows(page, f"step time {format_us(line.makespan_us)}")
    for name in ("Setting", "Graph", "Timeline", "Memory", "Compare", "Run", "Explore", "Explain", "Export"):
        page.locator(f'.bl-workbench :text("{name}")').first.wait_for(state="visible")
    # The picture for readers without a kernel is there, and hidden as long as the widget lives.
    picture = page.locator(".jp-OutputArea-output.jp-RenderedSVG")
    picture.wait_for(state="hidden")
    assert picture.count() == 1
    jb.screenshot(page, "01-first-picture")
    assert page.problems == []


NARROW_PARTS = """() => [...document.querySelectorAll('.bl-verdict-part > span')]
  .filter((words) => words.style.visibility === 'hidden').map((words) => words.textContent)"""


def test_the_verdict_is_drawn_and_a_click_leads_to_its_stretch(page, expected):
    from baechi_lab.step_summary import step_parts

    graph, line = expected.graph(), expected.timeline()
    chain = critical_chain(graph, line)
    steps = step_parts(line, chain.ops, chain.transfers)
    pieces = page.locator(".bl-verdict-part")
    page.wait_for_function("(n) => document.querySelectorAll('.bl-verdict-part').length === n", arg=len(steps))

    def pieces_have_the_parts_times_and_widths():
        labels = [pieces.nth(k).get_attribute("aria-label") for k in range(len(steps))]
        assert all(format_us(step.us) in label for step, label in zip(steps, labels, strict=True))
        boxes = [pieces.nth(k).bounding_box() for k in range(len(steps))]
        total_width = sum(box["width"] for box in boxes)
        for step, box in zip(steps, boxes, strict=True):
            assert abs(box["width"] / total_width - step.us / line.makespan_us) < 0.02
        name = page.locator('.bl-verdict-label:has-text("step breakdown")').bounding_box()
        header = page.locator(".bl-header").bounding_box()
        assert name["x"] + name["width"] <= boxes[0]["x"] and total_width > 0.8 * header["width"]

    jb.eventually(page, pieces_have_the_parts_times_and_widths)
    # What the shares are of stands beside the bar, what narrow parts and the tick are below it.
    assert page.locator(".bl-verdict-label").inner_text().split("\n") == ["step breakdown", "of the critical path"]
    bound_us = bl.bounds(graph, bl.Cluster.uniform(2, memory_bytes="1GB", kind="cpu")).best
    bound = f"lower bound {times_in_one_unit([bound_us, line.makespan_us])[0]}"

    def narrow_parts_and_the_bound_are_below():
        below = page.locator(".bl-verdict-below > span:visible").all_inner_texts()
        assert sorted(below) == sorted([*page.evaluate(NARROW_PARTS), bound])

    jb.eventually(page, narrow_parts_and_the_bound_are_below)
    longest = int(np.argmax([step.us for step in steps]))
    pieces.nth(longest).click()
    first, last = steps[longest].window_us
    page.wait_for_function(
        "([first, last]) => { const canvas = document.querySelector('canvas[aria-label=\"Timeline\"]');"
        " const w = canvas.dataset.window.split(' ').map(Number);"
        " return w[0] <= first && w[1] >= last && w[1] - w[0] < 1.31 * (last - first); }",
        arg=[first, last],
    )
    jb.screenshot(page, "01-verdict")
    page.locator('canvas[aria-label="Timeline"]').focus()
    page.keyboard.press("0")
    page.keyboard.press("c")
    page.wait_for_selector('.bl-workbench button[aria-pressed="true"]:text-is("Critical path")', state="detached")
    tab(page, "Graph")
    assert page.problems == []


def test_a_slider_moves_the_batch_size(page, expected):
    slider = control(page, "batch size").locator(".noUi-handle")
    slider.focus()
    slider.press("ArrowRight")
    shows(page, f"step time {format_us(expected.timeline(64).makespan_us)}")
    # A step of another batch does other work: it is not held against the setting before.
    assert "against the setting before" not in page.locator(".bl-header .bl-facts").inner_text()
    slider.press("ArrowLeft")
    shows(page, f"step time {format_us(expected.timeline(32).makespan_us)}")


def test_the_devices_slider_and_the_placer(page, lab, expected):
    slider = control(page, "devices").locator(".noUi-handle")
    slider.focus()
    slider.press("ArrowRight")
    shows(page, f"step time {format_us(expected.timeline(devices=3).makespan_us)}")
    slider.press("ArrowLeft")
    control(page, "placer").locator("select").select_option("m-etf")
    greedy, filled = (expected.timeline(placer=name).makespan_us for name in ("m-etf", "m-topo"))
    shows(page, f"step time {format_us(greedy)}")
    # Beside one device, and beside the setting before.
    alone = one_device(expected.graph(), bl.Cluster.uniform(2, memory_bytes="1GB", kind="cpu")).makespan_us
    shows(page, against_one_device(greedy, alone))
    control(page, "placer").locator("select").select_option("m-topo")
    shows(page, f"step time {format_us(filled)}")
    shows(page, f"against the setting before {change_in_words(filled, greedy)}")
    # Changes come in a thread of their own; in two threads, the arrival of a result could cancel the next one.
    jb.execute(page, "import pathlib\npathlib.Path('threads').write_text(str(threads))")
    assert (lab.folder / "threads").read_text() == "{True}"
    jb.screenshot(page, "02-after-the-slider")


GRAPH = 'canvas[aria-label="Graph"]'


def data(page, key):
    """What the graph's canvas says of its last picture."""
    return int(page.locator(GRAPH).get_attribute(f"data-{key}"))


def announced(page):
    return page.locator(f".bl-view:has({GRAPH}) .bl-live").inner_text()


def test_the_first_graph_is_the_model_s_scopes(page, expected):
    """Few boxes that hold every op once, and one arrow per pair of boxes with the bytes of its distinct tensors."""
    graph = expected.graph()
    tree = build_tree(graph)
    shown = tree.visible(tree.open_until(24))
    page.wait_for_function(f"(n) => document.querySelector('{GRAPH}').dataset.nodes === n", arg=str(len(shown)))
    assert len(shown) <= 24
    of = tree.owner(shown)
    box_pairs = np.stack([of[graph.edge_source], of[graph.consumers], graph.edge_tensor], axis=1)
    box_pairs = np.unique(box_pairs[box_pairs[:, 0] != box_pairs[:, 1]], axis=0)
    assert data(page, "frames_open") == 0 and data(page, "arrows") == len(np.unique(box_pairs[:, :2], axis=0))
    # Hovering along the arrow out of layer0 tells how many tensors it stands for, and their bytes.
    jb.settle(page)
    box, names = page.locator(GRAPH).bounding_box(), [tree.names[n] for n in shown]
    places = grid(box["x"], box["y"] + 0.3 * box["height"], box["width"], 0.25 * box["height"], 90, 10)
    _, _, arrow = jb.hover_where(page, GRAPH, places, f"^{re.escape(names[0])} →")
    u, v = (names.index(name) for name in arrow.splitlines()[0].split(" → "))
    tensors = box_pairs[(box_pairs[:, 0] == u) & (box_pairs[:, 1] == v), 2]
    assert f"tensors\t{len(tensors)}" in arrow and format_bytes(int(graph.tensor_bytes[tensors].sum())) in arrow
    assert page.problems == []


def test_advice_that_comes_or_goes_moves_nothing(page):
    page.wait_for_selector(".bl-advice .bl-note")
    jb.settle(page)
    tops = "() => [...document.querySelectorAll('.bl-strip, canvas')].map((e) => e.getBoundingClientRect().top)"
    with_advice = page.evaluate(tops)
    rows = "document.querySelectorAll('.bl-messages > *').forEach((row) => row.classList.{}('bl-test-hidden'))"
    page.add_style_tag(content=".bl-test-hidden { display: none !important; }")
    page.evaluate("() => " + rows.format("add"))
    assert page.evaluate(tops) == with_advice
    page.evaluate("() => " + rows.format("remove"))


def test_the_critical_path_is_the_real_chain(page, expected):
    """Arrows are marked where an edge of the chain crosses, and nowhere else."""
    graph, line = expected.graph(), expected.timeline()
    tree = build_tree(graph)
    owner = tree.owner(tree.visible(tree.open_until(24)))
    chain = critical_chain(graph, line).ops.tolist()
    edges = set(zip(graph.edge_source.tolist(), graph.consumers.tolist(), strict=True))
    crossed = {(owner[a], owner[b]) for a, b in itertools.pairwise(chain) if (a, b) in edges and owner[a] != owner[b]}
    page.click('.bl-toolbar:has(.bl-moves) button:text-is("Critical path")')
    page.wait_for_function(f"(n) => document.querySelector('{GRAPH}').dataset.critical === n", arg=str(len(crossed)))
    jb.screenshot(page, "11-critical-path")
    page.wait_for_selector(f'.bl-view:has({GRAPH}) .bl-key:text-is("critical path")')
    page.click('.bl-toolbar:has(.bl-moves) button:text-is("Critical path")')
    assert 0 < len(crossed) < data(page, "arrows")


def test_the_legend_tells_what_occurs(page, expected):
    """Below the picture: colours of arrows and mixed boxes that are drawn, until something is selected."""
    graph, line = expected.graph(), expected.timeline()
    owner = build_tree(graph).owner(build_tree(graph).visible(build_tree(graph).open_until(24)))
    source, target = graph.edge_source, graph.consumers
    between_boxes = owner[source] != owner[target]
    crossing = (
        (line.device[source] != line.device[target]) & (graph.tensor_bytes[graph.edge_tensor] > 0) & between_boxes
    )
    mixed = [len(set(line.device[owner == box].tolist())) > 1 for box in np.unique(owner)]
    page.wait_for_function("() => !document.querySelector('.bl-legend').textContent.includes('critical')")

    def keys_are_those_of_the_picture():
        keys = page.locator(f".bl-view:has({GRAPH}) .bl-key").all_inner_texts()
        assert ("tensors to another device" in keys) == bool(crossing.any())
        assert any(key.startswith("on several devices") for key in keys) == any(mixed)

    jb.eventually(page, keys_are_those_of_the_picture)
    page.locator(GRAPH).focus()
    page.keyboard.press("n")
    page.wait_for_selector(f".bl-view:has({GRAPH}) .bl-live:has-text('Selected: ')")
    page.wait_for_selector(f".bl-view:has({GRAPH}) .bl-legend", state="hidden")
    page.keyboard.press("Escape")
    page.wait_for_selector(f".bl-view:has({GRAPH}) .bl-legend")


def test_boxes_open_in_place(page):
    jb.settle(page)
    before = data(page, "nodes")
    stage = page.locator(GRAPH).bounding_box()
    places = grid(stage["x"], stage["y"] + 0.2 * stage["height"], stage["width"], 0.6 * stage["height"], 40, 15)
    x, y, _ = jb.hover_where(page, GRAPH, places, "double-click to open")
    page.mouse.dblclick(x, y)
    page.wait_for_function(f"(n) => Number(document.querySelector('{GRAPH}').dataset.nodes) > n", arg=before)
    # What was in the box is not selected, although the first click selects the box.
    page.wait_for_selector(f".bl-view:has({GRAPH}) .bl-legend")
    page.wait_for_selector('.bl-details:has-text("Select an op")')
    page.click('.bl-toolbar:has(.bl-moves) button:text-is("Overview")')
    page.wait_for_function(f"(n) => Number(document.querySelector('{GRAPH}').dataset.nodes) === n", arg=before)
    page.click('.bl-toolbar:has(.bl-moves) button:text-is("Open all")')
    page.wait_for_function(f"(n) => Number(document.querySelector('{GRAPH}').dataset.nodes) > n", arg=before)
    page.wait_for_function(f"() => Number(document.querySelector('{GRAPH}').dataset.frames_open) > 0")
    assert data(page, "nodes") <= 300
    jb.screenshot(page, "12-opened")
    # Where not everything is in sight there is a minimap, and a click on it leads there.
    page.wait_for_function(f"() => document.querySelector('{GRAPH}').dataset.minimap === ''")
    page.locator(GRAPH).focus()
    for _ in range(6):
        page.keyboard.press("+")
    jb.await_drawing(page)  # of the last key: the first one was enough for a minimap
    page.wait_for_function(f"() => document.querySelector('{GRAPH}').dataset.minimap")
    x_of_map, top, _, height = (float(x) for x in page.locator(GRAPH).get_attribute("data-minimap").split())
    middle = int(page.locator(GRAPH).get_attribute("data-middle").split()[0])
    page.locator(GRAPH).click(position={"x": x_of_map + 1, "y": top + height / 2})
    page.wait_for_function(
        f"(x) => Number(document.querySelector('{GRAPH}').dataset.middle.split(' ')[0]) < x", arg=middle
    )
    page.keyboard.press("0")
    page.click('.bl-toolbar:has(.bl-moves) button:text-is("Overview")')
    page.wait_for_function(f"(n) => Number(document.querySelector('{GRAPH}').dataset.nodes) === n", arg=before)


def test_moving_an_op_and_taking_it_back(page, expected):
    """A search lists; a click selects the op with its group, which is said, moves as said, and is confirmed."""
    graph = expected.graph()
    matching_ops = [i for i, name in enumerate(graph.names) if "matmul" in name.lower()]
    search = page.locator('input[aria-label="search ops by name"]')
    search.fill("MatMul")
    page.wait_for_selector(f".bl-found:has-text('{len(matching_ops)} ops match')")
    jb.eventually(
        page, lambda: _equal((page.locator("button.bl-row").count(), data(page, "chosen")), (len(matching_ops), 0))
    )
    target = next(i for i in matching_ops if graph.colocation[i] >= 0)
    coarse = bl.optimize(graph, bl.Cluster.uniform(2, memory_bytes="1GB", kind="cpu"), passes=("colocation",))
    group = all_moving_ops(graph, [target], coarse.group_of)
    jb.screenshot(page, "13-found")
    page.click(f'button.bl-row:text-is("{graph.names[target]}")')
    page.wait_for_function(f"(n) => document.querySelector('{GRAPH}').dataset.chosen === n", arg=str(len(group)))
    page.wait_for_selector(f'button.bl-row[aria-current="true"]:text-is("{graph.names[target]}")')
    jb.eventually(page, lambda: _equal(page.locator('button.bl-row[aria-current="true"]').count(), 1))
    colocation = graph.colocation_names[graph.colocation[target]]
    described = f"{graph.names[target]}, which moves with its group of {len(group)} ops (colocation {colocation})"
    jb.eventually(page, lambda: _holds(announced(page), described))
    assert page.locator(".bl-crumbs").inner_text().startswith("graph")
    jb.screenshot(page, "03-selected")
    before = expected.timeline()
    device = before.device_names[int(before.device[target])]
    other_device = "cpu:1" if device == "cpu:0" else "cpu:0"
    jb.eventually(
        page,
        lambda: _holds(
            page.locator(f'.bl-moves button[data-device="{other_device}"]').get_attribute("title"), described
        ),
    )
    # The button says what the click would change.
    placement = bl.Placement(device=before.device[np.argsort(before.op)])
    moved_device = placement.device.copy()
    moved_device[group] = before.device_names.index(other_device)
    cluster = bl.Cluster.uniform(2, memory_bytes="1GB", kind="cpu")
    wanted_us = bl.simulate(graph, cluster, placement.replace(device=moved_device)).makespan_us
    button = page.locator(f'.bl-moves button[data-device="{other_device}"]')
    change = change_in_words(wanted_us, before.makespan_us)
    jb.eventually(page, lambda: _equal(button.locator(".bl-preview").inner_text(), change))
    assert page.locator(f'.bl-moves button[data-device="{device}"] .bl-preview').inner_text() == ""
    button.click()
    page.wait_for_selector(".bl-facts:has-text('by hand')")
    tab(page, "Export")
    code = jb.eventually(page, lambda: _holds(page.locator(".bl-workbench textarea").input_value(), "bl.move"))
    tab(page, "Graph")
    namespace: dict = {}
    exec(code[: code.index("bl.export")], namespace)  # as it is shown, with nothing supplied
    shows(page, f"step time {format_us(namespace['timeline'].makespan_us)}")
    call = re.search(r"bl\.move\(placement, graph, cluster, (\[.*\])\)", code)
    moves = json.loads(call.group(1).replace("(", "[").replace(")", "]").replace("'", '"'))
    assert {device for _, device in moves} == {other_device}
    after = expected.timeline(moves=[tuple(m) for m in moves])
    shows(page, f"step time {format_us(after.makespan_us)}")
    assert np.flatnonzero(after.device != before.device).tolist() == group.tolist()
    confirmation = f"{len(group)} ops moved to {other_device}: {described}. Undo takes it back."
    jb.eventually(page, lambda: _equal(page.locator(".bl-confirm").inner_text(), confirmation))
    jb.screenshot(page, "03-moved")
    page.locator(GRAPH).focus()
    page.keyboard.press("Escape")
    assert page.locator(".bl-confirm").is_visible()  # what was done stays said
    page.keyboard.press("Control+z")
    shows(page, f"step time {format_us(before.makespan_us)}")
    page.wait_for_function("() => !document.querySelector('.bl-workbench textarea').value.includes('bl.move')")
    page.click('.bl-found button:text-is("×")')
    page.click('.bl-toolbar:has(.bl-moves) button:text-is("Overview")')


def test_a_box_is_dragged_onto_a_device(page, expected):
    """The box of the first layer, selected and dropped on the other device's button: all its ops go there."""
    before = expected.timeline()
    page.locator(GRAPH).focus()
    page.keyboard.press("ArrowRight")
    jb.eventually(page, lambda: _holds(announced(page), "Selected: "))
    page.keyboard.press("0")
    jb.settle(page)
    stage = page.locator(GRAPH).bounding_box()
    places = grid(stage["x"], stage["y"] + 0.2 * stage["height"], stage["width"], 0.6 * stage["height"], 40, 15)
    *box, text = jb.hover_where(page, GRAPH, places, r"^layer0\n")
    # Persistent bytes are held all the time; what the ops of a box make comes one after the other, which is said beside it.
    graph = expected.graph()
    inside = np.array([name.removeprefix("optimizer/").startswith("layer0/") for name in graph.names])
    output_bytes = np.bincount(graph.tensor_producer, graph.tensor_bytes, minlength=graph.n)
    columns = graph.persistent_bytes, output_bytes + graph.temp_bytes
    sizes = [int(column[inside].sum()) for column in columns]
    kept_bytes, made_bytes = (format_bytes_beside(size, max(sizes)) for size in sizes)
    _holds(text, f"keeps\t{kept_bytes} all the time", f"makes in turn\t{made_bytes}, not all held at once")
    _holds(text, f"time\t{format_us(float(graph.duration_us[inside].sum()))}")
    page.mouse.click(*box)
    jb.eventually(page, lambda: _holds(announced(page), "layer0"))
    jb.settle(page)
    selected_ops = data(page, "chosen")
    target = page.locator('.bl-moves button[data-device="cpu:1"]').bounding_box()
    page.mouse.move(*box)
    page.mouse.down()
    page.mouse.move(target["x"] + 8, target["y"] + 8, steps=5)
    page.wait_for_selector('.bl-moves button.bl-drop[data-device="cpu:1"]')
    page.mouse.up()
    jb.eventually(page, lambda: _holds(page.locator(".bl-confirm").inner_text(), f"{selected_ops} ops moved to cpu:1"))
    page.locator(GRAPH).focus()
    page.keyboard.press("Control+z")
    shows(page, f"step time {format_us(before.makespan_us)}")
    page.keyboard.press("Escape")


def test_hovering_and_clicking_in_every_view(page):
    tooltips = {}
    for view, word in (("Graph", "device"), ("Timeline", "start"), ("Memory", "persistent")):
        jb.settle(page)
        canvas = f'canvas[aria-label="{view}"]'
        box = page.locator(canvas).bounding_box()
        places = grid(box["x"] + 135, box["y"] + 35, box["width"] - 150, box["height"] - 50, 40, 10)
        # Arrows of the graph and idle time have tooltips as well; what is clicked must be a bar.
        x, y, tooltips[view] = jb.hover_where(page, canvas, places, rf"^(?!idle)[\s\S]*{word}")
        if view == "Timeline":
            page.mouse.click(x, y)
            page.wait_for_function(
                "() => document.querySelector('.bl-view .bl-live').textContent.includes('Selected: ')"
            )
            # The timeline says why the op started when it did.
            live = '.bl-view:has(canvas[aria-label="Timeline"]) .bl-live'
            page.wait_for_function(
                "(live) => document.querySelector(live).textContent.includes('why then: started at')", arg=live
            )
            jb.screenshot(page, "03b-why-then")
    assert "device" in tooltips["Graph"] and "start" in tooltips["Timeline"] and "persistent" in tooltips["Memory"]
    page.locator('canvas[aria-label="Timeline"]').focus()
    page.keyboard.press("c")
    # The toggle is shared: it is on in the graph and in the timeline.
    page.wait_for_function("() => document.querySelectorAll('button[aria-pressed=\"true\"]').length === 2")
    page.keyboard.press("c")
    page.keyboard.press("Escape")
    assert page.problems == []


TIMELINE = 'canvas[aria-label="Timeline"]'


def timeline_part(page, name):
    return page.locator(f".bl-view:has({TIMELINE}) {name}")


class OnTimeline:
    """Where things of a simulated step are on the page: a gutter of 132 pixels, a strip of 30 and an axis of 20 above."""

    def __init__(self, page, line):
        page.locator(TIMELINE).scroll_into_view_if_needed()
        jb.settle(page)
        self.box, self.line = page.locator(TIMELINE).bounding_box(), line
        self.scale = (self.box["width"] - 132 - 8) / line.makespan_us

    def x(self, time):
        return self.box["x"] + 132 + time * self.scale

    def y(self, device):
        return self.box["y"] + 50 + 12 + device * (24 + 2 + 18 + 7)

    def time(self, x):
        return (x - self.box["x"] - 132) / self.scale


def test_the_timeline_says_why_the_clicked_op_started_then(page, expected):
    graph, line = expected.graph(), expected.timeline()
    at = OnTimeline(page, line)
    row = int(np.argmax(line.end_us - line.start_us))
    page.mouse.click(at.x((line.start_us[row] + line.end_us[row]) / 2), at.y(line.device[row]))
    reason = cause(graph, line, int(line.op[row]))
    page.wait_for_selector(f".bl-view:has({TIMELINE}) .bl-live:has-text({json.dumps(reason.sentence)})")
    inputs, outputs = neighbours(graph, int(line.op[row]))
    arrows = len({*inputs, *([reason.op] if reason.op >= 0 else [])}) + len(outputs)
    page.wait_for_function(f"(n) => document.querySelector('{TIMELINE}').dataset.arrows === n", arg=str(arrows))
    page.keyboard.press("Escape")


def test_the_timeline_colours_classes_of_ops(page, expected):
    graph, line = expected.graph(), expected.timeline()
    colors = coloring(graph, "op type")
    page.select_option('.bl-pane-timeline select[aria-label="Colour"]', "op type")
    page.wait_for_selector(f".bl-key:has-text({json.dumps(colors.labels[0])})")
    keys = timeline_part(page, ".bl-legend .bl-key")
    jb.eventually(page, lambda: _equal(tuple(keys.all_inner_texts()[: len(colors.labels)]), colors.labels))
    at, row = OnTimeline(page, line), int(np.argmax(line.end_us - line.start_us))
    x, y = at.x((line.start_us[row] + line.end_us[row]) / 2) - at.box["x"], at.y(line.device[row]) - at.box["y"] + 8
    expected_color = colors.colors[colors.kind[line.op[row]]]
    page.mouse.move(2, 2)  # the cursor's line would lie over the bar
    page.wait_for_function(
        """([selector, x, y, wanted]) => {
  const pixel = document.querySelector(selector).getContext('2d').getImageData(x, y, 1, 1).data;
  return `#${[...pixel.slice(0, 3)].map((c) => c.toString(16).padStart(2, '0')).join('')}` === wanted.toLowerCase();
}""",
        arg=[TIMELINE, int(x), int(y), expected_color],
    )
    jb.screenshot(page, "14-colours")
    # On the critical path are the ops and transfers of the chain: other transfers of its ops are not.
    page.select_option('.bl-pane-timeline select[aria-label="Colour"]', "critical path")
    chain = critical_chain(graph, line)
    assert len(chain.transfers) < np.isin(graph.tensor_producer[line.transfers.tensor], chain.ops).sum()
    page.wait_for_function(
        "(told) => document.querySelector('canvas[aria-label=\"Timeline\"]').dataset.critical === told",
        arg=f"{len(chain.ops)} {2 * len(chain.transfers)}",  # each transfer has a bar on both devices
    )
    page.select_option('.bl-pane-timeline select[aria-label="Colour"]', "device")


def test_idle_time_says_what_was_waited_for(page, expected):
    graph, line = expected.graph(), expected.timeline()
    gaps = waits(graph, line)
    longest = int(np.argmax(np.where(gaps.kind == KINDS.index("nothing"), 0, gaps.end_us - gaps.start_us)))
    start, end, at = gaps.start_us[longest], gaps.end_us[longest], OnTimeline(page, line)
    jb.hover(page, at.x((start + end) / 2), at.y(gaps.device[longest]))
    tooltip = timeline_part(page, ".bl-tooltip")
    tooltip_text = jb.eventually(
        page, lambda: _holds(tooltip.inner_text(), f"next here: {graph.names[gaps.op[longest]]}")
    )
    assert tooltip_text.startswith(f"idle {format_us_beside(end - start, line.makespan_us)}")


def test_statistics_of_a_marked_range(page, expected):
    graph, line = expected.graph(), expected.timeline()
    at = OnTimeline(page, line)
    first, last = at.x(0.25 * line.makespan_us), at.x(0.75 * line.makespan_us)
    page.keyboard.down("Shift")
    page.mouse.move(first, at.y(0))
    page.mouse.down()
    page.mouse.move(last, at.y(0), steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    page.wait_for_selector(f'.bl-view:has({TIMELINE}) .bl-statistics:has-text("Marked: ")')
    rows = statistics(graph, line, waits(graph, line), at.time(first), at.time(last))
    page.wait_for_function("() => document.querySelectorAll('.bl-statistics tr').length > 2")

    def table_has_the_range_s_numbers():
        table = timeline_part(page, ".bl-statistics tr").all_inner_texts()[1:]
        assert len(table) == len(rows)
        for text, row in zip(table, rows, strict=True):
            times = [format_us_beside(us, line.makespan_us) for us in (row.busy_us, row.idle_us)]
            assert all(time in text for time in times) and f"\t{row.ops}\t" in text

    jb.eventually(page, table_has_the_range_s_numbers)
    columns = zip(
        *(text.split("\t") for text in page.locator(f".bl-view:has({TIMELINE}) .bl-statistics tr").all_inner_texts()),
        strict=True,
    )
    assert all(any(cells[1:]) for cells in columns)  # a cause that nobody waited for has no column
    jb.screenshot(page, "15-statistics")
    page.click('button:text-is("Zoom to range")')
    page.wait_for_function(
        f"(a) => Math.abs(Number(document.querySelector('{TIMELINE}').dataset.window.split(' ')[0]) / a - 1) < 0.01",
        arg=at.time(first),
    )
    page.click('button:text-is("Statistics")')
    # In the strip, the end of the window is dragged to the end of the step, the beginning to the begin.
    for time, to in ((at.time(last), line.makespan_us), (at.time(first), 0.0)):
        page.mouse.move(at.x(time), at.box["y"] + 10)
        page.mouse.down()
        page.mouse.move(at.x(to), at.box["y"] + 10, steps=3)
        page.mouse.up()

    def window_is_the_whole_step():
        window = [float(x) for x in page.locator(TIMELINE).get_attribute("data-window").split()]
        assert window == pytest.approx([0.0, line.makespan_us], abs=3 / at.scale)

    jb.eventually(page, window_is_the_whole_step)
    page.locator(TIMELINE).focus()
    page.keyboard.press("0")
    page.keyboard.press("Escape")
    assert page.problems == []


def test_the_setting_before_lies_below_on_one_axis(page, expected):
    control(page, "placer").locator("select").select_option("m-etf")
    before, current = expected.timeline(), expected.timeline(placer="m-etf")
    shows(page, f"step time {format_us(current.makespan_us)}")
    page.select_option('select[aria-label="Against"]', "before")
    moved_ops = int((before.device[np.argsort(before.op)] != current.device[np.argsort(current.op)]).sum())
    page.wait_for_function(f"(n) => document.querySelector('{TIMELINE}').dataset.moved === n", arg=str(moved_ops))
    legend, title = timeline_part(page, ".bl-legend"), timeline_part(page, ".bl-title")
    jb.eventually(
        page, lambda: _holds(legend.inner_text(), f"{moved_ops:,} ops on another device than in before: m-topo")
    )
    jb.eventually(page, lambda: _holds(title.inner_text(), f"m-etf {format_us(current.makespan_us)}"))
    jb.eventually(page, lambda: _holds(title.inner_text(), f"before: m-topo {format_us(before.makespan_us)}"))
    jb.screenshot(page, "16-against")
    page.select_option('select[aria-label="Against"]', "")
    control(page, "placer").locator("select").select_option("m-topo")
    shows(page, f"step time {format_us(before.makespan_us)}")


RECORD_ROWS = """([pane, state]) => {  // every number of rows and every text of the state that the pane has from now on
  const host = document.querySelector(pane);
  window.recordedRows = [];
  window.recordedTexts = [];
  new MutationObserver(() => {
    window.recordedRows.push(host.querySelectorAll('.bl-sorted-table tbody tr').length);
    window.recordedTexts.push(...[...host.querySelectorAll(state)].map((e) => e.textContent));
  }).observe(host, { childList: true, subtree: true, characterData: true });
}"""
# From now on, the second row of a comparison or sweep is computed once the file `second-row` is there.
HOLD_ROWS = """
import pathlib, time
import baechi_lab.sweeps
from baechi_lab.widgets import tasks

def held(call):
    def then(row):
        call(row)
        while not pathlib.Path("second-row").exists():
            time.sleep(0.02)
    return then

def hold_rows(compare, sweep):
    tasks.compare_placers = lambda *arguments: compare(*arguments[:-1], held(arguments[-1]))
    baechi_lab.sweeps.sweep = lambda *arguments, on_row, **options: sweep(*arguments, on_row=held(on_row), **options)

hold_rows(tasks.compare_placers, baechi_lab.sweeps.sweep)
"""
ROWS = "(pane) => document.querySelectorAll(`${pane} .bl-sorted-table tbody tr`).length"
COMPARED = """() => {
  const rows = [...document.querySelectorAll('.bl-pane-compare .bl-sorted-table tr')];
  const head = [...rows[0]?.children ?? []].map((cell) => cell.innerText.replace(/ [▲▼]$/, ''));
  const sorted = [...rows[0]?.children ?? []].map((cell) => cell.getAttribute('aria-sort'));
  return { head, sorted, rows: rows.slice(1).map((row) => [...row.children].map((cell) => cell.innerText)) };
}"""


OFF_CENTRE = """() => {
  const middle = (a, b) => (a + b) / 2;
  const bars = [...document.querySelectorAll('.bl-pane-compare .bl-chart')].map((chart) => {
    const boxes = (selector) => [...chart.querySelectorAll(selector)].map((e) => [e, e.getBoundingClientRect()]);
    const bottom = Math.max(...boxes('rect[fill-opacity]').map(([, r]) => r.bottom));
    const names = boxes('text').filter(([, r]) => r.top > bottom - 2).map(([e, r]) => [e.textContent, middle(r.left, r.right)]);
    return names.map(([name, x]) => {
      const own = boxes('rect[fill-opacity]').filter(([, r]) => names.every(([, other]) =>
        Math.abs(middle(r.left, r.right) - x) <= Math.abs(middle(r.left, r.right) - other)));
      const [left, right] = [Math.min(...own.map(([, r]) => r.left)), Math.max(...own.map(([, r]) => r.right))];
      return [name, own.length ? x - middle(left, right) : 0];
    }).filter(([, off]) => Math.abs(off) > 2);
  });
  return bars.flat();
}"""


def test_compare_shows_bl_compare(page, lab, expected):
    tab(page, "Compare")
    page.evaluate(RECORD_ROWS, [".bl-pane-compare", ".bl-note"])
    jb.execute(page, HOLD_ROWS)
    page.click('.bl-pane button:text-is("Compare")')
    # The first row is seen alone, with its number, while the others are computed.
    page.wait_for_function(f"() => ({ROWS})('.bl-pane-compare') === 1")
    assert page.evaluate(COMPARED)["rows"][0][1].strip()
    (lab.folder / "second-row").touch()
    cluster = bl.Cluster.uniform(2, memory_bytes="1GB", kind="cpu")
    table = bl.compare(expected.graph(), cluster, passes=("colocation",), progress=False)  # what the page asks
    order = best_first(table)
    factor, unit = scale(table["makespan_us"].max(), UNITS)

    def all_rows_are_there():
        shown = page.evaluate(COMPARED)
        assert [row[0].split()[0] for row in shown["rows"]] == list(order["placer"])
        return shown

    # Sorted, the best marked, and auto's winner named; each column has one unit.
    shown = jb.eventually(page, all_rows_are_there)
    step = shown["head"].index(f"step time ({unit})")
    for row, value in zip(shown["rows"], order["makespan_us"], strict=True):
        digits = len(row[step].partition(".")[2])
        assert float(row[step].replace(",", "")) == pytest.approx(value / factor, abs=0.51 * 10.0**-digits)
    assert shown["rows"][0][0].endswith(" · best")  # a mark between words that belong to different things
    assert page.locator('.bl-sorted-table [title^="took the answer of"]').count() == 1
    assert page.locator(".bl-pane-compare .bl-lanes").count() == len(table)
    rows_over_time = page.evaluate("() => window.recordedRows")
    assert rows_over_time == sorted(rows_over_time) and rows_over_time[-1] == len(table), rows_over_time
    right = "(row) => [...row.children].slice(1, 3).every((cell) => ['right', 'end'].includes(getComputedStyle(cell).textAlign))"
    assert page.locator(".bl-pane-compare .bl-sorted-table tbody tr").first.evaluate(right)
    hint = page.locator('.bl-setting label > span:text-is("transfers")').get_attribute("title")
    assert hint.startswith("sequential: a device sends or receives one tensor at a time")
    page.wait_for_selector(".bl-pane-compare .bl-chart rect")
    # Bars of devices that hold something stand in the middle above their placer, also where others hold nothing.
    assert page.evaluate(OFF_CENTRE) == []
    jb.screenshot(page, "04-compare")


def test_columns_of_compare_sort_by_click_and_by_key(page):
    head = page.locator(".bl-pane-compare .bl-sort")
    placer = head.nth(0)

    def names(direction):
        shown = page.evaluate(COMPARED)
        assert shown["sorted"][0] == direction and not any(shown["sorted"][1:])
        return [row[0].split()[0] for row in shown["rows"]]

    as_they_came = names(None)
    placer.click()
    assert names("ascending") == sorted(as_they_came)
    page.keyboard.press("Enter")  # the head keeps the focus
    assert names("descending") == sorted(as_they_came, reverse=True)
    page.keyboard.press("Enter")
    assert names(None) == as_they_came
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    shown = page.evaluate(COMPARED)
    steps = [float(row[1].replace(",", "")) for row in shown["rows"]]
    assert shown["sorted"][1] == "ascending" and steps == sorted(steps)


def test_a_real_run_arrives_live(page, expected):
    tab(page, "Run")
    page.locator('.widget-inline-hbox:has(label:text-is("steps"), label > :text-is("steps")) input').fill("5")
    assert page.locator('.bl-pane-run .bl-switch.mod-active:has-text("compare with one device")').count() == 1
    page.click('.bl-workbench button:text-is("Start")')
    page.wait_for_selector('.bl-note:has-text("Done.")', timeout=120_000)
    facts = page.locator(".bl-pane-run .bl-facts")
    text = jb.eventually(page, lambda: _holds(facts.inner_text(), "measured / native "))
    assert "median" in text and re.search(r"steps\s*5", text)
    # The undivided step as TensorFlow itself runs it, and the placed one beside it.
    times = re.findall(r"(?:median|native \(tf\.function\)) ([0-9.]+) (us|ms|s)\b", text)
    placed_us, native = (float(value) * {"us": 1, "ms": 1e3, "s": 1e6}[unit] for value, unit in times)
    assert float(re.search(r"measured / native ([0-9.]+)", text)[1]) == pytest.approx(placed_us / native, abs=0.02)
    title = page.locator(".bl-title >> nth=0")
    jb.eventually(page, lambda: _holds(title.inner_text(), "simulated", "measured"))
    # Memory: the measured rows lie beside the simulated ones, whose peaks are the library's.
    live, line = page.locator('.bl-view:has(canvas[aria-label="Memory"]) .bl-live'), expected.timeline()
    peaks = jb.eventually(page, lambda: _holds(live.inner_text(), *(f"{d}, measured: peak" for d in line.device_names)))
    # A measured peak may be the largest, whose unit all have.
    units = re.findall(r"peak [0-9.]+ (k?B|MB|GB)\b", peaks)
    largest = max({"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit] for unit in units)
    for name, peak in zip(line.device_names, line.peak_bytes, strict=True):
        assert f"{name}, simulated: peak {bytes_beside(peak, largest)}" in peaks
        assert re.search(rf"{name}, measured: peak [1-9]", peaks), peaks
    drawn = texts_of(page, "Memory")
    _holds(drawn, *(f"peak {bytes_beside(peak, largest)}" for peak in line.peak_bytes), "simulated", "measured")
    page.wait_for_selector(".bl-pane-run .bl-chart circle")
    jb.screenshot(page, "05-run")
    # The estimate is for other hardware than this: one click profiles here.
    page.wait_for_selector('.bl-pane-run :text("The two cannot be compared")')
    page.click('button:text-is("Profile here first")')
    page.wait_for_function(
        "() => ![...document.querySelectorAll('.bl-pane-run button')].some((b) => b.textContent === 'Profile here first' "
        "&& b.offsetParent) && !document.querySelector('.bl-stale')",
        timeout=120_000,
    )
    page.wait_for_function("() => document.querySelector('.bl-workbench textarea').value.includes(\"mode='measured'\")")
    # How far repeats were apart is said, and that transfers are still those of a preset: no ratio to the simulated step.
    page.wait_for_selector('.bl-header .bl-facts:has-text("measured here, ")')
    page.wait_for_selector('.bl-pane-run :text("transfers those of the preset PCIe")')
    assert "measured / simulated" not in page.locator(".bl-pane-run").inner_text()
    page.click('button:text-is("Undo")')
    shows(page, f"step time {format_us(line.makespan_us)}")


def test_explain_steps_through_decisions(page, expected):
    control(page, "placer").locator("select").select_option("m-etf")
    shows(page, f"step time {format_us(expected.timeline(placer='m-etf').makespan_us)}")
    tab(page, "Explain")
    button = page.locator('.bl-pane button:text-is("Explain")')
    page.wait_for_function(ENABLED, arg="Explain")
    button.click()
    page.wait_for_selector('.bl-table:has-text("chosen")')
    page.click('.bl-workbench button:text-is(">")')
    page.wait_for_selector('.bl-good:has-text("decision 2 of")')
    coarse, decision = expected.second_decision("m-etf")
    sentences = (
        coarse.names[decision.chosen.op],
        f"goes to cpu:{decision.chosen.device}",
        f"starting at {format_us(decision.chosen.start_us)}",
        decision.reason,
    )
    jb.eventually(page, lambda: _holds(page.locator('.bl-good:has-text("decision 2 of")').inner_text(), *sentences))
    jb.screenshot(page, "06-explain")
    page.click('.bl-workbench button:text-is("End")')


def test_cancel_in_the_middle_of_a_search(page, expected):
    """The last result stays, marked as out of date, and the interface answers at once; Compute starts again."""
    placers = control(page, "placer").locator("select")
    placers.select_option("m-topo")
    shows(page, f"step time {format_us(expected.timeline().makespan_us)}")
    tab(page, "Timeline")
    # The run of this placement, measured before the setting went elsewhere, is shown again.
    page.wait_for_selector('.bl-title:has-text("measured")')
    placers.select_option("search")
    page.wait_for_selector('.bl-note:has-text("search works up to 10 s")')  # its limits, before it starts
    jb.execute(page, "bench.model.change(params={'time_limit': 1e4})")  # so that no machine is too slow to cancel it
    page.wait_for_selector('.bl-note:has-text("search works up to 10000 s")')
    page.click('button:text-is("Compute")')
    page.wait_for_selector('.bl-note:has-text("simulations")')
    page.wait_for_selector('.bl-setting .bl-chart:has-text("best so far")')
    # What is told takes two lines at most, and moves nothing.
    strip = page.locator(".bl-workbench .bl-strip")
    jb.eventually(page, lambda: _at_most(strip.bounding_box()["height"], 45))
    page.click('button:text-is("Cancel")')
    page.wait_for_selector('.bl-note:has-text("out of date")')
    facts = page.locator(".bl-facts").first
    jb.eventually(page, lambda: _holds(facts.inner_text(), format_us(expected.timeline().makespan_us)))
    page.wait_for_selector('button:text-is("Compute")', state="visible")
    jb.screenshot(page, "10-cancelled")
    page.click('button:text-is("Compute")')
    page.click('button:text-is("Keep the best")')
    page.wait_for_selector('.bl-header .bl-facts:has-text("placed by search in")')
    # It started from what was shown, so that its best is no longer.
    value, unit = re.search(r"step time ([0-9.]+) (us|ms|s)\b", facts.inner_text().replace("\n", " ")).groups()
    best_us = float(value) * {"us": 1, "ms": 1e3, "s": 1e6}[unit]
    assert best_us <= expected.timeline().makespan_us * 1.0001
    jb.eventually(page, lambda: _holds(page.locator(".bl-workbench textarea").input_value(), "start="))
    for _ in ("the time limit", "the placer"):
        page.click('button:text-is("Undo")')
    shows(page, f"step time {format_us(expected.timeline().makespan_us)}")
    assert page.problems == []


def test_any_placer_can_be_explained(page, expected):
    tab(page, "Explain")
    page.wait_for_function(ENABLED, arg="Explain")
    page.click('.bl-pane button:text-is("Explain")')
    page.wait_for_selector('.bl-table:has-text("chosen")')
    sentence = page.locator('.bl-good:has-text("decision 1 of")')
    jb.eventually(page, lambda: _holds(sentence.inner_text(), "of its cap of"))  # m-topo tells how full the device is
    jb.eventually(page, lambda: _equal(page.evaluate(FAULTS_OF_TAB, "Explain")["sideways"], []))
    page.click('.bl-workbench button:text-is("End")')


def test_explore_sweeps_and_names_the_best(page, lab, expected):
    tab(page, "Explore")
    for label, text in (("batch sizes", "32, 64"), ("memory", "1GB"), ("placers", "m-topo")):
        page.locator(
            f'.widget-inline-hbox:has(label:text-is("{label}"), label > :text-is("{label}")) input[type="text"]'
        ).last.fill(text)
    # A number of devices that no cluster has is rejected, and the error goes with its cause.
    devices = page.locator('.widget-inline-hbox:has(label > :text-is("devices")) input[type="text"]').last
    devices.evaluate(TYPE_AND_SWEEP, ["1", "1, 999"])
    page.wait_for_selector('.bl-header [role="alert"]:has-text("999")')
    devices.fill("1, 2")
    page.evaluate(RECORD_ROWS, [".bl-pane-explore", ".bl-note"])
    (lab.folder / "second-row").unlink(missing_ok=True)
    jb.execute(page, HOLD_ROWS)
    page.click('button:text-is("Sweep")')
    # The first row is seen alone, while the others are computed.
    page.wait_for_function(f"() => ({ROWS})('.bl-pane-explore') === 1")
    page.wait_for_selector('.bl-note:has-text("1 of 4 combinations")')
    (lab.folder / "second-row").touch()
    page.wait_for_selector('.bl-header [role="alert"]', state="hidden")
    page.wait_for_selector('.bl-note:has-text("4 combinations computed, 4 of them fit.")', timeout=120_000)
    # Rows come as they end, and until the last one the line says how many there are of how many.
    jb.eventually(page, lambda: _equal(page.evaluate("() => window.recordedRows.at(-1)"), 4))
    rows_over_time = page.evaluate("() => window.recordedRows")
    assert rows_over_time == sorted(rows_over_time)
    texts = page.evaluate("() => window.recordedTexts")
    progress_texts = [text for text in texts if "of 4 combinations" in text]
    assert progress_texts and not any(
        "combinations computed" in text for text in texts[: texts.index(progress_texts[-1])]
    )
    best, us = page.locator('.bl-good:has-text("Best that fits")'), expected.timeline(64, devices=1).makespan_us
    # One device needs no transfers, and 64 samples take less than twice as long as 32.
    jb.eventually(page, lambda: _holds(best.inner_text(), "batch size 64, 1 device", format_us(us)))
    # The heat map: batch sizes by devices, each cell the library's number; a click opens its setting.
    cells = page.locator(".bl-pane-explore .bl-chart-cell")
    assert cells.count() == 4
    for size, devices in ((32, 1), (32, 2), (64, 1), (64, 2)):
        cell = page.locator(f'.bl-chart-cell[aria-label^="batch {size}, {devices} device"]')
        step_us = expected.timeline(size, devices=devices).makespan_us
        page.locator(".bl-pane-explore select").last.select_option("step time")
        jb.eventually(page, lambda c=cell, us=step_us: _holds(c.get_attribute("aria-label"), format_us(us)))
    assert page.locator('.bl-pane-explore .bl-chart-cell:has-text("◆")').count() >= 1
    texts = page.locator(".bl-pane-explore .bl-chart-cell text").all_text_contents()
    assert len({len(text.partition(".")[2]) for text in texts}) == 1, texts  # one precision for the map
    jb.screenshot(page, "07-explore")
    page.locator('.bl-chart-cell[aria-label^="batch 64, 1 device"]').click()
    shows(page, f"step time {format_us(us)}")
    page.click('button:text-is("Undo")')
    shows(page, f"step time {format_us(expected.timeline().makespan_us)}")
    # One Tab stop for all cells; arrows go from one to the next, and Enter opens its setting.
    assert page.locator('.bl-pane-explore .bl-chart-cell[tabindex="0"]').count() == 1
    cells.nth(0).focus()
    page.keyboard.press("End")
    last = page.evaluate("() => document.activeElement.ariaLabel")
    assert last == cells.last.get_attribute("aria-label")
    size, devices = (int(number) for number in re.match(r"batch (\d+), (\d+) device", last).groups())
    page.keyboard.press("Enter")
    shows(page, f"step time {format_us(expected.timeline(size, devices=devices).makespan_us)}")
    page.click('button:text-is("Undo")')
    shows(page, f"step time {format_us(expected.timeline().makespan_us)}")


def test_export_writes_the_script(page, lab):
    tab(page, "Export")
    page.wait_for_function(ENABLED, arg="Write the script")
    page.click('button:text-is("Preview")')
    page.wait_for_selector('.bl-pane-export .bl-code:has-text("import tensorflow")')
    page.click('button:text-is("Write the script")')
    page.wait_for_selector('.bl-good:has-text("Written")')
    folder = lab.folder / "placed_training"
    assert {"train.py", "placement.json"} <= {p.name for p in folder.iterdir()}
    jb.screenshot(page, "08-export")


def test_everything_is_whole_on_one_screen_light_and_dark(page):
    """No label cut, no chart blank or clipped, nothing in a colour like its background, no part below the screen."""
    tab(page, "Fit")
    page.click('button:text-is("Will it fit?")')
    page.wait_for_selector(".bl-pane-fit .bl-chart circle")
    page.evaluate(EMPTIED)
    # A colour is the same on every screen, and a place in every theme.
    for theme, width, height in (("Light", 1280, 720), ("Dark", 1600, 1000)):
        themed(page, theme)
        page.set_viewport_size({"width": width, "height": height})
        for name in TABS:
            assert faults(page, name) == {}, (name, width, theme)
            jb.screenshot(page, f"20-{name.lower()}-{width}-{theme.lower()}")
    assert page.evaluate("() => window.emptied") == []
    page.set_viewport_size({"width": 1500, "height": 2000})
    assert page.problems == []


def test_the_toolbar_of_the_graph_has_two_lines_on_a_small_screen(page):
    page.set_viewport_size({"width": 1280, "height": 720})
    tab(page, "Graph")
    buttons = "[...document.querySelectorAll('.bl-toolbar:has(.bl-moves) .bl-button')]"
    tops = f"() => {buttons}.map((button) => button.getBoundingClientRect().top)"
    jb.eventually(page, lambda: _at_most(len({round(top / 8) for top in page.evaluate(tops)}), 2))
    tab(page, "Explain")  # beside the decisions, the graph is half as wide
    seen = f"() => {buttons}.filter((b) => b.offsetParent).map((b) => b.getBoundingClientRect().top)"
    jb.eventually(page, lambda: _at_most(len({round(top / 8) for top in page.evaluate(seen)}), 2))
    tab(page, "Graph")
    # In a narrow window the buttons beside the tabs go to the next line; they were cut.
    page.set_viewport_size({"width": 900, "height": 720})
    jb.eventually(page, lambda: _equal(page.evaluate(FAULTS_OF_TAB, "Graph")["sideways"], []))
    # 1280 x 720 at 200 %: parts stand below each other, each as wide as the workbench.
    page.set_viewport_size({"width": 640, "height": 360})
    wide = "(canvas) => canvas.closest('.bl-workbench').clientWidth - canvas.clientWidth"
    jb.eventually(page, lambda: _at_most(page.locator(GRAPH).evaluate(wide), 30))
    for name in ("Graph", "Export"):
        tab(page, name)
        jb.eventually(page, lambda name=name: _equal(page.evaluate(FAULTS_OF_TAB, name)["sideways"], []))
    # A message of three lines was cut above and below.
    memory = control(page, "memory each").locator("input")
    memory.fill("as much as a device of that kind has")
    memory.press("Enter")
    page.wait_for_selector(".bl-problem")
    hidden = "(row) => row.scrollHeight - row.clientHeight"
    jb.eventually(page, lambda: _at_most(page.locator(".bl-problem-row").evaluate(hidden), 1))
    page.locator('.bl-problem-row button:text-is("Dismiss")').click()
    tab(page, "Graph")
    page.set_viewport_size({"width": 1500, "height": 2000})


def test_colours_that_mean_something_stay_in_high_contrast(page):
    colours = """() => [...document.querySelectorAll('.bl-verdict-part, .bl-legend .bl-swatch, .bl-legend .bl-line')]
      .filter((e) => e.offsetParent).map((e) => getComputedStyle(e).backgroundColor)"""
    tab(page, "Timeline")
    jb.settle(page)
    before = page.evaluate(colours)
    page.emulate_media(forced_colors="active")
    try:
        assert page.evaluate(colours) == before
        assert len(set(before)) > 2
    finally:
        page.emulate_media(forced_colors="none")


def test_no_two_elements_have_one_id(page):
    """`aria-controls` and `aria-labelledby` lead to the first element with an id."""
    ids = page.evaluate("() => [...document.querySelectorAll('.bl-workbench [id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids)) and len(ids) > 10


def test_dark_theme(page):
    themed(page, "Dark")
    tab(page, "Graph")
    corner = "() => [...document.querySelector('canvas[aria-label=\"Graph\"]').getContext('2d').getImageData(2, 2, 1, 1).data]"
    jb.eventually(page, lambda: _at_most(max(page.evaluate(corner)[:3]), 90))
    jb.screenshot(page, "09-dark")
    assert page.problems == []


def test_nothing_was_loaded_from_elsewhere(page, lab):
    loaded = page.evaluate("() => performance.getEntriesByType('resource').map((e) => e.name)")
    foreign = [
        name for name in loaded if not name.startswith((lab.url, "blob:", "data:", lab.url.replace("http", "ws")))
    ]
    assert foreign == []
    with urllib.request.urlopen(f"{lab.url}/api/status?token={lab.token}") as answer:
        assert answer.status == 200


def test_a_saved_notebook_opens_with_pictures_and_no_complaint(page, lab, expected):
    """The widgets' kernel is gone: what is left of them is hidden, and the picture that was saved with them stays."""
    jb.settle(page)
    page.evaluate("async () => { await window.jupyterapp.commands.execute('docmanager:save'); }")
    saved = lab.folder / "saved.ipynb"
    saved.write_bytes((lab.folder / "bench.ipynb").read_bytes())
    jb.open_notebook(page, lab.address("saved.ipynb"))
    picture = page.locator(".jp-OutputArea-output.jp-RenderedSVG")
    picture.wait_for(state="visible")
    fallback = page.locator('.jp-OutputArea-output:has-text("model not found")')
    fallback.wait_for(state="attached")  # it is there, and nobody sees it
    assert not fallback.is_visible() and picture.is_visible()
    # What the picture shows stands beside it for screen readers, since JupyterLab's image has no alternative text.
    description = f"placed by m-topo on 2 devices, {format_us(expected.timeline().makespan_us)}"  # of the last setting
    assert description in page.locator(".jp-OutputArea").last.aria_snapshot()
    jb.screenshot(page, "21-saved")


GNMT = f"""
import baechi_lab as bl
graph = bl.load_graph({str(jb.ROOT / "data" / "gnmt-length50-batch128.json.gz")!r})
bench = bl.Workbench(graph, bl.Cluster.uniform(4), placer="contiguous", passes=())
bench
"""


def test_the_whole_gnmt_opens_collapsed(page, lab):
    """22,229 ops without any pass: what is drawn are its scopes, and every decision can be looked at."""
    graph = bl.load_graph(jb.ROOT / "data" / "gnmt-length50-batch128.json.gz")
    cluster = bl.Cluster.uniform(4)
    line = bl.simulate(graph, cluster, bl.place(graph, cluster, "contiguous"))
    jb.open_notebook(page, lab.add_notebook("gnmt.ipynb", [GNMT]))
    jb.run_all(page, f".bl-facts:has-text('step time {format_us(line.makespan_us)}')", 200_000)
    page.wait_for_function(
        "() => { const d = document.querySelector('canvas[aria-label=\"Graph\"]')?.dataset; "
        "return Number(d?.frames) > 0 && Number(d?.nodes) > 5 && Number(d?.nodes) < 300; }"
    )
    # A stored graph keeps its costs: there is no hardware to choose for them.
    page.wait_for_selector('.bl-setting :text("batch size and times of ops are those in the given graph")')
    page.click('.bl-setting button:has-text("Advanced")')
    control(page, "speeds").wait_for()
    assert not control(page, "costs for").is_visible()
    page.click('.bl-setting button:has-text("Advanced")')
    page.click('.bl-workbench .bl-tab:text-is("Explain")')
    page.click('.bl-pane button:text-is("Explain")')
    page.wait_for_selector(f'.bl-note:has-text("decision 1 of {graph.n:,}")')
    jb.screenshot(page, "13-gnmt")


NEVER_FITS = """
import baechi_lab as bl
graph = bl.OpGraph.from_edges(
    [5, 10], [(0, 1, 8)], names=["a", "b"], persistent_bytes=[9 * 10**9, 10**7], temp_bytes=[0, 6 * 10**8],
    colocation=[0, 0], colocation_names=("w",), name="huge")
bench = bl.Workbench(graph, bl.Cluster.uniform(2))
bench
"""


def test_a_start_that_cannot_fit_has_no_axis_and_reopens_with_its_reason(page, lab):
    jb.open_notebook(page, lab.add_notebook("huge.ipynb", [NEVER_FITS]))
    jb.run_all(page, '.bl-header [role="alert"]:has-text("fit")', 60_000)
    words = page.locator(".bl-workbench").inner_text()
    assert "0.000001" not in words and "Move to" not in words  # there is no axis, and no device to move to
    # What an op needs itself is told apart from what the ops tied to it keep: b its own 10 MB, 600 MB and an input of 8 B.
    b, a = 10**7 + 6 * 10**8 + 8, 9 * 10**9
    sentences = (
        f"op 'b' needs {format_bytes(b)} while it runs",
        f"with {format_bytes(a)} that 1 other op of its colocation group keeps persistently on its device",
        f"together {format_bytes(a + b)}, and the largest device that it may use has {format_bytes(8 * 10**9)}",
    )
    jb.eventually(page, lambda: _holds(page.locator('.bl-header [role="alert"]').inner_text(), *sentences))
    jb.screenshot(page, "30-never-fits")
    page.wait_for_selector(
        ".bl-setting select"
    )  # what comes after the first picture is there before its notebook is closed
    jb.settle(page)
    page.evaluate("async () => { await window.jupyterapp.commands.execute('docmanager:save'); }")
    (lab.folder / "huge-saved.ipynb").write_bytes((lab.folder / "huge.ipynb").read_bytes())
    jb.open_notebook(page, lab.address("huge-saved.ipynb"))
    picture = page.locator(".jp-OutputArea-output.jp-RenderedSVG")
    picture.wait_for(state="visible")
    assert "fit" in picture.locator("img").get_attribute("src")
    assert "needs 610.00 MB while it runs" in page.locator(".jp-OutputArea").last.aria_snapshot()
    fallback = page.locator('.jp-OutputArea-output:has-text("model not found")')
    fallback.wait_for(state="attached")
    assert not fallback.is_visible()


WIDE = """
import baechi_lab as bl
chains = [(3 * c + k, 3 * c + k + 1, 8) for c in range(64) for k in range(2)]
graph = bl.OpGraph.from_edges([10.0] * 192, chains, name="wide")
bench = bl.Workbench(graph, bl.Cluster.uniform(64), placer="m-etf", passes=())
bench
"""
COLOURS = """(strip) => {
  const canvas = [...document.querySelectorAll('canvas[aria-label="Timeline"]')].find((c) => c.offsetParent);
  const scale = canvas.width / canvas.clientWidth;
  const tall = strip ? 28 : canvas.clientHeight;
  const { data } = canvas.getContext('2d').getImageData(canvas.width / 4, 0, canvas.width / 2, tall * scale);
  const seen = new Map();
  for (let k = 0; k < data.length; k += 4) {
    const pixel = [data[k], data[k + 1], data[k + 2]];
    if (Math.max(...pixel) - Math.min(...pixel) > 40) seen.set(pixel.join(), (seen.get(pixel.join()) ?? 0) + 1);
  }
  const all = [...seen.values()].reduce((sum, count) => sum + count, 0);
  return [[...seen.values()].filter((count) => count > 20).length, all / (data.length / 4)];
}"""


def test_64_devices_have_a_strip_and_colours_of_their_own(page, lab):
    """64 equal chains, one per device: every lane is busy throughout."""
    jb.open_notebook(page, lab.add_notebook("wide.ipynb", [WIDE]))
    jb.run_all(page, ".bl-facts:has-text('step time 30.00 us')", 120_000)
    tab(page, "Timeline")
    page.wait_for_function(
        "() => [...document.querySelectorAll('canvas[aria-label=\"Timeline\"]')].some("
        "(c) => c.offsetParent && c.dataset.frames > 0)"
    )

    def lanes_and_strip_have_colours():
        colours, share = page.evaluate(COLOURS, True)
        assert colours >= 12 and share > 0.3  # twelve rows of two pixels, not a blank strip
        colours, _ = page.evaluate(COLOURS, False)
        assert colours >= 32

    jb.eventually(page, lanes_and_strip_have_colours)
    jb.screenshot(page, "31-wide")
    tab(page, "Graph")
    jb.settle(page)
    rows, cut_rows, is_beside = page.evaluate(MOVE_ROWS)  # the buttons "Move to" of 64 devices
    assert rows == 3 and cut_rows == [] and is_beside


MOVE_ROWS = """() => {
  const moves = [...document.querySelectorAll('.bl-moves')].find((e) => e.offsetParent);
  const { top, bottom } = moves.getBoundingClientRect();
  const places = new Map([...moves.querySelectorAll('button')].map((b) => [b.offsetTop, b.getBoundingClientRect()]));
  const seen = [...places.values()].filter((row) => row.bottom > top + 1 && row.top < bottom - 1);
  const beside = moves.parentElement.querySelector('.bl-beside').getBoundingClientRect(); // "Table" and "?", not on the next line
  const cut = seen.filter((row) => row.bottom > bottom + 1).map((row) => row.bottom - bottom);
  return [seen.length, cut, beside.top >= top - 1 && beside.bottom <= bottom + 1];
}"""


def test_a_click_beside_a_running_cell_is_answered_by_one_sentence(page, lab):
    """The cell runs until a file is there."""
    jb.execute(page, "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)", is_awaited=False)
    page.click('.bl-workbench .bl-tab:text-is("Graph")')
    page.wait_for_selector('.bl-unanswered[role="status"]:has-text("kernel busy")')
    jb.screenshot(page, "32-busy")
    (lab.folder / "go").touch()
    page.wait_for_selector(".bl-panes.bl-at-graph")
    page.wait_for_selector(".bl-unanswered:empty", state="attached")


def test_a_kernel_that_is_shut_down_leaves_one_sentence(page):
    """JupyterLab's widget manager notices restarts only."""
    page.evaluate("async () => { await window.jupyterapp.shell.currentWidget.sessionContext.shutdown(); }")
    page.wait_for_selector(".bl-workbench.jupyter-widgets-disconnected")
    content = page.evaluate("() => getComputedStyle(document.querySelector('.bl-workbench'), '::after').content")
    assert content.startswith('"kernel gone')
    assert page.problems == []
