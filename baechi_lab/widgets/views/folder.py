"""A button that hides and shows a part, with the state of a disclosure."""

from __future__ import annotations

import traitlets

from .base import View, source


class Folder(View):
    """A button with `title` and the tooltip `hint`; each click inverts `unfolded`.

    >>> folder = Folder("Cluster")
    >>> folder.click()
    >>> folder.unfolded
    False
    """

    _esm = source("js", "folder")
    _css = source("css", "tab_strip")
    title = traitlets.Unicode("").tag(sync=True)
    hint = traitlets.Unicode("fold or unfold this part").tag(sync=True)
    unfolded = traitlets.Bool(True).tag(sync=True)
    in_strip = traitlets.Bool(False).tag(sync=True)

    def __init__(self, title: str, **traits: object):
        super().__init__(title=title, **traits)

    def click(self) -> None:
        """Fold, or unfold, as a click in the page does."""
        self.unfolded = not self.unfolded
