"""A bar between two parts of the workbench that changes the size of one of them."""

from __future__ import annotations

import traitlets

from .base import View, own_source, source


class Splitter(View):
    """Sets the CSS variable `--bl-PART` of the workbench to `size` pixels, by dragging, arrow keys, Home and End.

    `style.css` reads the variable of `part`. A size of 0 means the default of the style; a double-click or Escape returns to
    it. `growth` is +1 if the part grows to the right or down, -1 if it grows to the left.

    >>> Splitter("setting", "width of the setting", size=300).size
    300
    """

    _esm = source("js", "splitter")
    _css = own_source("css", "splitter")
    part = traitlets.Unicode("").tag(sync=True)
    label = traitlets.Unicode("").tag(sync=True)
    size = traitlets.Int(0).tag(sync=True)
    limits = traitlets.Tuple(traitlets.Int(), traitlets.Int(), default_value=(160, 640)).tag(sync=True)
    vertical = traitlets.Bool(True).tag(sync=True)
    growth = traitlets.Int(1).tag(sync=True)

    def __init__(self, part: str, label: str, **traits: object):
        super().__init__(part=part, label=label, **traits)
