"""Pickling of records for other processes."""

from __future__ import annotations

from dataclasses import fields
from types import MappingProxyType
from typing import Any


class Picklable:
    """Mixin for frozen dataclasses with read-only mappings, which Python cannot pickle.

    The copy is built by the constructor, which checks it.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.init}  # type: ignore[arg-type]
        return _make_record, (
            type(self),
            {k: dict(v) if isinstance(v, MappingProxyType) else v for k, v in values.items()},
        )


def _make_record(record: Any, values: dict[str, object]) -> Any:
    return record(**values)
