"""A step as the header and arrays of a message, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph.step import Step, TensorSpec

_SPECS = ("inputs", "outputs", "variables")


def step_header(step: Step) -> dict[str, object]:
    """Returns the texts of a step, as the header of a message."""
    specs = {key: [[s.name, s.dtype, list(s.shape)] for s in getattr(step, key)] for key in _SPECS}
    return {"name": step.name, "updates": list(step.updates), **specs}


def step_arrays(step: Step) -> tuple[NDArray[np.generic], ...]:
    """Returns the graph's bytes and the variables' values."""
    return (np.frombuffer(step.graph_def, np.uint8), *step.initial_values)


def read_step(
    header: dict[str, Any], arrays: Sequence[NDArray[np.generic]]
) -> tuple[Step, tuple[NDArray[np.generic], ...]]:
    """Returns the step of a message, and the batches of inputs that follow it; the first is the step's example."""
    specs = {key: tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in header[key]) for key in _SPECS}
    values = 1 + len(specs["variables"])
    batches = tuple(arrays[values:])
    step = Step(
        name=header["name"],
        graph_def=arrays[0].tobytes(),
        inputs=specs["inputs"],
        outputs=specs["outputs"],
        example_inputs=batches[: len(specs["inputs"])],
        variables=specs["variables"],
        initial_values=tuple(arrays[1:values]),
        updates=tuple(header["updates"]),
    )
    return step, batches
