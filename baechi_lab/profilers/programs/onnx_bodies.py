"""Bodies of ONNX's control flow: the graphs that `If`, `Loop` and `Scan` run, as models of their own.

A body reads values of the graph around it by name. They become inputs of its model, or constants where they are small, so that
shapes that are computed from them are known. What the operator passes to the body has the shape that it has before the first
iteration. A loop runs as often as its trip count says, if that is a constant and its condition is one too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ...graph.formats.onnx_file import onnx_package
from .onnx_flops import attribute

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

onnx = onnx_package()

CONTROL_FLOW = ("If", "Loop", "Scan")
MOST_ITERATIONS = 10_000
"""Iterations that are told apart. More stand for "until the condition fails" in files that PyTorch exports."""
SMALL = 1024
"""Elements of a constant whose values shapes may depend on."""


@dataclass(frozen=True)
class Body:
    """A graph that control flow runs.

    Args:
        model: the graph as a model.
        outer: names of values of the graph around it that it reads.
        iterations: how often it runs; None if this depends on values that are not known.
        returned_outputs: positions of the body's outputs that the operator returns, in the order of the operator's outputs.
        stacked_count: how many of these, the last ones, the operator returns for all iterations together.
    """

    model: ModelProto
    outer: tuple[str, ...]
    iterations: int | None
    returned_outputs: tuple[int, ...]
    stacked_count: int = 0

    def output_types(self, inferred_graph: GraphProto) -> list[TypeProto]:
        """Returns the types of the operator's outputs; `inferred_graph` is the body with the shapes of its values."""
        output_types = []
        for k, position in enumerate(self.returned_outputs):
            output_type = onnx.TypeProto()
            output_type.CopyFrom(inferred_graph.output[position].type)
            if k >= len(self.returned_outputs) - self.stacked_count and output_type.tensor_type.HasField("shape"):
                sizes = list(output_type.tensor_type.shape.dim)
                del output_type.tensor_type.shape.dim[:]
                output_type.tensor_type.shape.dim.add(dim_value=self.iterations or 1)
                output_type.tensor_type.shape.dim.extend(sizes)
            output_types.append(output_type)
        return output_types


def bodies_of(node: NodeProto, model: ModelProto) -> list[Body]:
    """Returns the bodies of an operator of the graph of `model`, whose shapes are inferred; none if it is no control flow.

    >>> from onnx import TensorProto, helper
    >>> y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    >>> branch = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "branch", [], [y])
    >>> node = helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch)
    >>> x, c = (helper.make_tensor_value_info(*v) for v in (("x", TensorProto.FLOAT, [2]), ("c", TensorProto.BOOL, [])))
    >>> [body.outer for body in bodies_of(node, helper.make_model(helper.make_graph([node], "g", [x, c], [])))]
    [('x',), ('x',)]
    """
    graphs = {a.name: a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH}
    types, constants = value_types(model.graph), _constants(model.graph)
    if node.op_type == "If" and graphs.keys() == {"then_branch", "else_branch"}:
        return [_body(g, model, {}, types, constants, 1, tuple(range(len(g.output)))) for g in graphs.values()]
    if node.op_type not in CONTROL_FLOW or "body" not in graphs:
        return []
    graph = graphs["body"]
    if node.op_type == "Loop":
        argument_types = (types.get(v) for v in node.input[2:])
        type_of_argument = dict(zip((v.name for v in graph.input[2:]), argument_types, strict=False))
        carried_count, iterations = len(node.input) - 2, _trip_count(node, graph, constants)
        returned_outputs = tuple(range(1, len(graph.output)))
    else:
        scanned_count = attribute(node, "num_scan_inputs", 0)
        if not 0 < scanned_count <= len(node.input) or len(graph.input) != len(node.input):
            return []  # of version 8, whose inputs have a batch
        axes = attribute(node, "scan_input_axes", [0] * scanned_count)
        carried_count, iterations = len(node.input) - scanned_count, None
        type_of_argument = {v.name: types.get(name) for v, name in zip(graph.input, node.input, strict=True)}
        for value, name, axis in zip(graph.input[carried_count:], node.input[carried_count:], axes, strict=False):
            if name in types and len(types[name].tensor_type.shape.dim) > axis:
                row = onnx.TypeProto()
                row.CopyFrom(types[name])
                iterations = row.tensor_type.shape.dim[axis].dim_value
                del row.tensor_type.shape.dim[axis]
                type_of_argument[value.name] = row
        returned_outputs = tuple(range(len(graph.output)))
    stacked_count = len(returned_outputs) - carried_count
    return [_body(graph, model, type_of_argument, types, constants, iterations, returned_outputs, stacked_count)]


