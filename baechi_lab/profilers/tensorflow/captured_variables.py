"""Values that a traced function captures, which means that it reads them but takes no argument for them.

Variables become handle ops, other values constants.
"""

from __future__ import annotations

import gc
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from .shapes import SHAPES

if TYPE_CHECKING:
    from tensorflow import Variable
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.types.experimental import ConcreteFunction


@dataclass(frozen=True)
class CapturedVariable:
    """A variable: the name of its handle op, its dtype and shape, and its value when the step was traced."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    value: NDArray[np.generic]
    variable: Variable


def variables_of(concrete: ConcreteFunction) -> list[Variable]:
    """Returns the variables that a function uses.

    TensorFlow lists those that are read or assigned. Optimizers of TensorFlow 1 and fused updates (`ResourceApplyAdam`) use
    the handles of their slots alone: these variables are what refers to the handle.
    """
    import tensorflow as tf

    variables = list(concrete.graph.variables)
    listed_handles = {id(v.handle) for v in variables}
    handles = [t for t in concrete.captured_inputs if t.dtype.name == "resource" and id(t) not in listed_handles]
    if handles:
        variables += [v for v in gc.get_referrers(*handles) if isinstance(v, tf.Variable)]
    return variables


def bind_captures(
    graph_def: GraphDef, concrete: ConcreteFunction, variables: list[Variable], variable_names: dict[int, str]
) -> list[CapturedVariable]:
    """Replaces the Placeholders of captured values in `graph_def`; returns the variables in order of capture.

    `variables` are those of `variables_of`. `variable_names` names variables by the `id` of their handle. Handle ops are
    renamed to the variable's unique name, and inputs that refer to them follow.

    Raises:
        InvalidInput: a captured resource is not a variable (a table, an iterator).
    """
    import tensorflow as tf

    by_handle = {id(v.handle): v for v in variables}
    nodes = {n.name: n for n in graph_def.node}
    used_names = set(nodes)
    new_name: dict[str, str] = {}
    captured_variables: list[CapturedVariable] = []
    for outer, inner in zip(concrete.captured_inputs, concrete.graph.internal_captures, strict=True):
        node = nodes[inner.op.name]
        if outer.dtype.name != "resource":
            if outer.dtype.name == "variant":
                raise InvalidInput(
                    f"the step uses {node.name!r}, a {outer.dtype.name} made outside of it; make it inside the step"
                )
            constant_name = node.name
            node.Clear()
            node.name, node.op = constant_name, "Const"
            node.attr["dtype"].type = outer.dtype.as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(outer.numpy(), dtype=outer.dtype))
            node.attr[SHAPES].list.shape.add().CopyFrom(outer.shape.as_proto())
            continue
        variable = by_handle.get(id(outer))
        if variable is None:
            raise InvalidInput(
                f"the step uses the resource {inner.op.name!r}, which is not a variable; "
                "look up tables and iterate over data before the step, and pass the results as inputs"
            )
        name = _unique_name(variable_names.get(id(outer)) or variable.name.split(":")[0], used_names)
        new_name[node.name] = name
        value = np.array(variable.numpy())
        captured_variables.append(CapturedVariable(name, variable.dtype.name, tuple(value.shape), value, variable))
        node.Clear()
        node.name, node.op = name, "VarHandleOp"
        node.attr["dtype"].type = variable.dtype.as_datatype_enum
        node.attr["shape"].shape.SetInParent()
        for size in value.shape:
            node.attr["shape"].shape.dim.add().size = size
        node.attr["container"].s = b""
        node.attr["shared_name"].s = name.encode()
        node.attr[SHAPES].list.shape.add()
    for node in graph_def.node:
        for k, reference in enumerate(node.input):
            if reference in new_name:
                node.input[k] = new_name[reference]
    return captured_variables


def _unique_name(name: str, used_names: set[str]) -> str:
    """Returns a legal op name that is unused, and that no other op has as its scope."""
    legal = re.sub(r"[^A-Za-z0-9_.\-/]", "_", name).strip("/")
    legal = legal if re.match(r"[A-Za-z0-9.]", legal) else "variable" + legal
    candidate, k = legal, 0
    while candidate in used_names:
        k += 1
        candidate = f"{legal}_{k}"
    used_names.add(candidate)
    return candidate
