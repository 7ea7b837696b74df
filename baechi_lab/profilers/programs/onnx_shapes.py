"""Shapes and types of the values of an ONNX model: by ONNX's own inference, and of what it leaves open by other rules.

ONNX infers no shapes of control flow whose bodies it cannot follow, of ONNX Runtime's operators and of some of `ai.onnx.ml`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from ...errors import FormatError
from ...graph.formats.onnx_file import inline_functions, onnx_package
from .onnx_bodies import CONTROL_FLOW, SMALL, bodies_of, value_types
from .onnx_flops import attribute, runtime_shapes
from .onnx_sizes import Numbers, compute_sizes, with_sizes
from .records import check_sizes, size_of_open_dimension

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto

onnx = onnx_package()

Shape = tuple[int, ...]

FLOATS = {"FLOAT", "FLOAT16", "DOUBLE", "BFLOAT16"}
_EQUIVALENTS = {
    "FusedConv": ("Conv", (0, 1)),
    "FusedGemm": ("Gemm", (0, 1)),
    "QGemm": ("Gemm", (0, 3)),
    "QLinearAdd": ("Add", (0, 3)),
    "QLinearMul": ("Mul", (0, 3)),
    "QLinearWhere": ("Where", (0, 1, 4)),
    "QLinearAveragePool": ("AveragePool", (0,)),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,)),
    "QLinearLeakyRelu": ("LeakyRelu", (0,)),
    "QLinearReduceMean": ("ReduceMean", (0,)),
    "QLinearSigmoid": ("Sigmoid", (0,)),
    "QLinearSoftmax": ("Softmax", (0,)),
}
"""Operator of ONNX Runtime -> the one of ONNX that has its shapes, and the positions of the inputs that both have."""
_VERSION_OF_EQUIVALENTS = 17
"""Version of ONNX's operators whose shapes are taken."""
_LONGEST_VECTOR = 2**18
"""Length of the longest vector in models through which ONNX follows the values of vectors."""


def infer_shapes(model: ModelProto, batch_size: int | None, sizes: Mapping[str, int]) -> ModelProto:
    """Returns the model with the shape of every input set and the shapes of all values that ONNX can infer."""
    sized_model = onnx.ModelProto()
    sized_model.CopyFrom(model)
    for sparse in sized_model.graph.sparse_initializer:  # runtimes store them densely
        sized_model.graph.initializer.add(name=sparse.values.name, data_type=sparse.values.data_type, dims=sparse.dims)
    del sized_model.graph.sparse_initializer[:]
    constants = {t.name for t in sized_model.graph.initializer}
    size_of_label: dict[str, int] = {}
    first_sizes: list[int] = []
    for value in sized_model.graph.input:
        if value.name in constants or not value.type.HasField("tensor_type"):
            continue
        for k, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:
                continue
            label = dim.dim_param or f"dimension {k} of {value.name}"
            if label not in size_of_label:
                description = f"input {value.name!r:.80}"
                size_of_label[label] = size_of_open_dimension(label, description, k, batch_size, sizes)
            dim.dim_value = size_of_label[label]
        first_sizes += [dim.dim_value for dim in value.type.tensor_type.shape.dim[:1]]
    check_sizes(sizes, size_of_label, batch_size, first_sizes)
    # Stored shapes of inner values may still name the open dimensions.
    del sized_model.graph.value_info[:]
    for value in sized_model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.ClearField("dim_param")
    for tensor in sized_model.graph.initializer:  # whose values are not read
        if prod(tensor.dims) > SMALL:
            for values in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
                tensor.ClearField(values)
    imported_domains = {o.domain for o in sized_model.opset_import}
    for domain in sorted({n.domain for n in sized_model.graph.node} - imported_domains):  # a custom domain
        sized_model.opset_import.add(domain=domain, version=1)
    try:
        sized_model = inline_functions(sized_model)
        _add_types_that_inference_requires(sized_model)
        return _infer_open_shapes(_infer_with_sizes(sized_model))
    except (
        onnx.shape_inference.InferenceError,
        onnx.checker.ValidationError,
        RuntimeError,
        ValueError,
        IndexError,
    ) as error:
        raise FormatError(f"the shapes cannot be inferred: {str(error).splitlines()[0]:.200}") from error


