"""ONNX models -> `Program`: shapes by ONNX's own inference, FLOPs by operator (`onnx_flops`).

Weights are known by their shapes; their values are not needed, and not read. Float products count as TF32, which is what
ONNX Runtime uses on GPUs. Float initializers of more than one element are trained parameters, unless they are statistics
of a normalization; constants are neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from ...errors import FormatError, InvalidInput
from ...graph.formats.onnx_file import check_versions, inlined, load_model, onnx_package, op_names, opset_version
from ...graph.formats.reading import stem, with_file_name
from ..arithmetic import per_element
from ..roofline import Kernel
from .onnx_flops import SHAPE_OPS, product_flops
from .records import UNKNOWN_SHAPES, Program, ProgramOp, check_named

onnx = onnx_package()

_WIDTH = {
    "FLOAT": 4, "UINT8": 1, "INT8": 1, "UINT16": 2, "INT16": 2, "INT32": 4, "INT64": 8, "BOOL": 1, "FLOAT16": 2, "DOUBLE": 8,
    "UINT32": 4, "UINT64": 8, "COMPLEX64": 8, "COMPLEX128": 16, "BFLOAT16": 2, "FLOAT8E4M3FN": 1, "FLOAT8E4M3FNUZ": 1,
    "FLOAT8E5M2": 1, "FLOAT8E5M2FNUZ": 1,
}  # fmt: skip
_FLOATS = {"FLOAT", "FLOAT16", "DOUBLE", "BFLOAT16"}
_PRECISION = {"FLOAT16": "fp16", "BFLOAT16": "fp16", "INT8": "int8", "UINT8": "int8"}
_STATISTICS = {"BatchNormalization": (3, 4)}
OLDEST = 7
"""Version of the operators that ONNX Runtime reads at least (its "Compatibility" page)."""
_CONTROL_FLOW = ("If", "Loop", "Scan")

Shape = tuple[int, ...]


def program_of(source: Any, batch_size: int | None = None, sizes: Mapping[str, int] | None = None) -> Program:
    """The operators of a model, or of a file.

    Raises:
        FormatError, InvalidInput, MissingPackage: see `bl.profile_program`.
    """
    if isinstance(source, onnx.ModelProto):
        check_versions(source, "the model")
        return _program(source, source.graph.name or "onnx", batch_size, sizes or {})
    model = load_model(source)
    return with_file_name(source, lambda: _program(model, stem(source), batch_size, sizes or {}))


def _program(model: Any, name: str, batch_size: int | None, sizes: Mapping[str, int]) -> Program:
    version = opset_version(model)
    graph = _inferred(model, batch_size, sizes).graph
    shapes, types = _values(graph)
    constants = {t.name for t in graph.initializer} | {
        o for n in graph.node if n.op_type == "Constant" for o in n.output
    }
    for node in graph.node:
        _constant(node, shapes, types)
    _check_reads(graph)
    nodes = [n for n in graph.node if n.op_type != "Constant"]
    known = {v: types[v] in _FLOATS and prod(shapes[v]) > 1 and bool(shapes[v]) for v in constants if v in shapes}
    for node in nodes:
        for position in _STATISTICS.get(node.op_type, ()):
            if len(node.input) > position and node.input[position] in known:
                known[node.input[position]] = False
    guessed: dict[int, str] = {}
    assumed: set[str] = set()
    ops = []
    for i, (node, name_of_op) in enumerate(zip(nodes, op_names(nodes), strict=True)):
        assumed |= _assume_outputs(node, shapes, types)
        kernel, why = _kernel(node, shapes, types, version)
        if not assumed.isdisjoint((*node.input, *node.output)) and not why and not kernel.metadata:
            why = UNKNOWN_SHAPES
        if why:
            guessed[i] = why
        reads = tuple(v for v in node.input if v)
        ops.append(ProgramOp(name_of_op, node.op_type or "op", (kernel,), reads, tuple(v for v in node.output if v)))
    size = {v: prod(shape) * _WIDTH.get(types.get(v, ""), 4) for v, shape in shapes.items()}
    outputs = tuple(o.name for o in graph.output)
    return Program(name, tuple(ops), size, known, outputs, guessed=guessed, notes=_old(version))


def _old(version: int) -> tuple[str, ...]:
    if version >= OLDEST or version < 1:  # none where all operators are somebody's own
        return ()
    return (
        f"its operators are of version {version}, which ONNX Runtime no longer reads (it takes {OLDEST} and later); they are "
        "estimated as what they are today",
    )


def _check_reads(graph: Any) -> None:
    """Refuse what reads a value that is not there: its shape and the work on it are not known."""
    there = {v.name for v in (*graph.input, *graph.initializer)} | {t.values.name for t in graph.sparse_initializer}
    there |= {v for node in graph.node for v in node.output}
    for node in graph.node:
        missing = next((v for v in node.input if v and v not in there), None)
        if missing is not None:
            raise FormatError(
                f"operator {(node.name or node.op_type)!r:.60} reads {missing!r:.80}, which no operator makes and is no input"
            )


def _inferred(model: Any, batch_size: int | None, sizes: Mapping[str, int]) -> Any:
    """The model with every input's shape set and the shapes of all values that ONNX can infer."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    constants = {t.name for t in made.graph.initializer}
    chosen: dict[str, int] = {}
    for value in made.graph.input:
        if value.name in constants or not value.type.HasField("tensor_type"):
            continue
        for k, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:
                continue
            label = dim.dim_param or f"dimension {k} of {value.name}"
            if label not in chosen:
                chosen[label] = _chosen(label, value.name, k, batch_size, sizes)
            dim.dim_value = chosen[label]
    check_named(sizes, chosen)
    # What was said about inner values may still name the open dimensions.
    del made.graph.value_info[:]
    for value in made.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.ClearField("dim_param")
    known = {o.domain for o in made.opset_import}
    for domain in sorted({n.domain for n in made.graph.node} - known):  # a domain of somebody's own
        made.opset_import.add(domain=domain, version=1)
    try:
        return onnx.shape_inference.infer_shapes(inlined(made), data_prop=True)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        raise FormatError(f"the shapes cannot be inferred: {str(error).splitlines()[0]:.200}") from error


