"""The graph of the undivided batch: the step's function is traced again with as many samples as all micro-batches have.

Python numbers that a step computes from sizes (`x.shape[0]`) are constants of its graph. Where both graphs differ, a constant
depends on the number of samples (`batch_analysis`).

Ops of both graphs are found by their names. The first trace of a step builds optimizers and layers, which uses up names: ops of
`sgd_1/` are in `sgd/` in every later trace. Then the step is traced once more, which tells the new name of every op.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ...errors import InvalidInput
from ...graph import Step, TensorSpec
from ...profilers.tensorflow.backward_pairing import is_backward
from ...profilers.tensorflow.nodes import data_inputs
from ...profilers.tensorflow.tracing import rename_reference, trace
from .native import nested_inputs
from .session import parse_graph

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
        undivided = trace(source.function, *inputs, name=step.name)
    except (InvalidInput, ValueError, TypeError, tf.errors.OpError):
        return None
    if op_names(step) <= op_names(undivided):
        return undivided
    try:  # a `tf.function` would return what it has traced before
        retraced_step = trace(getattr(source.function, "python_function", source.function), *source.example_inputs)
    except (InvalidInput, ValueError, TypeError, tf.errors.OpError):
        return undivided
    return renamed_step(undivided, names_of_retraced_ops(step, retraced_step))


def op_names(step: Step) -> set[str]:
    """Returns the names of all ops of a step."""
    return {node.name for node in parse_graph(step.graph_def).node}


def names_of_retraced_ops(step: Step, retraced_step: Step) -> dict[str, str]:
    """Returns the name in `step` of every op of a second trace whose name differs; empty if the traces have different ops."""
    nodes, retraced_nodes = (parse_graph(traced.graph_def).node for traced in (step, retraced_step))
    if len(nodes) != len(retraced_nodes):
        return {}
    names = {retraced.name: node.name for node, retraced in zip(nodes, retraced_nodes, strict=True)}
    for node, retraced in zip(nodes, retraced_nodes, strict=True):
        if node.op != retraced.op or [rename_reference(r, names) for r in retraced.input] != list(node.input):
            return {}
    return {name: name_in_step for name, name_in_step in names.items() if name != name_in_step}


def renamed_step(step: Step, names: Mapping[str, str]) -> Step:
    """Returns a step whose ops have other names: the values of `names`. Returns it unchanged if another op has such a name."""
    graph = parse_graph(step.graph_def)
    all_names = [names.get(node.name, node.name) for node in graph.node]
    if not names or len(set(all_names)) < len(all_names):
        return step
    for node in graph.node:
        node.name = names.get(node.name, node.name)
        node.input[:] = [rename_reference(reference, names) for reference in node.input]
        hints = node.attr["_class"].list.s if "_class" in node.attr else []
        hints[:] = [f"loc:@{names.get(hint, hint)}".encode() for hint in (h[5:].decode() for h in hints)]

    def renamed(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(replace(spec, name=rename_reference(spec.name, names)) for spec in specs)

    return replace(
        step,
        graph_def=graph.SerializeToString(deterministic=True),
        inputs=renamed(step.inputs),
        outputs=renamed(step.outputs),
        variables=renamed(step.variables),
        slots={names.get(slot, slot): names.get(variable, variable) for slot, variable in step.slots.items()},
        updates=tuple(names.get(update, update) for update in step.updates),
    )


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
