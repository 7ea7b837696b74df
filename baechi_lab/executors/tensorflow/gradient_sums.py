"""Gradients of several micro-batches for one update: added up, or joined as rows.

A gradient is a sum over samples, so the gradients of micro-batches are added. The gradient of a table that is looked up has
rows and their indices (`tf.IndexedSlices`). Both are concatenated, since micro-batches look up different rows. Rows are
recognized by their readers: they are an argument of a scattering or sparse update, directly, or through element-wise ops and
concatenations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from ...errors import InvalidInput
from ...profilers.tensorflow.inlining import CALL_OPS, CONTROL_FLOW_OPS
from ...profilers.tensorflow.nodes import data_inputs, op_def

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.function_pb2 import FunctionDef
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

_ROWS = frozenset({"indices", "updates", "segment_ids"})
_ROW_OPS = ("ResourceScatter", "ResourceSparseApply", "Scatter", "SparseApply", "UnsortedSegment", "Segment")
_ARITHMETIC = frozenset({"Add", "AddV2", "Sub", "Mul", "Neg", "RealDiv", "Div", "DivNoNan", "Square", "Sqrt"})
_ELEMENTWISE = _ARITHMETIC | {"Cast", "Identity", "IdentityN"}

Tensor = tuple[str, int]


def rows_tensors(
    nodes: Mapping[str, NodeDef],
    once: Iterable[str],
    repeated_ops: set[str],
    functions: Mapping[str, FunctionDef] | None = None,
) -> set[Tensor]:
    """Returns the tensors (op, output) of `repeated_ops` ops that are rows, or indices of rows.

    `once`: the ops that run once per step. `functions`: the bodies of conditionals and loops, by name.
    """
    once_ops, bodies = {name: nodes[name] for name in once}, functions or {}
    rows = set[Tensor]()
    for node in once_ops.values():
        inputs = _row_inputs(node, bodies)
        labels = argument_names(node)
        indices = [t for t, label in zip(data_inputs(node), labels, strict=False) if label == "indices"]
        if indices and not any(name in repeated_ops for name, _ in _row_sources(indices, once_ops)):
            continue  # all micro-batches have the same indices, so what they scatter is added up
        rows |= _row_sources(inputs, once_ops)
    return {tensor for tensor in rows if tensor[0] in repeated_ops}


def rows_of_one_batch(node: NodeDef, nodes: Mapping[str, NodeDef], repeated_ops: set[str]) -> list[Tensor]:
    """Returns the rows of `node`, an op that runs once, that are those of one micro-batch although its indices are of all."""
    labelled = list(zip(data_inputs(node), argument_names(node), strict=False))
    indices = [tensor for tensor, label in labelled if label == "indices"]

    def is_joined(tensors: list[Tensor]) -> bool:
        return any(name in repeated_ops for name, _ in _row_sources(tensors, nodes))

    if not is_joined(indices):
        return []
    return [t for t, label in labelled if label != "indices" and _is_rows(node.op, label) and not is_joined([t])]


def _row_inputs(node: NodeDef, functions: Mapping[str, FunctionDef]) -> list[Tensor]:
    """Returns the data inputs that `node`, or an op of its bodies, takes as rows or as indices of rows."""
    if node.op not in CONTROL_FLOW_OPS | CALL_OPS:
        named_inputs = zip(data_inputs(node), argument_names(node), strict=False)
        return [tensor for tensor, label in named_inputs if _is_rows(node.op, label)]
    inputs, row_tensors = list(data_inputs(node)), []
    for value in node.attr.values():
        for function in [value.func] if value.HasField("func") else value.list.func:
            body = functions[function.name]
            names = [argument.name for argument in body.signature.input_arg]
            # Which arguments are rows in the body. Its ops refer to `op:output:0`, or to an argument.
            inner = {node.name: node for node in body.node_def}
            body_inputs = [tensor for node in body.node_def for tensor in _row_inputs(node, functions)]
            rows = {name for name, _ in _row_sources(body_inputs, inner)} - set(inner)
            arguments = inputs[len(inputs) - len(names) :]  # a conditional reads its condition first
            row_tensors += [tensor for tensor, name in zip(arguments, names, strict=True) if name in rows]
    return row_tensors


def _row_sources(stack: list[Tensor], nodes: Mapping[str, NodeDef]) -> set[Tensor]:
    """Returns `stack` and all tensors from which element-wise and joining ops among `nodes` compute them."""
    row_sources: set[Tensor] = set()
    while stack:
        tensor = stack.pop()
        if tensor in row_sources:
            continue
        row_sources.add(tensor)
        producer = nodes.get(tensor[0])
        if producer is not None and producer.op in _ELEMENTWISE | {"ConcatV2"}:
            sources = list(data_inputs(producer))
            if producer.op == "IdentityN":
                sources = [sources[tensor[1]]]
            elif producer.op == "ConcatV2":
                sources.pop()  # the axis
            stack += sources
    return row_sources


def argument_names(node: NodeDef) -> list[str]:
    """Returns the argument name of every data input of a node, from TensorFlow's op definition."""
    names: list[str] = []
    for name, list_attr, number_attr in _arguments(node.op):
        count = (
            len(node.attr[list_attr].list.type) if list_attr else int(node.attr[number_attr].i) if number_attr else 1
        )
        names += [name] * count
    return names


