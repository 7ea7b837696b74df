"""FLOPs of ONNX's matrix products, convolutions, attention and recurrent layers, from the shapes of their tensors.

A multiply-add counts as two. All other operators are bound by the bytes that they move. The fused operators of ONNX Runtime's
domain `com.microsoft` are covered as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import gcd, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import arithmetic
from ..work import (
    ALIGNED,
    INDEX_US,
    Kernel,
    Product,
    Rows,
    batch_norm_flops,
    batch_norm_us,
    convolution_layout_bytes,
    convolution_products,
    depthwise_flops,
    einsum_product,
    matmul_product,
    norm_sums,
    score_flops,
    table_sums,
    transposed_products,
)
from .records import CallWork

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


_PARTIAL_READS = ("Slice", "Split", "Gather")
"""Operators that read a part of a tensor, which is a view in PyTorch; `Gather` only with a single index of no dimension."""

ATTENTION = ("Attention", "QAttention", "MultiHeadAttention", "GroupQueryAttention")

_INDEX_BYTES = 8
"""Of the position of a maximum, which PyTorch's max pooling keeps."""


def is_view(node: NodeProto, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Whether an operator makes parts of a tensor that PyTorch reads where they lie."""
    return (
        not node.domain
        and node.op_type in _PARTIAL_READS
        and (node.op_type != "Gather" or (len(node.input) > 1 and shapes.get(node.input[1]) == ()))
    )


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


def _operand(node: NodeProto, input_shapes: Shapes, position: int) -> tuple[int, ...]:
    """Returns the shape of an operand of a product; ONNX Runtime may move its first dimension behind those of the batch."""
    shape = tuple(_require_shape(input_shapes[position]))
    if attribute(node, f"transBatch{'AB'[position]}", 0) and len(shape) > 1:
        return (*shape[1:-1], shape[0], shape[-1])
    return shape


def _matmul(node: NodeProto, input_shapes: Shapes, output_shapes: Shapes) -> int:
    return 2 * prod(_require_shape(output_shapes[0])) * _summed_size(node, _operand(node, input_shapes, 0))


def _summed_size(node: NodeProto, first_operand: Sequence[int]) -> int:
    """Returns the size of the dimension that a product sums over."""
    return first_operand[-2 if attribute(node, "transA", 0) and len(first_operand) > 1 else -1]


def _quantized_matmul(node: NodeProto, input_shapes: Shapes, output_shapes: Shapes) -> int:
    return 2 * prod(_require_shape(input_shapes[0])) * int(attribute(node, "N", 0))


def _conv(node: NodeProto, input_shapes: Shapes, output_shapes: Shapes) -> int:
    """Each output is a sum over the weights of its channel, whose shape already excludes the channels of other groups."""
    return 2 * prod(_require_shape(output_shapes[0])) * prod(_weight_shape(node, input_shapes)[1:])


_QUANTIZED = ("QLinearConv", "QLinearMatMul", "QGemm")
"""Operators in which scale and zero point follow the first operand."""


def _weight_shape(node: NodeProto, input_shapes: Shapes) -> Sequence[int]:
    """Returns the shape of the second operand of a product or convolution."""
    return _require_shape(input_shapes[3 if node.op_type in _QUANTIZED else 1])


def _einsum(node: NodeProto, input_shapes: Shapes, output_shapes: Shapes) -> int:
    """Operands are multiplied from left to right, as ONNX Runtime does; letters that nothing behind reads are summed at once."""
    terms, arrow, result = attribute(node, "equation", "").replace(" ", "").partition("->")
    symbols = [("...",) * ("..." in term) + tuple(term.replace("...", "")) for term in terms.split(",")]
    sizes: dict[str, int] = {}
    for term, letters, shape in zip(terms.split(","), symbols, input_shapes, strict=True):
        dims = list(_require_shape(shape))
        if "..." in term:
            at, ellipsis_rank = term.index("..."), len(dims) - len(letters) + 1
            dims[at : at + ellipsis_rank] = []
            sizes["..."] = max(sizes.get("...", 1), prod(_require_shape(shape)[at : at + ellipsis_rank]))
        sizes.update(
            {x: max(sizes.get(x, 1), d) for x, d in zip((x for x in letters if x != "..."), dims, strict=True)}
        )
    if len(symbols) == 1:
        return prod(sizes.values())
    occurrences = Counter(x for letters in symbols for x in letters)
    result_letters = {"...", *result} if arrow else {"...", *(x for x, times in occurrences.items() if times == 1)}
    flops, product = 0, set(symbols[0])
    for k, letters in enumerate(symbols[1:], 1):
        product |= set(letters)
        flops += 2 * prod(sizes[x] for x in product)
        product &= result_letters.union(*symbols[k + 1 :])
    return flops


def _recurrent(gates: int) -> Callable[[NodeProto, Shapes, Shapes], int]:
    def count(node: NodeProto, input_shapes: Shapes, output_shapes: Shapes) -> int:
        steps, batch, width = _require_shape(input_shapes[0])
        directions, _, hidden = _require_shape(input_shapes[2])
        return 2 * steps * batch * directions * gates * hidden * (width + hidden)

    return count


def _has_projection(node: NodeProto) -> bool:
    """Whether it is an attention that makes queries, keys and values itself."""
    return node.domain == "com.microsoft" and node.op_type in ("Attention", "QAttention")


def _attention_products(node: NodeProto, input_shapes: Shapes, skips_masked: bool = False) -> tuple[Product, ...]:
    """Returns the scores of queries and keys, and their product with the values, for every head of the queries.

    Causal attention skips the keys after a query, a half of all, if `skips_masked`. Shapes are batch, heads, positions, size,
    or batch, positions, heads * size. `com.microsoft`'s Attention also has one product that makes queries, keys and values.
    """
    heads = attribute(node, "q_num_heads", attribute(node, "num_heads", 1))
    causal = attribute(node, "is_causal", attribute(node, "unidirectional", node.op_type == "GroupQueryAttention"))
    past = _past_positions(node, input_shapes)
    visible_keys = lambda keys: past + ((keys + 1) // 2 if skips_masked and causal and keys > 1 else keys)  # noqa: E731
    if _has_projection(node):
        batch, positions, width = _require_shape(input_shapes[0])
        projected_width = _require_shape(input_shapes[1])[-1]
        size = projected_width // (3 * heads)
        scores = Product(batch * heads, positions, visible_keys(positions), size)
        context = Product(batch * heads, positions, size, visible_keys(positions))
        return Product(1, batch * positions, projected_width, width), scores, context
    query, key, value = _query_key_value(node, input_shapes)
    value_heads = attribute(node, "kv_num_heads", heads)
    heads, size = (query[1], query[3]) if len(query) == 4 else (heads, query[-1] // heads)
    value_size = value[-1] if len(value) == 4 else value[-1] // value_heads
    count, positions, keys = query[0] * heads, query[-2], visible_keys(key[-2])
    return Product(count, positions, keys, size), Product(count, positions, value_size, keys)


def _query_key_value(node: NodeProto, input_shapes: Shapes) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Returns the shapes of queries, keys and values, which GroupQueryAttention may have in one tensor."""
    query = _require_shape(input_shapes[0])
    if node.op_type == "GroupQueryAttention" and (len(input_shapes) < 3 or input_shapes[1] is None):
        heads, key_heads = attribute(node, "num_heads", 1), attribute(node, "kv_num_heads", 1)
        size = query[-1] // (heads + 2 * key_heads)
        key = (*query[:-1], key_heads * size)
        return (*query[:-1], heads * size), key, key
    return query, _require_shape(input_shapes[1]), _require_shape(input_shapes[2])


def _past_positions(node: NodeProto, input_shapes: Shapes) -> int:
    """Returns how many positions an attention reads from the cache of keys."""
    at = {"GroupQueryAttention": 3, "MultiHeadAttention": 6, "Attention": 4}.get(node.op_type, len(input_shapes))
    past = input_shapes[at] if at < len(input_shapes) else None
    return past[-2] if past is not None and len(past) > 3 else 0


def _attention(node: NodeProto, input_shapes: Shapes, output_shapes: Shapes) -> int:
    return int(sum(product.flops for product in _attention_products(node, input_shapes)))


def _linear_model(node: NodeProto, input_shapes: Shapes, output_shapes: Shapes) -> int:
    """Every row is multiplied with the coefficients, which are an attribute."""
    return 2 * prod(_require_shape(input_shapes[0])[:-1]) * len(attribute(node, "coefficients", ()))


_MATRIX_PRODUCTS = frozenset(
    str.split("""
        MatMul FusedMatMul MatMulInteger QLinearMatMul Gemm FusedGemm QGemm DynamicQuantizeMatMul MatMulIntegerToFloat
    """)
)
_RULES: dict[str, Callable[[NodeProto, Shapes, Shapes], int]] = {
    **dict.fromkeys(_MATRIX_PRODUCTS, _matmul),
    "MatMulNBits": _quantized_matmul,
    **dict.fromkeys(str.split("Conv FusedConv ConvInteger QLinearConv DeformConv"), _conv),
    "ConvTranspose": lambda node, i, o: 2 * prod(_require_shape(i[0])) * prod(_require_shape(i[1])[1:]),
    "Einsum": _einsum,
    "LinearClassifier": _linear_model,
    "LinearRegressor": _linear_model,
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "RNN": _recurrent(1),
    "Attention": _attention,
    "QAttention": _attention,
    "MultiHeadAttention": _attention,
    "GroupQueryAttention": _attention,
}


_KEEPS_SHAPE = frozenset(
    str.split("""
        SkipLayerNormalization SkipSimplifiedLayerNormalization SimplifiedLayerNormalization BiasGelu FastGelu Gelu QuickGelu
        RotaryEmbedding GroupNorm SkipGroupNorm MultiHeadAttention
    """)
)


_KEEPS_SHAPE_OF_ML = ("Scaler", "Normalizer", "Binarizer", "Imputer", "LabelEncoder")


def runtime_shapes(node: NodeProto, input_shapes: Shapes) -> list[Shape]:
    """Returns the shapes of the outputs of an operator of `com.microsoft` or `ai.onnx.ml`; none if they are not known.

    ONNX infers nothing about them, so that all shapes behind would be unknown.

    Raises:
        IndexError, TypeError, ValueError: input shapes that do not fit the operator.
    """
    if node.domain not in ("com.microsoft", "ai.onnx.ml"):
        return []
    first = _require_shape(input_shapes[0])
    if node.domain == "ai.onnx.ml":
        if node.op_type.endswith("Regressor"):
            return [(first[0], int(attribute(node, "targets", attribute(node, "n_targets", 1))))]
        if node.op_type == "TreeEnsemble":
            return [(first[0], int(attribute(node, "n_targets", 1)))]
        if node.op_type.endswith("Classifier"):
            labels = ("classlabels_int64s", "classlabels_ints", "classlabels_strings")
            classes = max(len(a.ints) + len(a.strings) for a in node.attribute if a.name in labels)
            has_score_per_pair = node.op_type == "SVMClassifier" and not attribute(node, "prob_a", ()) and classes > 2
            return [(first[0],), (first[0], classes * (classes - 1) // 2 if has_score_per_pair else classes)]
        if node.op_type == "ArrayFeatureExtractor":
            return [(*(first[:-1] if len(first) > 1 else (1,)), prod(_require_shape(input_shapes[1])))]
        return [first] if node.op_type in _KEEPS_SHAPE_OF_ML else []
    if node.op_type in _KEEPS_SHAPE:
        return [first, None, None, first]  # the last one is the sum that a norm with a skip also returns
    if node.op_type == "GroupQueryAttention":
        query, key, _ = _query_key_value(node, input_shapes)
        heads = attribute(node, "kv_num_heads", 1)
        cache = (query[0], heads, key[-2] + _past_positions(node, input_shapes), key[-1] // heads)
        return [query, cache, cache]
    if node.op_type == "MatMulNBits":
        return [(*first[:-1], int(attribute(node, "N", 0)))]
    if _has_projection(node):
        return [(*first[:-1], _require_shape(input_shapes[1])[-1] // 3)]
    if node.op_type in ("FusedMatMul", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"):
        first, second = (_operand(node, input_shapes, k) for k in (0, 1))
        if min(len(first), len(second)) > 1:
            rows = first[-1] if attribute(node, "transA", 0) else first[-2]
            columns = second[-2] if attribute(node, "transB", 0) else second[-1]
            return [(*np.broadcast_shapes(tuple(first[:-2]), tuple(second[:-2])), rows, columns)]
    return []


def product_shapes(node: NodeProto, input_shapes: Shapes, output_shapes: Shapes) -> tuple[Product, ...]:
    """Returns the matrix products of an operator; none where their shapes are not known.

    Args:
        node, input_shapes, output_shapes: as in `product_flops`.
    """
    if node.op_type in ATTENTION:
        return _attention_products(node, input_shapes, skips_masked=True)
    if node.op_type in _QUANTIZED:
        input_shapes = (input_shapes[0], _weight_shape(node, input_shapes))
    shapes = [tuple(_require_shape(shape)) for shape in input_shapes[:2]]
    if node.op_type in _MATRIX_PRODUCTS:
        first_operand, second_operand = (_operand(node, input_shapes, k) for k in (0, 1))
        outputs = tuple(_require_shape(output_shapes[0]))
        product = matmul_product(first_operand, second_operand, _summed_size(node, first_operand), outputs)
        return () if product is None else (product,)
    if node.op_type in ("Conv", "FusedConv", "ConvInteger", "QLinearConv", "ConvTranspose"):
        image, weight, outputs = shapes[0], shapes[1], tuple(_require_shape(output_shapes[0]))
        strides, groups = attribute(node, "strides", []), attribute(node, "group", 1)
        plain = all(step == 1 for step in (*strides, *attribute(node, "dilations", [])))
        if node.op_type == "ConvTranspose":
            return transposed_products(image[0], image[2:], weight[0], weight[1] * groups, weight[2:], groups, plain)
        channels, has_gaps = weight[1] * groups, prod(strides) > prod(weight[2:])
        return convolution_products(image[0], outputs[2:], channels, weight[0], weight[2:], groups, plain, has_gaps)
    if node.op_type == "Einsum" and len(input_shapes) == 2:
        terms, _, result = attribute(node, "equation", "").replace(" ", "").partition("->")
        left_letters, right_letters = terms.split(",")
        if result and "." not in terms and len(set(left_letters)) == len(left_letters):
            sizes = dict(zip(left_letters + right_letters, shapes[0] + shapes[1], strict=True))
            return (einsum_product(left_letters, right_letters, result, sizes),)
    if node.op_type == "MatMulNBits":
        return (Product(1, prod(shapes[0][:-1]), int(attribute(node, "N", 0)), shapes[0][-1]),)
    return ()


def vector_flops(
    node: NodeProto, input_shapes: Shapes, output_shapes: Shapes, number_bytes: int, precision: str = "fp32"
) -> float:
    """Returns the `Kernel.vector_flops` of fused attention, a depthwise convolution or a norm of channels; 0 for others."""
    if node.op_type in ATTENTION:
        return score_flops(_attention_products(node, input_shapes, skips_masked=True)[-2], number_bytes)
    if _norms_channels(node):
        return batch_norm_flops(_require_shape(input_shapes[0]), number_bytes)
    if "Conv" not in node.op_type or attribute(node, "group", 1) == 1 or not output_shapes[0]:
        return 0.0
    weight = _weight_shape(node, input_shapes)
    return depthwise_flops(prod(output_shapes[0]), weight[2:], precision) if weight[1] == 1 else 0.0


_BROADCASTS = frozenset(str.split("Add Sub Mul Div Pow Where Min Max PRelu Expand"))
_ROW_NORMS = ("LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization")


def _norms_channels(node: NodeProto) -> bool:
    is_training = node.op_type == "BatchNormalization" and attribute(node, "training_mode", 0)
    return bool(is_training or node.op_type == "InstanceNormalization")


def row_alignment(node: NodeProto, input_shapes: Shapes, output_shapes: Shapes, number_bytes: int) -> int:
    """Returns the `Kernel.row_alignment` of a product."""
    if "Conv" in node.op_type:  # channels come last on matrix units
        weight = _weight_shape(node, input_shapes)
        return gcd(weight[0 if node.op_type == "ConvTranspose" else 1] * number_bytes, ALIGNED)
    if node.op_type not in _MATRIX_PRODUCTS:
        return ALIGNED
    operands = input_shapes[0], _weight_shape(node, input_shapes)
    matrices = [_require_shape(shape) for shape in (*operands, output_shapes[0])]
    return gcd(*(shape[-1] * number_bytes for shape in matrices if len(shape) > 1), ALIGNED)


def layout_bytes(node: NodeProto, input_shapes: Shapes, moved_bytes: float, number_bytes: int) -> float:
    """Returns the `Kernel.layout_bytes` of a convolution; 0 for other operators."""
    if "Conv" not in node.op_type:
        return 0.0
    input_bytes = float(number_bytes * prod(_require_shape(input_shapes[0])))
    window, strides = _weight_shape(node, input_shapes)[2:], attribute(node, "strides", [])
    return convolution_layout_bytes(moved_bytes, window, strides, input_bytes)


def multiprocessor_us(node: NodeProto, input_shapes: Shapes, output_shapes: Shapes, number_bytes: int) -> float:
    """Returns the `Kernel.multiprocessor_us` of an operator other than a product."""
    shapes, outputs = [shape for shape in input_shapes if shape], prod(output_shapes[0] or ())
    if node.op_type == "Transpose" or (
        node.op_type in _BROADCASTS and any(prod(s) > 1 and tuple(s) != output_shapes[0] for s in shapes)
    ):
        return INDEX_US * outputs
    if node.op_type == "BatchNormalization" and not _norms_channels(node) and shapes and len(shapes[0]) > 2:
        return batch_norm_us(prod(shapes[0][:2]), prod(shapes[0][2:]))
    kind = "ResizeBilinear" if node.op_type == "Resize" and attribute(node, "mode", "") == "linear" else node.op_type
    window = prod(attribute(node, "kernel_shape", ())) if kind == "MaxPool" else 1
    numbers = outputs if kind in ("MaxPool", "ResizeBilinear") else prod(shapes[0]) if shapes else 0
    rows = repeated_rows(node, input_shapes, number_bytes)
    return arithmetic.multiprocessor_us(kind, number_bytes, window * numbers, 0 if rows is None else rows.count)


def bytes_of_sort(node: NodeProto, input_shapes: Shapes, output_shapes: Shapes, number_bytes: int) -> int:
    """Returns `arithmetic.sorting_bytes` of an operator."""
    if node.op_type not in ("TopK", "Unique"):
        return 0
    shape, axis = _require_shape(input_shapes[0]), attribute(node, "axis", -1)
    numbers = prod(shape)
    if node.op_type == "Unique":
        return arithmetic.sorting_bytes("Unique", numbers, numbers, number_bytes)
    return arithmetic.sorting_bytes("TopK", numbers, shape[axis], number_bytes, _require_shape(output_shapes[0])[axis])


def gradient_kernels(
    node: NodeProto, values: Sequence[str], input_shapes: Shapes, output_shapes: Shapes, number_bytes: int
) -> tuple[Kernel, ...]:
    """Returns the kernels of the gradients of an operator's inputs, as PyTorch runs them; none for operators without a rule.

    Args:
        node, input_shapes, output_shapes: as in `product_flops`.
        values: the inputs whose gradients are needed.
        number_bytes: bytes of a number of the first input.
    """
    kind, shape, output_shape = node.op_type, input_shapes[0], output_shapes[0]
    if not shape or output_shape is None:
        return ()
    numbers, outputs = prod(shape), prod(output_shape)
    rows = repeated_rows(node, input_shapes, number_bytes)
    us = arithmetic.multiprocessor_us(f"{kind}Grad", number_bytes, numbers, 0 if rows is None else rows.count)
    kernel = Kernel(moved_bytes=3.0 * numbers * number_bytes, multiprocessor_us=us)
    if rows is not None and rows.norm:  # both the gradient and the input are read again
        norm = replace(kernel, rows=replace(rows, bytes=2 * rows.bytes))
        if _norms_channels(node):
            gradient = replace(norm, vector_flops=batch_norm_flops(shape, number_bytes, backward=True))
            has_sums = kind == "InstanceNormalization" and any(value in node.input[1:] for value in values)
            sums_of_samples = Kernel(moved_bytes=float(number_bytes * shape[1] * (1 + shape[0])))
            return (gradient, *((sums_of_samples,) * 2 if has_sums else ()))
        columns = prod(shape[attribute(node, "axis", -1) :])
        has_sums = kind in _ROW_NORMS and any(value in node.input[1:] for value in values)
        return (norm, *((norm_sums(numbers, columns, number_bytes),) if has_sums else ()))
    if kind in ("Softmax", "LogSoftmax"):
        rows = Rows.of_softmax(numbers, shape[attribute(node, "axis", -1)], number_bytes, backward=True)
        products = Kernel(moved_bytes=kernel.moved_bytes)
        return (replace(kernel, rows=rows), *((products,) if kind == "Softmax" else ()))
    if kind == "SoftmaxCrossEntropyLoss":  # the gradient of one number per row, and the scores'
        rows = Rows.of_softmax(numbers, shape[1], number_bytes, backward=True)
        return Kernel(moved_bytes=float(number_bytes * numbers)), replace(kernel, rows=rows)
    if kind == "MaxPool":
        return (replace(kernel, moved_bytes=float(number_bytes * (2 * numbers + outputs) + _INDEX_BYTES * outputs)),)
    if kind == "Transpose":
        return (Kernel(moved_bytes=2.0 * number_bytes * numbers, multiprocessor_us=INDEX_US * numbers),)
    if kind == "PRelu":  # of the input, and of the slopes per number, which are then added up
        element_wise = Kernel(moved_bytes=4.0 * number_bytes * numbers, multiprocessor_us=INDEX_US * numbers)
        has_sum = node.input[1] in values and input_shapes[1] != shape
        return (element_wise, *((Kernel(moved_bytes=float(number_bytes * numbers)),) if has_sum else ()))
    if kind in ("GlobalAveragePool", "ReduceMean"):  # the gradient of a mean is repeated
        return (Kernel(moved_bytes=float(number_bytes * (numbers + outputs)), multiprocessor_us=INDEX_US * numbers),)
    if kind in _PARTIAL_READS and (
        kind != "Gather" or (len(input_shapes) > 1 and input_shapes[1] == ())
    ):  # a part among zeros, or all parts of a tensor
        written = sum(prod(shape) for shape in output_shapes if shape) if kind == "Split" else outputs
        return (Kernel(moved_bytes=float(number_bytes * (numbers + written))),)
    if kind == "Gather" and node.input[0] in values:
        return Kernel(moved_bytes=float(number_bytes * (numbers + outputs))), table_sums(outputs, number_bytes)
    if kind in ("Add", "Sub", "Mul"):
        kernels = []
        for value, operand_shape in zip(node.input, input_shapes, strict=True):
            if value in values and kind == "Mul":  # the gradient times the other operand
                us = INDEX_US * outputs * any(s != output_shape for s in input_shapes if s != operand_shape)
                kernels.append(Kernel(moved_bytes=3.0 * number_bytes * outputs, multiprocessor_us=us))
            if value in values and operand_shape != output_shape:  # a sum where it was repeated
                kernels.append(Kernel(moved_bytes=float(number_bytes * (outputs + prod(operand_shape or ())))))
        if any(list(node.input).count(value) > 1 for value in values):  # the two gradients of `x * x` are added
            kernels.append(kernel)
        return tuple(kernels) or (Kernel(metadata=True),)
    return (kernel,) if us else ()


def gradient_work(values: Sequence[str], **description: Any) -> CallWork:
    """Returns the work of the gradients of an operator's inputs; arguments as in `gradient_kernels`."""
    return CallWork(gradient_kernels(values=values, **description))


def attention_gradients(forward: Kernel, values: Sequence[str]) -> CallWork:
    """Returns the work of the gradients of fused attention: it makes the scores again, and the gradients of both products."""
    scores, context = forward.products
    products = (scores, context.left_gradient, context.right_gradient, scores.left_gradient, scores.right_gradient)
    share = sum(product.flops for product in products) / max(scores.flops + context.flops, 1)
    kernel = replace(forward, flops=share * forward.flops, moved_bytes=2 * forward.moved_bytes, products=products)
    return CallWork((kernel,))


def repeated_rows(node: NodeProto, input_shapes: Shapes, number_bytes: int) -> Rows | None:
    """Returns the rows that a softmax or a normalization reads more than once; None for other operators."""
    if node.op_type in ("Softmax", "LogSoftmax", "SoftmaxCrossEntropyLoss"):
        shape = tuple(_require_shape(input_shapes[0]))
        axis = 1 if node.op_type == "SoftmaxCrossEntropyLoss" else attribute(node, "axis", -1)
        return Rows.of_softmax(prod(shape), shape[axis], number_bytes)
    if node.op_type in _ROW_NORMS:
        shape = tuple(_require_shape(input_shapes[0]))
        return Rows.of_norm(prod(shape), prod(shape[attribute(node, "axis", -1) :]), number_bytes)
    shape = tuple(_require_shape(input_shapes[0]))
    if len(shape) > 1 and node.op_type in ("InstanceNormalization", "GroupNormalization"):
        groups = attribute(node, "num_groups", shape[1])
        return Rows.of_norm(prod(shape), prod(shape[1:]) // max(groups, 1), number_bytes)
    if len(shape) > 1 and node.op_type == "BatchNormalization" and attribute(node, "training_mode", 0):
        return Rows.of_norm(prod(shape), prod(shape) // max(shape[1], 1), number_bytes)  # rows are channels
    return None
