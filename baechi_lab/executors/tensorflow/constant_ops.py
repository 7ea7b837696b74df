"""Evaluation of ops whose inputs are constants or sizes, such as numbers of entries.

The analysis of a step's batch needs the values: a sum that is divided by the number of its entries is a mean, and micro-batches
must treat it as one. Only ops that compute sizes and shapes are here, in NumPy, because the graph must not run for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

_MOST_ENTRIES = 1 << 16  # of a constant; larger ones are not evaluated


def _slice(
    node: NodeDef,
    x: NDArray[np.generic],
    begin_indices: NDArray[np.generic],
    end_indices: NDArray[np.generic],
    steps: NDArray[np.generic],
) -> NDArray[Any] | None:
    """Returns `x[begin:end]` or `x[begin]` of one axis; None for any other slice."""
    if len(begin_indices) != 1 or np.ndim(x) == 0 or node.attr["new_axis_mask"].i or node.attr["ellipsis_mask"].i:
        return None
    if node.attr["shrink_axis_mask"].i:
        return x[int(begin_indices[0])]
    first, last = (
        None if node.attr[f"{key}_mask"].i else int(at[0])
        for key, at in (("begin", begin_indices), ("end", end_indices))
    )
    return x[first : last : int(steps[0])]


def _convert(x: NDArray[np.generic], kind: int) -> NDArray[Any]:
    import tensorflow as tf

    return np.asarray(x).astype(tf.dtypes.as_dtype(kind).as_numpy_dtype)


CONSTANT_OPS: dict[str, Callable[..., Any]] = {
    "Identity": lambda node, x: x,
    "Cast": lambda node, x: _convert(x, node.attr["DstT"].type),
    "Neg": lambda node, x: -x,
    "Prod": lambda node, x, axes: np.prod(
        x, axis=tuple(int(a) for a in np.ravel(axes)), keepdims=node.attr["keep_dims"].b
    ),
    "StridedSlice": _slice,
    "Mul": lambda node, x, y: x * y,
    **{op: lambda node, x, y: x + y for op in ("Add", "AddV2")},
    "Sub": lambda node, x, y: x - y,
    **{op: lambda node, x, y: x / y if np.all(y) else None for op in ("RealDiv", "Div", "DivNoNan")},
    "FloorDiv": lambda node, x, y: x // y if np.all(y) else None,
    "Maximum": lambda node, x, y: np.maximum(x, y),
    "Pack": lambda node, *inputs: np.stack(inputs, node.attr["axis"].i),
    "Reshape": lambda node, x, shape: np.reshape(x, shape),
    "Transpose": lambda node, x, order: np.transpose(x, order),
    "Fill": lambda node, shape, x: np.full(shape, x) if np.prod(shape) <= _MOST_ENTRIES else None,
    "Tile": lambda node, x, times: np.tile(x, times) if np.size(x) * np.prod(times) <= _MOST_ENTRIES else None,
    "Unpack": lambda node, x: x,
    "GatherV2": lambda node, x, at, axis: None if node.attr["batch_dims"].i else np.take(x, at, int(axis)),
    "Range": lambda node, start, limit, step: (
        np.arange(start, limit, step) if step and abs(limit - start) <= _MOST_ENTRIES * abs(step) else None
    ),
    "ConcatV2": lambda node, *inputs: np.concatenate(inputs[:-1], axis=int(inputs[-1])),
}
"""Op type -> function of the node and its inputs' values; None if they cannot be evaluated."""
