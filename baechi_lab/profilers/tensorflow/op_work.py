"""`mode="estimated"`: the FLOPs and bytes of TensorFlow's ops, from the shapes of their tensors.

`profilers/roofline.py` turns them into time. Ops that move no data take the host overhead. Constants and handles, which exist
before the step, take no time. A loop, conditional or call is one op that takes as long as the ops that it runs (see
`function_bodies`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ...graph.hardware import PRECISIONS
from ..roofline import Work
from .flops import METADATA_OPS, flops, is_matrix_product
from .function_bodies import Library
from .structure import HANDLE_BYTES, Structure, bytes_per_element

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

_TAKES_NO_TIME = frozenset({"Const", "VarHandleOp", "Placeholder", "NoOp"})
_TOUCHES_PART = frozenset({"Gather", "GatherV2", "ResourceGather", "Slice", "StridedSlice"})
_IN_PLACE = ("AssignAdd", "AssignSub", "ResourceApply")


Row = tuple[int, float, float, float, bool, int, bool, bool]

FP32, FP16 = PRECISIONS.index("fp32"), PRECISIONS.index("fp16")


def count_work(structure: Structure) -> Work:
    """Counts the FLOPs and bytes of every op from the shapes of its tensors."""
    halves, width = _half_types(), bytes_per_element()
    sizes, shapes = structure.tensor_bytes.tolist(), structure.shapes
    library = Library(structure.graph_def)
    rows: list[Row] = []
    for i, node in enumerate(structure.nodes):
        if library.has_body(node):
            for inner in library.body_ops(node):
                typed = zip((*inner.inputs, *inner.outputs), (*inner.input_types, *inner.output_types), strict=True)
                tensor_sizes = [prod(shape) * width.get(dtype, 0) or HANDLE_BYTES for shape, dtype in typed]
                read = tensor_sizes[: len(inner.inputs)], tensor_sizes[len(inner.inputs) :]
                rows.append(_row(i, inner.times, inner.node, inner.inputs, inner.outputs, *read, halves))
            continue
        ins, outs = structure.data_inputs[i], structure.output_tensors[i]
        read_bytes, made_bytes = [sizes[t] for t in ins], [sizes[t] for t in outs]
        rows.append(
            _row(i, 1.0, node, [shapes[t] for t in ins], [shapes[t] for t in outs], read_bytes, made_bytes, halves)
        )
    columns = list(zip(*rows, strict=True)) if rows else [()] * 8
    kinds = (np.int64, np.float64, np.float64, np.float64, np.bool_, np.int64, np.bool_, np.bool_)
    return Work(structure.n, *(np.array(c, dtype=k) for c, k in zip(columns, kinds, strict=True)))  # type: ignore[arg-type]


def _row(
    i: int,
    times: float,
    node: NodeDef,
    inputs: Sequence[tuple[int, ...]],
    outputs: Sequence[tuple[int, ...]],
    input_bytes: list[int],
    output_bytes: list[int],
    halves: set[int],
) -> Row:
    free, metadata = node.op in _TAKES_NO_TIME, node.op in METADATA_OPS
    if metadata:
        return i, times, 0.0, 0.0, False, FP32, True, free
    precision = FP16 if "T" in node.attr and node.attr["T"].type in halves else FP32
    count, moved_bytes = flops(node, inputs, outputs), _moved_bytes(node.op, input_bytes, output_bytes)
    return i, times, count, moved_bytes, is_matrix_product(node.op), precision, False, free


def _moved_bytes(op: str, input_bytes: list[int], output_bytes: list[int]) -> float:
    """Returns the bytes read and written: inputs and outputs; only the part for slices; twice for updated variables."""
    if op in _TOUCHES_PART:
        return float(2 * sum(output_bytes))
    if op.startswith(_IN_PLACE):
        return float(3 * sum(input_bytes))
    return float(sum(input_bytes) + sum(output_bytes))


def _half_types() -> set[int]:
    import tensorflow as tf

    return {tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum}
