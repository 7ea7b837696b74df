"""The machine-learning frameworks, found by name: what the records ask of a framework without importing it.

A framework is a module that follows `Framework`. It is imported when somebody asks for it, so that the records need
neither TensorFlow nor PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, cast

from .errors import MissingPackage, UnknownNameError


class Framework(Protocol):
    """What a framework's module provides."""

    def attached_cluster(self, **options: Any) -> Any:
        """A `Cluster` of the devices that the framework sees on this machine."""

    def step_timer(self, step: Any, cluster: Any, steps: int, warmup: int) -> Callable[[Any], float]:
        """A function that runs the step under a placement and returns its seconds."""


_MODULES = {"tensorflow": "baechi_lab.executors.tensorflow.framework", "torch": "baechi_lab.executors.torch.framework"}


def framework(name: str) -> Framework:
    """The framework of that name, `tensorflow` or `torch`.

    Raises:
        UnknownNameError: for other names.
        MissingPackage: it is not installed.

    >>> framework("tensorflow").attached_cluster(virtual=2, kind="cpu").n
    2
    """
    if name not in _MODULES:
        raise UnknownNameError.of("framework", name, _MODULES)
    require_framework(name, f"a cluster or step of {TITLES[name]}")
    return cast(Framework, import_module(_MODULES[name]))


TITLES = {"tensorflow": "TensorFlow", "torch": "PyTorch"}
"""Package -> the framework's name in messages."""


def require_framework(name: str, purpose: str) -> None:
    """Raises `MissingPackage` unless the framework's package is installed; it is not imported.

    >>> require_framework("tensorflow", "bl.trace")
    """
    if sys.modules.get(name) is not None:
        return
    try:
        installed = find_spec(name) is not None
    except ImportError:  # somebody's import hook refuses it
        installed = False
    if not installed:
        raise MissingPackage.of(name, name, purpose)
