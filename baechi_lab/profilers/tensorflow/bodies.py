"""What a loop, conditional or inner call runs: the ops of its bodies, and how often.

A loop's rounds are read from its condition where it compares with a known bound, `i < limit`: a constant of the
condition or of the graph, counted from 0 in steps of 1; or, in the gradient of a loop, the number of rounds of that
loop. Several such comparisons give the smallest bound; none gives one round. Each branch of a conditional counts for
its share of one run, as if all were equally likely. O(ops of the bodies).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .inlining import CONTROL_FLOW_OPS, used_functions
from .nodes import op_def, output_types, writes_variable
from .shapes import SHAPES

Shape = tuple[int, ...]

_COMPARISONS = frozenset({"Less", "LessEqual"})
_MAX_DEPTH = 8


def op_types(graph_def: Any, nodes: Iterable[Any]) -> tuple[str, ...]:
    """The type of every op; of a conditional or loop whose body writes variables `IfUpdate`, `CaseUpdate`, `WhileUpdate`."""
    return tuple(
        f"{node.op}Update" if node.op in CONTROL_FLOW_OPS and any(writes(graph_def, node)) else node.op
        for node in nodes
    )


def writes(graph_def: Any, node: Any) -> Iterator[Any]:
    """The ops that write variables when `node` runs: itself, or ops of its bodies."""
    bodies = used_functions(graph_def, [node]) if node.op in CONTROL_FLOW_OPS else []
    return (op for op in (node, *(op for body in bodies for op in body.node_def)) if writes_variable(op.op))


@dataclass(frozen=True)
class BodyOp:
    """An op inside a body: its node, the shapes it reads and makes, DataTypes of both, runs per run of the outer op."""

    node: Any
    inputs: Sequence[Shape]
    outputs: Sequence[Shape]
    input_types: Sequence[int]
    output_types: Sequence[int]
    times: float


class Library:
    """The functions of a GraphDef, read when asked for."""

    def __init__(self, graph_def: Any) -> None:
        self.functions = {f.signature.name: f for f in graph_def.library.function}
        self.nodes = {n.name: n for n in graph_def.node}

    def has_body(self, node: Any) -> bool:
        """Does this node of the graph run functions?"""
        return bool(self.functions) and (node.op in CONTROL_FLOW_OPS or bool(_called(node)))

    def body_ops(self, node: Any) -> Iterator[BodyOp]:
        """The ops that one run of `node` (of the graph itself) runs."""
        return self._run(node, self.nodes, {}, 1.0, 0)

    def rounds(self, node: Any) -> int:
        """How often a loop of the graph runs its body; 1 where the graph does not say."""
        return self._rounds(node, self.nodes, {}, 0)

    def _run(
        self, node: Any, around: Mapping[str, Any], known: Mapping[str, int], times: float, depth: int
    ) -> Iterator[BodyOp]:
        loop = node.op.endswith("While")
        names = [node.attr[k].func.name for k in ("cond", "body")] if loop else _called(node)
        if loop:
            times *= self._rounds(node, around, known, depth)
        else:
            times /= max(len(names), 1)
        for name in names:
            function = self.functions.get(name)
            if function is not None and depth < _MAX_DEPTH:
                constants = self._known_arguments(function, node, around, known, depth)
                yield from self._ops(function, constants, times, depth)

    def _ops(self, function: Any, known: Mapping[str, int], times: float, depth: int) -> Iterator[BodyOp]:
        tensors: dict[str, tuple[Shape, int]] = {}
        for k, arg in enumerate(function.signature.input_arg):
            attrs = function.arg_attr[k].attr if k in function.arg_attr else {}
            shape = _shape(attrs[SHAPES].list.shape[0]) if SHAPES in attrs else ()
            tensors[arg.name] = (shape, arg.type)
        inner = {n.name: n for n in function.node_def}
        for node in function.node_def:
            tensors.update(_outputs(node))
        for node in function.node_def:
            if node.op in CONTROL_FLOW_OPS or _called(node):
                yield from self._run(node, inner, known, times, depth + 1)
                continue
            read = [tensors.get(r, ((), 0)) for r in node.input if not r.startswith("^")]
            made = list(_outputs(node).values())
            yield BodyOp(
                node, [s for s, _ in read], [s for s, _ in made], [t for _, t in read], [t for _, t in made], times
            )

    def _rounds(self, node: Any, around: Mapping[str, Any], known: Mapping[str, int], depth: int) -> int:
        condition = self.functions.get(node.attr["cond"].func.name)
        if condition is None or depth > _MAX_DEPTH:
            return 1
        arguments = self._known_arguments(condition, node, around, known, depth)
        inner = {n.name: n for n in condition.node_def}
        bounds = []
        for compare in condition.node_def:
            if compare.op in _COMPARISONS:
                bound = _constant(compare.input[1], inner, arguments)
                if bound is not None and bound > 0:
                    bounds.append(bound + (compare.op == "LessEqual"))
        return min(bounds, default=1)

    def _known_arguments(
        self, function: Any, node: Any, around: Mapping[str, Any], known: Mapping[str, int], depth: int
    ) -> dict[str, int]:
        """Whole numbers that are passed in: constants, and the round counters of loops that ran before."""
        data = [r for r in node.input if not r.startswith("^")]
        skip = len(data) - len(function.signature.input_arg)  # a conditional's first input is its condition
        found = {}
        for arg, reference in zip(function.signature.input_arg, data[max(skip, 0) :], strict=False):
            value = _constant(reference, around, known)
            op, *place = reference.split(":")  # `op:1` in a graph, `op:output:1` in a body
            producer = around.get(op)
            counts_rounds = (
                producer is not None and producer.op.endswith("While") and int(place[-1] if place else 0) == 0
            )
            if value is None and counts_rounds:
                value = self._rounds(producer, around, known, depth + 1)
            if value is not None:
                found[arg.name] = value
        return found


def _called(node: Any) -> list[str]:
    """Functions that a call or conditional runs."""
    names = [node.attr[k].func.name for k in ("f", "then_branch", "else_branch") if k in node.attr]
    return names + ([f.name for f in node.attr["branches"].list.func] if "branches" in node.attr else [])


def _constant(reference: str, nodes: Mapping[str, Any], known: Mapping[str, int]) -> int | None:
    """The whole number that a reference stands for, if the graph says it."""
    import tensorflow as tf

    if reference in known:
        return known[reference]
    node = nodes.get(reference.split(":")[0])
    if node is None or node.op != "Const" or len(node.attr["value"].tensor.tensor_shape.dim):
        return None
    value = tf.make_ndarray(node.attr["value"].tensor)
    return int(value) if value.dtype.kind in "iu" else None


def _shape(proto: Any) -> Shape:
    return tuple(max(d.size, 1) for d in proto.dim)


def _outputs(node: Any) -> dict[str, tuple[Shape, int]]:
    """Shape and DataType of a body op's outputs, by the name that a body gives them: `op:output:index`."""
    definition, types = op_def(node.op), output_types(node)
    shapes = node.attr[SHAPES].list.shape
    found: dict[str, tuple[Shape, int]] = {}
    at = 0
    for arg in definition.output_arg if definition is not None else ():
        count = int(node.attr[arg.number_attr].i) if arg.number_attr else 1
        if arg.type_list_attr:
            count = len(node.attr[arg.type_list_attr].list.type)
        for k in range(count):
            found[f"{node.name}:{arg.name}:{k}"] = (_shape(shapes[at]) if at < len(shapes) else (), types[at])
            at += 1
    return found
