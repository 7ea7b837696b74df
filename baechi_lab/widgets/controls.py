"""Controls of ipywidgets whose messages from the browser are handled on the loop on which the control was made.

From version 4.4, JupyterLab has ipykernel 7 handle the messages of widgets in a thread of their own, a subshell. The results of
jobs arrive on the kernel's loop. A change in one of these threads could cancel or hide what happened in the other one.
"""

from __future__ import annotations

import asyncio
from typing import Any

import ipywidgets


class OnLoop(ipywidgets.Widget):
    """A widget whose messages are handled on the asyncio loop that runs when it is made; without one, where they arrive."""

    def __init__(self, *args: Any, **traits: Any):
        self._loop = _running_loop()
        super().__init__(*args, **traits)

    def _handle_msg(self, msg: dict[str, Any]) -> None:
        loop = self._loop
        if loop is None or loop.is_closed() or loop is _running_loop():
            super()._handle_msg(msg)
        else:
            # The context of this thread goes along: it names the message to which the browser expects an answer.
            loop.call_soon_threadsafe(super()._handle_msg, msg)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Button(OnLoop, ipywidgets.Button):
    """`ipywidgets.Button`, handled on its loop."""


class Checkbox(OnLoop, ipywidgets.Checkbox):
    """`ipywidgets.Checkbox`, handled on its loop."""


class Dropdown(OnLoop, ipywidgets.Dropdown):
    """`ipywidgets.Dropdown`, handled on its loop."""


class IntSlider(OnLoop, ipywidgets.IntSlider):
    """`ipywidgets.IntSlider`, handled on its loop."""


class IntText(OnLoop, ipywidgets.IntText):
    """`ipywidgets.IntText`, handled on its loop."""


class SelectionSlider(OnLoop, ipywidgets.SelectionSlider):
    """`ipywidgets.SelectionSlider`, handled on its loop."""


class Text(OnLoop, ipywidgets.Text):
    """`ipywidgets.Text`, handled on its loop."""


class Textarea(OnLoop, ipywidgets.Textarea):
    """`ipywidgets.Textarea`, handled on its loop."""


class ToggleButton(OnLoop, ipywidgets.ToggleButton):
    """`ipywidgets.ToggleButton`, handled on its loop."""
