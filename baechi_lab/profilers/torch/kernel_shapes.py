"""The shapes that decide how a GPU runs an ATen operator: those of matrix products, and of rows that are read again.

Tensors may be fake or on the meta device. Operators of no known shape have no products; their FLOPs and bytes count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, prod
from typing import TYPE_CHECKING, Any

from .. import arithmetic
from ..work import (
    ALIGNED,
    DEPTHWISE_GRADIENT,
    POSITIONS_SUM_US,
    Kernel,
    Product,
    Rows,
    added_bias,
    batch_norm_flops,
    batch_norm_us,
    convolution_layout_bytes,
    convolution_products,
    depthwise_flops,
    last_depthwise_flops,
    norm_sums,
    score_flops,
    table_sums,
    transposed_products,
)

if TYPE_CHECKING:
    import torch

    from ...torch_runtime.tree import Args

Products = tuple[Product, ...]


NUMBERS: dict[str, int | None] = {
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices"), None),
    **dict.fromkeys(("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"), 1),
    "upsample_bilinear2d": None,
    "upsample_bilinear2d_backward": 0,
    "native_layer_norm": 0,
    "native_layer_norm_backward": 0,
    "native_group_norm": 0,
    "native_group_norm_backward": 1,
    **dict.fromkeys(("_softmax", "_safe_softmax", "_log_softmax", "native_dropout", "gelu", "gelu_backward"), 0),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), 0),
}
"""Operators in `arithmetic.multiprocessor_us`, and the position of the argument whose numbers count; None for the output."""
_FUSED_ATTENTION = ("_scaled_dot_product_", "_flash_attention", "_efficient_attention")
INT4_PRODUCTS = ("_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu", "_weight_int4pack_mm_with_scales_and_zeros")
"""Products with weights of 4 bits, which lie in memory in tiles; their scales have a column per column of the output."""
_CONVOLUTIONS = ("convolution", "_convolution", "cudnn_convolution", "convolution_overrideable")
_CAUSAL = {
    "_scaled_dot_product_flash_attention_for_cpu": 4,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 7,
    "_scaled_dot_product_flash_attention": 4,
    "_scaled_dot_product_flash_attention_backward": 11,
    "_scaled_dot_product_efficient_attention": 6,
    "_scaled_dot_product_efficient_attention_backward": 11,
    "_scaled_dot_product_cudnn_attention": 6,
    "_scaled_dot_product_cudnn_attention_backward": 14,
    "_scaled_dot_product_fused_attention_overrideable": 5,
    "_scaled_dot_product_fused_attention_overrideable_backward": 13,
}
"""Operators, and the position of their argument `is_causal`."""


def products_of(name: str, args: Args) -> Products:
    """Returns the matrix products that an operator consists of; none if their shapes are not known.

    Args:
        name: name of the ATen operator, such as "addmm".
        args: its positional arguments.
    """
    if name in _CONVOLUTIONS:
        return _convolution(args)
    if name == "convolution_backward":
        return _convolution_backward(args)
    if name.startswith(_FUSED_ATTENTION):
        operands = [t for t in args if _dims(t) >= 3]
        position = _CAUSAL.get(name)
        causal = position is not None and len(args) > position and args[position] is True
        return _attention_backward(operands[1:4], causal) if "backward" in name else _attention(operands[:3], causal)
    rule = _RULES.get(name)
    return () if rule is None else rule(args)


def rows_of(name: str, args: Args) -> Rows | None:
    """Returns the rows that an operator reads more than once; None if it reads all once."""
    if name in _SOFTMAX:
        tensor = args[0]
        if not _dims(tensor):
            return None
        length = tensor.shape[args[_SOFTMAX[name]]]
        return Rows.of_softmax(tensor.numel(), length, tensor.element_size(), backward="backward" in name)
    if name in ("native_layer_norm", "_fused_rms_norm"):
        return Rows.of_norm(args[0].numel(), prod(args[1]), args[0].element_size())
    if name == "native_layer_norm_backward":
        return Rows.of_norm(args[0].numel(), prod(args[2]), args[0].element_size(), tensors=2)
    if name in _BATCH_NORMS and args[_BATCH_NORMS[name]]:  # statistics of the batch: rows are channels
        tensor = args[0]
        return Rows.of_norm(tensor.numel(), tensor.numel() // max(tensor.shape[1], 1), tensor.element_size())
    if name == "native_batch_norm_backward" and args[7]:  # the gradient and the input, both of them twice
        tensor = args[1]
        return Rows.of_norm(tensor.numel(), tensor.numel() // max(tensor.shape[1], 1), tensor.element_size(), tensors=2)
    if name == "native_group_norm":
        tensor, groups = args[0], args[6]
        return Rows.of_norm(tensor.numel(), tensor[0].numel() // groups, tensor.element_size())
    if name == "native_group_norm_backward":
        tensor, groups = args[1], args[8]
        return Rows.of_norm(tensor.numel(), tensor[0].numel() // groups, tensor.element_size(), tensors=2)
    return None


_SOFTMAX = {
    "_softmax": 1,
    "_log_softmax": 1,
    "_safe_softmax": 1,
    "_softmax_backward_data": 2,
    "_log_softmax_backward_data": 2,
}
"""Operators, and the position of their argument that is the dimension of the rows."""
_BATCH_NORMS = {"native_batch_norm": 5, "_native_batch_norm_legit": 5, "cudnn_batch_norm": 5}
"""Operators, and the position of their argument that says whether they compute statistics."""


def _dims(value: object) -> int:
    return value.dim() if hasattr(value, "dim") else 0


def _matrices(a: torch.Tensor, b: torch.Tensor) -> Products:
    """One product of two matrices, or a batch of them."""
    count = a.shape[0] if a.dim() == 3 else 1
    return (Product(count, a.shape[-2], b.shape[-1], a.shape[-1]),) if a.numel() and b.numel() else ()


def _linear(args: Args) -> Products:
    a, weight = args[:2]
    return (Product(1, prod(a.shape[:-1]), weight.shape[0], a.shape[-1]),) if a.numel() and weight.dim() == 2 else ()


def _grouped_mm(args: Args) -> Products:
    """One product per group, whose rows, columns or summed index are equal parts of a two-dimensional tensor."""
    a, b = args[:2]
    if not (a.numel() and b.numel()):
        return ()
    rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    groups = b.shape[0] if b.dim() == 3 else a.shape[0] if a.dim() == 3 else 1
    if a.dim() == 2 and b.dim() == 3:
        return (Product(groups, -(-rows // groups), columns, inner),)
    if a.dim() == 3 and b.dim() == 2:
        return (Product(groups, rows, -(-columns // groups), inner),)
    return (Product(groups, rows, columns, inner),)


def vector_flops(name: str, args: Args, out: torch.Tensor, precision: str) -> float:
    """Returns the `Kernel.vector_flops` of an operator: of fused attention, a depthwise convolution or a batch norm."""
    if name.startswith(_FUSED_ATTENTION):
        return score_flops(products_of(name, args)[0], args[0].element_size())
    if name in _CONVOLUTIONS and args[8] > 1 and args[1].shape[1] == 1:
        window = args[1].shape[2:]
        if channels_last(args[0]):
            return last_depthwise_flops(out.numel(), window, out.element_size())
        return depthwise_flops(out.numel(), window, precision)
    if name == "convolution_backward" and args[9] > 1 and args[2].shape[1] == 1:
        gradient, tensor, weight = args[:3]
        window, (of_input, of_filters) = weight.shape[2:], args[10][:2]
        if channels_last(tensor):
            number_bytes = tensor.element_size()
            input_flops = last_depthwise_flops(tensor.numel(), window, number_bytes, "input")
            filters_flops = last_depthwise_flops(gradient.numel(), window, number_bytes, "filters")
        else:
            input_flops = DEPTHWISE_GRADIENT * depthwise_flops(tensor.numel(), window, precision)
            filters_flops = DEPTHWISE_GRADIENT * depthwise_flops(gradient.numel(), window, precision)
        return of_input * input_flops + of_filters * filters_flops
    backward = name == "native_batch_norm_backward" and args[7]
    if channels_last(args[0]):  # threads beside each other read the channels of a position: memory bounds a batch norm
        return 0.0
    if backward or (name in _BATCH_NORMS and args[_BATCH_NORMS[name]]):
        return batch_norm_flops(args[0].shape, args[0].element_size(), bool(backward))
    return 0.0


def channels_last(tensor: torch.Tensor) -> bool:
    """Whether the channels of images lie next to each other in memory."""
    return _dims(tensor) >= 4 and tensor.stride(1) == 1 and tensor.shape[1] > 1 and prod(tensor.shape[2:]) > 1


def multiprocessor_us(name: str, args: Args, out: torch.Tensor) -> float:
    """Returns the `Kernel.multiprocessor_us` of an operator in `NUMBERS` or a batch norm with given statistics; 0 for others."""
    if name in _BATCH_NORMS and not args[_BATCH_NORMS[name]] and _dims(out) > 2 and not channels_last(out):
        return batch_norm_us(out.shape[0] * out.shape[1], prod(out.shape[2:]))
    if name not in NUMBERS:
        return 0.0
    position = NUMBERS[name]
    tensor = out if position is None else args[position]
    window = prod(args[1]) if name in ("max_pool2d_with_indices", "max_pool3d_with_indices") else 1
    kind = "_fused_rms_norm" if name == "native_layer_norm" and args[3] is None else name
    rows = rows_of(name, args)
    return arithmetic.multiprocessor_us(
        kind, tensor.element_size(), window * tensor.numel(), 0 if rows is None else rows.count
    )


def wait_us(name: str, args: Args, out: torch.Tensor) -> float:
    """Returns the `Kernel.wait_us` of sums over the first dimensions of a tensor, as of a bias' gradient; 0 for others."""
    if name == "convolution_backward":
        if not args[10][2]:
            return 0.0
        gradient, filters = args[0], args[0].shape[1]
        if channels_last(gradient):
            return arithmetic.column_sum_us(gradient.numel() // filters, filters)
        return POSITIONS_SUM_US
    if name not in ("sum", "mean") or len(args) < 2 or not args[1] or not args[0].numel():
        return 0.0
    dims = {int(d) % _dims(args[0]) for d in args[1]}
    columns = out.numel()
    if dims != set(range(len(dims))) or columns == 1:
        return 0.0
    return arithmetic.column_sum_us(args[0].numel() // columns, columns)


def next_kernel(name: str, args: Args, out: torch.Tensor) -> Kernel | None:
    """Returns the `Kernel.followed_by` of an operator: sums of a weight's gradient, products of a softmax's, an added bias."""
    if name in _CONVOLUTIONS and args[2] is not None and (products_of(name, args) or channels_last(args[0])):
        return added_bias(out.numel(), out.element_size())
    if name == "_softmax_backward_data":
        return Kernel(moved_bytes=3.0 * args[0].numel() * args[0].element_size())
    if name == "native_layer_norm_backward" and any(args[7][1:]):
        return norm_sums(args[0].numel(), prod(args[2]), args[0].element_size())
    if name == "embedding_dense_backward":
        return table_sums(args[0].numel(), args[0].element_size())
    return None


def layout_bytes(name: str, args: Args, moved_bytes: float) -> float:
    """Returns the `Kernel.layout_bytes` of a convolution; 0 if channels come last already, and for other operators."""
    if name in _CONVOLUTIONS:
        tensor, weight, stride = args[0], args[1], args[3]
    elif name == "convolution_backward":
        tensor, weight, stride = args[1], args[2], args[4]
    else:
        return 0.0
    if channels_last(tensor):
        return 0.0
    strides = [_of(stride, k) for k in range(_dims(weight) - 2)]
    reads_input = name in _CONVOLUTIONS or args[10][1]  # the gradient of the input writes all of its positions
    input_bytes = float(reads_input * tensor.numel() * tensor.element_size())
    return convolution_layout_bytes(moved_bytes, weight.shape[2:], strides, input_bytes)


def row_alignment(name: str, args: Args) -> int:
    """Returns the largest power of two, up to `ALIGNED`, that divides the bytes from row to row of a product's operands."""
    if name in _CONVOLUTIONS or name == "convolution_backward":  # channels come last on matrix units
        weight, is_transposed = (args[1], args[6]) if name in _CONVOLUTIONS else (args[2], args[7])
        return gcd(int(weight.shape[0 if is_transposed else 1]) * weight.element_size(), ALIGNED)
    matrices = _operands(name, args)
    row_bytes = [_row_length(t) * t.element_size() for t in matrices]
    if len(matrices) == 2:  # the output's rows
        columns = matrices[1].shape[0] if name == "linear" else matrices[1].shape[-1]
        row_bytes.append(columns * matrices[0].element_size())
    return min((gcd(int(length), ALIGNED) for length in row_bytes), default=ALIGNED)


def has_crossed_operands(name: str, args: Args) -> bool:
    """Whether neither operand of a product lies in memory along the summed dimension, as in gradients of weights."""
    matrices = _operands(name, args)
    return len(matrices) == 2 and name != "linear" and matrices[0].stride(-1) != 1 and matrices[1].stride(-2) != 1


def _operands(name: str, args: Args) -> list[torch.Tensor]:
    """Returns the matrices that a product multiplies; none for other operators, groups and packed weights."""
    if name not in _RULES or name.endswith("grouped_mm") or "fallback" in name or "pack_mm" in name:
        return []
    operands = args[1:3] if name in ("addmm", "_addmm_activation", "baddbmm", "addbmm") else args[:2]
    return [t for t in operands if _dims(t) >= 2]


def _row_length(tensor: torch.Tensor) -> int:
    """Returns the numbers from row to row: a matrix may lie in memory by rows or by columns."""
    strides = tensor.stride()[-2:]
    return max(strides) if min(strides) == 1 and max(strides) > 1 else tensor.shape[-1]


def _attention(operands: Sequence[torch.Tensor], causal: bool = False) -> Products:
    """Scores of queries and keys, and their product with the values, for every head of the queries.

    Causal attention skips the blocks of keys after a query: a half of all.
    """
    query, key, value = operands
    heads, positions, keys = prod(query.shape[:-2]), query.shape[-2], key.shape[-2]
    keys = (keys + 1) // 2 if causal and keys > 1 else keys
    return (Product(heads, positions, keys, query.shape[-1]), Product(heads, positions, value.shape[-1], keys))


def _attention_backward(operands: Sequence[torch.Tensor], causal: bool = False) -> Products:
    """Scores again, and the gradients of both products."""
    scores, context = _attention(operands, causal)
    return (scores, context.left_gradient, context.right_gradient, scores.left_gradient, scores.right_gradient)


def _convolution(args: Args) -> Products:
    tensor, weight = args[0], args[1]
    stride, padding, dilation, is_transposed, groups = args[3], args[4], args[5], args[6], args[8]
    window, dims = tuple(weight.shape[2:]), len(weight.shape) - 2
    plain = all(_of(stride, k) == 1 and _of(dilation, k) == 1 for k in range(dims))
    if is_transposed:
        filters = weight.shape[1] * groups
        return transposed_products(tensor.shape[0], tensor.shape[2:], weight.shape[0], filters, window, groups, plain)
    outputs = [
        (size + 2 * _of(padding, k) - _of(dilation, k) * (window[k] - 1) - 1) // _of(stride, k) + 1
        for k, size in enumerate(tensor.shape[2:])
    ]
    channels, has_gaps = weight.shape[1] * groups, prod(_of(stride, k) for k in range(dims)) > prod(window)
    return convolution_products(tensor.shape[0], outputs, channels, weight.shape[0], window, groups, plain, has_gaps)


def _convolution_backward(args: Args) -> Products:
    """One product for each gradient that is asked for: of the input and of the filters."""
    forward = _convolution((args[1], args[2], None, *args[4:10]))
    gradients = [gradient for product in forward for gradient in (product.left_gradient, product.right_gradient)]
    return tuple(p for p, is_needed in zip(gradients, args[10], strict=False) if is_needed)


def _of(sizes: Any, k: int) -> int:
    """Returns the size of dimension `k`; a single size holds for all."""
    values = sizes if isinstance(sizes, (list, tuple)) else [sizes]
    return int(values[k] if k < len(values) else values[-1])


_RULES: dict[str, Callable[[Args], Products]] = {
    "mm": lambda args: _matrices(*args[:2]),
    "addmm": lambda args: _matrices(*args[1:3]),
    "_addmm_activation": lambda args: _matrices(*args[1:3]),
    "bmm": lambda args: _matrices(*args[:2]),
    "baddbmm": lambda args: _matrices(*args[1:3]),
    "addbmm": lambda args: _matrices(*args[1:3]),
    "_euclidean_dist": lambda args: _matrices(args[0], args[1].mT),
    "_int_mm": lambda args: _matrices(*args[:2]),
    "_scaled_mm": lambda args: _matrices(*args[:2]),
    "_weight_int8pack_mm": _linear,
    **dict.fromkeys(INT4_PRODUCTS, lambda args: (Product(1, args[0].shape[0], args[3].shape[1], args[0].shape[1]),)),
    "linear": _linear,
    "_grouped_mm": _grouped_mm,
    "_scaled_grouped_mm": _grouped_mm,
    "grouped_mm_fallback": _grouped_mm,
}
