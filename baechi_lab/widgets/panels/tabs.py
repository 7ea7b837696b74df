"""A strip of tabs. The chosen tab puts a class on its target, and `style.css` shows or hides the parts under that class."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import ipywidgets
import traitlets

from ..views.base import View, own_source, source


class Tabs(View):
    """Tabs by name with their tooltips; the chosen one puts the class `bl-at-NAME`, in small letters, on `target`.

    `changed` is called with the name of the chosen tab. No part is removed from the page, so views keep their zoom. The page
    asks after what a person does, and says that the kernel is busy until an answer comes; `deliver` sends it when results of
    the workbench can arrive, which they cannot while a cell runs.

    >>> tabs = Tabs({"Graph": "", "Run": ""}, ipywidgets.VBox())
    >>> tabs.choose("Run")
    >>> tabs.target._dom_classes
    ('bl-at-run',)
    """

    _esm = source("js", "tab_strip")
    _css = own_source("css", "tab_strip")
    tabs: traitlets.Dict = traitlets.Dict().tag(sync=True)
    chosen = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self,
        names: Mapping[str, str],
        target: ipywidgets.Box,
        changed: Callable[[str], None] = lambda name: None,
        deliver: Callable[[Callable[[], None]], None] = lambda call: call(),
    ):
        super().__init__(tabs=dict(names))
        self.target, self.changed = target, changed
        self.observe(lambda change: self._show(change["old"], change["new"]), "chosen")
        self.on_msg(lambda *_: deliver(lambda: self.send({"type": "answer"})))
        self.choose(next(iter(names)))

    def choose(self, name: str) -> None:
        self.chosen = name

    def _show(self, before: str, name: str) -> None:
        if before:
            self.target.remove_class(f"bl-at-{before.lower()}")
        self.target.add_class(f"bl-at-{name.lower()}")
        self.changed(name)
