"""Upper bounds of tensor sizes that depend on data, such as the rows of `tf.where` and `tf.boolean_mask`.

An op that selects entries has at most as many rows as its input has entries. TensorFlow infers the sizes of what reads these
rows: in a copy of the graph, Placeholders of the largest sizes are in the place of the selections.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING

from .function_bodies import known_number
from .nodes import data_inputs, output_types, split
from .shapes import SHAPES, with_shapes

if TYPE_CHECKING:
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
