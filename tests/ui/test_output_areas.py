"""The picture behind a widget: hidden where the widget lives, seen where it does not, in the markup of five front ends.

The fragments follow the front ends' own sources as far as outputs are wrapped: JupyterLab shows an SVG as an image, the others
put it into the page. They show whether the rule holds in that markup, not how those front ends load widgets.
"""

from __future__ import annotations

from urllib.parse import quote

import jupyter_browser as jb
import pytest

import baechi_lab as bl
from baechi_lab.widgets.views import TimelineView

pytestmark = [pytest.mark.ui, pytest.mark.skipif(bool(jb.missing()), reason=jb.missing() or "-")]

FRONT_ENDS = {
    "JupyterLab": (
        """<div class="jp-Cell"><div class="jp-OutputArea"><div class="jp-OutputArea-child">{prompt}<div
        class="jp-OutputArea-output">{live}</div></div><div class="jp-OutputArea-child">{prompt}<div
        class="jp-RenderedSVG jp-OutputArea-output">{image}</div></div><div class="jp-OutputArea-child">{prompt}<div
        class="jp-RenderedHTMLCommon jp-OutputArea-output">{rules}</div></div></div></div>"""
    ),
    "VS Code": (
        """<div class="cell_container"><div class="output_container"><div class="output"><div>{live}</div></div></div><div
        class="output_container"><div class="output"><div>{svg}</div></div></div><div class="output_container"><div
        class="output"><div>{rules}</div></div></div></div>"""
    ),
    "Colab": (
        """<div id="output-body"><div class="output-id-1"><div class="output_subarea">{live}</div></div><div
        class="output-id-2"><div class="output_subarea output_svg">{svg}</div></div><div class="output-id-3"><div
        class="output_subarea output_html rendered_html">{rules}</div></div></div>"""
    ),
    "nbclassic": (
        """<div class="output"><div class="output_area">{prompt}<div class="output_subarea">{live}</div></div>
        <div class="output_area">{prompt}<div class="output_svg output_subarea">{svg}</div></div><div class="output_area">
        {prompt}<div class="output_html rendered_html output_subarea">{rules}</div></div></div>"""
    ),
    "marimo": (
        """<div class="output-area"><div class="output"><div>{live}</div><div>{svg}</div><div>{rules}</div></div></div>"""
    ),
}


@pytest.fixture(scope="module")
def outputs():
    """What a timeline displays as: its key, its picture, and the rules."""
    graph = bl.OpGraph.from_edges([5, 10], [(0, 1, 8)])
    view = TimelineView()
    view.show(graph, [bl.simulate(graph, bl.Cluster.uniform(2), bl.Placement(device=[0, 1]))])
    svg = view.picture()
    return view.model_id, view.picture_output(svg)["image/svg+xml"], view.words_output(svg)["text/html"]


@pytest.fixture(scope="module")
def page(browser):
    with jb.browser_page(browser, 1200, 900) as opened:
        yield opened


def cells(front_end, key, svg, rules, alive):
    """Two cells of a notebook: one with the widget, whose state `alive` says, and one that shows another one's picture."""
    live = f'<div class="bl-view bl-live-{key}">a widget</div>' if alive else ""
    image = f'<img src="data:image/svg+xml,{quote(svg)}">'
    first = FRONT_ENDS[front_end].format(prompt="<div></div>", live=live, svg=svg, image=image, rules=rules)
    other_key = "another"
    svg, rules = svg.replace(key, other_key), rules.replace(key, other_key)
    image = f'<img src="data:image/svg+xml,{quote(svg)}">'
    second = FRONT_ENDS[front_end].format(prompt="<div></div>", live="", svg=svg, image=image, rules=rules)
    return f'<style>{TimelineView._css}</style><div class="cell">{first}</div><div class="cell">code {second}</div>'


@pytest.mark.parametrize("alive", [True, False], ids=["alive", "gone"])
@pytest.mark.parametrize("front_end", list(FRONT_ENDS))
def test_a_picture_is_seen_unless_its_own_widget_lives(page, outputs, front_end, alive):
    page.set_content(cells(front_end, *outputs, alive))
    visible = [page.locator(".cell").nth(k).locator("img, svg").first.is_visible() for k in range(2)]
    assert visible == [not alive, True]
    # So are its words for screen readers, which take no room: the image itself may have no alternative text.
    words = page.locator('[class^="bl-words-"]')
    assert words.all_text_contents() == ["Timeline", "Timeline"]
    boxes = [words.nth(k).bounding_box() for k in range(2)]
    assert [box is not None for box in boxes] == visible and all(
        box["width"] <= 1 >= box["height"] for box in boxes if box
    )


IN_PAGE = "() => getComputedStyle(document.querySelector('.bl-view')).getPropertyValue('--bl-background')"
DARK_PAGES = {
    "JupyterLab": '<body data-jp-theme-light="{light}"><div class="bl-view"></div>',
    # Its renderer brings JupyterLab's light colours to every theme.
    "VS Code": '<style>:root {{ --jp-layout-color0: #ffffff }}</style><body class="vscode-{name}"><div class="bl-view"></div>',
    "Colab": '<html theme="{name}"><body><div class="bl-view"></div>',
    "marimo": '<body class="{name}"><div id="host"></div>',
}


@pytest.mark.parametrize("name", ["light", "dark"])
@pytest.mark.parametrize("front_end", list(DARK_PAGES))
def test_views_have_the_theme_of_the_page(page, front_end, name):
    page.set_content(DARK_PAGES[front_end].format(name=name, light=str(name == "light").lower()))
    if front_end == "marimo":  # a view stands in a shadow root, which says the theme once more
        page.evaluate(
            """([css, name]) => {
              const inside = `<div class="marimo"><div class="contents ${name}"><div class="bl-view"></div></div></div>`;
              document.querySelector('#host').attachShadow({ mode: 'open' }).innerHTML = `<style>${css}</style>${inside}`;
            }""",
            [str(TimelineView._css), name],
        )
        view = "() => document.querySelector('#host').shadowRoot.querySelector('.bl-view')"
        background = page.evaluate(f"() => getComputedStyle(({view})()).getPropertyValue('--bl-background')")
    else:
        page.add_style_tag(content=str(TimelineView._css))
        background = page.evaluate(IN_PAGE)
    assert background.strip() == {"light": "#ffffff", "dark": "#111111"}[name]
