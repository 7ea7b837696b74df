"""Reads a GraphDef: the producer of an input, the outputs of an op, the ops that touch state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.core.framework.op_def_pb2 import OpDef

READ_ONLY = frozenset(
    "ReadVariableOp ResourceGather ResourceGatherNd VariableShape VarIsInitializedOp Identity IdentityN".split()
)
"""Ops that can take a variable's handle without changing the variable."""

VIEWS = frozenset(
    """
        Bitcast CheckNumerics DebugIdentity EnsureShape ExpandDims GuaranteeConst Identity IdentityN
        PlaceholderWithDefault PreventGradient ReadVariableOp Reshape Snapshot Squeeze StopGradient
    """.split()
)
"""Ops that pass on the memory of their first input."""

HANDLE_BYTES = 8
"""Bytes of a resource or variant in a transfer: a pointer to data that stays where it is."""

_HARMLESS_STATEFUL = frozenset({"VarHandleOp", "Placeholder", "_Arg", "_Retval"}) | READ_ONLY


def split(reference: str) -> tuple[str, int]:
    """Splits an input reference of a GraphDef into producer and output; output -1 is a control dependency.

    In the body of a function, a reference also has the name of the output argument and is numbered within it.

    >>> split("a"), split("a:2"), split("^a"), split("a:output:0")
    (('a', 0), ('a', 2), ('a', -1), ('a', 0))
    """
    if reference.startswith("^"):
        return reference[1:], -1
    name, _, output = reference.partition(":")
    return name, int(output.rpartition(":")[2] or 0)


def join(name: str, output: int) -> str:
    """Joins producer and output to a reference, the inverse of `split`."""
    if output < 0:
        return "^" + name
    return f"{name}:{output}" if output else name


def data_inputs(node: NodeDef) -> Iterator[tuple[str, int]]:
    """Yields (producer, output) of every data input, in order."""
    return (split(r) for r in node.input if not r.startswith("^"))


def biases_of_products(nodes: Iterable[NodeDef]) -> set[str]:
    """Returns the names of the ops that add a bias to a matrix product which nothing else reads, reshaped or not."""
    nodes_by_name = {node.name: node for node in nodes}
    reads = Counter(producer for node in nodes_by_name.values() for producer, _ in data_inputs(node))
    biases = set()
    for node in nodes_by_name.values():
        producer: NodeDef | None = node if node.op == "BiasAdd" else None
        while producer is not None and (producer is node or producer.op == "Reshape"):
            source, _ = next(data_inputs(producer))
            producer = nodes_by_name.get(source) if reads[source] == 1 else None
        if producer is not None and producer.op.startswith(("MatMul", "BatchMatMul")):
            biases.add(node.name)
    return biases


def control_inputs(node: NodeDef) -> list[str]:
    """Returns the names of the ops that this one waits for without reading their outputs."""
    return [r[1:] for r in node.input if r.startswith("^")]


@cache
def op_def(op: str) -> OpDef | None:
    """Returns TensorFlow's definition of an op type, or None if the type is unknown."""
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(op)


@cache
def has_side_effect(op: str) -> bool:
    """Whether an op of this type must run even if no op reads its outputs.

    TensorFlow calls random ops stateful, but they only advance a counter of their own: such an op can be dropped if no op
    reads it.
    """
    definition = op_def(op)
    if definition is None or not definition.is_stateful:
        return False
    return op not in _HARMLESS_STATEFUL and not op.startswith(("Random", "TruncatedNormal", "Multinomial"))


def writes_variable(op: str) -> bool:
    """Whether an op of this type writes a variable; the state of a random generator does not count.

    >>> writes_variable("AssignAddVariableOp"), writes_variable("ReadVariableOp"), writes_variable("RngReadAndSkip")
    (True, False, False)
    """
    return has_side_effect(op) and any(word in op for word in ("Assign", "Apply", "Scatter"))


def called_functions(node: NodeDef) -> list[str]:
    """Returns the names of the functions that a call, conditional or loop runs."""
    keys = ("f", "then_branch", "else_branch", "cond", "body")
    names = [node.attr[key].func.name for key in keys if key in node.attr and node.attr[key].HasField("func")]
    return names + ([f.name for f in node.attr["branches"].list.func] if "branches" in node.attr else [])


def output_types(node: NodeDef) -> list[int]:
    """Returns the DataType number of every output of a node."""
    definition, types = op_def(node.op), []
    for arg in definition.output_arg if definition is not None else ():
        if arg.type_list_attr:
            types.extend(node.attr[arg.type_list_attr].list.type)
            continue
        one = arg.type or node.attr[arg.type_attr].type
        types.extend([one] * (int(node.attr[arg.number_attr].i) if arg.number_attr else 1))
    return types


def reachable(nodes: dict[str, NodeDef], roots: Iterable[str]) -> set[str]:
    """Returns the names of all ops that run when `roots` run."""
    visited: set[str] = set()
    stack = list(roots)
    while stack:
        name = stack.pop()
        if name in visited:
            continue
        visited.add(name)
        stack.extend(p for p, _ in map(split, nodes[name].input) if p not in visited)
    return visited


@cache
def bytes_per_element() -> dict[int, int]:
    """Returns DataType number -> bytes of one element, without handles; a text counts as 8 bytes."""
    import tensorflow as tf

    width = {tf.string.as_datatype_enum: 8}
    integers = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    for name in ("float16", "float32", "float64", "bfloat16", *integers, "bool", "complex64", "complex128"):
        dtype = getattr(tf, name)
        width[dtype.as_datatype_enum] = dtype.size
    return width
