"""Joins operators of an ONNX file that PyTorch's exporters wrote for one kernel.

    scaled_dot_product_attention    queries and transposed keys are both scaled before their product, or keys are transposed as
                                    matrices of one batch dimension, as in no other attention
    GELU (with erf), SiLU, Hardswish, Mish, Softplus with its threshold
    layer norm, group norm as an instance norm of a reshaped tensor, and reciprocals of roots

What a model writes itself in smaller operators runs in PyTorch as it is written, so it stays: attention that scales the scores,
GELU with tanh (GPT-2's), RMS norms (Llama's). A joined operator has the name and the outputs of the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from ...graph.formats.onnx_file import onnx_package
from .onnx_shapes import Shape

if TYPE_CHECKING:
    from onnx import NodeProto

onnx = onnx_package()

Pattern: TypeAlias = "str | tuple[Pattern, ...] | list[Pattern]"
"""A variable (the same value wherever its name occurs), `#` (any value with one element), an operator `(type, *inputs)`, or a
list of alternatives. Inputs that a pattern leaves out are free."""

_COMMUTES = ("Add", "Mul")


def _scaled(value: Pattern) -> list[Pattern]:
    return [("Mul", value, "#"), ("Div", value, "#")]


_RESHAPED_KEYS: Pattern = ("Reshape", ("Transpose", ("Reshape", "keys")))
_KEYS: Pattern = [("Transpose", "keys"), _RESHAPED_KEYS, ("Reshape", ("Transpose", "keys"))]
_SCORES: Pattern = [
    ("MatMul", _scaled("queries"), _scaled(_KEYS)),
    ("MatMul", "queries", _RESHAPED_KEYS),  # scaled by 1, which is left out
]
_CAUSAL_MASK: Pattern = ("Where", ("Equal", ("Trilu", ("Expand", "#")), "#"), "#", "#")
_SHARES: Pattern = ("Softmax", [_SCORES, ("Add", _SCORES, _CAUSAL_MASK), ("Add", _SCORES, "mask")])
_SAFE_SHARES: Pattern = [_SHARES, ("Where", ("IsNaN", _SHARES), "#", _SHARES)]
_ERF: Pattern = ("Add", ("Erf", _scaled("x")), "#")
_CENTRED: Pattern = ("Sub", "x", ("ReduceMean", "x"))
_VARIANCE: Pattern = ("ReduceMean", [("Pow", _CENTRED, "#"), ("Mul", _CENTRED, _CENTRED)])
_DEVIATION: Pattern = ("Sqrt", ("Add", _VARIANCE, "#"))
_NORM: list[Pattern] = [("Div", _CENTRED, _DEVIATION), ("Mul", _CENTRED, ("Reciprocal", _DEVIATION))]
_GROUP_NORM: Pattern = ("Reshape", ("InstanceNormalization", ("Reshape", "x")))


def _with_weights(norm: Pattern) -> Pattern:
    return ("Add", ("Mul", norm, "weight"), "bias")


_PATTERNS: tuple[tuple[str, tuple[Pattern, ...]], ...] = (
    ("Attention", (("MatMul", [_SAFE_SHARES, ("Dropout", _SAFE_SHARES)], "values"),)),
    (
        "Gelu",
        (
            ("Mul", ("Mul", "x", _ERF), "#"),
            ("Mul", "x", ("Mul", "#", _ERF)),
            ("Mul", ("Mul", "x", "#"), _ERF),
        ),
    ),
    ("Softplus", (("Where", ("Greater", "x", "#"), "x", ("Softplus", "x")),)),
    ("Mish", (("Mul", "x", ("Tanh", ("Softplus", "x"))),)),
    ("Swish", (("Mul", "x", ("Sigmoid", "x")),)),
    ("HardSwish", (("Mul", "x", ("HardSigmoid", "x")), ("Mul", "x", ("Div", ("Clip", ("Add", "x", "#")), "#")))),
    ("LayerNormalization", (_with_weights(_NORM),)),
    ("LayerNormalization", tuple(_NORM)),
    ("GroupNormalization", (_with_weights(_GROUP_NORM),)),
    ("Reciprocal", (("Reciprocal", ("Sqrt", "x")), ("Div", "#", ("Sqrt", "x")))),
)
"""Joined operators and their forms, in the order in which they are joined: a form may be a part of those before it."""
_INPUTS = ("x", "queries", "keys", "values", "mask", "weight", "bias")
"""Variables of patterns in the order of a joined operator's inputs."""


