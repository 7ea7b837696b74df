"""A button that copies a text."""

from __future__ import annotations

import traitlets

from .base import View, source


class CopyButton(View):
    """Copies `text` to the browser's clipboard; disabled while there is no text."""

    _esm = source("js", "copy_button")
    _css = source("css", "copy_button")
    label = traitlets.Unicode("Copy").tag(sync=True)
    text = traitlets.Unicode("").tag(sync=True)
