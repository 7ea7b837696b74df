"""Columns as bytes, one buffer per column: the canvas views receive them instead of JSON."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

Columns = dict[str, bytes]
"""Column name -> little-endian bytes; the JavaScript side knows each column's type by its name."""

TYPES: dict[str, str] = {"f8": "<f8", "f4": "<f4", "i4": "<i4", "u2": "<u2", "u1": "|u1"}


def pack(**columns: tuple[str, object]) -> Columns:
    """Returns the bytes of each column, given as `name=(type, values)`; types are the keys of `TYPES`."""
    return {name: np.ascontiguousarray(values, dtype=TYPES[kind]).tobytes() for name, (kind, values) in columns.items()}


def pack_texts(texts: Iterable[str]) -> bytes:
    """Returns texts as UTF-8, one per line; a line break inside a text becomes a space."""
    return "\n".join(t.replace("\n", " ") for t in texts).encode()