def value_types(graph: GraphProto) -> dict[str, TypeProto]:
    """Returns the types of the values of a graph, with their shapes."""
    types = {v.name: v.type for v in (*graph.value_info, *graph.input, *graph.output)}
    for tensor in graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    return types


def _constants(graph: GraphProto) -> dict[str, TensorProto]:
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            constants.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    return constants


def _body(
    graph: GraphProto,
    model: ModelProto,
    type_of_argument: Mapping[str, TypeProto | None],
    types: Mapping[str, TypeProto],
    constants: Mapping[str, TensorProto],
    iterations: int | None,
    returned_outputs: tuple[int, ...],
    stacked_count: int = 0,
) -> Body:
    """Returns a body as a model: its inputs have the types of what is passed, and small outer values are constants."""
    own_graph = onnx.GraphProto()
    own_graph.CopyFrom(graph)
    for value in own_graph.input:
        value_type = type_of_argument.get(value.name)
        if value_type is not None:
            value.type.CopyFrom(value_type)
        elif any(dim.WhichOneof("value") != "dim_value" for dim in value.type.tensor_type.shape.dim):
            value.type.tensor_type.ClearField("shape")
    outer = tuple(dict.fromkeys(_outer_values(graph)))
    for name in outer:
        if name in constants and prod(constants[name].dims) <= SMALL:
            tensor = own_graph.initializer.add()
            tensor.CopyFrom(constants[name])
            tensor.name = name
        elif name in types or name in constants:
            constant_type = types.get(name)
            if constant_type is None:
                constant_type = onnx.helper.make_tensor_type_proto(constants[name].data_type, constants[name].dims)
            own_graph.input.add(name=name).type.CopyFrom(constant_type)
        else:
            own_graph.input.add(name=name)
    own_model = onnx.ModelProto(ir_version=model.ir_version, graph=own_graph)
    own_model.opset_import.extend(model.opset_import)
    return Body(own_model, outer, iterations, returned_outputs, stacked_count)


def _outer_values(graph: GraphProto) -> Iterator[str]:
    """Names that a graph and the graphs within it read, and that it does not define."""
    own_values = {v.name for v in (*graph.input, *graph.initializer)} | {v for node in graph.node for v in node.output}
    for node in graph.node:
        inner = (v for a in node.attribute if a.type == onnx.AttributeProto.GRAPH for v in _outer_values(a.g))
        yield from (v for v in (*node.input, *inner) if v and v not in own_values)
    yield from (v.name for v in graph.output if v.name not in own_values)


def _trip_count(node: NodeProto, graph: GraphProto, constants: Mapping[str, TensorProto]) -> int | None:
    """Returns how often a Loop runs its body, or None: its count is not known, or the body decides when it ends."""
    count = constants.get(node.input[0]) if node.input else None
    if count is None or (len(node.input) > 1 and node.input[1] and not _is_true(constants.get(node.input[1]))):
        return None
    makers = {v: inner for inner in graph.node for v in inner.output}
    condition = graph.output[0].name
    while condition in makers and makers[condition].op_type in ("Identity", "Cast"):
        condition = makers[condition].input[0]
    if condition != graph.input[1].name and not _is_true((dict(constants) | _constants(graph)).get(condition)):
        return None
    iterations = int(onnx.numpy_helper.to_array(count).reshape(-1)[0])
    return iterations if 0 <= iterations <= MOST_ITERATIONS else None


def _is_true(tensor: TensorProto | None) -> bool:
    return tensor is not None and bool(onnx.numpy_helper.to_array(tensor).reshape(-1)[0])
