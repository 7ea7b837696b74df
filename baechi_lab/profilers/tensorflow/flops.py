"""FLOPs of one op, from the shapes of its inputs and outputs.

A multiply-add counts as two. Convolutions count every position of the kernel, padding included (the usual upper bound).
Each of their gradients does the same products as the forward convolution. Element-wise ops count a fixed number per output
element (`profilers/arithmetic.py`), reductions one per input element, data movement none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, prod
from typing import TYPE_CHECKING

from .. import arithmetic
from ..arithmetic import TRANSCENDENTAL, per_element
from ..work import (
    ALIGNED,
    DEPTHWISE_GRADIENT,
    INDEX_US,
    POSITIONS_SUM_US,
    Product,
    Rows,
    batch_norm_flops,
    convolution_layout_bytes,
    convolution_products,
    depthwise_flops,
    einsum_product,
    matmul_product,
    transposed_products,
)
from .backward_pairing import is_backward

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

Shape = Sequence[int]
Shapes = Sequence[Shape]

METADATA_OPS = frozenset(
    """
        Const VarHandleOp NoOp Placeholder Identity IdentityN StopGradient PreventGradient Reshape ExpandDims Squeeze
        Shape ShapeN Size Rank ReadVariableOp VariableShape BroadcastGradientArgs ConcatOffset Assert ControlTrigger
        DestroyResourceOp EnsureShape Bitcast TensorListReserve EmptyTensorList TensorListLength
        TensorListElementShape TensorListGetItem TensorListSetItem TensorListPushBack TensorListPopBack
    """.split()
)
"""Ops that move no data: they compute shapes or pass on a buffer."""

_NO_ARITHMETIC = METADATA_OPS | frozenset(
    """
        Transpose Concat ConcatV2 Slice StridedSlice StridedSliceGrad Split SplitV Pack Unpack Pad PadV2 MirrorPad
        Tile Fill ZerosLike OnesLike Gather GatherV2 GatherNd ResourceGather ScatterNd Cast OneHot Range
        AssignVariableOp Reverse ReverseV2 SpaceToBatchND BatchToSpaceND BroadcastTo Select SelectV2 Where While
        StatelessWhile If StatelessIf Case StatelessCase TensorListStack TensorListFromTensor
    """.split()
)

_REDUCTIONS = frozenset("Sum Mean Prod Max Min All Any ArgMax ArgMin BiasAddGrad L2Loss EuclideanNorm Cumsum".split())

_RANDOM = ("Random", "StatelessRandom", "TruncatedNormal", "StatelessTruncatedNormal", "Multinomial")


def flops(node: NodeDef, inputs: Shapes, outputs: Shapes) -> float:
    """Returns the FLOPs of one run of a NodeDef whose data inputs and outputs have these shapes."""
    rule = _RULES.get(node.op)
    if rule is not None:
        return float(rule(node, inputs, outputs))
    if node.op in _NO_ARITHMETIC:
        return 0.0
    if node.op in _REDUCTIONS:
        return float(prod(inputs[0]) if inputs else 0)
    if node.op.startswith(_RANDOM):
        return float(TRANSCENDENTAL * sum(prod(s) for s in outputs))
    if node.op.startswith(("ResourceApply", "AssignAdd", "AssignSub")):
        # Fused optimizer updates touch every element of the gradient a few times; plain ones once.
        touches = {"ResourceApplyAdam": 16, "ResourceApplyRMSProp": 12, "ResourceApplyMomentum": 4}.get(node.op, 2)
        return float(touches * max((prod(s) for s in inputs), default=0))
    return float(per_element(node.op) * sum(prod(s) for s in outputs))


def is_matrix_product(op: str) -> bool:
    """Whether this op runs on the matrix units of a device that has them."""
    return op in _MATRIX


def is_convolution(op: str) -> bool:
    """Whether this op convolves all channels of a group, or computes a gradient of such an op."""
    return op in _CONVOLUTIONS


def _inner(node: NodeDef, left: Shape) -> int:
    is_transposed = node.attr["transpose_a"].b or node.attr["adj_x"].b
    return left[-2] if is_transposed else left[-1]


def _matmul(node: NodeDef, inputs: Shapes, outputs: Shapes) -> float:
    if len(inputs) < 2 or len(inputs[0]) < 2:
        return 0.0
    return 2.0 * prod(outputs[0]) * _inner(node, inputs[0])


def _einsum(node: NodeDef, inputs: Shapes, outputs: Shapes) -> float:
    """Two per element of the joint index space; an ellipsis counts as the output's remaining dimensions."""
    equation = node.attr["equation"].s.decode().replace(" ", "")
    sizes: dict[str, int] = {}
    for term, shape in zip(equation.split("->")[0].split(","), inputs, strict=False):
        head, _, tail = term.partition("...")
        sizes.update(zip(head, shape, strict=False))
        if tail:
            sizes.update(zip(tail, shape[-len(tail) :], strict=False))
    result = equation.partition("->")[2].replace("...", "")
    batch = prod(outputs[0][: max(len(outputs[0]) - len(result), 0)]) if "..." in equation and outputs else 1
    return 2.0 * prod(sizes.values()) * batch


