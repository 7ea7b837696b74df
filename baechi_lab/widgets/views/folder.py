"""A button that hides and shows a part, with the state of a disclosure."""

from __future__ import annotations

import traitlets

from .base import View, own_source, source


class Folder(View):
    """A button with `title` and the tooltip `hint`; each click inverts `unfolded`.

    >>> Folder("Cluster").unfolded
    True
    """

    _esm = source("js", "folder")
    _css = own_source("css", "tab_strip")
    title = traitlets.Unicode("").tag(sync=True)
    hint = traitlets.Unicode("fold or unfold this part").tag(sync=True)
    unfolded = traitlets.Bool(True).tag(sync=True)
    in_strip = traitlets.Bool(False).tag(sync=True)

    def __init__(self, title: str, **traits: object):
        super().__init__(title=title, **traits)
