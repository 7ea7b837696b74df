"""Converts example inputs to tensors for tracing: arrays, tensor specs, ragged and sparse tensors, and texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InvalidInput

if TYPE_CHECKING:
    from tensorflow import Tensor


def as_tensors(value: object, label: str) -> Any:
    """Replaces arrays, pandas tables and tensor specs by tensors, also within nests; Python values stay as they are.

    Args:
        value: one example input of the step `label`.

    Raises:
        InvalidInput: `value` has an open size or objects that are neither numbers nor texts, or is a variable, a dataset or
            an iterator.

    >>> as_tensors({"text": np.array(["a", "bc"], dtype=object)}, "step")["text"].dtype.name
    'string'
    """
    import tensorflow as tf

    if isinstance(value, dict):
        return {k: as_tensors(v, label) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        elements = [as_tensors(v, label) for v in value]
        return type(value)(*elements) if hasattr(value, "_fields") else type(value)(elements)
    if isinstance(value, tf.TensorSpec):
        if not value.shape.is_fully_defined():
            raise InvalidInput(f"example input {value} leaves a size open; costs need the sizes of a real batch")
        return tf.zeros(value.shape, value.dtype) if value.dtype != tf.string else tf.fill(value.shape, "")
    if hasattr(value, "assign_add"):
        kind = type(value).__name__
        raise InvalidInput(
            f"an example input of step {label!r} is a {kind}; let the step read it, and hand over what is fed"
        )
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "Mm":
        raise InvalidInput(
            f"an example input of step {label!r} holds {value.dtype} values, which no tensor has; give numbers"
        )
    # What tf.function converts to a tensor: NumPy's arrays, a pandas column or table, an array of another framework.
    if hasattr(value, "__array__") and not (tf.is_tensor(value) or isinstance(value, type)):
        array = np.asarray(value)
        if array.dtype.kind == "O" and not all(isinstance(x, (str, bytes)) for x in array.reshape(-1)):
            raise InvalidInput(
                f"an example input of step {label!r} is an array of Python objects; give numbers or texts, and for rows of "
                "different lengths a tf.ragged.constant"
            )
        return tf.constant(array)
    if isinstance(value, (tf.data.Dataset, Iterator)):
        first = "next(iter(dataset))" if isinstance(value, tf.data.Dataset) else "next(iterator)"
        raise InvalidInput(
            f"an example input of step {label!r} is a {type(value).__name__}; let the step take one batch, and give the "
            f"first one, {first}"
        )
    if hasattr(value, "tocoo"):
        kind = type(value).__name__
        raise InvalidInput(f"an example input of step {label!r} is a {kind} of SciPy; give a tf.sparse.SparseTensor")
    return value


def leaves(examples: object) -> list[Tensor]:
    """Returns the tensors of a nest in TensorFlow's order; ragged and sparse tensors as their components."""
    import tensorflow as tf

    return [x for x in tf.nest.flatten(examples, expand_composites=True) if tf.is_tensor(x)]
