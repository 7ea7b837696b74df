"""Messages from the browser to a widget."""

from __future__ import annotations

import ipywidgets


def receive(widget: ipywidgets.Widget, **content: object) -> None:
    """Calls the widget's handlers of messages, as a message from the browser does."""
    widget._handle_custom_msg(content, [])