def _infer_with_sizes(model: ModelProto) -> ModelProto:
    """Returns the model with the shapes that ONNX infers where sizes that the model computes are known.

    What is behind a size is known after one more inference, and may have further sizes behind it.
    """
    inferred_model = onnx.shape_inference.infer_shapes(model)
    sizes: dict[str, Numbers] = {}
    is_first = True
    while True:
        shapes, _ = shapes_and_types(inferred_model.graph)
        values = (v for node in model.graph.node for v in node.output if v)
        if all(v in shapes for v in values) or not (compute_sizes(model, shapes, sizes) or is_first):
            return inferred_model
        is_first = False
        folded_graph = _infer_once(with_sizes(model, sizes)).graph
        for known_values, inferred_values in (
            (inferred_model.graph.value_info, folded_graph.value_info),
            (inferred_model.graph.output, folded_graph.output),
        ):
            del known_values[:]
            known_values.extend(inferred_values)


def _infer_once(model: ModelProto) -> ModelProto:
    """Returns the model with the shapes that ONNX infers in one pass.

    ONNX can follow the values of vectors, and stores an entry for each element even if it knows none. So it does not end
    where a vector has 2^40 elements. It follows none in a model with a long vector: `compute_sizes` follows the short ones.
    """
    inferred_model = onnx.shape_inference.infer_shapes(model)
    shapes = (shape for graph in _graphs(inferred_model.graph) for shape in shapes_and_types(graph)[0].values())
    if any(len(shape) == 1 and shape[0] > _LONGEST_VECTOR for shape in shapes):
        return inferred_model
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _add_types_that_inference_requires(model: ModelProto) -> None:
    """Adds types of inputs whose producers' types ONNX does not infer: of four operators, its inference then ends the process."""
    if not any(_required_type(node) is not None for graph in _graphs(model.graph) for node in graph.node):
        return
    model_without_them = onnx.ModelProto()
    model_without_them.CopyFrom(model)
    for graph in _graphs(model_without_them.graph):
        for i in reversed(range(len(graph.node))):
            if _required_type(graph.node[i]) is not None:
                del graph.node[i]
    inferred_model = onnx.shape_inference.infer_shapes(model_without_them)
    typed_values = {v for graph in _graphs(inferred_model.graph) for v in value_types(graph)}
    for graph in _graphs(model.graph):
        for node in graph.node:
            name, required_type = next(iter(node.input), ""), _required_type(node)
            if required_type is not None and name and name not in typed_values:
                graph.value_info.add(name=name).type.CopyFrom(required_type)


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Returns a graph and the bodies of its control flow, and theirs."""
    yield graph
    for node in graph.node:
        for attribute_of_node in node.attribute:
            if attribute_of_node.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute_of_node.g)


def _required_type(node: NodeProto) -> TypeProto | None:
    """Returns a type that fits the first input, if inference fails without one. A tree has the type of its thresholds."""
    if node.op_type == "DictVectorizer":
        number = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
        return onnx.helper.make_map_type_proto(onnx.TensorProto.STRING, number)
    splits = next((a.t.data_type for a in node.attribute if a.name == "nodes_splits"), onnx.TensorProto.FLOAT)
    kinds = {"EyeLike": onnx.TensorProto.FLOAT, "RegexFullMatch": onnx.TensorProto.STRING, "TreeEnsemble": splits}
    return onnx.helper.make_tensor_type_proto(kinds[node.op_type], None) if node.op_type in kinds else None


def _infer_open_shapes(model: ModelProto) -> ModelProto:
    """Adds shapes that ONNX leaves open (of control flow, ONNX Runtime and `ai.onnx.ml`), and what follows from them.

    An inference visits the whole graph, so it waits for an op that reads a value of unknown shape.
    """
    is_inferred = True
    types, shapes, element_types, own_values = _known_values(model.graph)
    for k in range(len(model.graph.node)):
        node = model.graph.node[k]
        if node.op_type not in CONTROL_FLOW and node.domain not in ("com.microsoft", "ai.onnx.ml"):
            continue
        if not is_inferred and (node.op_type in CONTROL_FLOW or any(v and v not in shapes for v in node.input)):
            model, is_inferred = _infer_once(model), True
            types, shapes, element_types, own_values = _known_values(model.graph)
            node = model.graph.node[k]
        no_tensors = {
            v for v in node.output if v in types and types[v].WhichOneof("value") not in (None, "tensor_type")
        }
        if all(v in shapes or v in no_tensors for v in node.output if v):
            continue
        bodies = bodies_of(node, model)
        output_types = bodies[0].output_types(infer_shapes(bodies[0].model, None, {}).graph) if bodies else []
        with contextlib.suppress(IndexError, TypeError, ValueError, onnx.shape_inference.InferenceError):
            input_shapes = [shapes.get(v) for v in node.input]
            output_shapes = _shapes_of_equivalent(node, input_shapes) or runtime_shapes(node, input_shapes)
            known_types = [types[v].tensor_type.elem_type if v in types else 0 for v in node.output]
            result_type = onnx.TensorProto.DataType.Value(_result_type(node, element_types))
            output_types = output_types or [
                onnx.helper.make_tensor_type_proto(known_type or result_type, shape)
                for known_type, shape in zip(known_types, output_shapes, strict=False)
            ]
        for name, output_type in zip(node.output, output_types, strict=False):
            if name:
                value = own_values.get(name) or model.graph.value_info.add(name=name)
                value.type.CopyFrom(output_type)
                is_inferred, types[name] = False, output_type
                new_shapes, new_types = shapes_and_types(onnx.GraphProto(value_info=[value]))
                shapes |= new_shapes
                element_types |= new_types
    return model if is_inferred else _infer_once(model)


def _known_values(
    graph: GraphProto,
) -> tuple[dict[str, TypeProto], dict[str, Shape], dict[str, str], dict[str, ValueInfoProto]]:
    """Returns the types, shapes and types of elements of a graph's values, and the entries of those that nodes make."""
    own_values = {v.name: v for v in (*graph.value_info, *graph.output)}
    return value_types(graph), *shapes_and_types(graph), own_values


