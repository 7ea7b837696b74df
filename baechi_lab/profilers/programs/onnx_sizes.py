"""Sizes that an ONNX model computes: small tensors that follow from the shapes of other values and from constants.

ONNX's own inference follows sizes through few operators, and not through a division or a remainder. So the shapes behind them,
such as those of the halves that `torch.chunk` makes, stay open. Here the reference implementation of ONNX computes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...graph.formats.onnx_file import onnx_package

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

onnx = onnx_package()

Numbers = NDArray[np.generic]

_FOLLOWED = frozenset(
    "Abs Add And Cast Ceil Concat ConstantOfShape Div Equal Expand Floor Gather Greater GreaterOrEqual Identity Less LessOrEqual "
    "Max Min Mod Mul Neg Not Or Range ReduceMax ReduceMin ReduceProd ReduceSum Reshape Round Slice Split Sqrt Squeeze Sub "
    "Transpose Unsqueeze Where".split()
)
"""Operators that compute sizes."""
_MOST_ELEMENTS = 64
_FAILS = (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, NotImplementedError)


def compute_sizes(model: ModelProto, shapes: Mapping[str, tuple[int, ...]], sizes: dict[str, Numbers]) -> bool:
    """Adds to `sizes` the values of small tensors that follow from `shapes` and from constants; returns whether there are any.

    >>> from onnx import TensorProto, helper
    >>> nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Div", ["s", "two"], ["half"])]
    >>> x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])
    >>> two = helper.make_tensor("two", TensorProto.INT64, [1], [2])
    >>> known = {}
    >>> compute_sizes(helper.make_model(helper.make_graph(nodes, "g", [x], [], [two])), {"x": (6,)}, known), known["half"]
    (True, array([3]))
    """
    count_before = len(sizes)
    constants: dict[str, Numbers] = {}
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:  # weights, which are not loaded
            continue
        if int(np.prod(tensor.dims)) <= _MOST_ELEMENTS and len(tensor.dims) < 2 and tensor.name not in sizes:
            try:
                constants[tensor.name] = onnx.numpy_helper.to_array(tensor)
            except _FAILS:
                continue
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx") or all(v in sizes for v in node.output):
            continue
        numbers = _constant(node) if node.op_type == "Constant" else None
        if numbers is not None and numbers.size <= _MOST_ELEMENTS:
            constants[node.output[0]] = numbers
        elif node.op_type in ("Shape", "Size") and node.input[0] in shapes:
            shape = np.array(shapes[node.input[0]], np.int64)
            bounds = {a.name: a.i for a in node.attribute}
            shape = shape[bounds.get("start", 0) : bounds.get("end", len(shape))]
            sizes[node.output[0]] = shape if node.op_type == "Shape" else np.array(shape.prod())
        elif node.op_type in _FOLLOWED:
            arguments = {v: sizes[v] if v in sizes else constants.get(v) for v in node.input if v}
            known_arguments = {v: numbers for v, numbers in arguments.items() if numbers is not None}
            if len(known_arguments) == len(arguments) and _is_small(node.op_type, list(known_arguments.values())):
                sizes |= _results(node, known_arguments, model)
    return len(sizes) > count_before


def with_sizes(model: ModelProto, sizes: Mapping[str, Numbers]) -> ModelProto:
    """Returns the model with constants in place of the operators that compute `sizes`."""
    folded_model = onnx.ModelProto()
    folded_model.CopyFrom(model)
    for node in folded_model.graph.node:
        if len(node.output) == 1 and node.output[0] in sizes:
            value = onnx.numpy_helper.from_array(np.asarray(sizes[node.output[0]]))
            node.CopyFrom(onnx.helper.make_node("Constant", [], list(node.output), node.name, value=value))
    return folded_model


def _constant(node: NodeProto) -> Numbers | None:
    """Returns the value of an operator that has it as an attribute."""
    for value in node.attribute:
        if value.name == "value" and int(np.prod(value.t.dims)) <= _MOST_ELEMENTS:
            try:
                return np.asarray(onnx.numpy_helper.to_array(value.t))
            except _FAILS:
                return None
        if value.name in ("value_int", "value_ints"):
            return np.array(onnx.helper.get_attribute_value(value), np.int64)
        if value.name in ("value_float", "value_floats"):
            return np.array(onnx.helper.get_attribute_value(value), np.float32)
    return None


def _is_small(op_type: str, arguments: Sequence[Numbers]) -> bool:
    """Whether the result of an operator whose output may be larger than its inputs is small."""
    try:
        if op_type in ("ConstantOfShape", "Expand"):
            return bool(np.prod(arguments[-1].astype(np.float64)) <= _MOST_ELEMENTS)
        if op_type == "Range":
            start, limit, delta = (float(numbers.item()) for numbers in arguments)
            return (limit - start) / delta <= _MOST_ELEMENTS
    except _FAILS:
        return False
    return True


def _results(node: NodeProto, arguments: Mapping[str, Numbers], model: ModelProto) -> dict[str, Numbers]:
    """Returns the outputs of an operator by name; none if they are not small, or if it cannot be computed."""
    from onnx.reference import ReferenceEvaluator

    inputs, outputs = ([onnx.ValueInfoProto(name=v) for v in names if v] for names in (arguments, node.output))
    graph = onnx.helper.make_graph([node], "sizes", inputs, outputs)
    single_model = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(single_model).run(None, dict(arguments))
    except _FAILS:
        return {}
    values = {v.name: np.asarray(result) for v, result in zip(outputs, results, strict=True)}
    return values if all(value.size <= _MOST_ELEMENTS for value in values.values()) else {}
