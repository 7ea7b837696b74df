"""Reads ONNX models as `Program`: shapes by ONNX's own inference (`onnx_shapes`), FLOPs by operator (`onnx_flops`).

Weights are known by their shapes; their values are not read, except whether those of a vector are equal. Float products count in
full float32 (`profilers/precision.py`). Float initializers with more than one element are trained parameters, except the
statistics of normalizations. Constants are not parameters. Arithmetic on shapes is the host's. Control flow has the work of its
body, times the iterations (`onnx_bodies`); of two branches, of the longer one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from ...errors import FormatError
from ...graph.formats.onnx_file import check_versions, load_model, onnx_package, op_names, opset_version
from ...graph.formats.reading import stem, with_file_name
from ...graph.tensors import shapes_in_words
from ..arithmetic import per_element
from ..precision import Precision
from ..work import Kernel, added_bias, recurrent_kernel
from .onnx_bodies import CONTROL_FLOW, SMALL, Body, bodies_of
from .onnx_flops import (
    ATTENTION,
    SHAPE_OPS,
    attention_gradients,
    attribute,
    bytes_of_sort,
    gradient_work,
    is_view,
    layout_bytes,
    multiprocessor_us,
    product_flops,
    product_shapes,
    repeated_rows,
    row_alignment,
    vector_flops,
)
from .onnx_fusion import join_nodes
from .onnx_shapes import FLOATS, Shape, infer_shapes, shapes_and_types, type_name
from .records import UNKNOWN_ITERATIONS, UNKNOWN_SHAPES, Program, ProgramOp

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

onnx = onnx_package()

_WIDTH = {
    **dict.fromkeys("UINT8 INT8 BOOL FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ FLOAT8E8M0".split(), 1),
    **dict.fromkeys(("UINT16", "INT16", "FLOAT16", "BFLOAT16"), 2),
    **dict.fromkeys(("FLOAT", "INT32", "UINT32"), 4),
    **dict.fromkeys(("INT64", "UINT64", "DOUBLE", "COMPLEX64"), 8),
    "COMPLEX128": 16,
}
_PER_BYTE = {"INT2": 4, "UINT2": 4, "INT4": 2, "UINT4": 2, "FLOAT4E2M1": 2}
_PRECISION = {"FLOAT16": "fp16", "BFLOAT16": "bf16", "DOUBLE": "fp64", "INT8": "int8", "UINT8": "int8"}
_TYPE_NAMES = {"fp32": "FLOAT", "fp16": "FLOAT16", "bf16": "BFLOAT16"}
_LONG_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}
_RANDOM = ("Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike")
_STATISTICS = {
    "BatchNormalization": (3, 4),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), (1, 2)),
    "QLinearConv": (1, 4, 6),
    "QLinearMatMul": (1, 4, 6),
    "QGemm": (1, 4, 7),
    "MatMulNBits": (2,),
    "DynamicQuantizeMatMul": (2,),
    "MatMulIntegerToFloat": (2, 3),
}
"""Positions of parameters that no optimizer trains: statistics of norms, and scales of quantized numbers."""
OLDEST_OPSET = 7
"""Oldest operator version that ONNX Runtime reads (its "Compatibility" page)."""
_OF_ATTRIBUTES = ("SVM", "TreeEnsemble")
"""Operators of `ai.onnx.ml` whose work is that of the vectors or trees in their attributes, of which only the bytes count."""


_UNFITTING_SHAPES = "shapes that do not fit the operator"


def program_of(
    source: Any,
    batch_size: int | None = None,
    sizes: Mapping[str, int] | None = None,
    precision: Precision | None = None,
) -> Program:
    """Reads the operators of a model or file, with the floating-point types that `precision` chooses.

    Raises:
        FormatError, InvalidInput, MissingPackage: see `bl.profile_program`.
    """
    if isinstance(source, onnx.ModelProto):
        check_versions(source, "the model")
        return _read_model(source, source.graph.name or "onnx", batch_size, sizes or {}, precision)
    model = load_model(source)
    return with_file_name(source, lambda: _read_model(model, stem(source), batch_size, sizes or {}, precision))


def _read_model(
    model: ModelProto, name: str, batch_size: int | None, sizes: Mapping[str, int], precision: Precision | None
) -> Program:
    """Reads the operators of a model with their kernels, in the order of the file; bodies are read as models of their own."""
    version = opset_version(model)
    inferred_model = infer_shapes(model, batch_size, sizes)
    graph = inferred_model.graph
    shapes, types = shapes_and_types(graph)
    constants = {t.name for t in graph.initializer}
    constants |= {value for node in graph.node if node.op_type == "Constant" for value in node.output}
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            tensor = next((a.t for a in node.attribute if a.name == "value"), None)
            if tensor is not None:
                shapes[node.output[0]], types[node.output[0]] = tuple(tensor.dims), type_name(tensor.data_type)
    if precision is not None and precision.dtype is not None:
        types |= {value: _TYPE_NAMES[precision.dtype] for value, kind in types.items() if kind in FLOATS}
    _check_inputs_exist(graph)
    all_nodes = [n for n in graph.node if n.op_type != "Constant"]
    for node, name_of_op in zip(all_nodes, op_names(all_nodes), strict=True):  # a plan finds nodes by these names
        node.name = name_of_op
    of_pytorch = model.producer_name == "pytorch"
    nodes = _without_copies(all_nodes, constants, of_pytorch)
    if of_pytorch:
        own_name_of = _divide_vectors(model.graph, nodes)
        constants |= own_name_of.keys()
        for copy, stored in own_name_of.items():
            shapes[copy], types[copy] = shapes[stored], types[stored]
    nodes, joined_values = join_nodes(nodes, [o.name for o in graph.output], shapes, types)
    parameters = _parameters(nodes, constants, shapes, types)
    read_once = {v for v, count in Counter(v for node in nodes for v in node.input).items() if count == 1}
    products = {v for node in nodes if node.op_type == "MatMul" for v in node.output} & read_once
    views = _views_of_attention(nodes)
    reasons_of_guesses: dict[int, str] = {}  # op -> why its work is a guess (`Program.reasons_of_guesses`)
    values_of_assumed_shape: set[str] = set()
    body_bytes: dict[str, int] = {}  # of the parameters in bodies and attributes
    host_values = {v for v, is_trained in parameters.items() if not is_trained and prod(shapes[v]) <= SMALL}
    ops = []
    for i, node in enumerate(nodes):
        name_of_op = node.name
        # ONNX infers no shape of outputs of custom operators, and of some whose shape depends on values. They are assumed to have
        # that of the op's largest input. The work of every op that reads or makes such a value is then a guess.
        open_values = {value for value in node.output if value and value not in shapes}
        largest = max((v for v in node.input if v in shapes), key=lambda v: prod(shapes[v]), default=None)
        for value in open_values:
            shapes[value] = shapes[largest] if largest is not None else (1,)
            types.setdefault(value, types.get(largest or "", "FLOAT"))
        values_of_assumed_shape |= open_values
        is_joined = not joined_values.isdisjoint(node.output)
        kernel, why = _kernel(node, shapes, types, onnx.defs.onnx_opset_version() if is_joined else version)
        if not open_values and _runs_on_host(node, host_values, shapes):
            host_values.update(node.output)
            kernel, why = Kernel(metadata=True), ""
        if _is_part_of_product(node, parameters, products) or not views.isdisjoint(node.output):
            kernel, why = Kernel(metadata=True), ""
        has_assumed_shape = not values_of_assumed_shape.isdisjoint((*node.input, *node.output))
        if has_assumed_shape and not why and not kernel.metadata:
            why = UNKNOWN_SHAPES
        if why:
            reasons_of_guesses[i] = why
        reads = tuple(v for v in node.input if v)
        kernels = (*_repeated_weights(node, shapes), kernel)
        body = _longest_body(bodies_of(node, inferred_model), precision) if node.op_type in CONTROL_FLOW else None
        if body is not None:
            iterations, outer, program, body_programs = body
            kernels = tuple(kernel for op in program.ops for kernel in op.kernels) * (
                1 if iterations is None else iterations
            )
            reasons = [*program.reasons_of_guesses.values(), *([UNKNOWN_ITERATIONS] if iterations is None else [])]
            if reasons:
                reasons_of_guesses[i] = UNKNOWN_SHAPES if UNKNOWN_SHAPES in reasons else reasons[-1]
            reads = tuple(dict.fromkeys((*reads, *outer)))
            for k, body_program in enumerate(body_programs):  # the branch that does not run is in memory, too
                for value in (v for v in body_program.parameters if v not in outer):
                    name = f"{name_of_op}/{k}/{value}"
                    parameters[name] = body_program.parameters[value]
                    body_bytes[name] = body_program.size_bytes[value]
                    reads = (*reads, name)
        stored_bytes = _attribute_bytes(node)
        if stored_bytes:
            attributes = f"{name_of_op}/attributes"
            parameters[attributes], body_bytes[attributes] = False, stored_bytes
            reads = (*reads, attributes)
        output_names = tuple(v for v in node.output if v)
        shaped_values = [v for v in output_names if v in types and v in shapes and v not in values_of_assumed_shape]
        made_shapes = shapes_in_words((_LONG_NAMES.get(types[v], types[v].lower()), shapes[v]) for v in shaped_values)
        gradients = partial(
            gradient_work,
            node=node,
            input_shapes=[shapes.get(v, ()) if v else None for v in node.input],
            output_shapes=[shapes.get(v, ()) if v else None for v in node.output],
            number_bytes=_WIDTH.get(types.get(node.input[0], ""), 4) if node.input else 4,
        )
        if node.op_type in ATTENTION and len(kernel.products) == 2:
            gradients = partial(attention_gradients, kernel)
        has_gradient_rule = (
            reads
            and output_names
            and (not kernel.matrix or node.op_type in ATTENTION)
            and not (kernel.metadata and node.op_type == "Transpose")
            and body is None
            and why != _UNFITTING_SHAPES
        )
        ops.append(
            ProgramOp(
                name_of_op,
                node.op_type or "op",
                kernels,
                reads,
                output_names,
                output_shapes=made_shapes,
                gradients=gradients if has_gradient_rule else None,
            )
        )
    size = {v: _bytes(prod(shape), types.get(v, "")) for v, shape in shapes.items()} | body_bytes
    outputs = tuple(o.name for o in graph.output)
    return Program(
        name,
        tuple(ops),
        size,
        parameters,
        outputs,
        reasons_of_guesses=reasons_of_guesses,
        notes=_old_version_notes(version),
    )


def _check_inputs_exist(graph: GraphProto) -> None:
    """Raises `FormatError` for an operator that reads what nothing makes: its shape, and so the work on it, is unknown."""
    available_values = {v.name for v in (*graph.input, *graph.initializer)}
    available_values |= {v for node in graph.node for v in node.output}
    for node in graph.node:
        missing = next((v for v in node.input if v and v not in available_values), None)
        if missing is not None:
            raise FormatError(
                f"operator {(node.name or node.op_type)!r:.60} reads {missing!r:.80}, which no operator makes and is no input"
            )


def _parameters(
    nodes: Sequence[NodeProto], constants: Collection[str], shapes: Mapping[str, Shape], types: Mapping[str, str]
) -> dict[str, bool]:
    """Returns the constants by name, and whether each is trained: running statistics and scalars are not."""
    parameters = {v: types[v] in FLOATS and prod(shapes[v]) > 1 and bool(shapes[v]) for v in constants if v in shapes}
    for node in nodes:
        for position in _STATISTICS.get(node.op_type, ()):
            if len(node.input) > position and node.input[position] in parameters:
                parameters[node.input[position]] = False
    return parameters


def _old_version_notes(version: int) -> tuple[str, ...]:
    if version >= OLDEST_OPSET or version < 1:  # 0 if all operators are custom
        return ()
    return (
        f"its operators are of version {version}, which ONNX Runtime no longer reads (it takes {OLDEST_OPSET} and later); "
        "they are estimated as what they are today",
    )


def _longest_body(
    bodies: list[Body], precision: Precision | None
) -> tuple[int | None, tuple[str, ...], Program, list[Program]] | None:
    """Returns iterations, outer values and operators of the body with the most FLOPs, then bytes, and all bodies' operators."""
    programs = [(body, _read_model(body.model, "body", None, {}, precision)) for body in bodies]
    if not programs:
        return None

    def work(row: tuple[Body, Program]) -> tuple[float, float]:
        kernels = [kernel for op in row[1].ops for kernel in op.kernels]
        return sum(k.flops for k in kernels), sum(k.moved_bytes for k in kernels)

    body, program = max(programs, key=work)
    return body.iterations, tuple(dict.fromkeys(v for b in bodies for v in b.outer)), program, [p for _, p in programs]