@cache
def _arguments(op: str) -> tuple[tuple[str, str, str], ...]:
    """Returns the name of every argument of a type of ops, and the attributes with its list of types or its count."""
    definition = op_def(op)
    return () if definition is None else tuple((a.name, a.type_list_attr, a.number_attr) for a in definition.input_arg)


def _is_rows(op: str, label: str) -> bool:
    """Whether the argument `label` of a type of ops takes rows or indices of rows."""
    if op in ("Unique", "UniqueV2"):
        return label == "x"
    if not op.startswith(_ROW_OPS):
        return False
    return label in _ROWS or (label == "grad" and "Sparse" in op) or (label == "data" and "Segment" in op)


class Sums:
    """Adds ops to a GraphDef that add up one tensor over all micro-batches. Every tensor is added up once.

    Args:
        graph: the unrolled graph, to which ops are added.
        rows: the tensors that are joined instead of added up, as `rows_tensors` returns them.
        divisor: floating-point sums are divided by it if `is_averaged(tensor)`.
        name_of_sum: (op, output, k) -> the name in the unrolled graph of the op that adds micro-batch k, or None.
        logical: op -> the type of op that combines its boolean outputs over micro-batches, or None.
        prefix: the name scope of the added ops.
    """

    def __init__(
        self,
        graph: GraphDef,
        rows: set[Tensor],
        divisor: int,
        is_averaged: Callable[[Tensor], bool],
        name_of_sum: Callable[[str, int, int], str | None],
        logical: Callable[[str], str | None],
        prefix: str,
    ) -> None:
        self.graph, self.rows, self.divisor, self.name_of_sum, self.prefix = graph, rows, divisor, name_of_sum, prefix
        self.is_averaged, self.logical = is_averaged, logical
        self._sum_names: dict[tuple[Tensor, str], str] = {}
        self._mean_names: dict[tuple[Tensor, str], str] = {}

    def of(self, tensor: Tensor, dtype: int, addends: list[str], *, is_mean: bool | None = None) -> str:
        """Returns the name of the sum of `addends`, one per micro-batch. `is_mean` overrides `is_averaged`."""
        return self.mean_of(tensor, dtype, self.chain(tensor, dtype, list(enumerate(addends)), ""), "", is_mean)

    def chain(
        self, tensor: Tensor, dtype: int, addends: Sequence[tuple[int, str]], suffix: str, *, with_name: bool = True
    ) -> str:
        """Returns the sum of `addends` (micro-batch, name), or the rows of all; `suffix` distinguishes sums of a tensor."""
        if (tensor, suffix) not in self._sum_names:
            import tensorflow as tf

            kind = tf.dtypes.as_dtype(dtype)
            logical = self.logical(tensor[0]) if kind == tf.bool else None
            if not (kind.is_floating or kind.is_integer or kind.is_complex or logical):
                raise InvalidInput(
                    f"an update reads tensor {tensor[0]}:{tensor[1]} of type {kind.name}, which differs from micro-batch to "
                    "micro-batch and cannot be added up; compute it after the gradients, or from numbers"
                )
            total = addends[0][1]
            for k, addend in addends[1:]:
                name = (with_name and self.name_of_sum(*tensor, k)) or f"{self._base(tensor)}{suffix}/add{k}"
                if tensor in self.rows:
                    axis = constant(self.graph, f"{self.prefix}/axis/{name}", tf.constant(0), tf.int32)
                    total = add_node(self.graph, "ConcatV2", name, [total, addend, axis], T=dtype)
                    node = self.graph.node[-1]
                    node.attr["N"].i = 2
                    node.attr["Tidx"].type = tf.int32.as_datatype_enum
                else:
                    types = {} if logical else {"T": dtype}
                    total = add_node(self.graph, logical or "AddV2", name, [total, addend], **types)
            self._sum_names[tensor, suffix] = total
        return self._sum_names[tensor, suffix]

    def mean_of(self, tensor: Tensor, dtype: int, total: str, suffix: str, is_mean: bool | None = None) -> str:
        """Returns `total` divided by `divisor`, if the tensor is averaged; `suffix` as in `chain`."""
        import tensorflow as tf

        kind = tf.dtypes.as_dtype(dtype)
        if self.divisor == 1 or not (kind.is_floating or kind.is_complex) or is_mean is False:
            return total
        if is_mean is None and not self.is_averaged(tensor):
            return total
        if (tensor, suffix) not in self._mean_names:
            base = self._base(tensor)
            share = constant(self.graph, f"{base}/share{suffix}", tf.constant(1.0 / self.divisor, tf.float64), kind)
            self._mean_names[tensor, suffix] = add_node(
                self.graph, "Mul", f"{base}/mean{suffix}", [total, share], T=dtype
            )
        return self._mean_names[tensor, suffix]

    def _base(self, tensor: Tensor) -> str:
        return f"{self.prefix}/{tensor[0]}/{tensor[1]}"


def constant(graph: GraphDef, name: str, value: tf.Tensor, dtype: tf.DType) -> str:
    """Adds a constant of a TensorFlow type; returns its name."""
    import tensorflow as tf

    node = graph.node.add(op="Const", name=name)
    node.attr["dtype"].type = dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(tf.cast(value, dtype).numpy(), dtype=dtype))
    return name


def add_node(graph: GraphDef, op: str, name: str, inputs: Iterable[str], **types: int) -> str:
    """Adds an op; `types` are attributes that are data types. Returns its name."""
    node = graph.node.add(op=op, name=name)
    node.input.extend(inputs)
    for key, dtype in types.items():
        node.attr[key].type = dtype
    return name
