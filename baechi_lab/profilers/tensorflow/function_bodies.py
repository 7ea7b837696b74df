"""The ops inside loops, conditionals and inner calls, and how often they run.

The number of iterations of a loop is read from the comparisons that its condition requires, `i < limit`, where `i` starts at a
known number and changes by a known one in each iteration. A number is known if it is a constant, a size of a tensor, computed
from those, or the number of iterations of a loop that ran before, as in the gradient of a loop. Of several bounds the smallest
counts; without one the loop counts as one iteration, which `Library.guesses` says. The branches of a conditional count in equal
shares of one run, as if they were equally likely. O(ops of the bodies).

A loop that GPUs run as one kernel (`recurrent_layers`) is one op of its body, with the kernel in place of its shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..work import Kernel
from .inlining import CONTROL_FLOW_OPS, used_functions
from .nodes import biases_of_products, called_functions, join, op_def, output_types, split, writes_variable
from .recurrent_layers import is_fused, layer_kernel
from .shapes import SHAPES

if TYPE_CHECKING:
    from tensorflow.core.framework.function_pb2 import FunctionDef
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto

Shape = tuple[int, ...]

_ITERATIONS: dict[str, Callable[[float], float]] = {
    "Less": math.ceil,
    "Greater": math.ceil,
    "LessEqual": lambda steps: math.floor(steps) + 1,
    "GreaterEqual": lambda steps: math.floor(steps) + 1,
    "NotEqual": lambda steps: steps if steps == int(steps) else -1,
}
"""Iterations while a comparison holds, from the changes that take the counter to the bound; negative if it never ends."""
_ARITHMETIC: dict[str, Callable[..., float]] = {
    "Add": lambda a, b: a + b,
    "AddV2": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "FloorDiv": lambda a, b: a // b if b else math.nan,
    "Maximum": max,
    "Minimum": min,
    **dict.fromkeys(("Cast", "Identity", "StopGradient"), lambda a: a),
}
_MAX_DEPTH = 8  # of functions within functions


def op_types(graph_def: GraphDef, nodes: Iterable[NodeDef]) -> tuple[str, ...]:
    """Returns the type of every op; `IfUpdate`, `CaseUpdate`, `WhileUpdate` if a body of the op writes variables."""
    return tuple(
        f"{node.op}Update" if node.op in CONTROL_FLOW_OPS and any(variable_writes(graph_def, node)) else node.op
        for node in nodes
    )


def variable_writes(graph_def: GraphDef, node: NodeDef) -> Iterator[NodeDef]:
    """Yields the ops that write variables when `node` runs: itself, or ops of the functions that it runs.

    Conditionals and loops run functions, and so do ops of data sets (`for batch in dataset`).
    """
    runs_functions = any(value.HasField("func") or value.list.func for value in node.attr.values())
    bodies = used_functions(graph_def, [node]) if runs_functions else []
    return (op for op in (node, *(op for body in bodies for op in body.node_def)) if writes_variable(op.op))


@dataclass(frozen=True)
class BodyOp:
    """An op inside a body: its node, shapes and DataTypes of inputs and outputs, and its runs per run of the outer op.

    `kernel` is that of a loop that runs as one. `adds_bias` of an op in `biases_of_products`.
    """

    node: NodeDef
    inputs: Sequence[Shape]
    outputs: Sequence[Shape]
    input_types: Sequence[int]
    output_types: Sequence[int]
    times: float
    kernel: Kernel | None = None
    adds_bias: bool = False


class Scope(NamedTuple):
    """Where an op runs: the ops around it, the known numbers among the arguments of their body, and the bodies around them."""

    nodes: Mapping[str, NodeDef]
    numbers: Mapping[str, float]
    depth: int = 0


class Library:
    """The function library of a GraphDef; bodies are read on demand."""

    def __init__(self, graph_def: GraphDef) -> None:
        self.functions = {f.signature.name: f for f in graph_def.library.function}
        self.nodes = {n.name: n for n in graph_def.node}
        self.guesses: dict[str, list[str]] = {}

    def has_body(self, node: NodeDef) -> bool:
        return bool(self.functions) and (node.op in CONTROL_FLOW_OPS or bool(called_functions(node)))

    def body_ops(self, node: NodeDef) -> Iterator[BodyOp]:
        """Yields the ops that one run of `node`, a node of the graph itself, runs."""
        return self._ops_of_call(node, Scope(self.nodes, {}), 1.0)

    def iterations(self, node: NodeDef) -> int | None:
        """Returns how often a loop of the graph runs its body; None if the graph does not say."""
        return self._iterations(node, Scope(self.nodes, {}))

    def _ops_of_call(self, node: NodeDef, outer: Scope, times: float) -> Iterator[BodyOp]:
        loop = node.op.endswith("While")
        names = called_functions(node)
        iterations = self._iterations(node, outer) if loop else None
        if loop and iterations is None:
            self.guesses.setdefault("number of iterations is not known and counts as one", []).append(node.name)
        if is_fused(node):
            products = self._ops_of_bodies(names, node, outer, 1.0)
            kernel = layer_kernel([(op.node, op.inputs, op.outputs) for op in products], iterations or 1)
            yield BodyOp(node, (), (), (), (), times, kernel)
            return
        body_runs = (1 if iterations is None else iterations) if loop else 1 / max(len(names), 1)
        yield from self._ops_of_bodies(names, node, outer, times * body_runs)

    def _ops_of_bodies(self, names: Sequence[str], node: NodeDef, outer: Scope, times: float) -> Iterator[BodyOp]:
        for function in (self.functions[name] for name in names if name in self.functions and outer.depth < _MAX_DEPTH):
            constants = self._constant_arguments(function, node, outer)
            tensors = tensor_specs(function)
            argument_shapes = (shape for attrs in function.arg_attr.values() for shape in attrs.attr[SHAPES].list.shape)
            if any(d.size < 0 for shape in argument_shapes for d in shape.dim):
                self.guesses.setdefault("tensors have open sizes that count as 1", []).append(function.signature.name)
            inner = Scope({n.name: n for n in function.node_def}, constants, outer.depth + 1)
            biases = biases_of_products(function.node_def)
            for op in function.node_def:
                if op.op in CONTROL_FLOW_OPS or called_functions(op):
                    yield from self._ops_of_call(op, inner, times)
                    continue
                input_specs = [tensors.get(r, ((), 0)) for r in op.input if not r.startswith("^")]
                output_specs = list(_output_specs(op).values())
                yield BodyOp(
                    node=op,
                    inputs=[s for s, _ in input_specs],
                    outputs=[s for s, _ in output_specs],
                    input_types=[t for _, t in input_specs],
                    output_types=[t for _, t in output_specs],
                    times=times,
                    adds_bias=op.name in biases,
                )

    def _iterations(self, node: NodeDef, outer: Scope) -> int | None:
        """Returns how often a loop runs, from the comparisons of its counter with constants; None if it is not known."""
        condition = self.functions.get(node.attr["cond"].func.name)
        body = self.functions.get(node.attr["body"].func.name)
        if condition is None or body is None or outer.depth > _MAX_DEPTH:
            return None
        constants = self._constant_arguments(condition, node, outer)
        inner = {n.name: n for n in condition.node_def}
        position = {argument.name: k for k, argument in enumerate(condition.signature.input_arg)}
        initial = [r for r in node.input if not r.startswith("^")]
        bounds = []
        for compare in _required_ops(next(iter(condition.ret.values()), ""), inner):
            if compare.op not in _ITERATIONS:
                continue
            left, right = (_source(reference, inner) for reference in compare.input[:2])
            counter, limit = (left, right) if left in position and left not in constants else (right, left)
            bound = known_number(limit, inner, constants)
            if counter not in position or bound is None:
                continue
            start = known_number(initial[position[counter]], outer.nodes, outer.numbers)
            change = self._change(body, position[counter], node, outer)
            if start is not None and change:
                iterations = _ITERATIONS[compare.op]((bound - start) / change)
                upwards = compare.op.startswith("Less") == (counter == left)
                if compare.op == "NotEqual" or upwards == (change > 0):
                    bounds.append(iterations if compare.op == "NotEqual" else max(iterations, 0))
        return min((int(b) for b in bounds if b >= 0), default=None)

    def _change(self, body: FunctionDef, position: int, node: NodeDef, outer: Scope) -> float | None:
        """Returns what each iteration adds to a variable of the loop; None if that is not known."""
        inner = {n.name: n for n in body.node_def}
        counter = body.signature.input_arg[position].name
        addition = inner.get(_source(returned_reference(body, position), inner).split(":")[0])
        if addition is None or addition.op not in ("Add", "AddV2", "Sub"):
            return None
        left, right = (_source(reference, inner) for reference in addition.input[:2])
        constants = self._constant_arguments(body, node, outer)
        if counter == left:
            amount = known_number(right, inner, constants)
            return -amount if amount is not None and addition.op == "Sub" else amount
        return known_number(left, inner, constants) if counter == right and addition.op != "Sub" else None

    def _constant_arguments(self, function: FunctionDef, node: NodeDef, outer: Scope) -> dict[str, float]:
        """Returns the known numbers that are passed in and do not change, such as iteration counts of loops that ran before."""
        data = [r for r in node.input if not r.startswith("^")]
        skip = len(data) - len(function.signature.input_arg)  # a conditional's first input is its condition
        body = self.functions.get(node.attr["body"].func.name) if node.op.endswith("While") else None
        inner = {} if body is None else {n.name: n for n in body.node_def}
        constants = {}
        for k, (arg, reference) in enumerate(zip(function.signature.input_arg, data[max(skip, 0) :], strict=False)):
            if body is not None and _source(returned_reference(body, k), inner) != body.signature.input_arg[k].name:
                continue
            value = known_number(reference, outer.nodes, outer.numbers)
            name, output = split(reference)
            producer = outer.nodes.get(name)
            if value is None and producer is not None and producer.op.endswith("While") and output == 0:
                value = self._iterations(producer, outer._replace(depth=outer.depth + 1))
            if value is not None:
                constants[arg.name] = value
        return constants


def body_graph(function: FunctionDef, graph_def: GraphDef) -> tuple[GraphDef, list[tuple[str, int]]]:
    """Returns a body as a graph in topological order, whose Placeholders are the arguments, and the tensors it returns."""
    references = {argument.name: argument.name for argument in function.signature.input_arg}
    for node in function.node_def:
        references |= {reference: join(node.name, at) for at, reference in enumerate(_output_specs(node))}
    graph = type(graph_def)()
    graph.library.CopyFrom(graph_def.library)
    for k, argument in enumerate(function.signature.input_arg):
        placeholder = graph.node.add(op="Placeholder", name=argument.name)
        placeholder.attr["dtype"].type = argument.type
        if k in function.arg_attr and SHAPES in function.arg_attr[k].attr:
            placeholder.attr[SHAPES].CopyFrom(function.arg_attr[k].attr[SHAPES])
    nodes = {node.name: node for node in function.node_def}
    node_names = {argument.name for argument in function.signature.input_arg}
    waiting = list(reversed(nodes))
    while waiting:
        name = waiting[-1]
        sources = [split(reference)[0] for reference in nodes[name].input] if name not in node_names else []
        missing = [source for source in sources if source not in node_names]
        waiting += missing
        if not missing:
            waiting.pop()
        if not missing and name not in node_names:
            node_names.add(name)
            copy = graph.node.add()
            copy.CopyFrom(nodes[name])
            copy.input[:] = [references.get(reference, reference) for reference in nodes[name].input]
    results = [returned_reference(function, k) for k in range(len(function.signature.output_arg))]
    return graph, [split(references.get(reference, reference)) for reference in results]


def returned_reference(function: FunctionDef, position: int) -> str:
    """Returns the reference of a body's output."""
    return function.ret[function.signature.output_arg[position].name]


