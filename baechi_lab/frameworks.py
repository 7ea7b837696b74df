"""The machine-learning frameworks, found by name: what the records ask of a framework without importing it.

A framework is a module that follows `Framework`. It is imported when somebody asks for it, so that the records need
neither TensorFlow nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol, cast

from .errors import UnknownNameError


class Framework(Protocol):
    """What a framework's module provides."""

    def attached_cluster(self, **options: Any) -> Any:
        """A `Cluster` of the devices that the framework sees on this machine."""

    def step_timer(self, step: Any, cluster: Any, steps: int, warmup: int) -> Callable[[Any], float]:
        """A function that runs the step under a placement and returns its seconds."""


_MODULES = {"tensorflow": "baechi_lab.executors.tensorflow.framework", "torch": "baechi_lab.executors.torch.framework"}


def framework(name: str) -> Framework:
    """The framework of that name, `tensorflow` or `torch`. Raises `UnknownNameError` for others.

    >>> framework("tensorflow").attached_cluster(virtual=2, kind="cpu").n
    2
    """
    if name not in _MODULES:
        raise UnknownNameError.of("framework", name, _MODULES)
    return cast(Framework, import_module(_MODULES[name]))
