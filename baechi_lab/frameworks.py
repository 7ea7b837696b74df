"""The machine-learning frameworks by name, so that other packages can use a framework without importing it.

Each stage has a module `framework` per framework, such as `executors/torch/framework.py`, that follows the stage's protocol
(`Profiler`, `Executor`, `Exporter`). It is imported on first use, so that the records need neither TensorFlow nor PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .errors import InvalidInput, MissingPackage, UnknownNameError, in_short

FRAMEWORKS = {"tensorflow": "TensorFlow", "torch": "PyTorch"}
"""Names of the frameworks in messages, by package."""


def framework_of(subject: object) -> str:
    """Returns the framework of a step or a module: `torch` for PyTorch's, else `tensorflow`."""
    torch = sys.modules.get("torch")  # a module of it exists only if it is loaded
    is_module = torch is not None and isinstance(subject, torch.nn.Module)
    return "torch" if is_module else str(getattr(subject, "framework", "tensorflow"))


def framework_part(package: str, framework: str) -> Any:
    """Imports the module `framework` of a framework in `profilers`, `executors` or `exporters`.

    Raises:
        UnknownNameError: the framework is unknown.
        MissingPackage: the framework is not installed.
    """
    if framework not in FRAMEWORKS:
        raise UnknownNameError.of("framework", framework, FRAMEWORKS)
    require_framework(framework, f"a cluster or step of {FRAMEWORKS[framework]}")
    return import_module(f"baechi_lab.{package}.{framework}.framework")


def require_framework(name: str, purpose: str) -> None:
    """Raises `MissingPackage` unless the framework's package is installed; it is not imported.

    >>> require_framework("tensorflow", "bl.trace")
    """
    if sys.modules.get(name) is not None:
        return
    try:
        is_installed = find_spec(name) is not None
    except ImportError:  # an import hook rejects it
        is_installed = False
    if not is_installed:
        raise MissingPackage.of(name, name, purpose)


def options_of(
    framework: str, options: Mapping[str, object], known_options: Mapping[str, Collection[str]], function: str
) -> dict[str, Any]:
    """Returns the options of `function` that are set; raises for an option of the other framework.

    Args:
        framework: `tensorflow` or `torch`.
        options: values by name; options of the other framework that are None or empty are not set.
        known_options: the names of each framework's options.
        function: the public function, for messages.

    Raises:
        InvalidInput: an option belongs to the other framework.
        TypeError: neither framework has an option.

    >>> options_of("torch", {"virtual": 2}, {"tensorflow": ["virtual"], "torch": []}, "execute")
    Traceback (most recent call last):
    baechi_lab.errors.InvalidInput: virtual is 2; that option is for TensorFlow steps, not for a PyTorch step
    """
    for name, value in options.items():
        owners = [FRAMEWORKS[owner] for owner in known_options if name in known_options[owner]]
        if not owners:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
        if name not in known_options[framework] and value is not None and value != ():
            text = " ".join(f"{in_short(value)}".split())
            raise InvalidInput(
                f"{name} is {text}; that option is for {owners[0]} steps, not for a {FRAMEWORKS[framework]} step"
            )
    return {name: value for name, value in options.items() if name in known_options[framework]}
