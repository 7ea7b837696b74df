"""How what an update reads comes from several micro-batches: added up, or rows one behind the other.

A gradient is a sum over samples: those of the micro-batches are added. Of a table that was looked up it is rows and their
indices (`tf.IndexedSlices`); both are put one behind the other, since other micro-batches look up other rows. They are
known by who reads them: an argument of a scattering or sparse update, directly or through element-wise ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from ...errors import InvalidInput
from ...profilers.tensorflow.inlining import CALL_OPS, CONTROL_FLOW_OPS
from ...profilers.tensorflow.nodes import data_inputs, op_def

_ROWS = frozenset({"indices", "updates", "segment_ids"})
_ROW_OPS = ("ResourceScatter", "ResourceSparseApply", "Scatter", "SparseApply", "UnsortedSegment", "Segment")
_ELEMENTWISE = frozenset(
    {
        "Mul",
        "Neg",
        "RealDiv",
        "Div",
        "Cast",
        "Identity",
        "IdentityN",
        "AddV2",
        "Add",
        "Sub",
        "DivNoNan",
        "Square",
        "Sqrt",
    }
)

Tensor = tuple[str, int]


def rows_tensors(
    nodes: Mapping[str, Any], once: Iterable[str], repeated: set[str], functions: Mapping[str, Any] | None = None
) -> set[Tensor]:
    """Tensors of `repeated` ops that are rows, or indices of rows: (op, output).

    `once`: the ops that run once per step. `functions`: the bodies of conditionals and loops, by name.
    """
    again, bodies = set(once), functions or {}
    waiting = [tensor for name in again for tensor in _row_inputs(nodes[name], bodies)]
    found = _row_sources(waiting, {name: nodes[name] for name in again})
    return {tensor for tensor in found if tensor[0] in repeated}


def _row_inputs(node: Any, functions: Mapping[str, Any]) -> list[Tensor]:
    """The data inputs that `node`, or an op of its bodies, takes as rows or as indices of rows."""
    if node.op not in CONTROL_FLOW_OPS | CALL_OPS:
        return [tensor for tensor, label in _labelled(node) if _is_rows(node.op, label)]
    inputs, found = list(data_inputs(node)), []
    for value in node.attr.values():
        for called in [value.func] if value.HasField("func") else value.list.func:
            body = functions[called.name]
            names = [argument.name for argument in body.signature.input_arg]
            rows = _row_arguments(body, functions)
            passed = inputs[len(inputs) - len(names) :]  # a conditional reads its condition first
            found += [tensor for tensor, name in zip(passed, names, strict=True) if name in rows]
    return found


def _row_arguments(body: Any, functions: Mapping[str, Any]) -> set[str]:
    """The arguments of a function that are rows or indices of rows in it. Its ops refer to `op:output:0`, or an argument."""
    inner = {node.name: node for node in body.node_def}
    waiting = [tensor for node in body.node_def for tensor in _row_inputs(node, functions)]
    return {name for name, _ in _row_sources(waiting, inner)} - set(inner)


def _row_sources(waiting: list[Tensor], through: Mapping[str, Any]) -> set[Tensor]:
    """`waiting`, and what element-wise ops among `through` make them of."""
    found: set[Tensor] = set()
    while waiting:
        tensor = waiting.pop()
        if tensor in found:
            continue
        found.add(tensor)
        producer = through.get(tensor[0])
        if producer is not None and producer.op in _ELEMENTWISE:
            sources = list(data_inputs(producer))
            waiting += [sources[tensor[1]]] if producer.op == "IdentityN" else sources
    return found


def _labelled(node: Any) -> list[tuple[Tensor, str]]:
    """Data inputs with the names of their arguments."""
    return list(zip(data_inputs(node), argument_names(node), strict=False))


def argument_names(node: Any) -> list[str]:
    """The argument of every data input of a node, as TensorFlow's definition calls it."""
    names: list[str] = []
    for name, list_attr, number_attr in _arguments(node.op):
        count = (
            len(node.attr[list_attr].list.type) if list_attr else int(node.attr[number_attr].i) if number_attr else 1
        )
        names += [name] * count
    return names


@cache
def _arguments(op: str) -> tuple[tuple[str, str, str], ...]:
    definition = op_def(op)
    return () if definition is None else tuple((a.name, a.type_list_attr, a.number_attr) for a in definition.input_arg)


def _is_rows(op: str, label: str) -> bool:
    if op in ("Unique", "UniqueV2"):
        return label == "x"
    if not op.startswith(_ROW_OPS):
        return False
    return label in _ROWS or (label == "grad" and "Sparse" in op) or (label == "data" and "egment" in op)


