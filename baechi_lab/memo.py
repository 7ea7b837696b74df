"""Cache of the results of stages, by the content of their inputs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from .identity import Unidentified, content_digest


def content(value: object) -> Hashable:
    """Returns a hashable that is equal for equal contents; for what cannot be identified, one that equals no other.

    >>> content({"a": [1, 2]}) == content({"a": [1, 2]}), content(object()) == content(object())
    (True, False)
    """
    try:
        return content_digest(value)
    except Unidentified:
        return object()


class Memo:
    """The last `size` results of every stage; `recall` computes only what it does not hold.

    A stage that reads only a part of its inputs says so by a method `depends(*inputs)`, which returns that part.
    What cannot be identified by its content (see `identity`), such as a function that reads a file, is computed each time.
    Safe to share between threads; two threads that ask for the same result at once may both compute it.
    """

    def __init__(self, size: int = 16):
        self.size = size
        self._results: dict[str, OrderedDict[str, Any]] = {}
        self._lock = threading.Lock()

    def recall(self, name: str, stage: Callable[..., object], *inputs: object, fresh: bool = False) -> tuple[Any, bool]:
        """Returns `stage(*inputs)` and whether it was computed: it was not remembered, or `fresh` is true."""
        depends = getattr(stage, "depends", lambda *all_of_them: all_of_them)
        key = content((stage, *depends(*inputs)))
        if not isinstance(key, str):
            return stage(*inputs), True
        with self._lock:
            results = self._results.setdefault(name, OrderedDict())
            if key in results and not fresh:
                results.move_to_end(key)
                return results[key], False
        value = stage(*inputs)
        with self._lock:
            results[key] = value
            while len(results) > self.size:
                results.popitem(last=False)
        return value, True

    def __reduce__(self) -> tuple[type[Memo], tuple[int]]:
        # What is remembered changes no result, and another thread may add to it while a function that uses it is identified.
        return type(self), (self.size,)

    def clear(self) -> None:
        """Forgets all results."""
        with self._lock:
            self._results.clear()
