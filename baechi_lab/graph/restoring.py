"""Copies trained values into the variables that a step was traced from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput


def copy_back(values: Mapping[str, NDArray[np.generic]], model: object) -> int:
    """Assigns `values`, by their names in the step, to the variables of `model`; returns how many were copied.

    `model` is a Keras model (the variables of its optimizer and metrics included) or an iterable of variables, which `assign`.

    Raises:
        InvalidInput: a value that has no counterpart of its name and shape; nothing is copied then.

    >>> import numpy as np
    >>> class Variable:
    ...     name, shape = "w:0", (2,)
    ...     def assign(self, value):
    ...         self.value = value
    >>> copy_back({"w": np.ones(2)}, [Variable()])
    1
    """
    # Variables by the names that tracing gives them: a Keras variable's path, else its name, as a legal op name.
    variables: list[Any] = list(_variables(model))
    optimizer = getattr(model, "optimizer", None)
    variables += list(_variables(optimizer)) if optimizer is not None else []
    for metric in getattr(model, "metrics", ()):  # the losses of several outputs have means of their own
        variables += metric.variables
    parameters: dict[str, Any] = {}
    for variable in variables:
        path = getattr(variable, "path", None) or variable.name.split(":")[0]
        parameters.setdefault(re.sub(r"[^A-Za-z0-9_.\-/]", "_", path).strip("/"), variable)
    for name, value in values.items():
        if name not in parameters or tuple(parameters[name].shape) != value.shape:
            raise InvalidInput(f"variable {name!r} of shape {value.shape} has no counterpart to copy it to")
    for name, value in values.items():
        parameters[name].assign(value)
    return len(values)


def _variables(owner: Any) -> Iterable[object]:
    return owner.variables if hasattr(owner, "variables") else owner
