"""Infers the shapes of all tensors of a GraphDef with TensorFlow and stores them in it as `_output_shapes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...graph.step import TensorSpec
from .nodes import output_types, split

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

SHAPES = "_output_shapes"


def lacks_shapes(graph_def: GraphDef) -> bool:
    """Whether an op with outputs lacks their shapes."""
    return any(SHAPES not in node.attr and output_types(node) for node in graph_def.node)


def with_shapes(graph_def: GraphDef) -> GraphDef:
    """Returns the graph with all shapes inferred again from those of its Placeholders and constants.

    The whole graph is imported once: linear, mostly in C++.
    """
    import tensorflow as tf

    for node in graph_def.node:
        if SHAPES in node.attr:
            del node.attr[SHAPES]
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    return graph.as_graph_def(add_shapes=True)


def specs(graph_def: GraphDef, tensors: list[str]) -> tuple[TensorSpec, ...]:
    """Returns name, dtype and shape of tensors like `"op:0"`; an open size is None."""
    import tensorflow as tf

    nodes = {node.name: node for node in graph_def.node}
    tensor_specs = []
    for name in tensors:
        op, output = split(name)
        node = nodes[op]
        shape = node.attr[SHAPES].list.shape[output]
        sizes = tuple(None if d.size < 0 else int(d.size) for d in shape.dim)
        tensor_specs.append(TensorSpec(name, tf.dtypes.as_dtype(output_types(node)[output]).name, sizes))
    return tuple(tensor_specs)