def is_loop_invariant(body: FunctionDef, position: int) -> bool:
    """Whether an argument of a loop's body has the same value in all iterations: the body returns it unchanged."""
    nodes = {node.name: node for node in body.node_def}
    return _source(returned_reference(body, position), nodes) == body.signature.input_arg[position].name


def _source(reference: str, nodes: Mapping[str, NodeDef]) -> str:
    """Returns the reference that a chain of Identity ops passes on."""
    node = nodes.get(reference.split(":")[0])
    return _source(node.input[0], nodes) if node is not None and node.op == "Identity" else reference


def _required_ops(reference: str, nodes: Mapping[str, NodeDef]) -> Iterator[NodeDef]:
    """Yields the ops that must all be true if the op of a reference is."""
    node = nodes.get(_source(reference, nodes).split(":")[0])
    if node is not None and node.op == "LogicalAnd":
        for operand in node.input[:2]:
            yield from _required_ops(operand, nodes)
    elif node is not None:
        yield node


def known_number(reference: str, nodes: Mapping[str, NodeDef], argument_values: Mapping[str, float]) -> float | None:
    """Returns the number that a reference stands for, or None if the graph does not say."""
    import tensorflow as tf

    if reference in argument_values:
        return argument_values[reference]
    node = nodes.get(split(reference)[0])
    if node is None:
        return None
    if node.op == "Const":
        tensor = node.attr["value"].tensor
        value = None if tensor.tensor_shape.dim else tf.make_ndarray(tensor)
        return None if value is None or value.dtype.kind not in "iuf" else value.item()
    if node.op in ("Size", "StridedSlice"):
        # The elements that a Size op counts, or the size that is sliced from a Shape or constant; None for open sizes.
        size_node = node if node.op == "Size" else nodes.get(split(node.input[0])[0])
        if size_node is None or size_node.op not in ("Size", "Shape", "Const"):
            return None
        if size_node.op == "Const":
            sizes = tf.make_ndarray(size_node.attr["value"].tensor).tolist()
        else:
            name, output = split(size_node.input[0])
            shapes = nodes[name].attr[SHAPES].list.shape if name in nodes else ()
            if output >= len(shapes) or shapes[output].unknown_rank or any(d.size < 0 for d in shapes[output].dim):
                return None
            sizes = [d.size for d in shapes[output].dim]
        if node.op == "Size":
            return math.prod(sizes)
        index_op = nodes.get(split(node.input[1])[0])
        one_size = node.attr["shrink_axis_mask"].i == 1
        if index_op is None or index_op.op != "Const" or not one_size or not isinstance(sizes, list):
            return None
        size = sizes[tf.make_ndarray(index_op.attr["value"].tensor)[0]]
        return size if isinstance(size, int) else None
    if node.op not in _ARITHMETIC:
        return None
    operands = [known_number(r, nodes, argument_values) for r in node.input if not r.startswith("^")]
    if any(operand is None for operand in operands):
        return None
    return _ARITHMETIC[node.op](*operands)


def _shape(proto: TensorShapeProto) -> Shape:
    return tuple(max(d.size, 1) for d in proto.dim)


def tensor_specs(function: FunctionDef) -> dict[str, tuple[Shape, int]]:
    """Returns shape and DataType of the arguments and of all tensors of a body, by the names that its ops read them by."""
    specs: dict[str, tuple[Shape, int]] = {}
    for k, arg in enumerate(function.signature.input_arg):
        attrs = function.arg_attr[k].attr if k in function.arg_attr else {}
        specs[arg.name] = (_shape(attrs[SHAPES].list.shape[0]) if SHAPES in attrs else (), arg.type)
    for node in function.node_def:
        specs.update(_output_specs(node))
    return specs


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
