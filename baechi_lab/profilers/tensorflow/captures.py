"""What a traced function takes from outside: variables become handle ops, other values constants."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from .shapes import SHAPES


@dataclass(frozen=True)
class CapturedVariable:
    """A variable: the name of its handle op, its dtype and shape, and its value when the step was traced."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    value: NDArray[Any]
    variable: Any


def bind_captures(graph_def: Any, concrete: Any, known: dict[int, str]) -> list[CapturedVariable]:
    """Replace, in `graph_def`, the Placeholders of captured values; returns the variables in order of capture.

    `known` names variables by the `id` of their handle. Handle ops are renamed to the variable's name, made
    distinct; inputs that refer to them follow.

    Raises:
        InvalidInput: a captured resource that is no variable (a table, an iterator).
    """
    by_handle = {id(v.handle): v for v in concrete.graph.variables}
    nodes = {n.name: n for n in graph_def.node}
    taken = set(nodes)
    renamed: dict[str, str] = {}
    variables: list[CapturedVariable] = []
    for outer, inner in zip(concrete.captured_inputs, concrete.graph.internal_captures, strict=True):
        node = nodes[inner.op.name]
        if outer.dtype.name != "resource":
            _make_constant(node, outer)
            continue
        variable = by_handle.get(id(outer))
        if variable is None:
            raise InvalidInput(
                f"the step uses the resource {inner.op.name!r}, which is not a variable; "
                "look up tables and iterate over data before the step, and pass the results as inputs"
            )
        name = _distinct(known.get(id(outer)) or variable.name.split(":")[0], taken)
        renamed[node.name] = name
        variables.append(_captured(variable, name))
        _make_handle(node, variables[-1], variable.dtype.as_datatype_enum)
    for node in graph_def.node:
        for k, reference in enumerate(node.input):
            if reference in renamed:
                node.input[k] = renamed[reference]
    return variables


def _captured(variable: Any, name: str) -> CapturedVariable:
    value = np.array(variable.numpy())
    return CapturedVariable(name, variable.dtype.name, tuple(value.shape), value, variable)


def _make_handle(node: Any, variable: CapturedVariable, dtype: int) -> None:
    node.Clear()
    node.name, node.op = variable.name, "VarHandleOp"
    node.attr["dtype"].type = dtype
    node.attr["shape"].shape.SetInParent()
    for size in variable.shape:
        node.attr["shape"].shape.dim.add().size = size
    node.attr["container"].s = b""
    node.attr["shared_name"].s = variable.name.encode()
    node.attr[SHAPES].list.shape.add()


def _make_constant(node: Any, value: Any) -> None:
    import tensorflow as tf

    name = node.name
    if value.dtype.name == "variant":
        raise InvalidInput(f"the step uses {name!r}, a {value.dtype.name} made outside of it; make it inside the step")
    node.Clear()
    node.name, node.op = name, "Const"
    node.attr["dtype"].type = value.dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value.numpy(), dtype=value.dtype))
    node.attr[SHAPES].list.shape.add().CopyFrom(value.shape.as_proto())


def _distinct(name: str, taken: set[str]) -> str:
    """A legal op name that nobody has, and that no other op has as its scope."""
    legal = re.sub(r"[^A-Za-z0-9_.\-/]", "_", name).strip("/")
    legal = legal if re.match(r"[A-Za-z0-9.]", legal) else "variable" + legal
    candidate, k = legal, 0
    while candidate in taken:
        k += 1
        candidate = f"{legal}_{k}"
    taken.add(candidate)
    return candidate
