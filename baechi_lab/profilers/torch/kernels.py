"""What one call of an ATen operator does: FLOPs, bytes, precision, for the roofline that all frameworks share.

FLOPs of matrix products, convolutions and attention are those of `torch.utils.flop_counter`. Element-wise operators count a
fixed number per element (`profilers/arithmetic.py`), reductions one per element that they read, pooling one per position of
its window, data movement none. Bytes are those of all tensors read and written, each once; of
what is looked up only the part that is touched. A call whose outputs share the memory of its inputs moves nothing.

Attention that is fused counts its products without the mask, as the counter of torch does. Products of float32 numbers
run in full precision or TF32 as `torch.get_float32_matmul_precision()` says; convolutions in TF32, which is the default
of cuDNN.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from ...torch.runtime.storage import storage_bytes, storage_key
from ...torch.runtime.tree import tensors
from ..arithmetic import per_element
from ..roofline import Kernel

_FUSED = "_scaled_dot_product_"
_ALLOCATE = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "lift_fresh"}
)
_TOUCHES_PART = frozenset({"embedding", "index", "index_select", "gather", "slice_scatter", "select_scatter"})
_WRITES_PART = frozenset({
    "index_put_", "_index_put_impl_", "index_add_", "index_copy_", "index_fill_", "scatter_", "scatter_add_",
    "masked_scatter_",
})  # fmt: skip
_OVERWRITES = frozenset({"copy_", "fill_", "zero_", "bernoulli_", "normal_", "uniform_", "random_", "exponential_"})
_MOVES = frozenset({
    "copy_", "_to_copy", "clone", "contiguous", "fill", "fill_", "zero_", "where", "masked_fill", "masked_fill_", "ones_like",
    "zeros_like", "full_like", "alias_copy", "view_copy", "expand_copy",
})  # fmt: skip
_DRAWN = frozenset({"rand", "randn", "randint", "normal"})
_REDUCTIONS = frozenset({
    "sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "all", "any", "logsumexp", "cumsum", "cumprod",
    "var", "std", "var_mean", "norm", "linalg_vector_norm", "topk", "sort", "nll_loss_forward",
})  # fmt: skip
_BATCHED = frozenset({"bmm", "baddbmm"})


def kernel_bytes(tensor: Any) -> int:
    """What is in memory: a tensor that was expanded is smaller than its shape."""
    return int(min(tensor.numel() * tensor.element_size(), storage_bytes(tensor)))


def kernel_of(
    func: Any, args: Any, kwargs: Any, out: Any, size: Callable[[torch.Tensor], int] = kernel_bytes
) -> Kernel:
    """The kernel of one ATen call.

    Args:
        func: an operator or one of its overloads, such as `torch.ops.aten.mm.default`.
        args, kwargs: its arguments; of tensors only shape, type and memory are looked at, so they may be fake or meta.
        out: what it returned.
        size: bytes of a tensor.

    >>> a, b = torch.empty(8, 16, device="meta"), torch.empty(16, 4, device="meta")
    >>> kernel = kernel_of(torch.ops.aten.mm.default, (a, b), {}, a @ b)
    >>> kernel.flops, kernel.moved_bytes, kernel.matrix    # 2 * 8 * 16 * 4; 4 * (8 * 16 + 16 * 4 + 8 * 4)
    (1024.0, 896.0, True)
    """
    packet = getattr(func, "overloadpacket", func)
    name = packet.__name__
    taken, made = list(tensors((args, kwargs))), list(tensors(out))
    if name in _ALLOCATE or not made:
        return Kernel(metadata=True)
    if not _mutates(func) and {storage_key(t) for t in made} <= {storage_key(t) for t in taken}:
        return Kernel(metadata=True)
    count = _flops(packet, name, args, kwargs, out)
    return Kernel(
        flops=float(_arithmetic(func, name, args, taken, made) if count is None else count),
        moved_bytes=float(_moved(name, taken, made, size)),
        precision=_precision(taken, "conv" in name),
        matrix=count is not None,
        batched=count is not None and (name in _BATCHED or name.startswith((_FUSED, "_flash", "_efficient"))),
    )


def _flops(packet: Any, name: str, args: Any, kwargs: Any, out: Any) -> float | None:
    """None where the operator is no matrix product."""
    if name.startswith((_FUSED, "_flash_attention", "_efficient_attention")):
        return _attention("backward" in name, [t for t in tensors(args) if t.dim() >= 3])
    own = _OWN.get(name)
    if own is not None:
        return own(args, out)
    counted = flop_registry.get(packet)
    return None if counted is None else float(counted(*args, **kwargs, out_val=out))


def _arithmetic(func: Any, name: str, args: Any, taken: list[Any], made: list[Any]) -> float:
    """FLOPs of what is no matrix product; 0 of what is not known, so that its bytes decide."""
    if name in _MOVES or (not taken and name not in _DRAWN):
        return 0.0
    if "_pool" in name:
        read, written = taken[0].numel(), made[0].numel()
        if "adaptive" in name:
            return float(max(read, written))
        return float(_window(name, args) * (read if "backward" in name else written))
    if name in _REDUCTIONS:
        return float(taken[0].numel())
    known = per_element(name, 1 if torch.Tag.pointwise in getattr(func, "tags", ()) else 0)
    return float(known * made[0].numel())


def _window(name: str, args: Any) -> int:
    """Positions in a pooling window; one size holds for all its dimensions."""
    size = next((a for a in args if isinstance(a, (list, tuple)) and a and all(isinstance(x, int) for x in a)), (1,))
    dims = next((k for k in (1, 2, 3) if f"pool{k}d" in name), 1)
    return int(size[0] ** dims if len(size) == 1 else prod(size))


def _attention(backward: bool, taken: list[Any]) -> float:
    """Two products forward; backward five, as the scores are computed again. Shapes: batch, heads, positions, size.

    Keys and values may have fewer heads than queries, each of which serves several of them.
    """
    query, key, value = taken[1:4] if backward else taken[:3]
    scores = prod(query.shape[:-1]) * key.shape[-2]
    width, value_width = query.shape[-1], value.shape[-1]
    return 2.0 * scores * (3 * width + 2 * value_width if backward else width + value_width)


def _recurrent(args: Any, out: Any) -> float:
    """One layer of an LSTM or GRU over a sequence: its inputs and states times its weights, at every step."""
    return 2.0 * prod(args[0].shape[:-1]) * sum(t.numel() for t in tensors(args[1:3]))


def _recurrent_backward(args: Any, out: Any) -> float:
    return 2 * _recurrent(args, out)


def _matrix_vector(args: Any, out: Any) -> float:
    return 2.0 * args[-2].numel()


def _integers(args: Any, out: Any) -> float:
    return 2.0 * prod(args[0].shape) * args[1].shape[-1]


def _grouped(args: Any, out: Any) -> float:
    """A product per group, whose rows, columns or summed index are parts of what has two dimensions."""
    left, right = args[:2]
    groups = left.shape[0] if left.dim() == right.dim() == 3 else 1
    return 2.0 * groups * left.shape[-2] * left.shape[-1] * right.shape[-1]


def _grouped_backward(args: Any, out: Any) -> float:
    return 2 * _grouped(args, out)


_OWN: dict[str, Callable[[Any, Any], float]] = {
    "mkldnn_rnn_layer": _recurrent, "mkldnn_rnn_layer_backward": _recurrent_backward, "mv": _matrix_vector,
    "addmv": _matrix_vector, "_int_mm": _integers, "_grouped_mm": _grouped, "_scaled_grouped_mm": _grouped,
    "grouped_mm_fallback": _grouped, "grouped_mm_fallback_backward": _grouped_backward,
}  # fmt: skip
"""Products that torch's counter does not know."""


