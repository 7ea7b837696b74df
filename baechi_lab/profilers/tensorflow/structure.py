"""The structure of a traced step: ops, tensors with their bytes, and the readers of each tensor.

One linear pass over the nodes and inputs of the GraphDef, without calls into TensorFlow per op.

*Lists.* TensorFlow's loops keep what their gradients read in lists, one item per iteration; TensorArrays are lists, too. A
list is one tensor of the graph, of a type without a size, and no trace has records of what is allocated inside a loop. So the
bytes are counted from the bodies. The lists of a loop share items with each other and with variables: an item counts once,
with a list that the gradient reads; a variable or an argument that does not change counts with its owner. An item of a list
that is passed in counts again, because it stays when that list is released. O(ops of the bodies).

*Sizes that depend on data*, such as the rows of `tf.where` and `tf.boolean_mask`, have upper bounds. An op that selects
entries has at most as many rows as its input has entries. TensorFlow infers the sizes of what reads these rows: in a copy of
the graph, Placeholders of the largest sizes are in the place of the selections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...graph import CONTROL_BYTES, Step
from ...graph.kernels.csr import Ints, offsets
from ...graph.tensors import shapes_in_words
from .float_types import replace_float_types
from .function_bodies import Library, known_number, returned_reference, tensor_specs
from .nodes import HANDLE_BYTES, VIEWS, bytes_per_element, data_inputs, output_types, split
from .recurrent_layers import is_fused
from .shapes import SHAPES, lacks_shapes, with_shapes

if TYPE_CHECKING:
    from tensorflow.core.framework.function_pb2 import FunctionDef
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef


Output = tuple[str, int]
Shape = tuple[int, ...]
MOST_ENTRIES = 1 << 40
"""A tensor whose bound has more entries, such as a table of all pairs of rows, has no useful bound."""


def size_bounds(graph_def: GraphDef) -> dict[Output, Shape]:
    """Returns (op, output) -> the largest shape, for outputs whose sizes depend on data; the graph has stored shapes.

    Outputs without a bound are missing: those of other ops (the words of a text), all that follow from rows whose largest
    numbers contradict the sizes of tensors that they meet, and those of more than `MOST_ENTRIES`.
    """
    shapes, nodes = _stored_shapes(graph_def), {node.name: node for node in graph_def.node}
    open_outputs = [output for output, shape in shapes.items() if shape is None]
    selections: dict[Output, Shape] = {}
    while open_outputs:
        bounded = {
            output: shape
            for node in graph_def.node
            for output, shape in (_selected(node, shapes) | _stitched(node, nodes, shapes)).items()
            if shapes[output] is None
        }
        if not bounded:
            break
        selections |= bounded
        try:
            inferred = _stored_shapes(with_shapes(_with_placeholders(graph_def, selections)))
        except ValueError:
            break
        shapes = {output: selections.get(output, shape or inferred.get(output)) for output, shape in shapes.items()}
    return {
        output: shape
        for output in open_outputs
        if (shape := shapes[output]) is not None and prod(shape) <= MOST_ENTRIES
    }


def _stored_shapes(graph_def: GraphDef) -> dict[Output, Shape | None]:
    """Returns (op, output) -> its shape; None if a size is open."""
    return {
        (node.name, k): None
        if shape.unknown_rank or any(d.size < 0 for d in shape.dim)
        else tuple(d.size for d in shape.dim)
        for node in graph_def.node
        if SHAPES in node.attr
        for k, shape in enumerate(node.attr[SHAPES].list.shape)
    }


def _selected(node: NodeDef, shapes: Mapping[Output, Shape | None]) -> dict[Output, Shape]:
    """Returns the largest shapes of the outputs of an op that selects entries; an empty dict for any other."""
    inputs = [shapes.get(source) for source in data_inputs(node)]
    if not inputs or inputs[0] is None:
        return {}
    if node.op == "Where":
        return {(node.name, 0): (prod(inputs[0]), len(inputs[0]))}
    if node.op in ("Unique", "UniqueWithCounts", "ListDiff") or node.op.startswith("NonMaxSuppression"):
        return {(node.name, k): inputs[0][:1] for k in range(len(output_types(node)))}
    if node.op == "DynamicPartition" and inputs[1] is not None:
        largest = (prod(inputs[1]), *inputs[0][len(inputs[1]) :])
        return {(node.name, k): largest for k in range(len(output_types(node)))}
    return {}


def _stitched(
    node: NodeDef, nodes: Mapping[str, NodeDef], shapes: Mapping[Output, Shape | None]
) -> dict[Output, Shape]:
    """Returns the largest shape of rows that an op joins again, if a partition of all their numbers says where they go."""
    if node.op not in ("DynamicStitch", "ParallelDynamicStitch"):
        return {}
    *sources, rows_source = list(data_inputs(node))[: node.attr["N"].i + 1]
    partition, rows = nodes[sources[0][0]], shapes.get(rows_source)
    if rows is None or partition.op != "DynamicPartition" or {name for name, _ in sources} != {partition.name}:
        return {}
    numbers = next(data_inputs(partition))
    row_count, source = shapes.get(numbers), nodes[numbers[0]]
    if row_count is None or source.op != "Range":
        return {}
    start, _, step = source.input[:3]
    is_count = (known_number(start, nodes, {}), known_number(step, nodes, {})) == (0, 1)
    return {(node.name, 0): (*row_count, *rows[1:])} if is_count else {}


def _with_placeholders(graph_def: GraphDef, shapes: Mapping[Output, Shape]) -> GraphDef:
    """Returns a copy of the graph that reads Placeholders with these shapes in place of these outputs."""
    import tensorflow as tf

    copy = tf.compat.v1.GraphDef()
    copy.CopyFrom(graph_def)
    names = {output: f"{output[0]}/largest{output[1]}" for output in shapes}
    for node in copy.node:
        for position, reference in enumerate(node.input):
            node.input[position] = names.get(split(reference), reference)
    types = {node.name: output_types(node) for node in graph_def.node}
    for (name, k), shape in shapes.items():
        placeholder = copy.node.add(op="Placeholder", name=names[name, k])
        placeholder.attr["dtype"].type = types[name][k]
        placeholder.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
    return copy


_OWNED_ELSEWHERE = frozenset({"ReadVariableOp", "Const"})
_TAKES_ITEM = frozenset({"TensorListGetItem", "TensorListPopBack"})
_COPIES = frozenset({"TensorListFromTensor", "TensorListScatter", "TensorListScatterV2", "TensorListSplit"})
"""Ops that make a list as large as their first input."""


def count_lists(structure: Structure) -> tuple[dict[int, int], Ints]:
    """Returns list -> bytes, and int64[ops], the most bytes that one iteration of a loop holds besides lists and arguments.

    Lists are tensors of the structure, and bytes are those of items that no other list, variable or tensor holds.
    """
    library = Library(structure.graph_def)
    sizes: dict[int, int] = {}
    unchanged_lists: dict[int, int] = {}  # lists that loops hand on as they are
    iteration_bytes = np.zeros(structure.n, dtype=np.int64)
    for i, node in enumerate(structure.nodes):
        outputs, inputs = structure.output_tensors[i], structure.data_inputs[i]
        if node.op in _COPIES:
            sizes[outputs[0]] = int(structure.tensor_bytes[inputs[0]])
        elif node.op == "ZerosLike" and (inputs[0] in sizes or inputs[0] in unchanged_lists):
            sizes[outputs[0]] = sizes.get(inputs[0], unchanged_lists.get(inputs[0], 0))
        elif node.op.endswith("While") and library.has_body(node):
            body = _Body(library.functions[node.attr["body"].func.name], is_fused(node))
            bytes_by_argument = body.list_bytes(library.iterations(node) or 1)
            sizes.update((outputs[k], bytes_by_argument[k]) for k in bytes_by_argument)
            unchanged_lists.update(
                (outputs[k], sizes[t]) for k, t in enumerate(inputs) if t in sizes and body.hands_on(k)
            )
            iteration_bytes[i] = body.iteration_bytes()
    return sizes, iteration_bytes


class _Body:
    """The body of a loop; built and used once."""

    def __init__(self, function: FunctionDef, is_fused: bool) -> None:
        self.function = function
        self.fused = is_fused  # one kernel, which reads weights once and holds no copies of them
        self.nodes = {node.name: node for node in function.node_def}
        self.specs = tensor_specs(function)
        self.arguments = {argument.name: k for k, argument in enumerate(function.signature.input_arg)}

    def list_bytes(self, iterations: int) -> dict[int, int]:
        """Returns the bytes of the items that each list gets in all iterations, by its position among the arguments."""
        items = {k: item for name, k in self.arguments.items() if (item := self._item(name, k)) is not None}
        visited: set[str] = set()
        bytes_by_argument = {}
        for k in sorted(items, key=lambda k: items[k][1]):
            reference, _, times = items[k]
            bytes_by_argument[k] = HANDLE_BYTES
            owner = self._owner(reference)
            if owner is not None and owner not in visited:
                visited.add(owner)
                bytes_by_argument[k] = self._bytes(reference) * (iterations if times is None else times)
        return bytes_by_argument

    def hands_on(self, k: int) -> bool:
        """Whether no iteration changes an argument."""
        return self._source(returned_reference(self.function, k)) == self.function.signature.input_arg[k].name

    def _item(self, name: str, k: int) -> tuple[str, bool, int | None] | None:
        """Returns what each iteration adds to a list, whether it sets an item of an array, and how many items there are."""
        at = self._source(returned_reference(self.function, k))
        node = self.nodes.get(at.split(":")[0])
        if node is None or node.op not in ("TensorListPushBack", "TensorListSetItem"):
            return None
        if self._source(node.input[0]) != name:
            return None
        is_array = node.op == "TensorListSetItem"
        index = self.nodes.get(self._source(node.input[1]).split(":")[0]) if is_array else None
        times = 1 if index is not None and index.op == "Const" else None
        return node.input[2 if is_array else 1], is_array, times

    def _source(self, reference: str) -> str:
        """Returns the reference whose memory a reference has."""
        node = self.nodes.get(reference.split(":")[0])
        return self._source(node.input[0]) if node is not None and node.op in VIEWS and node.input else reference

    def _owner(self, reference: str) -> str | None:
        """Returns what made an item; None if something else holds its memory. A state is an output of the iteration before."""
        source = self._source(reference)
        if source in self.arguments:
            before = self._source(returned_reference(self.function, self.arguments[source]))
            return None if before == source else before
        node = self.nodes[source.split(":")[0]]
        if node.op in _OWNED_ELSEWHERE or (self.fused and node.op == "Cast"):
            return None
        return source

    def _bytes(self, reference: str) -> int:
        shape, dtype = self.specs.get(reference, ((), 0))
        return prod(shape) * bytes_per_element().get(dtype, 0)

    def iteration_bytes(self) -> int:
        """Returns the most live bytes of one iteration, in the order of the body's ops; items of lists are not counted."""
        last: dict[str, int] = {}
        for position, node in enumerate(self.function.node_def):
            last.update((self._source(r), position) for r in node.input if not r.startswith("^"))
        released_bytes: list[int] = [0] * (len(self.function.node_def) + 1)
        alive = peak = 0
        for position, node in enumerate(self.function.node_def):
            for reference in self._outputs(node):
                size = self._bytes(reference)
                alive += size
                released_bytes[max(last.get(reference, position), position)] += size
            peak = max(peak, alive)
            alive -= released_bytes[position]
        return peak

    def _outputs(self, node: NodeDef) -> list[str]:
        """Returns the outputs of an op that have memory of their own."""
        if node.op in VIEWS or node.op in _OWNED_ELSEWHERE or node.op in _TAKES_ITEM:
            return []
        return [reference for reference in self.specs if reference.startswith(node.name + ":")]