def _bytes(numbers: int, kind: str) -> int:
    """Returns the bytes of a tensor of so many numbers. Numbers of less than a byte share bytes."""
    return -(-numbers // _PER_BYTE[kind]) if kind in _PER_BYTE else numbers * _WIDTH.get(kind, 4)


def _kernel(node: NodeProto, shapes: Mapping[str, Shape], types: Mapping[str, str], version: int) -> tuple[Kernel, str]:
    """Returns the kernel of an op, and why it is a guess (empty if it is none)."""
    if node.op_type in SHAPE_OPS or is_view(node, shapes):
        return Kernel(metadata=True), ""
    input_shapes = [shapes.get(v, ()) if v else None for v in node.input]
    output_shapes = [shapes.get(v, ()) if v else None for v in node.output]
    size = lambda v: _bytes(prod(shapes.get(v, ())), types.get(v, ""))  # noqa: E731
    moved_bytes = sum(size(v) for v in {*node.input, *node.output} if v) + _attribute_bytes(node)
    if node.op_type in ("Gather", "Slice", "Embedding", "GatherElements", "GatherND", "Compress"):
        moved_bytes = 2 * sum(size(v) for v in node.output if v)
    if node.op_type == "SoftmaxCrossEntropyLoss":  # writes the logarithms of all shares
        moved_bytes += size(node.input[0])
    try:
        return _shaped_kernel(node, input_shapes, output_shapes, float(moved_bytes), types, version)
    except (IndexError, TypeError, ValueError, ZeroDivisionError):
        all_shapes_known = all(v in shapes for v in node.input if v)
        return Kernel(moved_bytes=float(moved_bytes)), _UNFITTING_SHAPES if all_shapes_known else UNKNOWN_SHAPES


def _shaped_kernel(
    node: NodeProto,
    input_shapes: list[Shape | None],
    output_shapes: list[Shape | None],
    moved_bytes: float,
    types: Mapping[str, str],
    version: int,
) -> tuple[Kernel, str]:
    """Returns what `_kernel` does. Raises `IndexError`, `TypeError` or `ValueError` if shapes do not fit the operator."""
    width = _WIDTH.get(types.get(node.input[0], ""), 4) if node.input else 4
    count = product_flops(node, input_shapes, output_shapes)
    if count is not None:
        kinds = {types.get(v, "") for v in (node.input[:1] if node.op_type == "MatMulNBits" else node.input) if v}
        precision = next((p for kind, p in _PRECISION.items() if kind in kinds), "fp32")
        try:
            products = product_shapes(node, input_shapes, output_shapes)
        except (IndexError, TypeError, ValueError, KeyError, ZeroDivisionError):
            products = ()
        convolution = "Conv" in node.op_type and bool(products)
        kernel = Kernel(
            float(count),
            moved_bytes,
            precision,
            matrix=True,
            batched="Attention" in node.op_type or (not convolution and any(product.count > 1 for product in products)),
            products=products,
            convolution=convolution,
            vector_flops=vector_flops(node, input_shapes, output_shapes, width, precision),
            layout_bytes=layout_bytes(node, input_shapes, moved_bytes, width),
            row_alignment=row_alignment(node, input_shapes, output_shapes, width),
            followed_by=added_bias(prod(output_shapes[0] or ()), width)
            if convolution and len(node.input) > 2 and precision != "int8"
            else None,
        )
        if node.op_type not in ("LSTM", "GRU", "RNN") or not input_shapes[0] or not input_shapes[2]:
            return kernel, ""
        (steps, samples, _), (directions, gate_rows, hidden) = input_shapes[0], input_shapes[2]
        if attribute(node, "layout", 0):  # samples come first
            steps, samples = samples, steps
        return recurrent_kernel(kernel, directions * steps, samples, hidden, gate_rows // hidden), ""
    outputs = sum(prod(shape) for shape in output_shapes if shape)
    why = ""
    if not _is_operator(node, version) or node.op_type.startswith(_OF_ATTRIBUTES):
        why = "no operator of ONNX"
    flops = float(outputs * per_element(node.op_type))
    if not input_shapes or not input_shapes[0] or not output_shapes:
        return Kernel(flops=flops, moved_bytes=moved_bytes), why
    return Kernel(
        flops=flops,
        moved_bytes=max(moved_bytes, float(bytes_of_sort(node, input_shapes, output_shapes, width))),
        rows=repeated_rows(node, input_shapes, width),
        vector_flops=vector_flops(node, input_shapes, output_shapes, width),
        multiprocessor_us=multiprocessor_us(node, input_shapes, output_shapes, width),
    ), why


def _runs_on_host(node: NodeProto, host_values: Container[str], shapes: Mapping[str, Shape]) -> bool:
    """Whether ONNX Runtime folds an operator or computes it on the host: arithmetic on shapes and small constants."""
    if node.op_type in ("Shape", "Size"):
        return True
    if node.domain not in ("", "ai.onnx") or node.op_type in CONTROL_FLOW or node.op_type in _RANDOM:
        return False
    inputs = [v for v in node.input if v]
    return (
        bool(inputs)
        and all(v in host_values for v in inputs)
        and all(prod(shapes[v]) <= SMALL for v in node.output if v)
    )


def _without_copies(nodes: Sequence[NodeProto], constants: set[str], are_parameters: bool) -> list[NodeProto]:
    """Returns the operators without copies of constants.

    PyTorch's exporter stores tensors of equal numbers once, and copies them for other parameters: if `are_parameters`, these
    are added to `constants`. Otherwise the constants are read in place of their copies.
    """
    source_of: dict[str, str] = {}
    remaining_nodes = []
    for node in nodes:
        source = source_of.get(node.input[0], node.input[0]) if node.op_type == "Identity" and node.input else ""
        if source in constants and node.output and not node.domain:
            source_of[node.output[0]] = source
        else:
            remaining_nodes.append(node)
    if are_parameters:
        constants.update(source_of)
        return remaining_nodes
    if source_of:
        for k, node in enumerate(remaining_nodes):
            if not source_of.keys().isdisjoint(node.input):
                renamed = onnx.NodeProto()
                renamed.CopyFrom(node)
                renamed.input[:] = [source_of.get(v, v) for v in node.input]
                remaining_nodes[k] = renamed
    return remaining_nodes


def _divide_vectors(graph: GraphProto, nodes: Sequence[NodeProto]) -> dict[str, str]:
    """Renames vectors that several operators read, in all but the first; returns new name -> stored name.

    PyTorch's exporter stores vectors of equal numbers once, as the biases and norms of a model that was not trained are. So a
    vector of different numbers, which is known to be one parameter of several layers, keeps its name.
    """
    vectors = {t.name for t in graph.initializer if len(t.dims) == 1 and t.dims[0] > 1 and _may_be_constant(t)}
    stored_name_of: dict[str, str] = {}
    used: set[str] = set()
    for node in nodes:
        for k, value in enumerate(node.input):
            if value in vectors and value in used:
                name = f"{value} of {node.name} {k}"
                stored_name_of[name] = value
                node.input[k] = name
            used.add(value)
    return stored_name_of


def _may_be_constant(tensor: TensorProto) -> bool:
    """Whether all numbers of a float tensor are equal, or not stored in the file."""
    if type_name(tensor.data_type) not in FLOATS:
        return False
    width = _WIDTH[type_name(tensor.data_type)]
    stored = tensor.raw_data  # empty if the numbers are in a file of their own
    return stored == stored[:width] * (len(stored) // width) and len(set(tensor.float_data)) < 2


def _views_of_attention(nodes: Sequence[NodeProto]) -> set[str]:
    """Returns what transpositions make only for attention, or of its output: its kernels read and write heads in either order."""
    readers: dict[str, list[NodeProto]] = {}
    contexts: set[str] = set()
    for node in nodes:
        for value in node.input:
            readers.setdefault(value, []).append(node)
        if node.op_type in ATTENTION or (node.op_type in SHAPE_OPS and not contexts.isdisjoint(node.input[:1])):
            contexts |= set(node.output)
    only_attended: set[str] = set()
    for node in reversed(nodes):
        for value in node.output[:1] if node.op_type in ("Transpose", *SHAPE_OPS) else ():
            of_value = readers.get(value, [])
            if of_value and all(r.op_type in ATTENTION or only_attended.issuperset(r.output) for r in of_value):
                only_attended.add(value)
    return {
        node.output[0]
        for node in nodes
        if node.op_type == "Transpose"
        and (contexts.intersection(node.input) or only_attended.intersection(node.output))
    }


def _is_part_of_product(node: NodeProto, parameters: Container[str], products: Container[str]) -> bool:
    """Whether kernels of products do an operator's work: they read weights in either order, and add the bias that follows."""
    if node.op_type == "Transpose":
        return node.input[0] in parameters
    return (
        node.op_type == "Add"
        and len(node.input) == 2
        and any(a in products and b in parameters for a, b in (tuple(node.input), tuple(node.input)[::-1]))
    )


def _repeated_weights(node: NodeProto, shapes: Mapping[str, Shape]) -> tuple[Kernel, ...]:
    """Returns the kernels that repeat scale and bias of an instance norm for every sample, as PyTorch does."""
    shape = shapes.get(node.input[0], ()) if node.op_type == "InstanceNormalization" else ()
    if len(shape) < 3:
        return ()
    return (Kernel(moved_bytes=4.0 * shape[1] * (1 + shape[0])),) * 2


def _attribute_bytes(node: NodeProto) -> int:
    """Returns the bytes of the numbers that an operator of `ai.onnx.ml` keeps in its attributes: coefficients, vectors, trees."""
    if node.domain != "ai.onnx.ml":
        return 0
    tensor_bytes = sum(
        prod(a.t.dims) * _WIDTH.get(type_name(a.t.data_type), 0) for a in node.attribute if a.HasField("t")
    )
    return tensor_bytes + sum(4 * len(a.floats) + 8 * len(a.ints) for a in node.attribute)


def _is_operator(node: NodeProto, version: int) -> bool:
    """Whether ONNX defines the operator; its own operators are looked up in the version that the model names."""
    if node.domain in ("", "ai.onnx"):
        return bool(onnx.defs.has(node.op_type, version))
    return bool(onnx.defs.has(node.op_type, domain=node.domain))
