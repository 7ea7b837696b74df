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

Batch = tuple[NDArray[Any], ...]


def checked_batches(step: Step, inputs: Sequence[Any] | None) -> list[Batch]:
    """One tuple of arrays per batch: the example inputs, one batch, or a list of batches used in turn."""
    if inputs is None:
        return [checked_batch(step, step.example_inputs)]
    batches = [checked_batch(step, b) for b in _one_by_one(step, inputs)]
    if not batches:
        raise InvalidInput("inputs is an empty list; give one batch at least, or None for the example inputs")
    return batches


def _one_by_one(step: Step, inputs: Any) -> list[Any]:
    """The batches that `inputs` are: a list of tuples, lists or dicts (which may also be one batch), or one batch."""
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


def checked_batch(step: Step, batch: Sequence[Any]) -> Batch:
    """The arrays of one batch in the step's types. Raises `InvalidInput` naming the input that does not match."""
    batch = _flat(step, batch)
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


def _flat(step: Step, batch: Any) -> list[Any]:
    """One value per input of the step: dicts and ragged and sparse tensors as their parts, in tracing's order.

    Tuples are taken apart only where the batch has no value for every input: a tuple may also be an array.
    """
    nested = isinstance(batch, dict) or any(isinstance(v, dict) or _is_composite(v) for v in batch)
    whole = len(batch) == len(step.inputs) and not nested
    values = list(batch) if whole else list(_leaves(tuple(batch) if isinstance(batch, list) else batch))
    if len(values) != len(step.inputs):
        raise InvalidInput(f"step {step.name!r} takes {len(step.inputs)} inputs; {len(values)} were given")
    return values


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key in sorted(value):
            yield from _leaves(value[key])
    elif isinstance(value, tuple):
        for part in value:
            yield from _leaves(part)
    elif _is_composite(value):
        yield from sys.modules["tensorflow"].nest.flatten(value, expand_composites=True)
    else:
        yield value


def _is_composite(value: Any) -> bool:
    """Is this a ragged or sparse tensor? Who has one has loaded TensorFlow."""
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(value, (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices))


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


def whole_batches(step: Step, micro_batches: int, inputs: Sequence[Any] | None) -> list[Any] | None:
    """Per batch the inputs of all its micro-batches (see `divided`); None stays None, the example for each of them."""
    if inputs is None:
        return None
    return [divided(step, micro_batches, batch) for batch in _one_by_one(step, inputs)]


def divided(step: Step, micro_batches: int, batch: Any) -> tuple[Any, ...]:
    """The inputs of every micro-batch, one behind the other, from those of the whole batch.

    An input is cut along the axis on which it is `micro_batches` times as long as the step's; one that has the step's
    own shape goes to every micro-batch as it is.

    Raises:
        InvalidInput: an input that does not divide, or a batch of which nothing is to be divided.
    """
    count = check_whole("micro_batches", micro_batches)
    arrays = [np.asarray(value) for value in _flat(step, batch if isinstance(batch, (tuple, list, dict)) else (batch,))]
    axes = [_axis(spec, array.shape, count) for spec, array in zip(step.inputs, arrays, strict=True)]
    if count > 1 and all(axis is None for axis in axes) and any(array.ndim for array in arrays):
        spec = next(s for s, array in zip(step.inputs, arrays, strict=True) if array.ndim)
        raise InvalidInput(
            f"input {spec.name!r} has the shape {spec.shape} of one micro-batch; a whole batch has {count} times as many samples"
        )
    parts = [
        [array] * count if axis is None else np.split(array, count, axis)
        for axis, array in zip(axes, arrays, strict=True)
    ]
    return tuple(part[k] for k in range(count) for part in parts)


def batch_axes(step: Step, micro_batches: int, inputs: Sequence[Any] | None) -> dict[str, int]:
    """The axis along which each input is cut, by name; nothing for an input that is not cut. Without `inputs` the first."""
    batch = None if inputs is None else next(iter(_one_by_one(step, inputs)), None)
    if batch is not None:
        arrays = [
            np.asarray(value) for value in _flat(step, batch if isinstance(batch, (tuple, list, dict)) else (batch,))
        ]
        cut = {s.name: _axis(s, a.shape, micro_batches) for s, a in zip(step.inputs, arrays, strict=True)}
        return {name: axis for name, axis in cut.items() if axis is not None}
    return {spec.name: 0 for spec in step.inputs if spec.shape}


def _axis(spec: TensorSpec, shape: tuple[int, ...], count: int) -> int | None:
    """The axis to cut, None for an input as the step takes it."""
    wanted = spec.shape
    if len(wanted) == len(shape):
        other = [a for a, (want, have) in enumerate(zip(wanted, shape, strict=True)) if want != have]
        if not other:
            return None
        if len(other) == 1 and shape[other[0]] == count * (wanted[other[0]] or 0):
            return other[0]
        if len(other) == 1 and shape[other[0]] % count:
            raise InvalidInput(
                f"input {spec.name!r} has {shape[other[0]]} along axis {other[0]}; "
                f"it must be a multiple of micro_batches, which is {count}"
            )
    raise InvalidInput(
        f"input {spec.name!r} has shape {shape}; {count} micro-batches of the step's {wanted} make it longer along one axis"
    )