CONTROL = "^"
"""Name of the tensor that represents an op's control dependencies."""


@dataclass(frozen=True, eq=False)
class Structure:
    """Ops of a step in topological order, and every tensor: its producer, output number, shape and bytes.

    `output` is -1 for the tensor of control dependencies. `consumer_ptr`, `consumers` as in OpGraph. `open_tensors`
    are those whose size the graph leaves open, for which an open dimension counts as 1; `bounded_tensors` are those that count
    with their largest size. `list_bytes` maps each tensor that is a list
    to the bytes of its items. `iteration_bytes` int64[ops]: per loop, the most bytes that one of its iterations holds (see
    `count_lists`).
    """

    graph_def: GraphDef
    nodes: tuple[NodeDef, ...]
    tensor_producer: NDArray[np.int32]
    tensor_output: NDArray[np.int32]
    tensor_bytes: Ints
    shapes: tuple[tuple[int, ...], ...]
    consumer_ptr: Ints
    consumers: NDArray[np.int32]
    open_tensors: tuple[int, ...]
    bounded_tensors: tuple[int, ...]
    list_bytes: dict[int, int] = field(default_factory=dict)
    iteration_bytes: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def n(self) -> int:
        return len(self.nodes)

    @cached_property
    def index(self) -> dict[str, int]:
        """Op name -> index."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    @cached_property
    def tensor_of(self) -> dict[tuple[int, int], int]:
        """(producer, output) -> tensor."""
        return {
            pair: t
            for t, pair in enumerate(zip(self.tensor_producer.tolist(), self.tensor_output.tolist(), strict=True))
        }

    @cached_property
    def tensor_names(self) -> tuple[str, ...]:
        return tuple(str(k) if k >= 0 else CONTROL for k in self.tensor_output.tolist())

    @cached_property
    def data_inputs(self) -> tuple[tuple[int, ...], ...]:
        """Per op, the tensors of its data inputs, in the order of its arguments."""
        op_index, tensor_of = self.index, self.tensor_of
        inputs = []
        for node in self.nodes:
            pairs = (split(r) for r in node.input if not r.startswith("^"))
            inputs.append(tuple(tensor_of[op_index[name], output] for name, output in pairs))
        return tuple(inputs)

    @cached_property
    def output_tensors(self) -> tuple[tuple[int, ...], ...]:
        """Per op, the tensors of its data outputs."""
        outputs: list[list[int]] = [[] for _ in self.nodes]
        for t, (p, k) in enumerate(zip(self.tensor_producer.tolist(), self.tensor_output.tolist(), strict=True)):
            if k >= 0:
                outputs[p].append(t)
        return tuple(map(tuple, outputs))

    @cached_property
    def output_shapes(self) -> tuple[str, ...]:
        """Per op, types and shapes of its data outputs, as `OpGraph.output_shapes` has them."""
        import tensorflow as tf

        texts = []
        for node in self.nodes:
            dtypes = [tf.dtypes.as_dtype(number).name for number in output_types(node)]
            shapes = [[-1] if s.unknown_rank else [d.size for d in s.dim] for s in node.attr[SHAPES].list.shape]
            texts.append(shapes_in_words(zip(dtypes, shapes, strict=False)) if dtypes else "")
        return tuple(texts)


def read_structure(step: Step, dtype: str | None = None) -> Structure:
    """Parses the GraphDef of a step, in which `trace` has stored the shapes; `dtype` replaces its floating-point types."""
    import tensorflow as tf

    graph_def = tf.compat.v1.GraphDef.FromString(step.graph_def)
    if lacks_shapes(graph_def):
        graph_def = with_shapes(graph_def)
    if dtype is not None:
        graph_def = replace_float_types(graph_def, dtype)
    nodes = tuple(graph_def.node)
    largest_shapes = size_bounds(graph_def)
    index = {n.name: i for i, n in enumerate(nodes)}
    edges = [(index[p], k, i) for i, n in enumerate(nodes) for p, k in map(split, n.input)]
    control_producers = {p for p, k, _ in edges if k < 0}
    # The columns of tensors: producer, output number, bytes and shape; and the tensors of open size.
    element_bytes = bytes_per_element()
    producer: list[int] = []
    output: list[int] = []
    size: list[int] = []
    shapes: list[tuple[int, ...]] = []
    open_tensors: list[int] = []
    bounded_tensors: list[int] = []
    for i, node in enumerate(nodes):
        types = output_types(node)
        stored_shapes = node.attr[SHAPES].list.shape if types else ()
        for k, type_number in enumerate(types):
            dims = tuple(d.size for d in stored_shapes[k].dim) if k < len(stored_shapes) else ()
            if any(d < 0 for d in dims) or (k < len(stored_shapes) and stored_shapes[k].unknown_rank):
                largest = largest_shapes.get((node.name, k))
                counted = open_tensors if largest is None else bounded_tensors
                counted += [len(producer)] if type_number in element_bytes else []
                dims = tuple(max(d, 1) for d in dims) if largest is None else largest
            producer.append(i)
            output.append(k)
            shapes.append(dims)
            size.append(prod(dims) * element_bytes[type_number] if type_number in element_bytes else HANDLE_BYTES)
        if i in control_producers:
            producer.append(i)
            output.append(-1)
            shapes.append(())
            size.append(CONTROL_BYTES)
    tensor_of = {pair: t for t, pair in enumerate(zip(producer, output, strict=True))}
    pairs = sorted({(tensor_of[p, k], i) for p, k, i in edges})
    row = np.array([t for t, _ in pairs], dtype=np.int64)
    structure = Structure(
        graph_def=graph_def,
        nodes=nodes,
        tensor_producer=np.array(producer, dtype=np.int32),
        tensor_output=np.array(output, dtype=np.int32),
        tensor_bytes=np.array(size, dtype=np.int64),
        shapes=tuple(shapes),
        consumer_ptr=offsets(row, len(producer)),
        consumers=np.array([i for _, i in pairs], dtype=np.int32),
        open_tensors=tuple(open_tensors),
        bounded_tensors=tuple(bounded_tensors),
    )
    list_bytes, iteration_bytes = count_lists(structure)
    structure.tensor_bytes[list(list_bytes)] = list(list_bytes.values())
    return replace(structure, list_bytes=list_bytes, iteration_bytes=iteration_bytes)
