"""Remembering what a stage returned, by the content of everything it depends on."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from .graph import Cluster, OpGraph, Placement, Step


class _Same:
    """Equal only to the very same object, which it keeps alive, so that its id cannot be reused."""

    def __init__(self, value: object):
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value


def content(value: Any) -> Hashable:
    """A hashable that is equal for equal contents: records by their content key, arrays by their bytes.

    An object that is neither a record, a parameter object nor hashable is equal to itself only.

    >>> content({"a": [1, 2]}) == content({"a": [1, 2]})
    True
    """
    if isinstance(value, (OpGraph, Cluster)):
        return type(value).__name__, value.content_key
    if isinstance(value, Step):
        return "Step", value.key, _digest(*value.initial_values, *value.example_inputs)
    if isinstance(value, Placement):
        rank = value.rank
        columns = [a for a in (value.device, rank, value.group_of) if a is not None]
        return "Placement", value.graph_key, value.source_key, rank is None, value.replicas, _digest(*columns)
    if isinstance(value, np.ndarray):
        return "array", _digest(value)
    if isinstance(value, Mapping):
        return "mapping", tuple((k, content(value[k])) for k in sorted(value, key=repr))
    if isinstance(value, (list, tuple)):
        return type(value).__name__, tuple(content(x) for x in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), tuple((f.name, content(getattr(value, f.name))) for f in fields(value))
    return (type(value), value) if isinstance(value, (str, int, float, bool, bytes, type(None))) else _Same(value)


def _digest(*arrays: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for given in arrays:
        array = np.ascontiguousarray(given)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
    return digest.hexdigest()


class Memo:
    """The last `size` results of every stage; `recall` computes only what it does not hold.

    A stage that reads only a part of its inputs says so by a method `depends(*inputs)`, which returns that part.
    Safe to share between threads; two threads that ask for the same result at once may both compute it.
    """

    def __init__(self, size: int = 16):
        self.size = size
        self._held: dict[str, OrderedDict[Hashable, Any]] = {}
        self._lock = threading.Lock()

    def recall(self, name: str, stage: Callable[..., Any], *inputs: Any, fresh: bool = False) -> tuple[Any, bool]:
        """`stage(*inputs)` and whether it was computed: because it was not held, or because `fresh` asks for it."""
        depends = getattr(stage, "depends", lambda *all_of_them: all_of_them)
        key = (content(stage), tuple(content(x) for x in depends(*inputs)))
        with self._lock:
            held = self._held.setdefault(name, OrderedDict())
            if key in held and not fresh:
                held.move_to_end(key)
                return held[key], False
        value = stage(*inputs)
        with self._lock:
            held[key] = value
            while len(held) > self.size:
                held.popitem(last=False)
        return value, True

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._held.clear()
