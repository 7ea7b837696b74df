"""FLOPs of ONNX's matrix products, convolutions, attention and recurrent layers from the shapes of their tensors.

A multiply-add counts as two. All other operators are bound by the bytes that they move. The operators of ONNX Runtime's
domain `com.microsoft` that fuse these are known as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

Shape = Sequence[int] | None
Shapes = Sequence[Shape]

SHAPE_OPS = frozenset({
    "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Shape", "Size", "Constant", "Optional", "OptionalGetElement",
})  # fmt: skip
"""Operators that move no data: they look at it in another shape."""


def product_flops(node: Any, read: Shapes, made: Shapes) -> int | None:
    """FLOPs of a matrix product or what consists of them; None for any other operator.

    Args:
        node: a NodeProto, or what has its `op_type` and `attribute`.
        read, made: shapes of its inputs and outputs; None where one is left out.
    """
    rule = _RULES.get(node.op_type)
    return None if rule is None else rule(node, read, made)


def attribute(node: Any, name: str, default: Any) -> Any:
    """The value of a node's attribute (a number, text or list of whole numbers)."""
    for found in node.attribute:
        if found.name == name:
            return {1: found.f, 2: found.i, 3: found.s.decode("utf-8", "replace"), 7: list(found.ints)}.get(
                found.type, default
            )
    return default


def _known(shape: Shape) -> Sequence[int]:
    if shape is None:
        raise ValueError("left out")
    return shape


def _matmul(node: Any, read: Shapes, made: Shapes) -> int:
    a = _known(read[0])
    return 2 * prod(_known(made[0])) * (a[-2] if attribute(node, "transA", 0) and len(a) > 1 else a[-1])


def _quantized_matmul(node: Any, read: Shapes, made: Shapes) -> int:
    return 2 * prod(_known(made[0])) * _known(read[0])[-1]


def _gemm(node: Any, read: Shapes, made: Shapes) -> int:
    return 2 * prod(_known(made[0])) * _known(read[0])[0 if attribute(node, "transA", 0) else 1]


def _conv(weight: int) -> Callable[[Any, Shapes, Shapes], int]:
    """Every output is a sum over the weights of its channel, whose shape already leaves out other groups' channels."""
    return lambda node, read, made: 2 * prod(_known(made[0])) * prod(_known(read[weight])[1:])


def _transposed(node: Any, read: Shapes, made: Shapes) -> int:
    return 2 * prod(_known(read[0])) * prod(_known(read[1])[1:])


def _einsum(node: Any, read: Shapes, made: Shapes) -> int:
    terms = attribute(node, "equation", "").replace(" ", "").split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, read, strict=True):
        letters, dims = term.replace("...", ""), list(_known(shape))
        if "..." in term:
            at, rest = term.index("..."), len(dims) - len(letters)
            sizes["..."] = max(sizes.get("...", 1), prod(dims[at : at + rest]))
            del dims[at : at + rest]
        sizes.update({x: max(sizes.get(x, 1), d) for x, d in zip(letters, dims, strict=True)})
    return (2 if len(terms) > 1 else 1) * prod(sizes.values())


def _recurrent(gates: int) -> Callable[[Any, Shapes, Shapes], int]:
    def count(node: Any, read: Shapes, made: Shapes) -> int:
        steps, batch, width = _known(read[0])
        directions, _, hidden = _known(read[2])
        return 2 * steps * batch * directions * gates * hidden * (width + hidden)

    return count


def _attention(node: Any, read: Shapes, made: Shapes) -> int:
    """Scores and their product with the values. Shapes: batch, heads, positions, size, or batch, positions, heads * size."""
    query, key, value = (_known(s) for s in read[:3])
    positions, width, value_width = key[-2], query[-1], value[-1]
    if len(query) == 4:
        return 2 * prod(query[:-1]) * positions * (width + value_width)
    groups = attribute(node, "q_num_heads", 1) // max(attribute(node, "kv_num_heads", 1), 1)
    return 2 * prod(query[:-1]) * positions * (width + value_width * max(groups, 1))


def _attention_with_projection(node: Any, read: Shapes, made: Shapes) -> int:
    """`com.microsoft`'s Attention: one product for queries, keys and values, then as above."""
    batch, positions, width = _known(read[0])
    projected = _known(read[1])[-1]
    return 2 * batch * positions * width * projected + 4 * batch * positions * positions * (projected // 3)


def _any_attention(node: Any, read: Shapes, made: Shapes) -> int:
    return (_attention_with_projection if node.domain == "com.microsoft" else _attention)(node, read, made)


_RULES: dict[str, Callable[[Any, Shapes, Shapes], int]] = {
    "MatMul": _matmul, "FusedMatMul": _matmul, "MatMulInteger": _quantized_matmul, "QLinearMatMul": _quantized_matmul,
    "Gemm": _gemm, "FusedGemm": _gemm, "Conv": _conv(1), "FusedConv": _conv(1), "ConvInteger": _conv(1), "QLinearConv": _conv(3),
    "ConvTranspose": _transposed, "Einsum": _einsum, "LSTM": _recurrent(4), "GRU": _recurrent(3), "RNN": _recurrent(1),
    "Attention": _any_attention, "MultiHeadAttention": _attention, "GroupQueryAttention": _attention,
}  # fmt: skip