def _moved(name: str, taken: list[Any], made: list[Any], size: Callable[[Any], int]) -> int:
    written = sum(map(size, made))
    if name in _TOUCHES_PART:
        return 2 * written + sum(size(t) for t in taken[1:])
    if name in _WRITES_PART:
        return sum(size(t) for t in taken[1:]) + 2 * max((size(t) for t in taken[1:]), default=0)
    if name == "_grouped_mm" and taken[0].dim() < taken[1].dim():  # no more experts than there are tokens
        touched = min(1.0, taken[0].shape[0] / max(taken[1].shape[0], 1))
        return written + size(taken[0]) + int(touched * size(taken[1])) + sum(map(size, taken[2:]))
    distinct = {id(t): t for t in (taken[1:] if name in _OVERWRITES else taken)}
    return written + sum(map(size, distinct.values()))


def _precision(taken: list[Any], convolution: bool) -> str:
    kinds = {t.dtype for t in taken if t.dim()}
    if any(kind.itemsize == 1 and kind.is_floating_point for kind in kinds):
        return "fp8"
    if kinds & {torch.float16, torch.bfloat16}:
        return "fp16"
    if kinds and kinds <= {torch.int8, torch.uint8}:
        return "int8"
    return "tf32" if convolution or torch.get_float32_matmul_precision() != "highest" else "fp32"


def _mutates(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    return bool(schema is not None and schema.is_mutable)
