"""Compares the gradients of micro-batches with the undivided batch's: both are computed once on the CPU, before the first step.

The analysis of the graph (`batch_analysis`) follows the loss. It does not see that a `tf.custom_gradient` clips what comes in, or
multiplies it by the number of samples. So what updates read from the backward pass is computed for both. So are the scalars that
a step returns beside its loss: a norm or a maximum is no mean over micro-batches. The variables of the caller are not touched:
sessions have variables of their own, and run no update.

A random op gives a constant here, so that a sample has the same draws in every batch. Nothing is compared if the batch is large,
if other random ops are drawn, or if an op has no kernel for CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import ExecutionError
from ...graph import Step, TensorSpec
from ...profilers.tensorflow.nodes import data_inputs, join, split
from ..gradient_tolerance import GRADIENT_TOLERANCE, HALF_GRADIENT_TOLERANCE
from ..inputs import Batch, checked_batch
from .batch_analysis.op_kinds import RANDOM_OPS
from .session import PREFIX, PlacedSession, parse_graph, place_graph, session_config

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

NEGLIGIBLE = 1e-3
"""A gradient that is smaller than this share of the largest one is compared with that share."""

MOST_BYTES = 256 << 20
"""Nothing is compared if the tensors of the undivided batch, or the variables, have more bytes."""

_DRAW = 0.75
"""What random ops give instead of random numbers. Dropout keeps all entries if its rate is not larger."""

_SHAPE_ARGUMENT = {
    **dict.fromkeys(("RandomUniform", "RandomStandardNormal", "TruncatedNormal"), 0),
    **dict.fromkeys(("StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal"), 0),
    **dict.fromkeys(("StatelessRandomUniformV2", "StatelessRandomNormalV2", "StatelessTruncatedNormalV2"), 0),
    **dict.fromkeys(("StatefulUniform", "StatefulStandardNormalV2", "StatefulTruncatedNormal"), 2),
}
"""Random op -> the position of the shape among its inputs."""

_KEPT_DRAWS = frozenset(
    {"StatelessRandomGetKeyCounter", "StatelessRandomGetAlg", "StatelessRandomGetKeyCounterAlg", "StatelessShuffle"}
)
"""Random ops that stay: they draw nothing, or the same permutation for the same seed and length."""


@dataclass(frozen=True)
class GradientRead:
    """A gradient of every micro-batch that op `op` reads once per step, as its data input `position`.

    `rows`: it has rows of a table in any order (`tf.IndexedSlices`), of which the sum is compared.
    """

    op: str
    position: int
    rows: bool


def draw_micro_batches(step: Step, axes: Sequence[int | None], count: int, seed: int) -> tuple[object, ...]:
    """Returns the inputs of `count` micro-batches whose samples are drawn from the example inputs; micro-batch 0 comes first.

    Each micro-batch has other samples of the example than the others, so that what only some samples have is in some
    micro-batches alone. Sample `seed` is the first of micro-batch 1: a loss may carry values from one sample to the next. Floats
    are multiplied by a number between 0.5 and 1, which keeps their sign: copies of one sample would show nothing.
    """
    generator, arrays = np.random.default_rng(seed), []
    lengths = {
        value.shape[axis]
        for axis, value in zip(axes, step.example_inputs, strict=True)
        if axis is not None and value.size
    }
    groups_of_length = {length: _disjoint_groups(length, count, seed) for length in sorted(lengths)}
    for k in range(count):
        samples_of_length = {  # inputs of one length have the same samples
            length: np.append(group[:1], generator.choice(group, length - 1))
            for length, groups in groups_of_length.items()
            for group in (groups[k % len(groups)],)
        }
        for axis, value in zip(axes, step.example_inputs, strict=True):
            if axis is not None and value.size:
                value = np.take(value, samples_of_length[value.shape[axis]], axis)
                if np.issubdtype(value.dtype, np.floating):
                    factors = generator.uniform(0.5, 1.0, value.shape).astype(value.dtype)
                    value = np.multiply(value, factors)
            arrays.append(value)
    return tuple(arrays)


def _disjoint_groups(samples: int, most_groups: int, seed: int) -> list[NDArray[np.int64]]:
    """Divides samples at random into groups of random sizes, one per micro-batch as far as there are samples.

    The second group starts with sample `seed`, modulo `samples`.
    """
    generator = np.random.default_rng(seed)
    cuts = np.sort(generator.choice(np.arange(1, samples), min(most_groups, samples) - 1, replace=False))
    order = generator.permutation(samples)
    for cut in cuts[:1]:
        position = int(np.flatnonzero(order == seed % samples)[0])
        order[[cut, position]] = order[[position, cut]]
    return np.split(order, cuts)


def largest_differences(
    unrolled_step: Step,
    undivided_step: Step,
    batches: Sequence[Sequence[object]],
    axes: Sequence[int | None],
    reads: Sequence[GradientRead],
    factor: float = 1.0,
) -> list[tuple[str, float] | None]:
    """Returns, per batch, the op whose gradient differs most from the undivided batch's, with the relative difference.

    None if it is unknown. The difference is 0 if all gradients are compared, not all of them are 0, and they are equal within the
    tolerance.

    Args:
        unrolled_step, undivided_step: the steps of all micro-batches and of the undivided batch.
        batches: per batch, the inputs of all micro-batches, those of micro-batch 0 first.
        axes: per input of a micro-batch, the axis along which micro-batches are joined.
        reads: the gradients that are compared.
        factor: what the gradients of the micro-batches are multiplied by.
    """
    undivided_graph, unrolled_graph = (parse_graph(step.graph_def) for step in (undivided_step, unrolled_step))
    nodes = [{node.name: node for node in graph.node} for graph in (undivided_graph, unrolled_graph)]
    compared_reads = [
        (read, undivided_name, unrolled_name)
        for read in reads
        if (undivided_name := _tensor_name(nodes[0], read)) and (unrolled_name := _tensor_name(nodes[1], read))
    ]
    names = [(undivided_name, unrolled_name) for _, undivided_name, unrolled_name in compared_reads]
    values = _values_of_both(unrolled_step, undivided_step, batches, axes, names)
    if values is None:
        return [None] * len(batches)
    tolerance, compared = values[2], [read for read, _, _ in compared_reads]
    return [
        _largest_difference(compared, undivided_values, unrolled_values, factor, tolerance, len(reads))
        for undivided_values, unrolled_values in zip(values[0], values[1], strict=True)
    ]


def _largest_difference(
    reads: Sequence[GradientRead],
    undivided_values: Sequence[NDArray[np.float64]],
    unrolled_values: Sequence[NDArray[np.float64]],
    factor: float,
    tolerance: float,
    all_reads: int,
) -> tuple[str, float] | None:
    """Returns the largest difference of one batch. `all_reads` is the number of gradients that updates read."""
    pairs = [
        (a.sum(0), b.sum(0) * factor) if read.rows else (a, b * factor)
        for read, a, b in zip(reads, undivided_values, unrolled_values, strict=True)
    ]
    norms = [float(np.linalg.norm(a)) for a, _ in pairs]
    if not np.all(np.isfinite(norms)) or any(a.shape != b.shape for a, b in pairs):
        return None
    least = NEGLIGIBLE * max(norms) or 1.0
    differences = [float(np.linalg.norm(a - b)) / max(norm, least) for (a, b), norm in zip(pairs, norms, strict=True)]
    worst = int(np.argmax(differences))
    if differences[worst] <= tolerance:
        return ("", 0.0) if len(reads) == all_reads and max(norms) > 0 else None
    return reads[worst].op, differences[worst]


def output_differences(
    unrolled_step: Step,
    undivided_step: Step,
    micro_batches: Sequence[object],
    axes: Sequence[int | None],
    positions: Sequence[int],
) -> dict[int, float]:
    """Returns which of the scalar outputs at `positions` are not the undivided batch's, each with its relative difference.

    An empty dict if they cannot be computed. `micro_batches` are the inputs of one batch; see `largest_differences`.
    """
    nodes = {node.name: node for node in parse_graph(undivided_step.graph_def).node}
    names = [
        (join(*behind_identities(nodes, undivided_step.outputs[k].name)), unrolled_step.outputs[k].name)
        for k in positions
    ]
    values = _values_of_both(unrolled_step, undivided_step, [micro_batches], axes, names)
    if values is None:
        return {}
    (undivided_values,), (unrolled_values,), tolerance = values
    differences = {
        k: abs(float(a) - float(b)) / max(abs(float(a)), NEGLIGIBLE)
        for k, a, b in zip(positions, undivided_values, unrolled_values, strict=True)
        if a.shape == b.shape == () and np.isfinite(a)
    }
    return {k: difference for k, difference in differences.items() if not difference <= tolerance}


def behind_identities(nodes: Mapping[str, NodeDef], reference: str) -> tuple[str, int]:
    """Returns the op and output that a reference hands on. Identities of returned tensors may wait for updates."""
    name, position = split(reference)
    while nodes[name].op == "Identity":
        name, position = next(data_inputs(nodes[name]))
    return name, position


def _values_of_both(
    unrolled_step: Step,
    undivided_step: Step,
    batches: Sequence[Sequence[object]],
    axes: Sequence[int | None],
    names: Sequence[tuple[str, str]],
) -> tuple[list[list[NDArray[np.float64]]], list[list[NDArray[np.float64]]], float] | None:
    """Returns, per batch, the values of tensors of the undivided step and of the unrolled one; and the tolerance.

    `names` has the name of each tensor in both. None if they cannot be computed.
    """
    undivided_graph, unrolled_graph = (parse_graph(step.graph_def) for step in (undivided_step, unrolled_step))
    if not names or not _fix_draws(undivided_graph) or not _fix_draws(unrolled_graph):
        return None
    divided = [checked_batch(unrolled_step, micro_batches) for micro_batches in batches]
    joined = [
        tuple(
            arrays[k] if axis is None else np.concatenate(arrays[k :: len(axes)], axis) for k, axis in enumerate(axes)
        )
        for arrays in divided
    ]
    undivided_values = _compute_tensors(undivided_step, undivided_graph, [name for name, _ in names], joined)
    unrolled_values = _compute_tensors(unrolled_step, unrolled_graph, [name for _, name in names], divided)
    if undivided_values is None or unrolled_values is None:
        return None
    halves = any(map(_is_half, unrolled_graph.node))
    return undivided_values, unrolled_values, HALF_GRADIENT_TOLERANCE if halves else GRADIENT_TOLERANCE


def _tensor_name(nodes: Mapping[str, NodeDef], read: GradientRead) -> str:
    """Returns the name of the tensor that is read in a graph; an empty one if the graph has no such op."""
    sources = list(data_inputs(nodes[read.op])) if read.op in nodes else []
    if read.position >= len(sources):
        return ""
    name, output = sources[read.position]
    return f"{name}:{output}"


def _is_half(node: NodeDef) -> bool:
    import tensorflow as tf

    halves = (tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum)
    return any(attribute.type in halves for attribute in node.attr.values())


def _compute_tensors(
    step: Step, graph: GraphDef, names: Sequence[str], batches: Sequence[Batch]
) -> list[list[NDArray[np.float64]]] | None:
    """Returns, per batch, the values of tensors of a step that has `graph` instead of its own.

    None if no CPU can compute them.
    """
    import tensorflow as tf

    fetch_specs = tuple(TensorSpec(name, "float32", ()) for name in dict.fromkeys(names))
    step_with_fetches = replace(
        step, graph_def=graph.SerializeToString(), outputs=fetch_specs, output_names=(), updates=()
    )
    config = session_config(1)
    config.device_count["GPU"] = 0
    config.intra_op_parallelism_threads = 0
    try:
        session = PlacedSession(
            place_graph(step_with_fetches, {node.name: "/device:CPU:0" for node in graph.node}), config
        )
        try:
            session.start(step.initial_values)
            fetched = [session.call(batch) for batch in batches]
        finally:
            session.close()
    except (tf.errors.OpError, ValueError, ExecutionError):
        return None
    position = {spec.name: k for k, spec in enumerate(fetch_specs)}
    return [[np.asarray(values[position[name]]).astype(np.float64) for name in names] for values in fetched]


def _fix_draws(graph: GraphDef) -> bool:
    """Replaces random ops by constants, also in the bodies of loops. Returns False if the graph has other random ops."""
    import tensorflow as tf

    nodes = [(graph.node, node, "") for node in graph.node]
    nodes += [(body.node_def, node, ":output:0") for body in graph.library.function for node in body.node_def]
    for nodes_around, node, suffix in nodes:
        if node.op in _SHAPE_ARGUMENT:
            shape, waits = node.input[_SHAPE_ARGUMENT[node.op]], [r for r in node.input if r.startswith("^")]
            dtype = node.attr["dtype"].type
            index_type = next(node.attr[key].type for key in ("shape_dtype", "Tshape", "T") if key in node.attr)
            draw = nodes_around.add(op="Const", name=f"{node.name}/{PREFIX}/draw")
            draw.attr["dtype"].type = dtype
            draw.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(_DRAW, dtype=dtype))
            node.op = "Fill"
            del node.input[:]
            node.input.extend([shape, draw.name + suffix, *waits])
            node.attr.clear()
            node.attr["T"].type, node.attr["index_type"].type = dtype, index_type
        elif RANDOM_OPS.match(node.op) and node.op not in _KEPT_DRAWS:
            return False
    return True