def _conv(filter_shape: Shape, output: Shape, channels: int = 1) -> float:
    """`2 * output elements * kernel positions * input channels`; the last `channels` sizes of a filter do not count."""
    return 2.0 * prod(output) * prod(filter_shape[:-channels]) if filter_shape else 0.0


def _window(node: NodeDef) -> int:
    return prod(node.attr["ksize"].list.i) or 1


_FORWARD = ("Conv", "Conv2D", "Conv3D")
_INPUT_GRADIENTS = ("Conv2DBackpropInput", "Conv2DBackpropInputV2", "Conv3DBackpropInput", "Conv3DBackpropInputV2")
_FILTER_GRADIENTS = ("Conv2DBackpropFilter", "Conv2DBackpropFilterV2", "Conv3DBackpropFilter", "Conv3DBackpropFilterV2")
_CONVOLUTIONS = frozenset({*_FORWARD, *_INPUT_GRADIENTS, *_FILTER_GRADIENTS})

_BATCH_NORMS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
_BATCH_NORM_GRADIENTS = ("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")

Rule = Callable[["NodeDef", Shapes, Shapes], float]

_MATRIX: dict[str, Rule] = {
    **dict.fromkeys(
        ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "SparseMatMul", "QuantizedMatMul"), _matmul
    ),
    "Einsum": _einsum,
    **dict.fromkeys(_FORWARD, lambda node, i, o: _conv(i[1], o[0])),
    **dict.fromkeys(_INPUT_GRADIENTS, lambda node, i, o: _conv(i[1], i[2])),
    **dict.fromkeys(_FILTER_GRADIENTS, lambda node, i, o: _conv(o[0], i[2])),
}

_RULES: dict[str, Rule] = {
    **_MATRIX,
    "DepthwiseConv2dNative": lambda node, i, o: _conv(i[1], o[0], 2),
    "DepthwiseConv2dNativeBackpropInput": lambda node, i, o: _conv(i[1], i[2], 2),
    "DepthwiseConv2dNativeBackpropFilter": lambda node, i, o: _conv(o[0], i[2], 2),
    **dict.fromkeys(
        ("MaxPool", "AvgPool", "MaxPoolV2", "MaxPool3D", "AvgPool3D"), lambda node, i, o: _window(node) * prod(o[0])
    ),
    **dict.fromkeys(("MaxPoolGrad", "AvgPoolGrad", "MaxPool3DGrad"), lambda node, i, o: _window(node) * prod(i[-1])),
    **dict.fromkeys(_BATCH_NORMS, lambda node, i, o: 8 * prod(i[0]) if i else 0.0),
    **dict.fromkeys(_BATCH_NORM_GRADIENTS, lambda node, i, o: 14 * prod(i[0]) if i else 0.0),
    # Each stored entry (the values, input 1) is multiplied with a row of the dense matrix.
    "SparseTensorDenseMatMul": lambda node, i, o: 2 * prod(i[1]) * o[0][-1],
    "Dilation2D": lambda node, i, o: 2 * prod(o[0]) * prod(i[1][:2]),
    "AddN": lambda node, i, o: (len(i) - 1) * prod(o[0]),
    "SoftmaxCrossEntropyWithLogits": lambda node, i, o: 20 * prod(i[0]),
    "SparseSoftmaxCrossEntropyWithLogits": lambda node, i, o: 20 * prod(i[0]),
}


