"""The work of one call of an ATen operator: FLOPs, bytes and precision, for the kernel model that all frameworks share.

FLOPs of matrix products, convolutions and attention are those of `torch.utils.flop_counter`. Element-wise operators count a
fixed number per element (`profilers/arithmetic.py`), reductions one per input element, pooling one per position of its window,
data movement none. Bytes are those of all tensors read and written, each once; for lookups only the part that is read. A call
whose outputs share the memory of its inputs moves nothing.

Fused attention counts its FLOPs without the mask, as torch's counter does; its time skips what is causal. Products of float32
numbers and convolutions run in full float32, unless the option `precision` says otherwise (`profilers/precision.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

import torch
from torch.utils.flop_counter import flop_registry

from ...torch_runtime.storage import storage_bytes, storage_key
from ...torch_runtime.tree import Args, Kwargs, tensors
from ..arithmetic import per_element, sorting_bytes
from ..work import INDEX_US, Kernel, product_of_complex_numbers, recurrent_kernel
from .kernel_shapes import (
    INT4_PRODUCTS,
    has_crossed_operands,
    layout_bytes,
    multiprocessor_us,
    next_kernel,
    products_of,
    row_alignment,
    rows_of,
    vector_flops,
    wait_us,
)

if TYPE_CHECKING:
    from torch._ops import OpOverload, OpOverloadPacket

_FUSED = "_scaled_dot_product_"
_RECURRENT = ("mkldnn_rnn_layer", "recurrent_layer")
_ALLOCATE = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "lift_fresh"}
)
_TOUCHES_PART = frozenset({"embedding", "index", "index_select", "gather", "take", "slice_scatter", "select_scatter"})
_SUMS_ROWS = frozenset({"_embedding_bag", "_embedding_bag_forward_only"})
"""Lookups that add up the rows which they read."""
_BINARY_SEARCHES = {"searchsorted": 0, "bucketize": 1}
"""Searches of values in sorted rows -> position of the rows among the tensors. A value reads log2 of the row's length of them."""
_WRITES_PART = frozenset(
    """
        index_put_ _index_put_impl_ index_add_ index_copy_ index_fill_ index_reduce_ put_ scatter_ scatter_add_
        scatter_reduce_ masked_scatter_
    """.split()
)
_SORTS_ROWS = frozenset({"sort", "topk", "kthvalue", "median", "nanmedian", "mode", "_unique2"})
_READS_NOTHING = frozenset(
    "zeros_like ones_like full_like rand_like randn_like randint_like new_zeros new_ones new_full".split()
)
"""Operators that are given a tensor for its shape and type."""
_OVERWRITES = frozenset({"copy_", "fill_", "zero_", "bernoulli_", "normal_", "uniform_", "random_", "exponential_"})
_MOVES = frozenset(
    """
        copy_ _to_copy clone contiguous fill fill_ zero_ where masked_fill masked_fill_ ones_like zeros_like full_like
        alias_copy view_copy expand_copy
    """.split()
)
_READS_GRADIENT_ONLY = frozenset(
    """
        avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward
    """.split()
)
"""Gradients whose operator is also given the input, of which they use the shape."""
_LOSSES_PER_NUMBER = frozenset({"mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "binary_cross_entropy"})
"""Losses that are written per number before they are reduced."""
_DRAWN = frozenset({"rand", "randn", "randint", "normal"})
_REDUCTIONS = frozenset(
    """
        sum mean prod amax amin max min argmax argmin all any logsumexp cumsum cumprod var std var_mean norm
        linalg_vector_norm topk sort nll_loss_forward
    """.split()
)
_COPIES = frozenset({"copy_", "_to_copy", "clone", "contiguous"})
_BATCHED = frozenset({"bmm", "baddbmm", "addbmm"})


def kernel_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes in memory: an expanded tensor is smaller than its shape."""
    return int(min(tensor.numel() * tensor.element_size(), storage_bytes(tensor)))


def kernel_of(
    func: OpOverload, args: Args, kwargs: Kwargs, out: object, size: Callable[[torch.Tensor], int] = kernel_bytes
) -> Kernel:
    """Returns the kernel of one ATen call.

    Args:
        func: an operator or one of its overloads, such as `torch.ops.aten.mm.default`.
        args, kwargs: its arguments; only shape, type and memory of tensors are read, so they may be fake or meta.
        out: its result.
        size: function from a tensor to its bytes.

    >>> a, b = torch.empty(8, 16, device="meta"), torch.empty(16, 4, device="meta")
    >>> kernel = kernel_of(torch.ops.aten.mm.default, (a, b), {}, a @ b)
    >>> kernel.flops, kernel.moved_bytes, kernel.matrix    # 2 * 8 * 16 * 4; 4 * (8 * 16 + 16 * 4 + 8 * 4)
    (1024.0, 896.0, True)
    """
    packet = getattr(func, "overloadpacket", func)
    name = packet.__name__
    inputs, outputs = list(tensors((args, kwargs))), list(tensors(out))
    if name in _ALLOCATE or not outputs:
        return Kernel(metadata=True)
    schema = getattr(func, "_schema", None)
    is_mutable = schema is not None and schema.is_mutable
    if not is_mutable and {storage_key(t) for t in outputs} <= {storage_key(t) for t in inputs}:
        return Kernel(metadata=True)
    product = name.removesuffix("_")  # `addmm_` is the product of `addmm`
    count = _flops(getattr(torch.ops.aten, product, packet) if product != name else packet, product, args, kwargs, out)
    products = () if count is None else products_of(product, args)
    moved_bytes, precision = float(_moved_bytes(name, args, inputs, outputs, size)), _precision(inputs)
    if name in _SORTS_ROWS:
        moved_bytes = max(moved_bytes, float(_sorting_bytes(name, args, kwargs, inputs[0], outputs[0])))
    kernel = Kernel(
        flops=float(_arithmetic(func, name, args, inputs, outputs) if count is None else count),
        moved_bytes=moved_bytes,
        precision=precision,
        matrix=count is not None,
        batched=count is not None and (product in _BATCHED or name.startswith((_FUSED, "_flash", "_efficient"))),
        products=products,
        convolution="conv" in name and bool(products),
        rows=rows_of(name, args),
        vector_flops=vector_flops(name, args, outputs[0], precision),
        layout_bytes=layout_bytes(name, args, moved_bytes),
        row_alignment=row_alignment(product, args),
        crossed=has_crossed_operands(product, args),
        multiprocessor_us=multiprocessor_us(name, args, outputs[0]) or _index_us(func, name, inputs, outputs[0]),
        wait_us=wait_us(name, args, outputs[0]),
        steps=max(sum(args[10][:2]), 1) if name == "convolution_backward" else 1,
        followed_by=next_kernel(name, args, outputs[0]),
    )
    if kernel.matrix and any(t.is_complex() for t in inputs):
        return product_of_complex_numbers(kernel)
    if not name.startswith(_RECURRENT):
        return kernel
    (steps, samples), (rows, hidden) = args[0].shape[:2], args[2].shape
    return recurrent_kernel(kernel, steps, samples, hidden, rows // hidden, "backward" in name)


def _index_us(func: OpOverload, name: str, inputs: list[torch.Tensor], out: torch.Tensor) -> float:
    """Returns the `Kernel.multiprocessor_us` of an element-wise operator or copy with operands of another order or type.

    Copies of float32 numbers to 16-bit ones have a kernel of their own, which moves them as if they had one type.
    """
    if name == "cat":
        return INDEX_US * out.numel() * (not all(t.is_contiguous() for t in inputs))
    is_copy, is_element_wise = name in _COPIES, torch.Tag.pointwise in getattr(func, "tags", ()) or "prelu" in name
    if not (is_element_wise or is_copy):
        return 0.0
    in_order = all(t.numel() <= 1 or (t.shape == out.shape and t.stride() == out.stride()) for t in inputs)
    types = {t.dtype for t in (*inputs, out) if t.is_floating_point() and t.dim()}
    is_narrowing = is_copy and inputs[-1].dtype == torch.float32
    return 0.0 if in_order and (len(types) < 2 or is_narrowing) else INDEX_US * out.numel()


def _flops(packet: OpOverloadPacket, name: str, args: Args, kwargs: Kwargs, out: object) -> float | None:
    """Returns the FLOPs of a matrix product; None for any other operator."""
    if name.startswith((_FUSED, "_flash_attention", "_efficient_attention")):
        return _attention("backward" in name, [t for t in tensors(args) if t.dim() >= 3])
    rule = _FLOP_RULES.get(name)
    if rule is not None:
        return rule(args)
    formula = flop_registry.get(packet)
    return None if formula is None else float(formula(*args, **kwargs, out_val=out))


def _arithmetic(
    func: OpOverload, name: str, args: Args, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
) -> float:
    """Returns the FLOPs of an operator other than a product; 0 if unknown, so that its bytes decide."""
    if name in _MOVES or (not inputs and name not in _DRAWN):
        return 0.0
    if "_pool" in name:
        read_numbers, written_numbers = inputs[0].numel(), outputs[0].numel()
        if "adaptive" in name:
            return float(max(read_numbers, written_numbers))
        return float(_window(name, args) * (read_numbers if "backward" in name else written_numbers))
    if name in _REDUCTIONS:
        return float(inputs[0].numel())
    if name in _PAIR_FLOPS:
        return _PAIR_FLOPS[name](args)
    flops_per_element = per_element(name, 1 if torch.Tag.pointwise in getattr(func, "tags", ()) else 0)
    return float(flops_per_element * outputs[0].numel())


def _window(name: str, args: Args) -> int:
    """Returns the positions in a pooling window; a single size holds for all its dimensions."""
    size = next((a for a in args if isinstance(a, (list, tuple)) and a and all(isinstance(x, int) for x in a)), (1,))
    dims = next((k for k in (1, 2, 3) if f"pool{k}d" in name), 1)
    return int(size[0] ** dims if len(size) == 1 else prod(size))


def _attention(backward: bool, inputs: list[torch.Tensor]) -> float:
    """Counts two products forward, and five backward, where the scores are computed again.

    Shapes are batch, heads, positions, size. Keys and values may have fewer heads than queries; each then serves several.
    """
    query, key, value = inputs[1:4] if backward else inputs[:3]
    scores = prod(query.shape[:-1]) * key.shape[-2]
    width, value_width = query.shape[-1], value.shape[-1]
    return 2.0 * scores * (3 * width + 2 * value_width if backward else width + value_width)


def _recurrent(args: Args) -> float:
    """Counts one recurrent layer over a sequence: inputs and states times weights, at every step."""
    return 2.0 * prod(args[0].shape[:-1]) * sum(t.numel() for t in tensors(args[1:3]))


def _grouped_mm(args: Args) -> float:
    """Counts one product per group, whose rows, columns or summed index are parts of a two-dimensional tensor."""
    a, b = args[:2]
    groups = a.shape[0] if a.dim() == b.dim() == 3 else 1
    return 2.0 * groups * a.shape[-2] * a.shape[-1] * b.shape[-1]


def _convolution_backward(args: Args) -> float:
    """Counts the products of the forward convolution for the gradient of the input, and for that of the filters."""
    output, image, weight, is_transposed = args[0], args[1], args[2], args[7]
    positions = (image if is_transposed else output).shape
    return 2.0 * positions[0] * prod(positions[2:]) * prod(weight.shape) * sum(args[10][:2])


def trilinear_shapes(args: Args) -> list[list[int]]:
    """Returns the sizes of the three tensors of a bilinear layer, with 1 in the dimensions that a tensor does not have."""
    shapes = []
    for tensor, inserted_axes in zip(args[:3], args[3:6], strict=True):
        shape = list(tensor.shape)
        for position in inserted_axes:
            shape.insert(position, 1)
        shapes.append(shape)
    return shapes


def _trilinear(args: Args) -> float:
    """Counts two products and a sum for each combination of all dimensions."""
    return 3.0 * prod(map(max, zip(*trilinear_shapes(args), strict=True)))


_PAIR_FLOPS: dict[str, Callable[[Args], float]] = {
    "_cdist_forward": lambda args: 3.0 * args[0].numel() * args[1].shape[-2],
    "_cdist_backward": lambda args: 5.0 * args[1].numel() * args[2].shape[-2],
    "_pdist_forward": lambda args: 1.5 * args[0].numel() * (args[0].shape[0] - 1),
    "_pdist_backward": lambda args: 5.0 * args[1].numel() * (args[1].shape[0] - 1),
    "_trilinear": _trilinear,
}
"""FLOPs of operators that combine all pairs of rows one number at a time, without a matrix product."""
_FLOP_RULES: dict[str, Callable[[Args], float]] = {
    "convolution_backward": _convolution_backward,
    "mkldnn_rnn_layer": _recurrent,
    "mkldnn_rnn_layer_backward": lambda args: 2 * _recurrent(args),
    "recurrent_layer": _recurrent,
    "recurrent_layer_backward": lambda args: 2 * _recurrent(args),
    "mv": lambda args: 2.0 * args[-2].numel(),
    "addmv": lambda args: 2.0 * args[-2].numel(),
    "_int_mm": lambda args: 2.0 * prod(args[0].shape) * args[1].shape[-1],
    **dict.fromkeys(INT4_PRODUCTS, lambda args: 2.0 * prod(args[0].shape) * args[3].shape[1]),
    "_weight_int8pack_mm": lambda args: 2.0 * prod(args[0].shape) * args[1].shape[0],
    "addbmm": lambda args: 2.0 * prod(args[1].shape) * args[2].shape[-1],
    "_euclidean_dist": lambda args: 2.0 * prod(args[0].shape) * args[1].shape[-2],
    "_grouped_mm": _grouped_mm,
    "_scaled_grouped_mm": _grouped_mm,
    "grouped_mm_fallback": _grouped_mm,
    "grouped_mm_fallback_backward": lambda args: 2 * _grouped_mm(args),
}
"""FLOPs of products that torch's counter does not know, or counts too often: gradients of grouped convolutions."""


def _moved_bytes(
    name: str, args: Args, inputs: list[torch.Tensor], outputs: list[torch.Tensor], size: Callable[[torch.Tensor], int]
) -> int:
    written_bytes = sum(map(size, outputs))
    if name == "convolution_backward":  # each gradient is a convolution, of three tensors
        return max(sum(args[10][:2]) * sum(map(size, args[:3])), size(args[0]))
    if name in _READS_NOTHING:
        return written_bytes
    if name in _READS_GRADIENT_ONLY:
        return size(inputs[0]) + written_bytes
    if name in _LOSSES_PER_NUMBER and not outputs[0].dim():
        return sum(map(size, inputs)) + 2 * size(inputs[0])  # a loss per number is written, then read and summed
    if name in _TOUCHES_PART:
        return 2 * written_bytes + sum(size(t) for t in inputs[1:])
    if name == "embedding_renorm_":  # reads the rows that are looked up, and writes those that are too long
        return 2 * inputs[1].numel() * prod(inputs[0].shape[1:]) * inputs[0].element_size() + size(inputs[1])
    if name in _BINARY_SEARCHES:
        bounds = inputs[_BINARY_SEARCHES[name] if len(inputs) > 1 else 0]
        reads = outputs[0].numel() * max(bounds.shape[-1], 1).bit_length()
        other_bytes = sum(size(t) for t in inputs if t is not bounds)
        return reads * bounds.element_size() + other_bytes + written_bytes
    if name in _SUMS_ROWS:
        row_bytes = prod(inputs[0].shape[1:]) * inputs[0].element_size()
        return inputs[1].numel() * row_bytes + sum(size(t) for t in inputs[1:]) + written_bytes
    if name in _WRITES_PART:
        return sum(size(t) for t in inputs[1:]) + 2 * max((size(t) for t in inputs[1:]), default=0)
    if name == "_grouped_mm" and inputs[0].dim() < inputs[1].dim():  # no more experts than there are tokens
        touched_share = min(1.0, inputs[0].shape[0] / max(inputs[1].shape[0], 1))
        return written_bytes + size(inputs[0]) + int(touched_share * size(inputs[1])) + sum(map(size, inputs[2:]))
    if name == "nll_loss_forward":  # one number per target
        return 2 * sum(size(t) for t in inputs[1:])
    if name == "nll_loss_backward":
        return written_bytes + sum(size(t) for t in inputs[2:])
    distinct = {id(t): t for t in (inputs[1:] if name in _OVERWRITES else inputs)}
    return written_bytes + sum(map(size, distinct.values()))


def _sorting_bytes(name: str, args: Args, kwargs: Kwargs, tensor: torch.Tensor, out: torch.Tensor) -> int:
    """Returns `arithmetic.sorting_bytes` of an operator that reads `tensor`."""
    numbers, selected = tensor.numel(), args[1] if name == "topk" else 0
    if name == "sort":
        row = tensor.shape[kwargs.get("dim", args[1] if len(args) > 1 else -1)] if tensor.dim() else 1
    elif name.startswith("_unique"):
        row = numbers
    else:  # every row has as many results
        row = numbers * (selected or 1) // max(out.numel(), 1)
    return sorting_bytes(name, numbers, row, tensor.element_size(), selected)


def _precision(inputs: list[torch.Tensor]) -> str:
    kinds = {t.dtype for t in inputs if t.dim()}
    if any(kind.itemsize == 1 and kind.is_floating_point for kind in kinds):
        return "fp8"
    if torch.bfloat16 in kinds:
        return "bf16"
    if kinds & {torch.float16, torch.complex32}:
        return "fp16"
    if kinds and kinds <= {torch.int8, torch.uint8}:
        return "int8"
    return "fp64" if kinds & {torch.float64, torch.complex128} else "fp32"
