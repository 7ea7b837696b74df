"""A strip of tabs: one class at a time on what they show, and `style.css` says what is seen under it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import ipywidgets

from .parts import button


class Tabs(ipywidgets.HBox):
    """Buttons by name with their tooltips; the chosen one puts `bl-at-NAME` on `target`, in small letters.

    `changed` is called with the name of the chosen one.

    Nothing is taken from the page and put back: views keep their zoom, and whatever is hidden learns its size when shown.

    >>> tabs = Tabs({"Graph": "", "Run": ""}, ipywidgets.VBox())
    >>> tabs.choose("Run")
    >>> tabs.target._dom_classes
    ('bl-at-run',)
    """

    def __init__(
        self, names: Mapping[str, str], target: ipywidgets.Box, changed: Callable[[str], None] = lambda name: None
    ):
        self.target, self.chosen, self.changed = target, "", changed
        self.buttons = {name: button(name, hint, partial(self.choose, name)) for name, hint in names.items()}
        super().__init__(list(self.buttons.values()))
        for tab_button in self.buttons.values():
            tab_button.add_class("bl-tab")
        self.choose(next(iter(names)))

    def choose(self, name: str) -> None:
        """Show what belongs to a tab."""
        if self.chosen:
            self.target.remove_class(f"bl-at-{self.chosen.lower()}")
            self.buttons[self.chosen].remove_class("bl-chosen")
        self.chosen = name
        self.target.add_class(f"bl-at-{name.lower()}")
        self.buttons[name].add_class("bl-chosen")
        self.changed(name)
