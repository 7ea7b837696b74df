"""Parameter objects: what placers, passes and stages have in common."""

from __future__ import annotations

import html
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar


class Params:
    """Mixin for frozen dataclasses whose fields are their parameters.

    The constructor only stores; `validate` is called at use. Equality and a repr that is code come from
    the dataclass.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def get_params(self) -> dict[str, Any]:
        """The parameters by name, as given or by default."""
        return {f.name: getattr(self, f.name) for f in fields(self)} if is_dataclass(self) else {}

    def validate(self) -> None:
        """Raise `InvalidInput` for a parameter outside its range."""

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(k)}</td><td><code>{html.escape(repr(v))}</code></td></tr>"
            for k, v in self.get_params().items()
        )
        return f"<b>{html.escape(type(self).__name__)}</b><table>{rows}</table>"
