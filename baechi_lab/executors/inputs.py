"""The inputs of a step, checked against what it was traced with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..graph.step import Step

Batch = tuple[NDArray[Any], ...]


def checked_batches(step: Step, inputs: Sequence[Any] | None) -> list[Batch]:
    """One tuple of arrays per batch: the example inputs, one batch, or a list of batches used in turn."""
    if inputs is None:
        return [checked_batch(step, step.example_inputs)]
    several = isinstance(inputs, list) and all(isinstance(b, (tuple, list)) for b in inputs)
    batches = [checked_batch(step, b) for b in (inputs if several else [inputs])]
    if not batches:
        raise InvalidInput("inputs is an empty list; give one batch at least, or None for the example inputs")
    return batches


def checked_batch(step: Step, batch: Sequence[Any]) -> Batch:
    """The arrays of one batch in the step's types. Raises `InvalidInput` naming the input that does not match."""
    if len(batch) != len(step.inputs):
        raise InvalidInput(f"step {step.name!r} takes {len(step.inputs)} inputs; {len(batch)} were given")
    arrays = []
    for spec, value in zip(step.inputs, batch, strict=True):
        array = np.asarray(value)
        fits = len(array.shape) == len(spec.shape) and all(
            want is None or want == have for want, have in zip(spec.shape, array.shape, strict=True)
        )
        if not fits:
            raise InvalidInput(f"input {spec.name!r} has shape {array.shape}; the step takes {spec.shape}")
        arrays.append(_as_type(array, spec.dtype, spec.name))
    return tuple(arrays)


def _as_type(array: NDArray[Any], dtype: str, name: str) -> NDArray[Any]:
    if dtype == "string" or array.dtype.name == dtype:
        return array
    if dtype == "bfloat16":
        import ml_dtypes

        wanted: Any = np.dtype(ml_dtypes.bfloat16)
    else:
        wanted = np.dtype(dtype)
    if not np.can_cast(array.dtype, wanted, "same_kind"):
        raise InvalidInput(f"input {name!r} has type {array.dtype.name}; the step takes {dtype}")
    return array.astype(wanted)
