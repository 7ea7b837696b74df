"""The structure of a traced step: ops, tensors with their bytes, and the readers of each tensor.

One linear pass over the nodes and inputs of the GraphDef, without calls into TensorFlow per op.
Lists of tensors have the bytes of their items (`list_bytes`); sizes that depend on data have upper bounds (`size_bounds`).
"""

from __future__ import annotations

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
from .list_bytes import count_lists
from .nodes import HANDLE_BYTES, bytes_per_element, output_types, split
from .shapes import SHAPES, lacks_shapes, with_shapes
from .size_bounds import size_bounds

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef


CONTROL = "^"
"""Name of the tensor that represents an op's control dependencies."""


@dataclass(frozen=True, eq=False)
class Structure:
    """Ops of a step in topological order, and every tensor: its producer, output number, shape and bytes.

    `output` is -1 for the tensor of control dependencies. `consumer_ptr`, `consumers` as in OpGraph. `open_tensors` are those
    whose size the graph leaves open, for which an open dimension counts as 1; `bounded_tensors` are those that count with
    their largest size. `list_bytes` maps each tensor that is a list to the bytes of its items. `iteration_bytes` int64[ops]:
    per loop, the most bytes that one of its iterations holds (see `count_lists`).
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
