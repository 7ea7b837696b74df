"""Controls of ipywidgets whose messages from the browser are handled on the loop on which the control was made.

From version 4.4, JupyterLab has ipykernel 7 handle the messages of widgets in a thread of their own, a subshell. The results of
jobs arrive on the kernel's loop. A change in one of these threads could cancel or hide what happened in the other one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import ipywidgets
from ipywidgets.widgets.widget_string import HTMLStyle

Model = TypeVar("Model", bound=ipywidgets.Widget)
_SHARED: ContextVar[dict[type, ipywidgets.Widget] | None] = ContextVar("shared models", default=None)


@contextmanager
def sharing_models() -> Iterator[None]:
    """Makes `shared` return one model of each class within this context: a page takes a millisecond for every model."""
    token = _SHARED.set({})
    try:
        yield
    finally:
        _SHARED.reset(token)


def shared(cls: type[Model]) -> Model:
    """Returns the style or layout without values of its own that widgets made in one `sharing_models` have in common.

    Nothing may set a value of it. Outside of that context it is a new one.

    >>> shared(ipywidgets.Layout) is shared(ipywidgets.Layout)
    False
    """
    models = _SHARED.get()
    if models is None:
        return cls()
    if cls not in models:
        models[cls] = cls()
    return models[cls]  # type: ignore[return-value]


class OnLoop(ipywidgets.Widget):
    """A widget whose messages are handled on the asyncio loop that runs when it is made; without one, where they arrive."""

    def __init__(self, *args: object, **traits: object):
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

    def __init__(self, **traits: object):
        super().__init__(style=shared(ipywidgets.ButtonStyle), **traits)


class HTML(ipywidgets.HTML):
    """`ipywidgets.HTML` with the style of the others."""

    def __init__(self, value: str = "", **traits: object):
        super().__init__(value, style=shared(HTMLStyle), **traits)


class Checkbox(OnLoop, ipywidgets.Checkbox):
    """`ipywidgets.Checkbox`, handled on its loop."""


class Dropdown(OnLoop, ipywidgets.Dropdown):
    """`ipywidgets.Dropdown`, handled on its loop."""


class IntSlider(OnLoop, ipywidgets.IntSlider):
    """`ipywidgets.IntSlider`, handled on its loop."""


class WholeText(OnLoop):
    """A text that the browser sends when it is left or ended with Enter.

    While the kernel answers the first letters of a text, a browser keeps the others back, but it sends a click at once. A button
    pressed right after typing would see the first letters alone.
    """

    def __init__(self, *args: object, **traits: object):
        super().__init__(*args, **{"continuous_update": False, **traits})


class IntText(WholeText, ipywidgets.IntText):
    """`ipywidgets.IntText`, handled on its loop and sent whole."""


class SelectionSlider(OnLoop, ipywidgets.SelectionSlider):
    """`ipywidgets.SelectionSlider`, handled on its loop."""


class Text(WholeText, ipywidgets.Text):
    """`ipywidgets.Text`, handled on its loop and sent whole."""


class Textarea(OnLoop, ipywidgets.Textarea):
    """`ipywidgets.Textarea`, handled on its loop."""


class ToggleButton(OnLoop, ipywidgets.ToggleButton):
    """`ipywidgets.ToggleButton`, handled on its loop."""
