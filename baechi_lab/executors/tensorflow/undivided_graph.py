"""The graph of the undivided batch: the step's function is traced again with as many samples as all micro-batches have.

Python numbers that a step computes from sizes (`x.shape[0]`) are constants of its graph. Where both graphs differ, a constant
depends on the number of samples (`batch_analysis`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ...errors import InvalidInput
from ...graph import Step
from ...profilers.tensorflow.backward_pairing import is_backward
from ...profilers.tensorflow.nodes import data_inputs
from ...profilers.tensorflow.tracing import trace
from .native import nested_inputs

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef


def undivided_step(step: Step, axes: Mapping[str, int | None], micro_batches: int) -> Step | None:
    """Returns the step of the undivided batch. None if the step's function is gone, or takes no other number of samples.

    `axes`: input name -> the axis along which it is split. Benchmark models are not traced again: they do not compute with the
    number of samples.
    """
    import tensorflow as tf

    if micro_batches == 1 or step.source is None or step.built_from is not None:
        return None
    source = step.source()
    arrays = [
        np.concatenate([value] * micro_batches, axis) if (axis := axes.get(spec.name)) is not None else value
        for spec, value in zip(step.inputs, step.example_inputs, strict=True)
    ]
    try:
        inputs = nested_inputs(source, arrays)
        return trace(source.function, *inputs, name=step.name)
    except (InvalidInput, ValueError, TypeError, tf.errors.OpError):
        return None


def other_number_of_ops(graph_def: GraphDef, undivided_graph: GraphDef) -> str | None:
    """Returns the first type of which the two graphs have different numbers of forward ops behind variables, with the numbers.

    None if there is no such type. Names say less: TensorFlow may number the same ops in another way.
    """
    counts, undivided_counts = (_types_behind_variables(graph) for graph in (graph_def, undivided_graph))
    kind = next((kind for kind in (*counts, *undivided_counts) if counts[kind] != undivided_counts[kind]), None)
    return None if kind is None else f"{counts[kind]} ops of type {kind!r}, and {undivided_counts[kind]}"


def _types_behind_variables(graph: GraphDef) -> Counter[str]:
    """Returns the number of forward ops that read variables, by type; `graph` is in topological order."""
    behind: dict[str, str] = {}
    for node in graph.node:
        reads = any(producer in behind for producer, _ in data_inputs(node))
        if (node.op == "VarHandleOp" or reads) and not is_backward(node.name):
            behind[node.name] = node.op
    return Counter(behind.values())