def product_shapes(node: NodeDef, inputs: Shapes, outputs: Shapes) -> tuple[Product, ...]:
    """Returns the matrix products of one run of a NodeDef; none if it is no product or its shapes are not known."""
    if node.op.startswith(("MatMul", "BatchMatMul")) and len(inputs) > 1 and len(inputs[0]) > 1:
        product = matmul_product(inputs[0], inputs[1], _inner(node, inputs[0]), outputs[0])
        return () if product is None else (product,)
    if node.op == "Einsum" and len(inputs) == 2:
        terms, _, result = node.attr["equation"].s.decode().replace(" ", "").partition("->")
        left, right = terms.split(",")
        if "." not in terms and len(left) == len(inputs[0]) and len(right) == len(inputs[1]):
            sizes = dict(zip(left + right, (*inputs[0], *inputs[1]), strict=True))
            return (einsum_product(left, right, result, sizes),)
    if is_convolution(node.op):
        # Shapes of filters end with the channels of a group and the filters; images may have their channels first or last.
        # The op that makes the gradient of an input is a transposed convolution if it is no op of the backward pass.
        of_input, of_filter = "BackpropInput" in node.op, "BackpropFilter" in node.op
        filters = _filters(node, inputs, outputs)
        convolution_output = inputs[2] if of_input or of_filter else outputs[0]
        image = outputs[0] if of_input else inputs[0]
        if node.op == "Conv":  # may have several dimensions of samples
            samples = max(len(image) - len(filters) + 1, 1)
            convolution_output, image = (
                (prod(shape[:samples]), *shape[samples:]) for shape in (convolution_output, image)
            )
        if len(filters) < 3 or len(convolution_output) != len(filters) or len(image) != len(filters):
            return ()
        first = node.attr["data_format"].s.startswith((b"NC", b"CHANNELS_FIRST"))
        positions, channels = (convolution_output[2:], image[1]) if first else (convolution_output[1:-1], image[-1])
        steps = (*node.attr["strides"].list.i, *node.attr["dilations"].list.i)
        groups, plain = max(channels // max(filters[-2], 1), 1), all(step == 1 for step in steps)
        if of_input and not is_backward(node.name):
            return transposed_products(
                convolution_output[0], positions, filters[-1], channels, filters[:-2], groups, plain
            )
        has_gaps = prod(node.attr["strides"].list.i) > prod(filters[:-2])
        products = convolution_products(
            convolution_output[0], positions, channels, filters[-1], filters[:-2], groups, plain, has_gaps
        )
        if of_input:
            return tuple(product.left_gradient for product in products)
        return tuple(product.right_gradient if of_filter else product for product in products)
    return ()


def repeated_rows(node: NodeDef, inputs: Shapes, number_bytes: int) -> Rows | None:
    """Returns the rows that a softmax or a normalization reads more than once; None for other ops."""
    if (node.op in ("Softmax", "LogSoftmax") or node.op.endswith("CrossEntropyWithLogits")) and inputs and inputs[0]:
        return Rows.of_softmax(prod(inputs[0]), inputs[0][-1], number_bytes)
    if _norms_channels(node) and len(inputs[0]) == 4:
        channels = inputs[0][1] if node.attr["data_format"].s.startswith(b"NC") else inputs[0][-1]
        tensors = 2 if "Grad" in node.op else 1
        return Rows.of_norm(prod(inputs[0]), prod(inputs[0]) // max(channels, 1), number_bytes, tensors)
    return None


def _norms_channels(node: NodeDef) -> bool:
    return bool(node.op in (*_BATCH_NORMS, *_BATCH_NORM_GRADIENTS) and node.attr["is_training"].b)


def vector_flops(node: NodeDef, inputs: Shapes, outputs: Shapes, number_bytes: int, precision: str = "fp32") -> float:
    """Returns the `Kernel.vector_flops` of a batch norm, a depthwise convolution or one of their gradients; 0 for other ops."""
    if _norms_channels(node):
        return batch_norm_flops(inputs[0], number_bytes, backward="Grad" in node.op)
    if not node.op.startswith("DepthwiseConv2dNative"):
        return 0.0
    gradient, of_filter = "Backprop" in node.op, node.op.endswith("BackpropFilter")
    filters, numbers = outputs[0] if of_filter else inputs[1], prod(inputs[2] if of_filter else outputs[0])
    return depthwise_flops(numbers, filters[:2], precision) * (DEPTHWISE_GRADIENT if gradient else 1.0)


def row_alignment(node: NodeDef, inputs: Shapes, outputs: Shapes, number_bytes: int) -> int:
    """Returns the `Kernel.row_alignment` of a matrix product or convolution."""
    if is_convolution(node.op):  # channels come last on matrix units
        filters = _filters(node, inputs, outputs)
        return gcd(filters[-2] * number_bytes, ALIGNED) if len(filters) > 2 else ALIGNED
    if not node.op.startswith(("MatMul", "BatchMatMul")):
        return ALIGNED
    return gcd(*(shape[-1] * number_bytes for shape in (*inputs[:2], outputs[0]) if len(shape) > 1), ALIGNED)


def layout_bytes(node: NodeDef, inputs: Shapes, outputs: Shapes, moved_bytes: float) -> float:
    """Returns the `Kernel.layout_bytes` of a convolution; 0 for other ops."""
    if not is_convolution(node.op):
        return 0.0
    window = _filters(node, inputs, outputs)[:-2]
    numbers = sum(map(prod, (*inputs, *outputs)))
    input_share = 0.0 if "BackpropInput" in node.op else prod(inputs[0]) / max(numbers, 1)
    return convolution_layout_bytes(moved_bytes, window, node.attr["strides"].list.i, input_share * moved_bytes)


def _filters(node: NodeDef, inputs: Shapes, outputs: Shapes) -> Shape:
    return outputs[0] if "BackpropFilter" in node.op else inputs[1]


def multiprocessor_us(node: NodeDef, inputs: Shapes, outputs: Shapes, number_bytes: int) -> float:
    """Returns the `Kernel.multiprocessor_us` of an op other than a product."""
    if not inputs or not outputs:
        return 0.0
    is_repeated = any(prod(shape) > 1 and tuple(shape) != tuple(outputs[0]) for shape in inputs)
    if node.op == "Transpose" or (node.op in _BROADCASTS and is_repeated):
        return INDEX_US * prod(outputs[0])
    is_max_pool = node.op in ("MaxPool", "MaxPool3D")
    of_outputs = is_max_pool or node.op == "ResizeBilinear"
    window = _window(node) if is_max_pool else 1
    return arithmetic.multiprocessor_us(node.op, number_bytes, window * prod((outputs if of_outputs else inputs)[0]))


def has_crossed_operands(node: NodeDef) -> bool:
    """Whether neither operand of a product lies in memory along the summed dimension, as in gradients of weights."""
    if not node.op.startswith(("MatMul", "BatchMatMul")):
        return False
    left, right = ("adj_x", "adj_y") if node.op.startswith("Batch") else ("transpose_a", "transpose_b")
    return bool(node.attr[left].b and not node.attr[right].b)


def wait_us(node: NodeDef, inputs: Shapes) -> float:
    """Returns the `Kernel.wait_us` of a bias' gradient: of a layer of images, or of rows; 0 for other ops."""
    if node.op != "BiasAddGrad" or not prod(inputs[0]):
        return 0.0
    if len(inputs[0]) > 3:
        return POSITIONS_SUM_US
    channels = inputs[0][1 if node.attr["data_format"].s.startswith(b"NC") else -1]
    return arithmetic.column_sum_us(prod(inputs[0]) // channels, channels)


_BROADCASTS = frozenset(str.split("Add AddV2 Sub Mul Div RealDiv Pow Maximum Minimum SelectV2 BiasAdd"))
