"""A strip of tabs with the roles and keys of tabs."""

from __future__ import annotations

import anywidget
import traitlets

from .base import source


class TabStrip(anywidget.AnyWidget):
    """`tabs` are tooltips by name; `chosen` is one of the names. Arrows, Home and End go from tab to tab."""

    _esm = source("js", "tab_strip")
    _css = source("css", "tab_strip")
    tabs: traitlets.Dict = traitlets.Dict().tag(sync=True)
    chosen = traitlets.Unicode("").tag(sync=True)
