"""Shapes of every tensor of a GraphDef, inferred by TensorFlow and kept in the graph itself as `_output_shapes`."""

from __future__ import annotations

from typing import Any

from ...graph.step import TensorSpec
from .nodes import output_types, split

SHAPES = "_output_shapes"


def lacks_shapes(graph_def: Any) -> bool:
    """Is there an op with outputs that does not say their shapes?"""
    return any(SHAPES not in node.attr and output_types(node) for node in graph_def.node)


def with_shapes(graph_def: Any) -> Any:
    """The same graph, the shapes of every op inferred anew from those of its Placeholders and constants.

    One import of the whole graph: linear, most of it in C++.
    """
    import tensorflow as tf

    for node in graph_def.node:
        if SHAPES in node.attr:
            del node.attr[SHAPES]
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    return graph.as_graph_def(add_shapes=True)


def specs(graph_def: Any, tensors: list[str]) -> tuple[TensorSpec, ...]:
    """Name, dtype and shape of tensors like `"op:0"`; None for a size that is open."""
    import tensorflow as tf

    nodes = {node.name: node for node in graph_def.node}
    found = []
    for name in tensors:
        op, output = split(name)
        node = nodes[op]
        shape = node.attr[SHAPES].list.shape[output]
        sizes = tuple(None if d.size < 0 else int(d.size) for d in shape.dim)
        found.append(TensorSpec(name, tf.dtypes.as_dtype(output_types(node)[output]).name, sizes))
    return tuple(found)