def _shapes_of_equivalent(node: NodeProto, input_shapes: Sequence[Shape | None]) -> list[Shape]:
    """Returns the output shapes of a fused or quantized operator of `com.microsoft`, those of ONNX's own; none for others."""
    if node.domain != "com.microsoft" or attribute(node, "channels_last", 0):
        return []
    if node.op_type == "QLinearConcat":
        name, positions = "Concat", tuple(range(2, len(node.input), 3))
    elif node.op_type in _EQUIVALENTS:
        name, positions = _EQUIVALENTS[node.op_type]
    else:
        return []
    schema = onnx.defs.get_schema(name, _VERSION_OF_EQUIVALENTS)
    inputs = {f"input{k}": input_shapes[k] for k in positions}
    types = {
        value: onnx.helper.make_tensor_type_proto(
            onnx.TensorProto.BOOL if name == "Where" and value == "input0" else onnx.TensorProto.FLOAT, shape
        )
        for value, shape in inputs.items()
    }
    equivalent = onnx.helper.make_node(name, list(inputs), ["output"])
    equivalent.attribute.extend(a for a in node.attribute if a.name in schema.attributes)
    opsets = [onnx.helper.make_opsetid("", _VERSION_OF_EQUIVALENTS)]
    result = onnx.shape_inference.infer_node_outputs(schema, equivalent, types, opset_imports=opsets)["output"]
    dims = result.tensor_type.shape.dim
    has_sizes = result.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims)
    return [tuple(d.dim_value for d in dims)] if has_sizes else []


def _result_type(node: NodeProto, element_types: Mapping[str, str]) -> str:
    """Returns the type of the numbers that an operator makes, if ONNX does not infer it."""
    if node.op_type == "QGemm" and (len(node.input) < 9 or not node.input[7]):
        return "FLOAT"  # without a scale of the result
    source = (
        node.input[1] if node.op_type == "QLinearConcat" else node.input[1 if node.op_type == "QLinearWhere" else 0]
    )
    kind = element_types.get(source, "")
    return kind if kind in FLOATS or (node.op_type.startswith("Q") and kind in ("INT8", "UINT8")) else "FLOAT"


def shapes_and_types(graph: GraphProto) -> tuple[dict[str, Shape], dict[str, str]]:
    """Returns the shapes of values that are known, and the types of all values; rejects sizes that no tensor has."""
    shapes: dict[str, Shape] = {}
    types: dict[str, str] = {}
    for tensor in graph.initializer:
        shapes[tensor.name], types[tensor.name] = tuple(tensor.dims), type_name(tensor.data_type)
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if not value.type.HasField("tensor_type"):
            continue
        types.setdefault(value.name, type_name(kind.elem_type))
        dims = kind.shape.dim
        if kind.HasField("shape") and all(d.WhichOneof("value") == "dim_value" and d.dim_value >= 0 for d in dims):
            shapes.setdefault(value.name, tuple(d.dim_value for d in dims))
    if any(prod(shape) > 2**50 for shape in shapes.values()):
        large = next(v for v, shape in shapes.items() if prod(shape) > 2**50)
        raise FormatError(f"value {large!r:.80} has the shape {list(shapes[large])!r:.120}; no tensor is that large")
    negative = next((value for value, shape in shapes.items() if any(d < 0 for d in shape)), None)
    if negative is not None:
        raise FormatError(
            f"value {negative!r:.80} has the shape {list(shapes[negative])!r:.120}; no size may be negative"
        )
    return shapes, types


def type_name(number: int) -> str:
    """Returns ONNX's name of a type of numbers, or "UNDEFINED" for a number that stands for none."""
    return onnx.TensorProto.DataType.Name(number) if number in onnx.TensorProto.DataType.values() else "UNDEFINED"
