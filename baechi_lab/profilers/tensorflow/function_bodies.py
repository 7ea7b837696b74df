"""The ops inside loops, conditionals and inner calls, and how often they run.

The number of rounds of a loop is read from a comparison with a known bound in its condition, `i < limit`. The bound is a
constant of the condition or the graph, counted from 0 in steps of 1; in the gradient of a loop it is the number of rounds of
that loop. Of several bounds the smallest counts; without a bound the loop counts as one round. The branches of a conditional
count in equal shares of one run, as if they were equally likely. O(ops of the bodies).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .inlining import CONTROL_FLOW_OPS, used_functions
from .nodes import op_def, output_types, writes_variable
from .shapes import SHAPES

if TYPE_CHECKING:
    from tensorflow.core.framework.function_pb2 import FunctionDef
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto

Shape = tuple[int, ...]

_COMPARISONS = frozenset({"Less", "LessEqual"})
_MAX_DEPTH = 8


def op_types(graph_def: GraphDef, nodes: Iterable[NodeDef]) -> tuple[str, ...]:
    """Returns the type of every op; `IfUpdate`, `CaseUpdate`, `WhileUpdate` if a body of the op writes variables."""
    return tuple(
        f"{node.op}Update" if node.op in CONTROL_FLOW_OPS and any(variable_writes(graph_def, node)) else node.op
        for node in nodes
    )


def variable_writes(graph_def: GraphDef, node: NodeDef) -> Iterator[NodeDef]:
    """Yields the ops that write variables when `node` runs: itself, or ops of its bodies."""
    bodies = used_functions(graph_def, [node]) if node.op in CONTROL_FLOW_OPS else []
    return (op for op in (node, *(op for body in bodies for op in body.node_def)) if writes_variable(op.op))


@dataclass(frozen=True)
class BodyOp:
    """An op inside a body: its node, shapes and DataTypes of inputs and outputs, and its runs per run of the outer op."""

    node: NodeDef
    inputs: Sequence[Shape]
    outputs: Sequence[Shape]
    input_types: Sequence[int]
    output_types: Sequence[int]
    times: float


class Library:
    """The function library of a GraphDef; bodies are read on demand."""

    def __init__(self, graph_def: GraphDef) -> None:
        self.functions = {f.signature.name: f for f in graph_def.library.function}
        self.nodes = {n.name: n for n in graph_def.node}

    def has_body(self, node: NodeDef) -> bool:
        return bool(self.functions) and (node.op in CONTROL_FLOW_OPS or bool(_called_functions(node)))

    def body_ops(self, node: NodeDef) -> Iterator[BodyOp]:
        """Yields the ops that one run of `node`, a node of the graph itself, runs."""
        return self._ops_of_call(node, self.nodes, {}, 1.0, 0)

    def rounds(self, node: NodeDef) -> int:
        """Returns how often a loop of the graph runs its body; 1 if the graph does not say."""
        return self._rounds(node, self.nodes, {}, 0)

    def _ops_of_call(
        self,
        node: NodeDef,
        outer_nodes: Mapping[str, NodeDef],
        argument_values: Mapping[str, int],
        times: float,
        depth: int,
    ) -> Iterator[BodyOp]:
        loop = node.op.endswith("While")
        names = [node.attr[k].func.name for k in ("cond", "body")] if loop else _called_functions(node)
        if loop:
            times *= self._rounds(node, outer_nodes, argument_values, depth)
        else:
            times /= max(len(names), 1)
        for name in names:
            function = self.functions.get(name)
            if function is not None and depth < _MAX_DEPTH:
                constants = self._constant_arguments(function, node, outer_nodes, argument_values, depth)
                yield from self._ops_of_function(function, constants, times, depth)

    def _ops_of_function(
        self, function: FunctionDef, argument_values: Mapping[str, int], times: float, depth: int
    ) -> Iterator[BodyOp]:
        tensors: dict[str, tuple[Shape, int]] = {}
        for k, arg in enumerate(function.signature.input_arg):
            attrs = function.arg_attr[k].attr if k in function.arg_attr else {}
            shape = _shape(attrs[SHAPES].list.shape[0]) if SHAPES in attrs else ()
            tensors[arg.name] = (shape, arg.type)
        inner = {n.name: n for n in function.node_def}
        for node in function.node_def:
            tensors.update(_output_specs(node))
        for node in function.node_def:
            if node.op in CONTROL_FLOW_OPS or _called_functions(node):
                yield from self._ops_of_call(node, inner, argument_values, times, depth + 1)
                continue
            input_specs = [tensors.get(r, ((), 0)) for r in node.input if not r.startswith("^")]
            output_specs = list(_output_specs(node).values())
            yield BodyOp(
                node,
                [s for s, _ in input_specs],
                [s for s, _ in output_specs],
                [t for _, t in input_specs],
                [t for _, t in output_specs],
                times,
            )

    def _rounds(
        self, node: NodeDef, outer_nodes: Mapping[str, NodeDef], argument_values: Mapping[str, int], depth: int
    ) -> int:
        condition = self.functions.get(node.attr["cond"].func.name)
        if condition is None or depth > _MAX_DEPTH:
            return 1
        arguments = self._constant_arguments(condition, node, outer_nodes, argument_values, depth)
        inner = {n.name: n for n in condition.node_def}
        bounds = []
        for compare in condition.node_def:
            if compare.op in _COMPARISONS:
                bound = _constant(compare.input[1], inner, arguments)
                if bound is not None and bound > 0:
                    bounds.append(bound + (compare.op == "LessEqual"))
        return min(bounds, default=1)

    def _constant_arguments(
        self,
        function: FunctionDef,
        node: NodeDef,
        outer_nodes: Mapping[str, NodeDef],
        argument_values: Mapping[str, int],
        depth: int,
    ) -> dict[str, int]:
        """Returns the whole numbers that are passed in: constants, and round counters of loops that ran before."""
        data = [r for r in node.input if not r.startswith("^")]
        skip = len(data) - len(function.signature.input_arg)  # a conditional's first input is its condition
        constants = {}
        for arg, reference in zip(function.signature.input_arg, data[max(skip, 0) :], strict=False):
            value = _constant(reference, outer_nodes, argument_values)
            op, *place = reference.split(":")  # `op:1` in a graph, `op:output:1` in a body
            producer = outer_nodes.get(op)
            counts_rounds = (
                producer is not None and producer.op.endswith("While") and int(place[-1] if place else 0) == 0
            )
            if value is None and counts_rounds:
                value = self._rounds(producer, outer_nodes, argument_values, depth + 1)
            if value is not None:
                constants[arg.name] = value
        return constants


def _called_functions(node: NodeDef) -> list[str]:
    names = [node.attr[k].func.name for k in ("f", "then_branch", "else_branch") if k in node.attr]
    return names + ([f.name for f in node.attr["branches"].list.func] if "branches" in node.attr else [])


def _constant(reference: str, nodes: Mapping[str, NodeDef], argument_values: Mapping[str, int]) -> int | None:
    """Returns the whole number that a reference stands for, or None if the graph does not say."""
    import tensorflow as tf

    if reference in argument_values:
        return argument_values[reference]
    node = nodes.get(reference.split(":")[0])
    if node is None or node.op != "Const" or len(node.attr["value"].tensor.tensor_shape.dim):
        return None
    value = tf.make_ndarray(node.attr["value"].tensor)
    return int(value) if value.dtype.kind in "iu" else None


def _shape(proto: TensorShapeProto) -> Shape:
    return tuple(max(d.size, 1) for d in proto.dim)


def _output_specs(node: NodeDef) -> dict[str, tuple[Shape, int]]:
    """Returns shape and DataType of a body op's outputs, by their name in the body: `op:output:index`."""
    definition, types = op_def(node.op), output_types(node)
    shapes = node.attr[SHAPES].list.shape
    specs: dict[str, tuple[Shape, int]] = {}
    at = 0
    for arg in definition.output_arg if definition is not None else ():
        count = int(node.attr[arg.number_attr].i) if arg.number_attr else 1
        if arg.type_list_attr:
            count = len(node.attr[arg.type_list_attr].list.type)
        for k in range(count):
            specs[f"{node.name}:{arg.name}:{k}"] = (_shape(shapes[at]) if at < len(shapes) else (), types[at])
            at += 1
    return specs
