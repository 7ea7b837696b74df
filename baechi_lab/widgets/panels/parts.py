"""Small pieces that the panels share."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets

from ...errors import InvalidInput
from ..controls import HTML, Button, ToggleButton
from ..glossary import name_with_tooltip, with_term_tooltips
from ..views.folder import Folder

WIDE = {"width": "100%", "margin": "1px 0"}
"""Layout of a full line: a dict, from which every widget makes its own `Layout`."""
MOST_DEVICES = 64
"""Most devices that can be typed; a given cluster may have more."""
KEYWORDS = re.compile(r" \([^()]*(?:=|--)[^()]*\)")
"""Parts of notes that only people who write code need."""
BREAKS = re.compile(r"/|\.(?=[A-Za-z_])|_(?=[A-Za-z])|[a-z](?=[A-Z])")
"""Ends of the scopes in a name, as TensorFlow and PyTorch write them: a line may break after them."""
UNIT = re.compile(r"(?<=\d) (?=(?:[kMGT]i?)?B\b|[mun]?s\b)")
"""A number and its unit, between which no line may break."""


def heading(text: str, hint: str = "") -> ipywidgets.HTML:
    """Makes the title of a part, with a grey hint behind it."""
    note_html = f' <span class="bl-note">{with_term_tooltips(hint)}</span>' if hint else ""
    title_html = f'<span role="heading" aria-level="3">{html.escape(text)}</span>'
    return HTML(f'<div class="bl-heading">{title_html}{note_html}</div>', layout=WIDE)


def note(text: str = "") -> ipywidgets.HTML:
    """Makes a line of small grey text, which `say` sets."""
    widget = HTML(layout=WIDE)
    say(widget, text)
    return widget


def say(target: ipywidgets.HTML, text: str, kind: str = "note") -> None:
    """Sets the text of a note, with tooltips for its terms; `kind` is `note`, `good` or `bad`."""
    target.value = f'<div class="bl-{kind}">{with_term_tooltips(text)}</div>' if text else ""


def for_people(note: str) -> str:
    """Returns a note of the library without the parts that only people who write code need.

    >>> for_people("rules found it (time_limit= searches on)")
    'rules found it'
    """
    return KEYWORDS.sub("", note)


def button(text: str, tooltip: str, call: Callable[[], object], style: str = "") -> Button:
    """Makes a button with a tooltip; a click calls `call` without arguments."""
    widget = Button(
        description=text,
        tooltip=tooltip,
        button_style=style,
        layout=ipywidgets.Layout(width="auto", margin="1px 2px", flex="0 0 auto"),
    )
    widget.on_click(lambda _: call())
    return widget


def switch(text: str, tooltip: str, value: bool = False) -> ToggleButton:
    """Makes a button that stays pressed, with a tick; unlike a checkbox, it has a tooltip.

    >>> switch("fusion", "merges neighbours", True).icon
    'check'
    """
    widget = ToggleButton(
        value=value, description=text, tooltip=tooltip, layout=ipywidgets.Layout(width="auto", flex="0 0 auto")
    )
    widget.add_class("bl-switch")

    def tick(_: object = None) -> None:
        widget.icon = "check" if widget.value else ""

    widget.observe(tick, "value")
    tick()
    return widget


def add_hint(control: Any, hint: str) -> Any:
    """Adds a tooltip to the name of a control, or replaces it: controls with a name show no tooltip of their own.

    >>> add_hint(add_hint(ipywidgets.Text(description="link"), "a latency"), "a rate").description
    '<span title="a rate">link</span>'
    """
    label = re.sub(r"^<span [^>]*>(.*)</span>$", r"\1", control.description)
    control.tooltip = hint
    control.description_allow_html = True
    control.description = f'<span title="{html.escape(hint)}">{label}</span>'
    return control


def row(*children: object, wrap: bool = True, classes: Sequence[str] = (), hidden: bool = False) -> ipywidgets.HBox:
    """Makes a row of its children, with CSS classes; `add_class` and a layout set later would be messages of their own."""
    flow, display = "row wrap" if wrap else "row nowrap", "none" if hidden else None
    layout = ipywidgets.Layout(flex_flow=flow, align_items="center", width="100%", display=display)
    return ipywidgets.HBox(children, layout=layout, _dom_classes=classes)


MOST_SHOWN = 20_000
"""Most letters of a plan that are shown; copies and files have the whole plan."""


def set_class(widget: ipywidgets.DOMWidget, name: str, is_present: bool) -> None:
    """Puts a CSS class on a widget, or takes it off.

    >>> box = ipywidgets.VBox()
    >>> set_class(box, "bl-outdated", True)
    >>> box._dom_classes
    ('bl-outdated',)
    """
    if is_present:
        widget.add_class(name)
    else:
        widget.remove_class(name)


def code_block(text: str, letters: int = MOST_SHOWN) -> str:
    """Returns a text as HTML that keys can scroll, without what is after its first `letters` letters."""
    escaped_text = html.escape(text[:letters]) + ("\n..." if len(text) > letters else "")
    return (
        f'<div class="bl-scroll bl-code" tabindex="0" role="region" aria-label="the written text">{escaped_text}</div>'
    )


def bullets(sentences: Sequence[str]) -> str:
    """Returns sentences as an HTML list; an empty text if there are none."""
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="bl-note">{items}</ul>' if items else ""


def count_up_to(label: str, value: object, limit: int) -> int:
    """Reads a whole number from 1 to `limit` from a number or a text.

    >>> count_up_to("devices", " 4", 64)
    4
    """
    text = str(value).strip()
    if not (text.isdecimal() and len(text) < 20 and 1 <= int(text) <= limit):
        raise InvalidInput(f"{label} is {text!r:.60}; it must be a whole number from 1 to {limit:,}")
    return int(text)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], marked_row: int = -1, empty: str = "") -> str:
    """Makes an HTML table of texts, with tooltips for the terms of its head; the row `marked_row` is bold."""
    if not rows:
        return f'<div class="bl-note">{html.escape(empty)}</div>'
    top = "".join(f"<th>{name_with_tooltip(h)}</th>" for h in head)
    body = "".join(
        f'<tr class="{"bl-marked" if k == marked_row else ""}">'
        + "".join(f"<td>{_breakable(c)}</td>" for c in cells)
        + "</tr>"
        for k, cells in enumerate(rows)
    )
    return f'<div class="bl-scroll"><table class="bl-table"><tr>{top}</tr>{body}</table></div>'


def _breakable(text: str) -> str:
    """Returns a text as HTML in which a line may break after a scope or a word of a name, and not before a unit.

    >>> _breakable("cls.decoder/BiasAdd/1.5")
    'cls.<wbr>decoder/<wbr>Bias<wbr>Add/<wbr>1.5'
    """
    return BREAKS.sub(lambda end: f"{end[0]}<wbr>", html.escape(UNIT.sub("\xa0", text)))


class Fold(ipywidgets.VBox):
    """Children below a title; a click on the title hides or shows them.

    >>> part = Fold("Cluster", [ipywidgets.HTML()])
    >>> part.fold()
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
        """Whether the children are shown."""
        return bool(self.title.unfolded)

    def fold(self, folded: bool = True) -> None:
        """Hides the children, or shows them if not `folded`."""
        self.title.unfolded = not folded

    def _show(self) -> None:
        self.inside.layout.display = "flex" if self.unfolded else "none"


class Quiet:
    """A context in which widgets are set from the model, and their observers do nothing."""

    def __init__(self) -> None:
        self.active = False

    def __enter__(self) -> None:
        self.active = True

    def __exit__(self, *_: object) -> None:
        self.active = False
