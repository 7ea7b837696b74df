"""FLOPs of ONNX's matrix products, convolutions, attention and recurrent layers, from the shapes of their tensors.

A multiply-add counts as two. All other operators are bound by the bytes that they move. The fused operators of ONNX Runtime's
domain `com.microsoft` are covered as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from ..work import (
    Product,
    Rows,
    convolution_products,
    depthwise_flops,
    einsum_product,
    matmul_product,
    transposed_products,
)

if TYPE_CHECKING:
    from onnx import NodeProto

Shape = Sequence[int] | None
Shapes = Sequence[Shape]

SHAPE_OPS = frozenset(
    """
        Reshape Squeeze Unsqueeze Flatten Identity Shape Size Constant Optional OptionalGetElement
    """.split()
)
"""Operators that move no data: they only reinterpret its shape."""


def product_flops(node: NodeProto, input_shapes: Shapes, output_shapes: Shapes) -> int | None:
    """Returns the FLOPs of a matrix product or a composite of products; None for any other operator.

    Args:
        node: a NodeProto, or an object with its `op_type` and `attribute`.
        input_shapes, output_shapes: shapes of its inputs and outputs; None for one that is omitted.
    """
    rule = _RULES.get(node.op_type)
    return None if rule is None else rule(node, input_shapes, output_shapes)


def attribute(node: NodeProto, name: str, default: object) -> Any:
    """Returns the value of a node's attribute (a number, text or list of numbers)."""
    for entry in node.attribute:
        if entry.name == name:
            return {
                1: entry.f,
                2: entry.i,
                3: entry.s.decode("utf-8", "replace"),
                6: entry.floats,
                7: list(entry.ints),
            }.get(entry.type, default)
    return default


def _require_shape(shape: Shape) -> Sequence[int]:
    if shape is None:
        raise ValueError("left out")
    return shape


def _matmul(node: NodeProto, input_shapes: Shapes, output_shapes: Shapes) -> int:
    left = _require_shape(input_shapes[0])
    inner = left[-2] if attribute(node, "transA", 0) and len(left) > 1 else left[-1]
    return 2 * prod(_require_shape(output_shapes[0])) * inner


def _conv(weight: int) -> Callable[[NodeProto, Shapes, Shapes], int]:
    """Each output is a sum over the weights of its channel, whose shape already excludes the channels of other groups."""
    return lambda node, input_shapes, output_shapes: (
        2 * prod(_require_shape(output_shapes[0])) * prod(_require_shape(input_shapes[weight])[1:])
    )


def _einsum(node: NodeProto, input_shapes: Shapes, output_shapes: Shapes) -> int:
    terms = attribute(node, "equation", "").replace(" ", "").split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, input_shapes, strict=True):
        letters, dims = term.replace("...", ""), list(_require_shape(shape))
        if "..." in term:
            at, ellipsis_rank = term.index("..."), len(dims) - len(letters)
            sizes["..."] = max(sizes.get("...", 1), prod(dims[at : at + ellipsis_rank]))
            del dims[at : at + ellipsis_rank]
        sizes.update({x: max(sizes.get(x, 1), d) for x, d in zip(letters, dims, strict=True)})
    return (2 if len(terms) > 1 else 1) * prod(sizes.values())


def _recurrent(gates: int) -> Callable[[NodeProto, Shapes, Shapes], int]:
    def count(node: NodeProto, input_shapes: Shapes, output_shapes: Shapes) -> int:
        steps, batch, width = _require_shape(input_shapes[0])
        directions, _, hidden = _require_shape(input_shapes[2])
        return 2 * steps * batch * directions * gates * hidden * (width + hidden)

    return count


