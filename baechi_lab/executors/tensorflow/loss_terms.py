"""What a step's gradients differentiate, and which of its numbers are no mean or sum over the batch, by `batch_analysis`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...profilers.tensorflow.nodes import data_inputs, output_types
from .batch_analysis.analysis import read_batch_values
from .batch_analysis.batch_values import BatchValues, Samples, Tensor, Total, Value, ancestors
from .batch_analysis.op_kinds import LISTS

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef


@dataclass(frozen=True)
class Loss:
    """The loss of a step: what its gradients differentiate.

    `terms`: the last ops before the gradients, with their values. `problems`, `unclear`: the entries of `BatchValues` for ops
    that lead to them.
    """

    terms: Mapping[str, Value]
    problems: Mapping[str, str]
    unclear: Mapping[str, str]


def loss_of(values: BatchValues, forward: Sequence[str], differentiated_ops: set[str], returned_ops: set[str]) -> Loss:
    """Returns the loss: outputs of the step after the last ops that have backward ops, else those ops.

    Args:
        values, forward: of `read_batch_values`.
        differentiated_ops: the forward ops that have backward ops.
        returned_ops: the ops that compute the scalars that the step returns.
    """
    leads_to_loss, read = set(differentiated_ops), set[str]()
    for name in reversed(forward):
        if name in leads_to_loss:
            sources = {producer for producer, _ in data_inputs(values.nodes[name])}
            leads_to_loss |= sources
            read |= sources
    terms: dict[str, Value] = {}
    unread = (name for name in forward if name in leads_to_loss and name not in read and name in values.trained_ops)
    of_op = {name: value for (name, _), value in reversed(values.values.items()) if value is not None}
    for end in (name for name in unread if name in of_op):
        behind = {end}
        for name in forward:
            if any(producer in behind for producer, _ in data_inputs(values.nodes[name])):
                behind.add(name)
        results = {name: of_op.get(name) for name in forward if name in behind & returned_ops}
        alike = len({value.power for value in results.values() if value is not None}) == 1
        terms.update(results if alike else {end: of_op[end]})
    leads_to_loss = ancestors(values.nodes, forward, leads_to_loss | set(terms))
    problems, unclear = (
        {name: reason for name, reason in ops.items() if name in leads_to_loss}
        for ops in (values.problems, values.unclear)
    )
    return Loss(terms, problems, unclear)


def unproven_statistic(
    values: BatchValues, ops: Sequence[str], tensors: Sequence[Tensor], rows: set[Tensor]
) -> Tensor | None:
    """Returns the first number of `tensors` that is not proven to be a mean over the batch, or of integers a sum over it.

    Rows are proven if each follows from its sample alone.

    `values`: an analysis in which inputs count as trained, so that what follows from them alone is exact or not.
    """
    import tensorflow as tf

    for tensor in tensors:
        value, kind = values.of(tensor), tf.dtypes.as_dtype(output_types(values.nodes[tensor[0]])[tensor[1]])
        if tensor in rows:
            proven = isinstance(value, Samples) and value.power == 0
        else:
            proven = isinstance(value, Total) and value.exact and value.power == int(kind.is_integer)
        proven = proven and not values.problems.keys() & ancestors(values.nodes, ops, {tensor[0]})
        if value is not None and kind != tf.bool and not proven:
            return tensor
    return None


def mixing_gradients(
    graph_def: GraphDef, ops: Sequence[str], backward: set[str], axes: Mapping[str, int | None], count: int
) -> dict[str, str]:
    """Returns the ops that combine gradients of samples otherwise than by adding them up, with reasons.

    Such are custom gradients that divide by a norm over the batch, and gradients of gradients. Ops whose totals are of unknown
    kind are left out.

    Args:
        graph_def, axes: as in `read_batch_values`.
        ops: the ops that run once per micro-batch, in topological order.
        backward: those of the backward pass by their names or pairs; what reads their outputs is as well.
        count: micro-batches of a step.
    """
    values, behind = read_batch_values(graph_def, ops, axes, count), set[str]()
    for name in ops:
        node = values.nodes[name]
        reads = any(producer in behind for producer, _ in data_inputs(node))
        if (name in backward or reads) and node.op != "Const" and not node.op.startswith(LISTS):
            behind.add(name)
    mixing = {}
    for name in values.problems.keys() & behind:
        totals = [v for tensor in data_inputs(values.nodes[name]) if isinstance(v := values.of(tensor), Total)]
        if totals and all(total.exact for total in totals):
            mixing[name] = values.problems[name]
    return {name: mixing[name] for name in ops if name in mixing}


def share_with_gradients(values: BatchValues, backward: Sequence[str]) -> None:
    """Records the totals that gradients read as shares, also those whose quotient no forward op reads."""
    import tensorflow as tf

    for name in backward:
        for tensor in data_inputs(values.nodes[name]):
            value = values.of(tensor)
            if isinstance(value, Total) and tensor[0] not in values.trained_ops and value.share is not None:
                kind = tf.dtypes.as_dtype(output_types(values.nodes[tensor[0]])[tensor[1]])
                if kind.is_floating or not value.share:
                    values.shared_totals[tensor] = value.share
