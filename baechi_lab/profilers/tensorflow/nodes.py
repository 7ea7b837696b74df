"""Reading a GraphDef: where an input comes from, what an op outputs, which ops touch state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

READ_ONLY = frozenset(
    {
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VariableShape",
        "VarIsInitializedOp",
        "Identity",
        "IdentityN",
    }
)
"""Ops that may take a variable's handle without changing the variable."""

_HARMLESS_STATEFUL = frozenset({"VarHandleOp", "Placeholder", "_Arg", "_Retval"}) | READ_ONLY


def split(reference: str) -> tuple[str, int]:
    """Producer and output of an input as a GraphDef writes it; output -1 is a control dependency.

    In the body of a function an output has its argument's name as well, and is numbered within that argument.

    >>> split("a"), split("a:2"), split("^a"), split("a:output:0")
    (('a', 0), ('a', 2), ('a', -1), ('a', 0))
    """
    if reference.startswith("^"):
        return reference[1:], -1
    name, _, output = reference.partition(":")
    return name, int(output.rpartition(":")[2] or 0)


def join(name: str, output: int) -> str:
    """The inverse of `split`."""
    if output < 0:
        return "^" + name
    return f"{name}:{output}" if output else name


def data_inputs(node: Any) -> Iterator[tuple[str, int]]:
    """(producer, output) of every data input, in order."""
    return (split(r) for r in node.input if not r.startswith("^"))


def control_inputs(node: Any) -> list[str]:
    """Names of the ops that this one waits for without reading them."""
    return [r[1:] for r in node.input if r.startswith("^")]


@cache
def op_def(op: str) -> Any:
    """TensorFlow's definition of an op type, or None for a type that it does not know."""
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(op)


@cache
def has_side_effect(op: str) -> bool:
    """Must an op of this type run although nobody reads its outputs?

    Random ops count as stateful in TensorFlow, but only advance a counter of their own: an op that nobody
    reads can go.
    """
    definition = op_def(op)
    if definition is None or not definition.is_stateful:
        return False
    return op not in _HARMLESS_STATEFUL and not op.startswith(("Random", "TruncatedNormal", "Multinomial"))


def writes_variable(op: str) -> bool:
    """Does an op of this type write a variable? The state of a random generator does not count.

    >>> writes_variable("AssignAddVariableOp"), writes_variable("ReadVariableOp"), writes_variable("RngReadAndSkip")
    (True, False, False)
    """
    return has_side_effect(op) and any(word in op for word in ("Assign", "Apply", "Scatter"))


def output_types(node: Any) -> list[int]:
    """The DataType number of every output of a node."""
    definition, types = op_def(node.op), []
    for arg in definition.output_arg if definition is not None else ():
        if arg.type_list_attr:
            types.extend(node.attr[arg.type_list_attr].list.type)
            continue
        one = arg.type or node.attr[arg.type_attr].type
        types.extend([one] * (int(node.attr[arg.number_attr].i) if arg.number_attr else 1))
    return types


def reachable(nodes: dict[str, Any], roots: Iterable[str]) -> set[str]:
    """Names of all ops that running `roots` runs."""
    seen: set[str] = set()
    stack = list(roots)
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        stack.extend(p for p, _ in map(split, nodes[name].input) if p not in seen)
    return seen