def _chosen(label: str, value: str, position: int, batch_size: int | None, sizes: Mapping[str, int]) -> int:
    if label in sizes:
        return sizes[label]
    if position == 0 and batch_size is not None:
        return batch_size
    how = "give batch_size (--batch-size)" if position == 0 else f"give sizes={{{label!r}: ...}} (-p {label}=...)"
    raise InvalidInput(f"input {value!r:.80} has the open dimension {label!r:.80} at position {position}; {how}")


def _values(graph: Any) -> tuple[dict[str, Shape], dict[str, str]]:
    shapes: dict[str, Shape] = {}
    types: dict[str, str] = {}
    for tensor in graph.initializer:
        shapes[tensor.name], types[tensor.name] = tuple(tensor.dims), _type_name(tensor.data_type)
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if not value.type.HasField("tensor_type"):
            continue
        types.setdefault(value.name, _type_name(kind.elem_type))
        dims = kind.shape.dim
        if kind.HasField("shape") and all(d.WhichOneof("value") == "dim_value" and d.dim_value >= 0 for d in dims):
            shapes.setdefault(value.name, tuple(d.dim_value for d in dims))
    if any(prod(shape) > 2**50 for shape in shapes.values()):
        large = next(v for v, shape in shapes.items() if prod(shape) > 2**50)
        raise FormatError(f"value {large!r:.80} has the shape {list(shapes[large])!r:.120}; no tensor is that large")
    if any(d < 0 for shape in shapes.values() for d in shape):
        raise FormatError("a tensor has a negative dimension")
    return shapes, types


def _type_name(number: int) -> str:
    return onnx.TensorProto.DataType.Name(number) if number in onnx.TensorProto.DataType.values() else "UNDEFINED"


def _constant(node: Any, shapes: dict[str, Shape], types: dict[str, str]) -> None:
    if node.op_type == "Constant" and node.output:
        tensor = next((a.t for a in node.attribute if a.name == "value"), None)
        if tensor is not None:
            shapes[node.output[0]], types[node.output[0]] = tuple(tensor.dims), _type_name(tensor.data_type)


def _assume_outputs(node: Any, shapes: dict[str, Shape], types: dict[str, str]) -> set[str]:
    """What inference leaves open has the shape of the op's largest input; returns these values."""
    open_ones = {value for value in node.output if value and value not in shapes}
    largest = max((v for v in node.input if v in shapes), key=lambda v: prod(shapes[v]), default=None)
    for value in open_ones:
        shapes[value] = shapes[largest] if largest is not None else (1,)
        types.setdefault(value, types.get(largest or "", "FLOAT"))
    return open_ones


def _kernel(node: Any, shapes: Mapping[str, Shape], types: Mapping[str, str], version: int) -> tuple[Kernel, str]:
    """What an op computes, and why that is a guess, if it is one."""
    if node.op_type in SHAPE_OPS:
        return Kernel(metadata=True), ""
    read = [shapes.get(v, ()) if v else None for v in node.input]
    made = [shapes.get(v, ()) if v else None for v in node.output]
    size = lambda v: prod(shapes.get(v, ())) * _WIDTH.get(types.get(v, ""), 4)  # noqa: E731
    moved = sum(size(v) for v in {*node.input, *node.output} if v)
    if node.op_type in ("Gather", "Slice", "Embedding", "GatherElements", "GatherND"):
        moved = 2 * sum(size(v) for v in node.output if v)
    try:
        count = product_flops(node, read, made)
    except (IndexError, TypeError, ValueError, ZeroDivisionError):
        all_known = all(v in shapes for v in node.input if v)
        return Kernel(moved_bytes=float(moved)), "shapes that do not fit the operator" if all_known else UNKNOWN_SHAPES
    if count is not None:
        kinds = {types.get(v, "") for v in node.input if v}
        precision = next((p for kind, p in _PRECISION.items() if kind in kinds), "tf32")
        return Kernel(float(count), float(moved), precision, matrix=True, batched="Attention" in node.op_type), ""
    outputs = sum(prod(shape) for shape in made if shape)
    why = ""
    if node.op_type in _CONTROL_FLOW:
        why = "a body that runs an unknown number of times"
    elif not _is_operator(node, version):
        why = "no operator of ONNX"
    return Kernel(flops=float(outputs * per_element(node.op_type)), moved_bytes=float(moved)), why


def _is_operator(node: Any, version: int) -> bool:
    """Whether ONNX has the operator, its own ones in the version that the model names."""
    if node.domain in ("", "ai.onnx"):
        return bool(onnx.defs.has(node.op_type, version))
    return bool(onnx.defs.has(node.op_type, domain=node.domain))
