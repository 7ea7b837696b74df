"""What the three canvas views share: their files, sizes, and a static picture beside the live widget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

HERE = Path(__file__).parent


def source(suffix: str, *names: str) -> str:
    """The view's own files behind the common one: one plain module, no bundler."""
    return "\n".join((HERE / f"{name}.{suffix}").read_text(encoding="utf-8") for name in ("common", *names))


class CanvasView(anywidget.AnyWidget):
    """A thin view over records. Subclasses give `_esm` and `_css`, traits, and `picture()`."""

    devices = traitlets.List(traitlets.Unicode()).tag(sync=True)
    colors = traitlets.List(traitlets.Unicode()).tag(sync=True)
    selected = traitlets.List(traitlets.Int()).tag(sync=True)
    critical = traitlets.Bool(False).tag(sync=True)
    status = traitlets.Unicode("").tag(sync=True)
    dim = traitlets.Bytes(b"").tag(sync=True)

    def picture(self) -> str:
        """The view as an SVG text; empty while it shows nothing."""
        raise NotImplementedError

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        made = super()._repr_mimebundle_(**kwargs)
        data, metadata = made if isinstance(made, tuple) else (made or {}, {})
        drawn = self.picture()
        return ({**data, "image/svg+xml": drawn} if drawn else data), metadata