@dataclass(frozen=True)
class _Match:
    """Values of variables, and the operators that a pattern covers."""

    values: Mapping[str, str]
    nodes: frozenset[int]


def join_nodes(
    nodes: Sequence[NodeProto],
    outputs: Sequence[str],
    shapes: MutableMapping[str, Shape],
    types: MutableMapping[str, str],
) -> tuple[list[NodeProto], frozenset[str]]:
    """Returns the operators with those joined that stand for one kernel, and the values that joined operators make.

    Args:
        nodes: operators in the order of the file.
        outputs: values that the model returns; they are made as before.
        shapes, types: of all values. Those of transposed keys are added.
    """
    joined = list(nodes)
    fused_values: set[str] = set()
    for op_type, forms in _PATTERNS:
        joined = _join_forms(op_type, forms, joined, outputs, shapes, types, fused_values)
    return joined, frozenset(fused_values)


def _join_forms(
    op_type: str,
    forms: tuple[Pattern, ...],
    nodes: list[NodeProto],
    outputs: Sequence[str],
    shapes: MutableMapping[str, Shape],
    types: MutableMapping[str, str],
    fused_values: set[str],
) -> list[NodeProto]:
    """Returns the operators with all forms of one operator joined; adds what the joined ones make to `fused_values`."""
    roots = {form[0] for form in forms}
    if not any(node.op_type in roots for node in nodes):
        return nodes
    matcher = _Matcher(nodes, shapes)
    readers: dict[str, set[int]] = {}
    for i, node in enumerate(nodes):
        for value in node.input:
            readers.setdefault(value, set()).add(i)
    replaced: dict[int, list[NodeProto]] = {}
    covered: set[int] = set()
    for i, node in enumerate(nodes):
        if node.op_type not in roots or not node.output:
            continue
        for match in (match for form in forms for match in matcher.matches(form, node.output[0])):
            inner_values = {v for k in match.nodes - {i} for v in nodes[k].output if v}
            is_inner = all(readers.get(v, set()) <= match.nodes for v in inner_values)
            if not is_inner or inner_values & set(outputs) or match.nodes & covered:
                continue
            replacement = _joined_nodes(op_type, node, match, nodes, shapes, types)
            if replacement:
                replaced[i] = replacement
                covered |= match.nodes
                fused_values.add(node.output[0])
                break
    return [
        joined_node for i, node in enumerate(nodes) for joined_node in (replaced.get(i, []) if i in covered else [node])
    ]


class _Matcher:
    """Finds patterns behind values."""

    def __init__(self, nodes: Sequence[NodeProto], shapes: Mapping[str, Shape]):
        self.nodes, self.shapes = nodes, shapes
        self.maker = {v: i for i, node in enumerate(nodes) if not node.domain for v in node.output[:1] if v}

    def matches(self, pattern: Pattern, value: str, match: _Match = _Match({}, frozenset())) -> Iterator[_Match]:
        """Yields the ways in which a pattern describes how a value is made, each beside what `match` has."""
        if isinstance(pattern, list):
            for alternative in pattern:
                yield from self.matches(alternative, value, match)
        elif pattern == "#":
            if value in self.shapes and prod(self.shapes[value]) == 1:
                yield match
        elif isinstance(pattern, str):
            if match.values.get(pattern, value) == value:
                yield _Match({**match.values, pattern: value}, match.nodes)
        else:
            yield from self._operator_matches(pattern, value, match)

    def _operator_matches(self, pattern: tuple[Pattern, ...], value: str, match: _Match) -> Iterator[_Match]:
        op_type, *arguments = pattern
        i = self.maker.get(value, -1)
        if i < 0 or self.nodes[i].op_type != op_type or len(self.nodes[i].input) < len(arguments):
            return
        values = list(self.nodes[i].input)[: len(arguments)]
        covering = _Match(match.values, match.nodes | {i})
        for order in (values, values[::-1]) if op_type in _COMMUTES else (values,):
            partial_matches = [covering]
            for argument, read_value in zip(arguments, order, strict=True):
                partial_matches = [
                    longer for partial in partial_matches for longer in self.matches(argument, read_value, partial)
                ]
            yield from partial_matches


