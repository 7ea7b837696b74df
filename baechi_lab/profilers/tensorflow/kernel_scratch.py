"""Scratch memory within TensorFlow's kernels, from their source: what they allocate beside their outputs while they run.

    Einsum                      copies of inputs whose dimensions are not in the order (batch, free, contracted), and the product,
                                where the output has its dimensions in another order (`EinsumOp`)
    products of float16         float32 copies of inputs and output, on a CPU (`LaunchMatMul`, `LaunchBatchMatMul`)
    products of bfloat16        copies in oneDNN's order, on a CPU: of 64 columns of the second operand, and of the first one
                                where it is read transposed (measured on AVX512-BF16)
    gradients of convolutions   unfolded windows of as many images as fill 30 MiB, however many there are, on a CPU and in types
                                that oneDNN does not take (`Conv2DCustomBackpropFilterOp`, `Conv2DCustomBackpropInputOp`)

Other scratch memory of oneDNN is smaller than its tensors, and is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .nodes import bytes_per_element
from .structure import Structure

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

    Shapes = Sequence[tuple[int, ...]]

WORKING_SET = 30 << 20
"""Bytes of unfolded windows, weights and results that a gradient of a convolution works on at a time."""
ONEDNN_BLOCK, ONEDNN_BYTES = (32, 64, 1024), 1024
"""Rows to which oneDNN pads a block of a bfloat16 operand, its columns, its most rows; and bytes beside the blocks."""
THREAD_WORK = 256 << 10
"""Bytes of one image from which the gradient of an input takes one image at a time."""


def scratch_bytes(structure: Structure, on_cpu: bool) -> NDArray[np.int64]:
    """Returns int64[ops], the scratch memory of each op outside of loops; `on_cpu` says whether all hardware is a CPU."""
    import tensorflow as tf

    half, double, bfloat16 = (t.as_datatype_enum for t in (tf.float16, tf.float64, tf.bfloat16))
    width = bytes_per_element()
    scratch = np.zeros(structure.n, dtype=np.int64)
    for i, node in enumerate(structure.nodes):
        kind, dtype = node.op, node.attr["T"].type if "T" in node.attr else 0
        if kind not in ("Einsum", "MatMul") and not kind.startswith(("BatchMatMul", "Conv2DBackprop")):
            continue
        inputs = [structure.shapes[t] for t in structure.data_inputs[i]]
        outputs = [structure.shapes[t] for t in structure.output_tensors[i]]
        if kind == "Einsum":
            scratch[i] = _einsum_numbers(node.attr["equation"].s.decode(), inputs) * width.get(dtype, 4)
        elif on_cpu and kind.startswith("Conv2DBackprop") and dtype in (half, double):
            scratch[i] = _windows_bytes(node, inputs, outputs, width[dtype])
        elif on_cpu and "MatMul" in kind and dtype == half:
            scratch[i] = 4 * sum(prod(shape) for shape in (*inputs, *outputs))
        elif on_cpu and "MatMul" in kind and dtype == bfloat16 and len(inputs[0]) > 1:
            is_transposed = node.attr["transpose_a" if kind == "MatMul" else "adj_x"].b
            scratch[i] = _block_bytes(inputs[0][-2], inputs[0][-1], is_transposed)
    return scratch


def _block_bytes(rows: int, columns: int, is_transposed: bool) -> int:
    """Returns the bytes of oneDNN's blocks in a product of bfloat16 whose first operand is `rows` x `columns`.

    >>> _block_bytes(16, 256, False), _block_bytes(64, 16, True)    # 256 x 64; 64 x 64 and 16 x 64
    (33792, 11264)
    """
    step, width, most_summed = ONEDNN_BLOCK
    results, summed = (columns, rows) if is_transposed else (rows, columns)
    padded = -(-summed // step) * step
    return ONEDNN_BYTES + 2 * width * min(padded, most_summed) + (2 * results * padded if is_transposed else 0)


def _einsum_numbers(equation: str, inputs: Shapes) -> int:
    """Returns the numbers in the copies that a product of two tensors makes; 0 for other equations and for repeated labels.

    >>> _einsum_numbers("ij,jk->ik", [(2, 3), (3, 4)]), _einsum_numbers("abc,adc->bda", [(2, 3, 4), (2, 5, 4)])
    (0, 30)
    """
    terms, _, result = equation.replace(" ", "").partition("->")
    operands = terms.split(",")
    if len(operands) != 2 or "." in equation or any(len(set(o)) != len(o) for o in (*operands, result)):
        return 0
    if any(len(labels) != len(shape) for labels, shape in zip(operands, inputs, strict=True)):
        return 0
    labels = list(dict.fromkeys("".join(operands)))
    size = dict(zip("".join(operands), (n for shape in inputs for n in shape), strict=True))

    def role(label: str) -> int:
        """Returns 0 for a batch dimension, 1 for a free, 2 for a contracted and 3 for a summed one."""
        in_both = all(label in operand for operand in operands)
        return (0 if in_both else 1) if label in result else (2 if in_both else 3)

    def order(operand: str, roles: Sequence[int]) -> list[str]:
        return sorted(operand, key=lambda label: (roles[role(label)], labels.index(label)))

    # The product reads either of its operands transposed, so free and contracted dimensions may change places.
    copied = [o for o in operands if list(o) not in (order(o, (0, 1, 2, 3)), order(o, (0, 2, 1, 3)))]
    batch = [label for label in labels if role(label) == 0]
    product = [*batch, *(label for operand in operands for label in labels if label in operand and role(label) == 1)]
    if product != list(result):
        copied.append(result)
    return sum(prod(size[label] for label in operand) for operand in copied)


def _windows_bytes(node: NodeDef, inputs: Shapes, outputs: Shapes, number_bytes: int) -> int:
    of_input = node.op == "Conv2DBackpropInput"
    filters, gradient = inputs[1] if of_input else outputs[0], inputs[2]
    if len(filters) != 4 or len(gradient) != 4 or node.attr["data_format"].s.startswith(b"NC"):
        return 0
    positions, window = gradient[1] * gradient[2], prod(filters[:3])
    image = positions * window + (positions + window) * filters[3]
    if not image or (of_input and (gradient[0] == 1 or image >= THREAD_WORK // number_bytes)):
        images = 1
    else:
        images = -(-(WORKING_SET // number_bytes) // image)
    return images * positions * window * number_bytes