class Sums:
    """Adds to a GraphDef the ops that join one tensor of all micro-batches; every tensor once.

    `divisor`: sums of floating-point numbers are divided by it where `is_averaged(tensor)`. `named(op, output, k)`: the name that
    the unrolled graph has for the joining of micro-batch k, or None. `logical(op)`: the type of op that joins what `op` says of
    each micro-batch, true or false, or None.
    """

    def __init__(
        self, graph: Any, rows: set[Tensor], divisor: int, is_averaged: Callable[[Tensor], bool], named: Any,
        logical: Callable[[str], str | None], prefix: str,
    ) -> None:  # fmt: skip
        self.graph, self.rows, self.divisor, self.named, self.prefix = graph, rows, divisor, named, prefix
        self.is_averaged, self.logical = is_averaged, logical
        self._made: dict[tuple[Tensor, str], str] = {}
        self._means: dict[tuple[Tensor, str], str] = {}

    def of(self, tensor: Tensor, dtype: int, parts: list[str], *, averaged: bool | None = None) -> str:
        """The name of the joined tensor; `parts` are those of the micro-batches. `averaged` in place of `is_averaged`."""
        return self.mean_of(tensor, dtype, self.chain(tensor, dtype, list(enumerate(parts)), ""), "", averaged)

    def chain(
        self, tensor: Tensor, dtype: int, parts: Sequence[tuple[int, str]], suffix: str, *, named: bool = True
    ) -> str:
        """The sum of `parts` (micro-batch, name), or the rows of all; `suffix` tells several of one tensor apart."""
        if (tensor, suffix) not in self._made:
            self._made[tensor, suffix] = self._joined(tensor, dtype, parts, suffix, named)
        return self._made[tensor, suffix]

    def _joined(self, tensor: Tensor, dtype: int, parts: Sequence[tuple[int, str]], suffix: str, named: bool) -> str:
        import tensorflow as tf

        kind = tf.dtypes.as_dtype(dtype)
        logical = self.logical(tensor[0]) if kind == tf.bool else None
        if not (kind.is_floating or kind.is_integer or kind.is_complex or logical):
            raise InvalidInput(
                f"an update reads tensor {tensor[0]}:{tensor[1]} of type {kind.name}, which differs from micro-batch to "
                "micro-batch and cannot be added up; compute it after the gradients, or from numbers"
            )
        total = parts[0][1]
        for k, part in parts[1:]:
            name = (named and self.named(*tensor, k)) or f"{self._base(tensor)}{suffix}/add{k}"
            if tensor in self.rows:
                total = self._concat(name, dtype, total, part)
            else:
                types = {} if logical else {"T": dtype}
                total = made_node(self.graph, logical or "AddV2", name, [total, part], **types)
        return total

    def mean_of(self, tensor: Tensor, dtype: int, total: str, suffix: str, averaged: bool | None = None) -> str:
        """`total` divided, where sums of its type are; `suffix` as in `chain`."""
        import tensorflow as tf

        kind = tf.dtypes.as_dtype(dtype)
        if self.divisor == 1 or not (kind.is_floating or kind.is_complex) or averaged is False:
            return total
        if averaged is None and not self.is_averaged(tensor):
            return total
        if (tensor, suffix) not in self._means:
            base = self._base(tensor)
            share = constant(self.graph, f"{base}/share{suffix}", tf.constant(1.0 / self.divisor, tf.float64), kind)
            self._means[tensor, suffix] = made_node(self.graph, "Mul", f"{base}/mean{suffix}", [total, share], T=dtype)
        return self._means[tensor, suffix]

    def _base(self, tensor: Tensor) -> str:
        return f"{self.prefix}/{tensor[0]}/{tensor[1]}"

    def _concat(self, name: str, dtype: int, a: str, b: str) -> str:
        import tensorflow as tf

        axis = constant(self.graph, f"{self.prefix}/axis/{name}", tf.constant(0), tf.int32)
        made = made_node(self.graph, "ConcatV2", name, [a, b, axis], T=dtype)
        node = self.graph.node[-1]
        node.attr["N"].i = 2
        node.attr["Tidx"].type = tf.int32.as_datatype_enum
        return made


def constant(graph: Any, name: str, value: Any, dtype: Any) -> str:
    """A constant op of a type."""
    import tensorflow as tf

    node = graph.node.add(op="Const", name=name)
    node.attr["dtype"].type = dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(tf.cast(value, dtype).numpy(), dtype=dtype))
    return name


def made_node(graph: Any, op: str, name: str, inputs: Iterable[str], **types: int) -> str:
    """An op with attributes that are types."""
    node = graph.node.add(op=op, name=name)
    node.input.extend(inputs)
    for key, dtype in types.items():
        node.attr[key].type = dtype
    return name