def _joined_nodes(
    op_type: str,
    root: NodeProto,
    match: _Match,
    nodes: Sequence[NodeProto],
    shapes: MutableMapping[str, Shape],
    types: MutableMapping[str, str],
) -> list[NodeProto]:
    """Returns the operator that replaces a match, with what it needs; none if shapes do not fit."""
    values, attributes = dict(match.values), dict[str, int]()
    needed_nodes: list[NodeProto] = []
    if any(v not in shapes for v in (*values.values(), root.output[0])):
        return []
    outputs, first = shapes[root.output[0]], shapes[next(iter(values.values()))]
    if op_type == "Attention":
        scores = next(nodes[k] for k in match.nodes if nodes[k].op_type == "MatMul" and nodes[k] is not root)
        attributes["is_causal"] = int(any(nodes[k].op_type == "Trilu" for k in match.nodes))
        transposed_keys = shapes.get(scores.input[1], ())
        if len(outputs) != 4 or len(transposed_keys) != 4 or _is_trained(values.get("mask", ""), nodes):
            return []
        *batch, size, positions = transposed_keys
        first_keys = shapes[values["keys"]]
        if first_keys not in ((*batch, positions, size), (prod(batch), positions, size)):
            needed_nodes, values["keys"] = _transposed_keys(match, nodes, values["keys"], shapes, types)
            if not needed_nodes or shapes[values["keys"]] != (*batch, positions, size):
                return []
    elif op_type == "LayerNormalization":
        mean = next(nodes[k] for k in match.nodes if nodes[k].op_type == "ReduceMean")
        reduced = [a for a, (n, m) in enumerate(zip(outputs, shapes.get(mean.output[0], ()), strict=False)) if n != m]
        if not reduced or reduced != list(range(reduced[0], len(outputs))) or first != outputs:
            return []
        attributes["axis"] = reduced[0]
    elif op_type == "GroupNormalization":
        norm = next(nodes[k] for k in match.nodes if nodes[k].op_type == "InstanceNormalization")
        groups = shapes.get(norm.input[0], ())[1:2]
        if not groups or first != outputs or len(outputs) < 3 or outputs[1] % max(groups[0], 1):
            return []
        attributes["num_groups"] = groups[0]
    elif first != outputs:
        return []
    inputs = [values[name] for name in _INPUTS if name in values]
    return [*needed_nodes, onnx.helper.make_node(op_type, inputs, [root.output[0]], root.name, **attributes)]


def _is_trained(mask: str, nodes: Sequence[NodeProto]) -> bool:
    """Whether a mask is looked up in a table, as relative positions are; PyTorch then runs attention operator by operator."""
    maker = {v: node for node in nodes for v in node.output if v}
    pending, visited = [mask], {mask}
    while pending:
        node = maker.get(pending.pop())
        if node is None:
            continue
        if node.op_type == "Gather" and node.input[0] not in maker:
            return True
        new_values = set(node.input) - visited
        visited |= new_values
        pending += new_values
    return False


def _transposed_keys(
    match: _Match,
    nodes: Sequence[NodeProto],
    keys: str,
    shapes: MutableMapping[str, Shape],
    types: MutableMapping[str, str],
) -> tuple[list[NodeProto], str]:
    """Returns an operator that makes keys of batch, heads, positions, size, where one transposition made the other operand."""
    node = next(nodes[k] for k in match.nodes if nodes[k].op_type == "Transpose")
    order = next((list(a.ints) for a in node.attribute if a.name == "perm"), [])
    if node.input[0] != keys or len(order) != 4:
        return [], keys
    order[2:] = order[:1:-1]
    value = f"{node.output[0]} of keys"
    shapes[value], types[value] = tuple(shapes[keys][a] for a in order), types.get(keys, "FLOAT")
    return [onnx.helper.make_node("Transpose", [keys], [value], node.name, perm=order)], value
