"""Replaces the floating-point types of a GraphDef, to estimate a step in another precision; the result is never run."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

_NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
FLOAT_NAMES = (*_NAMES.values(), "float64")
"""Types that the option `precision` replaces."""


@cache
def float_types() -> frozenset[int]:
    """Returns the DataType numbers of `FLOAT_NAMES`."""
    import tensorflow as tf

    return frozenset(getattr(tf, name).as_datatype_enum for name in FLOAT_NAMES)


@cache
def product_precisions() -> dict[int, str]:
    """Returns DataType number -> precision of products, for bytes, floating-point numbers and complex ones of two of these."""
    import tensorflow as tf

    names = [*_NAMES.items(), ("fp64", "float64"), ("fp32", "complex64"), ("fp64", "complex128")]
    names += [("int8", "int8"), ("int8", "uint8")]
    return {getattr(tf, name).as_datatype_enum: precision for precision, name in names}


@cache
def complex_types() -> frozenset[int]:
    """Returns the DataType numbers of complex types."""
    import tensorflow as tf

    return frozenset(getattr(tf, name).as_datatype_enum for name in ("complex64", "complex128"))


def replace_float_types(graph_def: GraphDef, dtype: str) -> GraphDef:
    """Returns a copy in which all floating-point types are `dtype` ("fp32", "fp16" or "bf16"), those of functions included."""
    import tensorflow as tf

    number = getattr(tf, _NAMES[dtype]).as_datatype_enum
    new_graph_def = type(graph_def)()
    new_graph_def.CopyFrom(graph_def)
    for nodes in (new_graph_def.node, *(function.node_def for function in new_graph_def.library.function)):
        for node in nodes:
            for value in node.attr.values():
                kind = value.WhichOneof("value")
                if kind == "type" and value.type in float_types():
                    value.type = number
                elif kind == "list" and value.list.type:
                    types = [number if type_number in float_types() else type_number for type_number in value.list.type]
                    del value.list.type[:]
                    value.list.type.extend(types)
    for function in new_graph_def.library.function:
        for argument in (*function.signature.input_arg, *function.signature.output_arg):
            argument.type = number if argument.type in float_types() else argument.type
    return new_graph_def
