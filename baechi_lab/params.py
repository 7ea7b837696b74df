"""Parameter objects, the base of placers, passes and stages."""

from __future__ import annotations

import html
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

import numpy as np

from .checks import finite
from .errors import InvalidInput, in_short

_TYPES = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "True or False", "None": "None"}
"""Annotation of a field -> how error messages name its type."""


def _has_type(value: object, type_name: str) -> bool:
    """Whether a value may stand where a field is annotated `type_name`, a key of `_TYPES`."""
    if type_name == "None":
        return value is None
    if type_name in ("bool", "str"):
        return isinstance(value, {"bool": bool, "str": str}[type_name])
    if isinstance(value, (bool, np.bool_)):
        return False
    # A float is a time or a share, which float64 can hold; infinity may mean "without limit".
    return (isinstance(value, (int, np.integer)) and (type_name == "int" or finite(value) is not None)) or (
        type_name == "float" and isinstance(value, (float, np.floating)) and value == value
    )


class Params:
    """Mixin for frozen dataclasses whose fields are their parameters.

    The constructor only stores; `validate` is called at use. Equality and a repr that is code come from the dataclass.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def get_params(self) -> dict[str, Any]:
        """Returns the parameters by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)} if is_dataclass(self) else {}

    def check(self) -> None:
        """Checks the types of plain fields, then calls `validate`."""
        for field in fields(self) if is_dataclass(self) else ():
            value, type_names = getattr(self, field.name), str(field.type).split(" | ")
            if set(type_names) <= set(_TYPES) and not any(_has_type(value, name) for name in type_names):
                allowed_types = " or ".join(_TYPES[name] for name in type_names)
                raise InvalidInput(f"{field.name}{self.owner_text()} is {in_short(value)}; it must be {allowed_types}")
            if isinstance(value, int) and value >= 2**63:  # solvers count and draw with 64 bits
                raise InvalidInput(f"{field.name}{self.owner_text()} is {in_short(value)}; it must be below 2**63")
        self.validate()

    def owner_text(self) -> str:
        """Returns text that messages append to a field's name, to name its owner."""
        return ""

    def validate(self) -> None:
        """Raises `InvalidInput` for a parameter outside its range."""

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(k)}</td><td><code>{html.escape(repr(v))}</code></td></tr>"
            for k, v in self.get_params().items()
        )
        return f"<b>{html.escape(type(self).__name__)}</b><table>{rows}</table>"
