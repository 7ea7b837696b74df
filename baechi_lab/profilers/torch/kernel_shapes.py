"""The shapes that decide how a GPU runs an ATen operator: those of matrix products, and of rows that are read again.

Tensors may be fake or on the meta device. Operators of no known shape have no products; their FLOPs and bytes count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from ..work import Product, Rows, convolution_products, transposed_products

if TYPE_CHECKING:
    import torch

    from ...torch_runtime.tree import Args

Products = tuple[Product, ...]


def products_of(name: str, args: Args) -> Products:
    """Returns the matrix products that an operator consists of; none if their shapes are not known.

    Args:
        name: name of the ATen operator, such as "addmm".
        args: its positional arguments.
    """
    if name in ("convolution", "_convolution", "cudnn_convolution", "convolution_overrideable"):
        return _convolution(args)
    if name == "convolution_backward":
        return _convolution_backward(args)
    if name.startswith(("_scaled_dot_product_", "_flash_attention", "_efficient_attention")):
        operands = [t for t in args if _dims(t) >= 3]
        return _attention_backward(operands[1:4]) if "backward" in name else _attention(operands[:3])
    rule = _RULES.get(name)
    return () if rule is None else rule(args)


def rows_of(name: str, args: Args) -> Rows | None:
    """Returns the rows that an operator reads more than once; None if it reads all once."""
    if name in _SOFTMAX:
        tensor = args[0]
        return (
            Rows.of_softmax(tensor.numel(), tensor.shape[args[_SOFTMAX[name]]], tensor.element_size())
            if _dims(tensor)
            else None
        )
    if name in ("native_layer_norm", "_fused_rms_norm"):
        return Rows.of_norm(args[0].numel(), prod(args[1]), args[0].element_size())
    if name == "native_layer_norm_backward":
        return Rows.of_norm(2 * args[0].numel(), prod(args[2]), args[0].element_size())
    if name in _BATCH_NORMS and args[_BATCH_NORMS[name]]:  # statistics of the batch: rows are channels
        tensor = args[0]
        return Rows.of_norm(tensor.numel(), tensor.numel() // max(tensor.shape[1], 1), tensor.element_size())
    if name == "native_batch_norm_backward" and args[7]:  # the gradient and the input, both of them twice
        tensor = args[1]
        return Rows.of_norm(2 * tensor.numel(), tensor.numel() // max(tensor.shape[1], 1), tensor.element_size())
    if name == "native_group_norm":
        tensor, groups = args[0], args[6]
        return Rows.of_norm(tensor.numel(), tensor[0].numel() // groups, tensor.element_size())
    if name == "native_group_norm_backward":
        tensor, groups = args[1], args[8]
        return Rows.of_norm(2 * tensor.numel(), tensor[0].numel() // groups, tensor.element_size())
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


def _grouped(args: Args) -> Products:
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


def _attention(operands: Sequence[torch.Tensor]) -> Products:
    """Scores of queries and keys, and their product with the values, for every head of the queries."""
    query, key, value = operands
    heads, positions, keys = prod(query.shape[:-2]), query.shape[-2], key.shape[-2]
    return (
        Product(heads, positions, keys, query.shape[-1]),
        Product(heads, positions, value.shape[-1], keys),
    )


def _attention_backward(operands: Sequence[torch.Tensor]) -> Products:
    """Scores again, and the gradients of both products."""
    scores, context = _attention(operands)
    return (
        scores,
        context.left_gradient,
        context.right_gradient,
        scores.left_gradient,
        scores.right_gradient,
    )


def _convolution(args: Args) -> Products:
    tensor, weight = args[0], args[1]
    stride, padding, dilation, transposed, groups = args[3], args[4], args[5], args[6], args[8]
    window, dims = tuple(weight.shape[2:]), len(weight.shape) - 2
    plain = all(_of(stride, k) == 1 and _of(dilation, k) == 1 for k in range(dims))
    if transposed:
        filters = weight.shape[1] * groups
        return transposed_products(tensor.shape[0], tensor.shape[2:], weight.shape[0], filters, window, groups, plain)
    outputs = [
        (size + 2 * _of(padding, k) - _of(dilation, k) * (window[k] - 1) - 1) // _of(stride, k) + 1
        for k, size in enumerate(tensor.shape[2:])
    ]
    channels = weight.shape[1] * groups
    return convolution_products(tensor.shape[0], outputs, channels, weight.shape[0], window, groups, plain)


def _convolution_backward(args: Args) -> Products:
    """One product for each gradient that is asked for: of the input and of the filters."""
    forward = _convolution((args[1], args[2], None, *args[4:10]))
    gradients = [gradient for product in forward for gradient in (product.left_gradient, product.right_gradient)]
    return tuple(p for p, is_needed in zip(gradients, args[10], strict=False) if is_needed)


def _of(sizes: Any, k: int) -> int:
    """The size of dimension `k`; a single size holds for all."""
    values = sizes if isinstance(sizes, (list, tuple)) else [sizes]
    return int(values[k] if k < len(values) else values[-1])


_RULES: dict[str, Callable[[Args], Products]] = {
    "mm": lambda args: _matrices(*args[:2]),
    "addmm": lambda args: _matrices(*args[1:3]),
    "_addmm_activation": lambda args: _matrices(*args[1:3]),
    "bmm": lambda args: _matrices(*args[:2]),
    "baddbmm": lambda args: _matrices(*args[1:3]),
    "_int_mm": lambda args: _matrices(*args[:2]),
    "_scaled_mm": lambda args: _matrices(*args[:2]),
    "linear": _linear,
    "_grouped_mm": _grouped,
    "_scaled_grouped_mm": _grouped,
    "grouped_mm_fallback": _grouped,
}
