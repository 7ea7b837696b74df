"""Name scopes of ops. A backward op has the scopes of its forward op."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_PREFIXES = ("gradient_tape", "gradients", "optimizer")


def scope_of(name: str) -> tuple[str, ...]:
    """Returns the scopes around an op, outermost first; an op without scopes is a scope of its own.

    >>> scope_of("gradient_tape/encoder/layer2/MatMul")
    ('encoder', 'layer2')
    """
    names = name.split("/")
    while len(names) > 2 and names[0] in _PREFIXES:
        names = names[1:]
    return tuple(names[:-1] or names)


def scope_labels(scopes: Sequence[tuple[str, ...]], depth: int) -> NDArray[np.int64]:
    """Numbers each op's outermost `depth` scopes: int64[len(scopes)], in the order in which they first occur.

    >>> scope_labels([("a", "b"), ("c",), ("a", "d")], 1).tolist()
    [0, 1, 0]
    """
    numbers: dict[tuple[str, ...], int] = {}
    return np.array([numbers.setdefault(scope[:depth], len(numbers)) for scope in scopes], dtype=np.int64)
