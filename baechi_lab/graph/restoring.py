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
    repeated_names: set[str] = set()
    for variable in {id(v): v for v in variables}.values():
        path = getattr(variable, "path", None) or variable.name.split(":")[0]
        name = re.sub(r"[^A-Za-z0-9_.\-/]", "_", path).strip("/")
        if parameters.setdefault(name, variable) is not variable:
            repeated_names.add(name)
    for name, value in values.items():
        if name in parameters and name not in repeated_names and tuple(parameters[name].shape) == value.shape:
            continue
        reason = "has no counterpart to copy it to"
        if name in repeated_names or re.sub(r"_\d+$", "", name) in repeated_names:
            reason = "cannot be told from others that have the same path in the model"
        raise InvalidInput(
            f"variable {name!r} of shape {value.shape} {reason}; nothing was copied: assign the values of "
            "run.info['variables'] yourself, by these names"
        )
    for name, value in values.items():
        parameters[name].assign(value)
    return len(values)


def _variables(owner: Any) -> Iterable[object]:
    return owner.variables if hasattr(owner, "variables") else owner
