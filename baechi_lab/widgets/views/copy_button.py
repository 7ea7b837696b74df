"""A button that copies a text."""

from __future__ import annotations

import anywidget
import traitlets

from .base import VIEWS_FOLDER


class CopyButton(anywidget.AnyWidget):
    """Copies `text` to the browser's clipboard."""

    _esm = (VIEWS_FOLDER / "copy_button.js").read_text(encoding="utf-8")
    _css = (VIEWS_FOLDER / "copy_button.css").read_text(encoding="utf-8")
    label = traitlets.Unicode("Copy").tag(sync=True)
    text = traitlets.Unicode("").tag(sync=True)
