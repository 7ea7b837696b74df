"""The machine-learning frameworks, found by name: what the rooms above ask of a framework without importing it.

Each stage has a module `framework` per framework, `executors/torch/framework.py` for one, that follows the stage's protocol
(`Profiler`, `Executor`, `Exporter`). It is imported when somebody asks for it, so that the records need neither TensorFlow
nor PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .errors import InvalidInput, MissingPackage, UnknownNameError

FRAMEWORKS = {"tensorflow": "TensorFlow", "torch": "PyTorch"}
"""Package -> the framework's name in messages."""


def framework_of(subject: object) -> str:
    """The framework of a step or a module; `tensorflow` where nothing says otherwise.

    >>> import torch
    >>> framework_of(torch.nn.Linear(2, 2)), framework_of(lambda x: x)
    ('torch', 'tensorflow')
    """
    torch = sys.modules.get("torch")  # a module of it exists only if it is loaded
    is_module = torch is not None and isinstance(subject, torch.nn.Module)
    return "torch" if is_module else str(getattr(subject, "framework", "tensorflow"))


def framework_part(room: str, framework: str) -> Any:
    """What `framework` provides for `profilers`, `executors` or `exporters`.

    Raises:
        UnknownNameError: an unknown framework.
        MissingPackage: it is not installed.

    >>> framework_part("executors", "tensorflow").attached_cluster(virtual=2, kind="cpu").n
    2
    """
    if framework not in FRAMEWORKS:
        raise UnknownNameError.of("framework", framework, FRAMEWORKS)
    require_framework(framework, f"a cluster or step of {FRAMEWORKS[framework]}")
    return import_module(f"baechi_lab.{room}.{framework}.framework")


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


def options_of(
    framework: str, options: Mapping[str, object], known: Mapping[str, Collection[str]], function: str
) -> dict[str, Any]:
    """The options of `function` that are set, all of them options of `framework`.

    Args:
        framework: `tensorflow` or `torch`.
        options: by name; None and empty ones of the other framework are not set.
        known: the names of each framework's options.
        function: the public function, for messages.

    Raises:
        InvalidInput: an option of the other framework.
        TypeError: an option that neither has.

    >>> options_of("torch", {"virtual": 2}, {"tensorflow": ["virtual"], "torch": []}, "execute")
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: virtual is 2; that option is for TensorFlow steps, not for a PyTorch step
    """
    for name, value in options.items():
        homes = [FRAMEWORKS[home] for home in known if name in known[home]]
        if not homes:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
        if name not in known[framework] and value is not None and value != ():
            text = " ".join(f"{value!r:.60}".split())
            raise InvalidInput(
                f"{name} is {text}; that option is for {homes[0]} steps, not for a {FRAMEWORKS[framework]} step"
            )
    return {name: value for name, value in options.items() if name in known[framework]}
