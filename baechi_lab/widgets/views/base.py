"""Base class of the three canvas views: their files, sizes, and a static picture beside the live widget."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import traitlets

from ..controls import OnLoop, shared

VIEWS_FOLDER = Path(__file__).parent
PICTURE = "image/svg+xml"
VISUALLY_HIDDEN = (
    "display: block; position: absolute; width: 1px; height: 1px; margin: 0; overflow: hidden; clip-path: inset(50%);"
)
"""A style of text for screen readers, which is not seen."""
STRAY = (
    '<style class="bl-stray">.jp-OutputArea-child:not(:has(> .jp-OutputArea-output > *)):has(+ * > .jp-RenderedSVG) '
    f"{{ display: none; }} .jp-OutputArea-child:has(.bl-stray) {{ {VISUALLY_HIDDEN} }}</style>"
)
"""A style that hides a widget without a model, which shows only the text of an error, above its picture."""


Message = dict[str, Any]
"""What the browser sends: its `type`, and the entries of that type."""


def picture_rule(key: str) -> str:
    """Returns a style that hides the picture `key` and its words while its widget is live, in any front end.

    It uses no class of a front end. The picture is in the page itself (VS Code, Colab, nbclassic, marimo) or in an image
    whose address holds its text (JupyterLab).
    """
    picture_selectors = f'svg.bl-picture-{key}, img[src*="bl-picture-{key}"], .bl-words-{key}'
    return f'<style class="bl-stray">body:has(.bl-live-{key}) :is({picture_selectors}) {{ display: none !important; }}</style>'


def source(suffix: str, *names: str) -> str:
    """Returns the common file followed by the view's own, as one plain module without a bundler."""
    return own_source(suffix, "common", *names)


def own_source(suffix: str, *names: str) -> str:
    """Returns files without the common one: the style of a part that stands beside views, which bring the common style."""
    return "\n".join((VIEWS_FOLDER / f"{name}.{suffix}").read_text(encoding="utf-8") for name in names)


class Pictured(ipywidgets.DOMWidget):
    """A widget with more outputs: a static picture that stays without a kernel, and what that shows in words.

    If one output has a widget and a picture, front ends show the widget, or nothing if they cannot run it (nbconvert without
    network, JupyterLab without kernel). So the picture is a separate output. While the widget is live, `picture_rule` hides
    the picture (and in JupyterLab a rule in `common.css` hides its row); otherwise `STRAY` hides the dead widget. JupyterLab
    and nbconvert show the picture as an image without alternative text, so its words are an output for screen readers.
    """

    def picture(self) -> str:
        """Returns the view as an SVG text; empty if the view is empty."""
        raise NotImplementedError

    def in_words(self) -> str:
        """Returns one line of text for front ends that show neither widgets nor pictures."""
        return f"<{type(self).__name__}>"

    def __repr__(self) -> str:
        """Describes the view; without this, all widgets inside would be described."""
        return self.in_words()

    def _live_bundle(self, **kwargs: object) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the data and metadata of the live widget alone."""
        bundle: Any = super()._repr_mimebundle_(**kwargs)
        return bundle if isinstance(bundle, tuple) else (bundle or {}, {})

    def _repr_mimebundle_(self, **kwargs: object) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = self._live_bundle(**kwargs)
        svg = self.picture() if data else ""
        return ({**data, PICTURE: svg} if svg else data), metadata

    def _ipython_display_(self, **_: object) -> None:
        from IPython.display import display

        live, metadata = self._live_bundle()
        display({**live, "text/plain": self.in_words()}, metadata=metadata, raw=True)
        # The live widget is on its way to the page while the static picture is drawn.
        if svg := self.picture():
            self.add_class(f"bl-live-{self.model_id}")
            outputs = (self.picture_output(svg), self.words_output(svg))
            self._shown_outputs = tuple(display(output, raw=True, display_id=True) for output in outputs)

    _shown_outputs: tuple[Any, ...] = ()

    def picture_output(self, svg: str) -> dict[str, str]:
        marked_svg = svg.replace("<svg ", f'<svg class="bl-picture-{self.model_id}" ', 1)
        return {PICTURE: marked_svg, "text/plain": self.in_words()}

    def words_output(self, svg: str) -> dict[str, str]:
        """Returns the title of a picture for screen readers, and the rules that hide what is not to be seen."""
        words = svg.partition("<title>")[2].partition("</title>")[0]
        paragraph = f'<p class="bl-words-{self.model_id}" style="{VISUALLY_HIDDEN}">{words}</p>'
        return {"text/html": STRAY + picture_rule(self.model_id) + paragraph, "text/plain": ""}

    def renew_picture(self) -> None:
        """Draws the picture again, if there is one, so that a saved notebook shows the last state."""
        if self._shown_outputs and (svg := self.picture()):
            outputs = (self.picture_output(svg), self.words_output(svg))
            for shown_output, output in zip(self._shown_outputs, outputs, strict=True):
                shown_output.update(output, raw=True)


class PicturedBox(Pictured, ipywidgets.VBox):
    """Several parts, some of them views on canvases."""

    def _display_(self) -> object:
        """Returns what marimo displays, which shows no containers of ipywidgets: the views alone, with a sentence."""
        marimo: Any = sys.modules["marimo"]
        views = [widget for widget in vars(self).values() if isinstance(widget, View)]
        sentence = "marimo shows the views of this widget without its controls, which need JupyterLab."
        return marimo.vstack([marimo.md(sentence), *views])


class View(OnLoop, anywidget.AnyWidget):
    """A widget whose page knows the identifier of its model: see `followKernel` in `common.js`."""

    comm_id = traitlets.Unicode("").tag(sync=True)

    def __init__(self, **traits: object):
        comm_id = uuid.uuid4().hex
        traits.setdefault("layout", shared(ipywidgets.Layout))
        super().__init__(model_id=comm_id, comm_id=comm_id, **traits)


class CanvasView(Pictured, View):
    """A view of records on a canvas. Subclasses define `_esm`, `_css`, traits, and `picture()`."""

    devices = traitlets.List(traitlets.Unicode()).tag(sync=True)
    colors = traitlets.List(traitlets.Unicode()).tag(sync=True)
    selected = traitlets.List(traitlets.Int()).tag(sync=True)
    critical = traitlets.Bool(False).tag(sync=True)
    status = traitlets.Unicode("").tag(sync=True)
    dim = traitlets.Bytes(b"").tag(sync=True)
