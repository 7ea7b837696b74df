"""Messages from the browser to a widget, and the text that it shows there."""

from __future__ import annotations

import html
import re

import ipywidgets


def receive(widget: ipywidgets.Widget, **content: object) -> None:
    """Calls the widget's handlers of messages, as a message from the browser does."""
    widget._handle_custom_msg(content, [])


def shown_text(widget: ipywidgets.HTML) -> str:
    """Returns the text of a widget as a person reads it, without tags and tooltips."""
    return html.unescape(re.sub(r"<[^>]*>", "", widget.value))
