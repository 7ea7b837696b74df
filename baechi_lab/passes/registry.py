"""Passes by name."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import InvalidInput, UnknownNameError
from .base import Pass

BUILT_IN = {
    "colocation": "colocation:Colocation",
    "coplacement": "coplacement:CoPlacement",
    "fusion": "fusion:Fusion",
    "forward-only": "forward_only:ForwardOnly",
    "replicate": "replicate:Replicate",
    "unroll": "unroll:Unroll",
}
"""Name -> module:class below `baechi_lab.passes`."""


def pass_class(name: str) -> type[Pass]:
    """The class registered under `name`; `UnknownNameError` suggests the nearest."""
    if name not in BUILT_IN:
        raise UnknownNameError.of("pass", name, BUILT_IN)
    module, _, attribute = BUILT_IN[name].partition(":")
    found: type[Pass] = getattr(importlib.import_module(f"baechi_lab.passes.{module}"), attribute)
    return found


def make_pass(chosen: str | Pass, **params: Any) -> Pass:
    """The parameter object for a name and its parameters, validated; an object passes through.

    >>> make_pass("coplacement", backward=False).get_params()["backward"]
    False
    """
    if isinstance(chosen, Pass):
        if params:
            raise InvalidInput(f"parameters {sorted(params)} given beside a pass object; put them into the object")
        made = chosen
    else:
        cls = pass_class(str(chosen))
        for key in params:
            if key not in cls.__dataclass_fields__:
                raise UnknownNameError.of(f"parameter of pass {cls.name!r}:", key, cls.__dataclass_fields__)
        made = cls(**params)
    made.validate()
    return made


def list_passes() -> dict[str, str]:
    """Every pass with its one line.

    >>> sorted(list_passes())
    ['colocation', 'coplacement', 'forward-only', 'fusion', 'replicate', 'unroll']
    """
    return {name: (pass_class(name).__doc__ or "").strip().splitlines()[0] for name in BUILT_IN}
