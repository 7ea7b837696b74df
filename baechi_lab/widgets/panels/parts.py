"""Small pieces that the panels share."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets

from ...errors import InvalidInput
from ..glossary import explained
from ..views.folder import Folder

WIDE = {"width": "100%", "margin": "1px 0"}
"""A dict, not a Layout: every widget makes its own of it."""
MOST_DEVICES = 64
"""Devices that can be typed; a cluster that is given may have more."""
KEYWORDS = re.compile(r" \([^()]*(?:=|--)[^()]*\)")
"""What notes say to those who write code."""
UNIT = re.compile(r"(?<=\d) (?=(?:[kMGT]i?)?B\b|[mun]?s\b)")
"""Between a number and its unit no line may break."""


def heading(text: str, hint: str = "") -> ipywidgets.HTML:
    """A part's title, with a grey hint behind it."""
    shown = f' <span class="bl-note">{explained(hint)}</span>' if hint else ""
    return ipywidgets.HTML(f'<div class="bl-heading">{html.escape(text)}{shown}</div>', layout=WIDE)


def note(text: str = "") -> ipywidgets.HTML:
    """A line of small grey text; set with `say`."""
    widget = ipywidgets.HTML(layout=WIDE)
    say(widget, text)
    return widget


def say(target: ipywidgets.HTML, text: str, kind: str = "note") -> None:
    """Put plain text into a note, its terms explained; `kind` is `note`, `good` or `bad`."""
    target.value = f'<div class="bl-{kind}">{explained(text)}</div>' if text else ""


def for_people(note: str) -> str:
    """A note of the library without what it says to those who write code.

    >>> for_people("rules found it (time_limit= searches on)")
    'rules found it'
    """
    return KEYWORDS.sub("", note)


def button(
    text: str, tooltip: str, call: Callable[[], object], width: str = "auto", style: str = ""
) -> ipywidgets.Button:
    """A button with an explanation; `call` takes no argument."""
    widget = ipywidgets.Button(
        description=text,
        tooltip=tooltip,
        button_style=style,
        layout=ipywidgets.Layout(width=width, margin="1px 2px", flex="0 0 auto"),
    )
    widget.on_click(lambda _: call())
    return widget


def switch(text: str, tooltip: str, value: bool = False) -> ipywidgets.ToggleButton:
    """A button that stays pressed, with a tick; unlike a checkbox, it shows its tooltip as text.

    >>> switch("fusion", "merges neighbours", True).icon
    'check'
    """
    widget = ipywidgets.ToggleButton(
        value=value, description=text, tooltip=tooltip, layout=ipywidgets.Layout(width="auto", flex="0 0 auto")
    )
    widget.add_class("bl-switch")

    def tick(_: object = None) -> None:
        widget.icon = "check" if widget.value else ""

    widget.observe(tick, "value")
    tick()
    return widget


def hinted(control: Any, hint: str) -> Any:
    """The control, explained where its name is pointed at: what has a name shows no tooltip of its own.

    >>> hinted(ipywidgets.Text(description="link"), "a latency").description
    '<span title="a latency">link</span>'
    """
    control.tooltip = hint
    control.description_allow_html = True
    control.description = f'<span title="{html.escape(hint)}">{html.escape(control.description)}</span>'
    return control


def row(*children: object, wrap: bool = True) -> ipywidgets.HBox:
    """Children in a line."""
    flow = "row wrap" if wrap else "row nowrap"
    return ipywidgets.HBox(children, layout=ipywidgets.Layout(flex_flow=flow, align_items="center", width="100%"))


def count_up_to(label: str, value: object, limit: int) -> int:
    """A whole number from 1 to `limit`, or the text of one.

    >>> count_up_to("devices", " 4", 64)
    4
    """
    text = str(value).strip()
    if not (text.isdecimal() and len(text) < 20 and 1 <= int(text) <= limit):
        raise InvalidInput(f"{label} is {text!r:.60}; it must be a whole number from 1 to {limit:,}")
    return int(text)


def shortened(text: str, limit: int = 36) -> str:
    """A text of at most `limit` letters: what is left out of a longer one is in its middle, since paths differ at their ends.

    >>> shortened("data/a-very-long-folder/graph.json.gz", 20)
    'data/a…graph.json.gz'
    """
    if len(text) <= limit:
        return text
    tail = 2 * limit // 3
    return f"{text[: limit - tail - 1]}…{text[len(text) - tail :]}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], marked: int = -1, empty: str = "") -> str:
    """An HTML table of texts; the row `marked` is bold. The terms of its head are explained."""
    if not rows:
        return f'<div class="bl-note">{html.escape(empty)}</div>'
    top = "".join(f"<th>{explained(h)}</th>" for h in head)
    body = "".join(
        f'<tr class="{"bl-marked" if k == marked else ""}">'
        + "".join(f"<td>{html.escape(UNIT.sub(chr(0xA0), c))}</td>" for c in cells)
        + "</tr>"
        for k, cells in enumerate(rows)
    )
    return f'<div class="bl-scroll"><table class="bl-table"><tr>{top}</tr>{body}</table></div>'


class Fold(ipywidgets.VBox):
    """Children below a title that folds them away and back.

    >>> part = Fold("Cluster", [ipywidgets.HTML()])
    >>> part.title.click()
    >>> part.unfolded
    False
    """

    def __init__(self, title: str, children: Sequence[object], unfolded: bool = True):
        self.title = Folder(title, unfolded=unfolded)
        self.inside = ipywidgets.VBox(list(children), layout=WIDE)
        self.inside.add_class("bl-inside")
        super().__init__([self.title, self.inside], layout=WIDE)
        self.title.observe(lambda _: self._show(), "unfolded")
        self._show()

    @property
    def unfolded(self) -> bool:
        return bool(self.title.unfolded)

    def fold(self, folded: bool = True) -> None:
        self.title.unfolded = not folded

    def _show(self) -> None:
        self.inside.layout.display = "flex" if self.unfolded else "none"


class Quiet:
    """Set widgets from the model without their observers answering back."""

    def __init__(self) -> None:
        self.active = False

    def __enter__(self) -> None:
        self.active = True

    def __exit__(self, *_: object) -> None:
        self.active = False