def _attention_products(node: NodeProto, input_shapes: Shapes) -> tuple[Product, ...]:
    """Returns the scores of queries and keys, and their product with the values, for every head of the queries.

    Shapes are batch, heads, positions, size, or batch, positions, heads * size. `com.microsoft`'s Attention also has one
    product that makes queries, keys and values.
    """
    heads = attribute(node, "q_num_heads", attribute(node, "num_heads", 1))
    if node.op_type == "Attention" and node.domain == "com.microsoft":
        batch, positions, width = _require_shape(input_shapes[0])
        projected = _require_shape(input_shapes[1])[-1]
        size = projected // (3 * heads)
        scores = Product(batch * heads, positions, positions, size)
        context = Product(batch * heads, positions, size, positions)
        return Product(1, batch * positions, projected, width), scores, context
    query, key, value = (_require_shape(s) for s in input_shapes[:3])
    value_heads = attribute(node, "kv_num_heads", heads)
    heads, size = (query[1], query[3]) if len(query) == 4 else (heads, query[-1] // heads)
    value_size = value[-1] if len(value) == 4 else value[-1] // value_heads
    count, positions, keys = query[0] * heads, query[-2], key[-2]
    return Product(count, positions, keys, size), Product(count, positions, value_size, keys)


def _attention(node: NodeProto, input_shapes: Shapes, output_shapes: Shapes) -> int:
    return int(sum(product.flops for product in _attention_products(node, input_shapes)))


def _linear_model(node: NodeProto, input_shapes: Shapes, output_shapes: Shapes) -> int:
    """Every row is multiplied with the coefficients, which are an attribute."""
    return 2 * prod(_require_shape(input_shapes[0])[:-1]) * len(attribute(node, "coefficients", ()))


_RULES: dict[str, Callable[[NodeProto, Shapes, Shapes], int]] = {
    **dict.fromkeys(("MatMul", "FusedMatMul", "MatMulInteger", "QLinearMatMul", "Gemm", "FusedGemm"), _matmul),
    "Conv": _conv(1),
    "FusedConv": _conv(1),
    "ConvInteger": _conv(1),
    "QLinearConv": _conv(3),
    "ConvTranspose": lambda node, i, o: 2 * prod(_require_shape(i[0])) * prod(_require_shape(i[1])[1:]),
    "Einsum": _einsum,
    "LinearClassifier": _linear_model,
    "LinearRegressor": _linear_model,
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "RNN": _recurrent(1),
    "Attention": _attention,
    "MultiHeadAttention": _attention,
    "GroupQueryAttention": _attention,
}


def product_shapes(node: NodeProto, input_shapes: Shapes, output_shapes: Shapes) -> tuple[Product, ...]:
    """Returns the matrix products of an operator; none where their shapes are not known.

    Args:
        node, input_shapes, output_shapes: as in `product_flops`.
    """
    shapes = [tuple(_require_shape(shape)) for shape in input_shapes[:2]]
    if node.op_type in ("MatMul", "FusedMatMul", "MatMulInteger", "Gemm", "FusedGemm"):
        left, right, outputs = shapes[0], shapes[1], tuple(_require_shape(output_shapes[0]))
        inner = left[-2] if attribute(node, "transA", 0) and len(left) > 1 else left[-1]
        product = matmul_product(left, right, inner, outputs)
        return () if product is None else (product,)
    if node.op_type in ("Conv", "FusedConv", "ConvInteger", "ConvTranspose"):
        image, weight, outputs = shapes[0], shapes[1], tuple(_require_shape(output_shapes[0]))
        steps = (*attribute(node, "strides", []), *attribute(node, "dilations", []))
        groups = attribute(node, "group", 1)
        plain = all(step == 1 for step in steps)
        if node.op_type == "ConvTranspose":
            return transposed_products(image[0], image[2:], weight[0], weight[1] * groups, weight[2:], groups, plain)
        return convolution_products(image[0], outputs[2:], weight[1] * groups, weight[0], weight[2:], groups, plain)
    if node.op_type == "Einsum" and len(input_shapes) == 2:
        terms, _, result = attribute(node, "equation", "").replace(" ", "").partition("->")
        left_letters, right_letters = terms.split(",")
        if result and "." not in terms and len(set(left_letters)) == len(left_letters):
            sizes = dict(zip(left_letters + right_letters, shapes[0] + shapes[1], strict=True))
            return (einsum_product(left_letters, right_letters, result, sizes),)
    if node.op_type in ("Attention", "MultiHeadAttention", "GroupQueryAttention"):
        return _attention_products(node, input_shapes)
    return ()


def vector_flops(node: NodeProto, input_shapes: Shapes, output_shapes: Shapes) -> float:
    """Returns the `Kernel.vector_flops` of a depthwise convolution; 0 for other operators."""
    groups, weight = attribute(node, "group", 1), input_shapes[1] if len(input_shapes) > 1 else None
    if node.op_type not in ("Conv", "FusedConv") or groups == 1 or not weight or weight[1] != 1 or not output_shapes[0]:
        return 0.0
    return depthwise_flops(prod(output_shapes[0]), weight[2:])


def repeated_rows(node: NodeProto, input_shapes: Shapes, number_bytes: int) -> Rows | None:
    """Returns the rows that a softmax or a normalization reads more than once; None for other operators."""
    if node.op_type in ("Softmax", "LogSoftmax"):
        shape = tuple(_require_shape(input_shapes[0]))
        return Rows.of_softmax(prod(shape), shape[attribute(node, "axis", -1)], number_bytes)
    if node.op_type in ("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"):
        shape = tuple(_require_shape(input_shapes[0]))
        return Rows.of_norm(prod(shape), prod(shape[attribute(node, "axis", -1) :]), number_bytes)
    shape = tuple(_require_shape(input_shapes[0]))
    if len(shape) > 1 and node.op_type in ("InstanceNormalization", "GroupNormalization"):
        groups = attribute(node, "num_groups", shape[1])
        return Rows.of_norm(prod(shape), prod(shape[1:]) // max(groups, 1), number_bytes)
    if len(shape) > 1 and node.op_type == "BatchNormalization" and attribute(node, "training_mode", 0):
        return Rows.of_norm(prod(shape), prod(shape) // max(shape[1], 1), number_bytes)  # rows are channels
    return None
