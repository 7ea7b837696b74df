"""The inputs of a step, checked against what it was traced with."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import check_whole
from ..errors import InvalidInput
from ..graph.step import Step, TensorSpec

Batch = tuple[NDArray[np.generic], ...]


def checked_batches(step: Step, inputs: Sequence[object] | None) -> list[Batch]:
    """Returns one tuple of arrays per batch. `inputs` are one batch, a list of batches, or None for the example inputs."""
    if inputs is None:
        return [checked_batch(step, step.example_inputs)]
    batches = [checked_batch(step, b) for b in _one_by_one(step, inputs)]
    if not batches:
        raise InvalidInput("inputs is an empty list; give one batch at least, or None for the example inputs")
    return batches


def _one_by_one(step: Step, inputs: object) -> list[Any]:
    """Returns the batches in `inputs`: one batch, or a list of tuples, lists or dicts. Such a list may also be one batch."""
    if isinstance(inputs, list) and all(isinstance(b, (tuple, list)) for b in inputs):
        return inputs
    if isinstance(inputs, list) and all(isinstance(b, dict) for b in inputs):
        return [inputs] if len(list(_leaves(tuple(inputs)))) == len(step.inputs) else inputs
    if hasattr(inputs, "shape"):
        return [(inputs,)]
    if not isinstance(inputs, (tuple, list, dict)):
        kind = type(inputs).__name__
        raise InvalidInput(
            f"inputs is a {kind}; give one batch or a list of batches (of an iterator or a data set the first ones)"
        )
    return [inputs]


def checked_batch(step: Step, batch: Sequence[object]) -> Batch:
    """Returns the arrays of one batch in the step's types. Raises `InvalidInput` that names an input that does not match."""
    batch = _flat(step, batch)
    arrays = []
    for spec, value in zip(step.inputs, batch, strict=True):
        array = np.asarray(value)
        fits = len(array.shape) == len(spec.shape) and all(
            step_size is None or step_size == size for step_size, size in zip(spec.shape, array.shape, strict=True)
        )
        if not fits:
            raise InvalidInput(f"input {spec.name!r} has shape {array.shape}; the step takes {spec.shape}")
        arrays.append(_as_type(array, spec.dtype, spec.name))
    return tuple(arrays)


def _flat(step: Step, batch: Any) -> list[object]:
    """Returns one value per input of the step, in the order of tracing. Dicts, ragged and sparse tensors are flattened.

    Tuples are flattened only if the batch does not have one value per input, because a tuple may also be an array.
    """
    is_nested = isinstance(batch, dict) or any(isinstance(v, dict) or _is_composite(v) for v in batch)
    one_value_per_input = len(batch) == len(step.inputs) and not is_nested
    values = list(batch) if one_value_per_input else list(_leaves(tuple(batch) if isinstance(batch, list) else batch))
    if len(values) != len(step.inputs):
        raise InvalidInput(f"step {step.name!r} takes {len(step.inputs)} inputs; {len(values)} were given")
    return values


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for key in sorted(value):
            yield from _leaves(value[key])
    elif isinstance(value, tuple):
        for element in value:
            yield from _leaves(element)
    elif _is_composite(value):
        yield from sys.modules["tensorflow"].nest.flatten(value, expand_composites=True)
    else:
        yield value


def _is_composite(value: object) -> bool:
    """Whether this is a ragged or sparse tensor. TensorFlow is loaded already if it is."""
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(value, (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices))


def _as_type(array: NDArray[np.generic], dtype: str, name: str) -> NDArray[np.generic]:
    if dtype == "string" or array.dtype.name == dtype:
        return array
    if dtype == "bfloat16":
        import ml_dtypes

        target: Any = np.dtype(ml_dtypes.bfloat16)
    else:
        target = np.dtype(dtype)
    if not np.can_cast(array.dtype, target, "same_kind"):
        raise InvalidInput(f"input {name!r} has type {array.dtype.name}; the step takes {dtype}")
    return array.astype(target)


def whole_batches(step: Step, micro_batches: int, inputs: Sequence[object] | None) -> list[object] | None:
    """Returns, per batch, the inputs of all its micro-batches (see `split_batch`); None for the example inputs."""
    if inputs is None:
        return None
    return [split_batch(step, micro_batches, batch) for batch in _one_by_one(step, inputs)]


def split_batch(step: Step, micro_batches: int, batch: object) -> tuple[object, ...]:
    """Splits a whole batch into the inputs of its micro-batches, those of micro-batch 0 first.

    An input is split along the axis on which it is `micro_batches` times as long as the step's input. An input with
    the step's own shape goes to every micro-batch unchanged.

    Raises:
        InvalidInput: an input cannot be split evenly, or no input of the batch is to be split.
    """
    count = check_whole("micro_batches", micro_batches)
    arrays = [np.asarray(value) for value in _flat(step, batch if isinstance(batch, (tuple, list, dict)) else (batch,))]
    axes = [_axis(spec, array.shape, count) for spec, array in zip(step.inputs, arrays, strict=True)]
    if count > 1 and all(axis is None for axis in axes) and any(array.ndim for array in arrays):
        spec = next(s for s, array in zip(step.inputs, arrays, strict=True) if array.ndim)
        raise InvalidInput(
            f"input {spec.name!r} has the shape {spec.shape} of one micro-batch; a whole batch has {count} times as many samples"
        )
    slices = [
        [array] * count if axis is None else np.split(array, count, axis)
        for axis, array in zip(axes, arrays, strict=True)
    ]
    return tuple(pieces[k] for k in range(count) for pieces in slices)


def first_batch(step: Step, inputs: Sequence[object] | None) -> object | None:
    """Returns the first batch in `inputs`, which are as in `checked_batches`; None if there is none."""
    return None if inputs is None else next(iter(_one_by_one(step, inputs)), None)


def batch_axes(step: Step, micro_batches: int, inputs: Sequence[object] | None) -> dict[str, int]:
    """Returns the axis along which each input is split, by name; without `inputs`, axis 0. Other inputs are left out."""
    batch = first_batch(step, inputs)
    if batch is not None:
        arrays = [
            np.asarray(value) for value in _flat(step, batch if isinstance(batch, (tuple, list, dict)) else (batch,))
        ]
        cut = {s.name: _axis(s, a.shape, micro_batches) for s, a in zip(step.inputs, arrays, strict=True)}
        return {name: axis for name, axis in cut.items() if axis is not None}
    return {spec.name: 0 for spec in step.inputs if spec.shape}


def _axis(spec: TensorSpec, shape: tuple[int, ...], count: int) -> int | None:
    """Returns the axis to split, or None if the input has the step's shape."""
    step_shape = spec.shape
    if len(step_shape) == len(shape):
        differing = [a for a, (step_size, size) in enumerate(zip(step_shape, shape, strict=True)) if step_size != size]
        if not differing:
            return None
        if len(differing) == 1 and shape[differing[0]] == count * (step_shape[differing[0]] or 0):
            return differing[0]
        if len(differing) == 1 and shape[differing[0]] % count:
            raise InvalidInput(
                f"input {spec.name!r} has {shape[differing[0]]} along axis {differing[0]}; "
                f"it must be a multiple of micro_batches, which is {count}"
            )
    raise InvalidInput(
        f"input {spec.name!r} has shape {shape}; {count} micro-batches of the step's {step_shape} make it longer along one axis"
    )
