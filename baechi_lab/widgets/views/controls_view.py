"""Controls of ipywidgets as plain elements, for front ends that show no containers of ipywidgets."""

from __future__ import annotations

import html
import re
from typing import Any

import ipywidgets
import traitlets

from .base import Message, View, source
from .folder import Folder

WATCHED = ("value", "options", "disabled", "description", "icon", "children", "unfolded")


class ControlsView(View):
    """Draws the texts, buttons and inputs below an ipywidgets container, and passes on what a person does with them.

    Other widgets in the container, such as views and sliders of numbers, are left out.

    >>> text = ipywidgets.Text("8GB", description="memory")
    >>> ControlsView(ipywidgets.VBox([text])).tree["children"][0]["value"]
    '8GB'
    """

    _esm = source("js", "controls_view")
    _css = source("css", "controls_view")
    tree = traitlets.Dict().tag(sync=True)

    def __init__(self, root: ipywidgets.Box):
        super().__init__()
        self.root, self._answers = root, 0
        self._widgets: dict[str, Any] = {}
        self.on_msg(self._set_widget)
        self._draw()

    def _draw(self, _: object = None) -> None:
        # A rejected input leaves all as it was; the number makes the page draw it again.
        self.tree = {**(self._describe(self.root) or {}), "answers": self._answers}

    def _describe(self, widget: Any) -> dict[str, Any] | None:
        """Returns the kind, state and children of a widget; None for one that is hidden or cannot be drawn."""
        if widget.model_id not in self._widgets:
            self._widgets[widget.model_id] = widget
            widget.observe(self._draw, [name for name in WATCHED if widget.has_trait(name)])
            if widget.has_trait("layout"):
                widget.layout.observe(self._draw, ["display", "visibility"])
        layout = getattr(widget, "layout", None)
        if layout is not None and (layout.display == "none" or layout.visibility == "hidden"):
            return None
        hint = getattr(widget, "tooltip", None) or ""
        common_fields = {
            "id": widget.model_id,
            "label": html.unescape(re.sub("<[^>]*>", "", getattr(widget, "description", ""))) or hint,
            "hint": hint,
            "disabled": bool(getattr(widget, "disabled", False)),
        }
        if isinstance(widget, ipywidgets.Box):
            children = [child for child in map(self._describe, widget.children) if child is not None]
            return {
                **common_fields,
                "kind": "row" if isinstance(widget, ipywidgets.HBox) else "column",
                "children": children,
            }
        if isinstance(widget, ipywidgets.HTML):
            return {**common_fields, "kind": "text", "value": widget.value}
        if isinstance(widget, Folder):
            return {**common_fields, "kind": "button", "label": f"{'▾' if widget.unfolded else '▸'} {widget.title}"}
        if isinstance(widget, ipywidgets.Button):
            return {**common_fields, "kind": "button"}
        if isinstance(widget, ipywidgets.ToggleButton):
            return {**common_fields, "kind": "button", "pressed": widget.value}
        if isinstance(widget, (ipywidgets.Dropdown, ipywidgets.SelectionSlider)):
            return {**common_fields, "kind": "choice", "options": list(widget._options_labels), "value": widget.index}
        if isinstance(widget, ipywidgets.Text):
            return {**common_fields, "kind": "entry", "value": widget.value}
        return None

    def _set_widget(self, _: object, content: Message, __: object) -> None:
        widget, value = self._widgets[content["id"]], content.get("value")
        if isinstance(widget, Folder):
            widget.unfolded = not widget.unfolded
        elif isinstance(widget, ipywidgets.Button):
            widget.click()
        elif isinstance(widget, ipywidgets.ToggleButton):
            widget.value = not widget.value
        elif widget.has_trait("index"):
            widget.index = value
        else:
            widget.value = value
        self._answers += 1
        self._draw()
