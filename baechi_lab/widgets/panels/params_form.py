"""Controls for the fields of a parameter object, made from its dataclass, so that a new placer needs no code here."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any

import ipywidgets

from ...errors import InvalidInput
from ..controls import Text, ToggleButton
from ..glossary import tip
from .parts import WIDE, add_hint, switch

HIDDEN = (
    *("explain", "callback", "step", "checkpoint", "checkpoint_every", "resume", "executor", "give_up"),
    *("micro_batches", "schedule"),  # those of the setting
)
"""Parameters without a control here: they have one elsewhere in the workbench, or cannot be typed."""
NARROW = {"description_width": "96px"}
PLAIN = {
    "caps": "how much more than an even share of the work one device may get; 1 is even, and each number is tried",
    "lp_ops": "graphs with more ops than this do without the linear program of SCT, which would take longer than all else",
    "sum": "a device computes or transfers, never both at once: the two times are added up",
}
"""Hints for parameters whose docstring requires knowledge of the algorithm."""
COMMON = {
    "seed": "of the random choices; the same one gives the same placement",
    "objective": "what is to be short: a step (latency), the period of endless micro-batches, or a step of some micro-batches",
    "micro_batches": "parts of the batch, for the objectives that count them",
    "schedule": "the order in which devices work on micro-batches, for the objective step",
    "sum": "count computing and transfers of a device one after the other instead of side by side",
    "error": "how far times may be off, for the objective p90; 0.2: 20% up or down",
}
"""Hints for parameters of many placers, where the placer's docstring has none."""


class ParamsForm:
    """One control per field with a default of a `Params` class; `changed()` is called when a value changes."""

    def __init__(self, changed: Callable[[], None]):
        self.changed = changed
        self.widget = ipywidgets.VBox([], layout=WIDE)
        self._fields: dict[str, tuple[Field, Any]] = {}

    def show(self, cls: type, values: Any) -> None:
        """Shows the controls for `cls`, set to `values` where given."""
        self._fields = {
            f.name: (f, control(f)) for f in fields(cls) if f.name not in HIDDEN and default_of(f) is not MISSING
        }
        hint_texts = hints(cls)
        for name, (field, widget) in self._fields.items():
            hint = hint_texts.get(name, name)
            if isinstance(widget, ToggleButton):
                widget.tooltip = hint
            else:
                add_hint(widget, hint)
            widget.value = control_value(values.get(name, default_of(field)), widget)
            widget.observe(lambda _: self.changed(), "value")
        self.widget.children = [widget for _, widget in self._fields.values()]

    def values(self) -> dict[str, object]:
        """Returns the parameters that differ from their defaults.

        Raises:
            InvalidInput: a text is no number where one is required.
        """
        read = {name: parse(field, widget.value) for name, (field, widget) in self._fields.items()}
        return {name: value for name, value in read.items() if value != default_of(self._fields[name][0])}


def hints(cls: type) -> dict[str, str]:
    """Returns a hint per parameter, from the class's docstring (under `Args`, or as "`name`: ...") or from its name.

    >>> from baechi_lab.placers.m_sct import MSCT
    >>> hints(MSCT)["solver"]
    'of the linear program: "highs" (which large graphs do without), or what cvxpy knows, such as "CLARABEL".'
    """
    hint_texts = {**COMMON, **{f.name: tip(f.name) for f in fields(cls) if tip(f.name)}}
    for base in reversed(cls.__mro__):
        text = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        for names, description in re.findall(r"^    ((?:\w+, )*\w+): (.*(?:\n {6,}.*)*)", text, re.MULTILINE):
            hint_texts |= dict.fromkeys(names.split(", "), " ".join(description.split()))
        hint_texts |= {
            name: " ".join(description.split())
            for name, description in re.findall(r"`(\w+)`: ([^`]*?\.)(?=\s|$)", text)
        }
    # A control shows None as an empty text.
    hint_texts = {name: re.sub(r"=?\bNone\b", _empty, text) for name, text in hint_texts.items()}
    return {**hint_texts, **PLAIN}


def _empty(match: re.Match[str]) -> str:
    return " empty" if match[0].startswith("=") else "empty"


def default_of(field: Field) -> object:
    """Returns the default of a field, or MISSING."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


def control(field: Field) -> object:
    """Returns a switch for a bool, and a text for any other type, which is parsed by the type of the default."""
    label = field.name.replace("_", " ")
    if isinstance(default_of(field), bool):
        return switch(label, label)
    return Text(description=label, layout=WIDE, style=NARROW)


def control_value(value: object, widget: object) -> object:
    """Returns a value as its control shows it."""
    if isinstance(widget, ToggleButton):
        return bool(value)
    return "" if value is None else str(value)


def parse(field: Field, value: object) -> object:
    """Returns the value of a control in the type of the field's default; an empty text is None if that is the default."""
    default = default_of(field)
    if isinstance(default, bool) or not isinstance(value, str):
        return value
    text = value.strip()
    if isinstance(default, str):
        return text
    if not text:
        return default
    if isinstance(default, (int, float)):
        try:
            number = float(text)
        except ValueError as error:
            raise InvalidInput(f"{field.name.replace('_', ' ')} is {text!r}; it must be a number") from error
        return int(number) if isinstance(default, int) and number.is_integer() else number
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    return _as_tuple(value) if "tuple" in str(field.type) else value


def _as_tuple(value: object) -> tuple[object, ...]:
    """Returns a tuple of the values of a parameter that takes several.

    >>> _as_tuple("m-etf, m-topo"), _as_tuple(1.5)
    (('m-etf', 'm-topo'), (1.5,))
    """
    if isinstance(value, str):
        return tuple(item.strip() for item in value.split(","))
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
