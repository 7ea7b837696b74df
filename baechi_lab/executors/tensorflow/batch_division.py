"""What the micro-batches of a step are to its undivided batch: how their gradients, losses and statistics are combined.

A mean over the batch is the mean of the micro-batches' means, a sum is the sum of their sums (`batch_analysis`). What is neither,
or not proven to be either, is warned of, and gradients are compared on examples where the undivided step is known.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ...errors import InvalidInput
from ...graph import OpGraph, Step
from ...passes.roles import BACKWARD, UPDATE, roles
from ...passes.unroll import ACCUMULATE
from ...profilers.tensorflow.backward_pairing import is_backward
from ...profilers.tensorflow.function_bodies import variable_writes
from ...profilers.tensorflow.nodes import data_inputs, output_types, split
from ..inputs import split_batch
from .batch_analysis.analysis import read_batch_values
from .batch_analysis.batch_values import UNPROVEN, Samples, Total, ancestors
from .gradient_comparison import (
    MOST_BYTES,
    GradientRead,
    behind_identities,
    draw_micro_batches,
    largest_differences,
    output_differences,
)
from .gradient_sums import Tensor, rows_of_one_batch, rows_tensors
from .loss_terms import Loss, loss_of, mixing_gradients, share_with_gradients, unproven_statistic
from .session import parse_graph
from .undivided_graph import other_number_of_ops

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

_ADDING = frozenset({"Add", "AddV2", "AddN", "Sub", "Pack"})
_LINEAR = _ADDING | {"Identity", "Cast", "Neg", "Mul", "Sum", "RealDiv", "DivNoNan"}
_FINITE = frozenset({"IsFinite", "IsInf", "IsNan"})
_LOGICAL = frozenset({"LogicalAnd", "LogicalOr", "LogicalNot"})
_DRAWN_BATCHES = 6
"""Batches of drawn samples on which a warning of what the graph does not show must turn out wrong before it is withdrawn.

A loss that selects among samples may be equal on one of them by chance.
"""


class BatchDivision:
    """A step whose batch is divided: the analysis of one micro-batch, and what it says about the undivided batch.

    `repeated_ops` are the ops that run once per micro-batch, `once` the others. `rows` are tensors of looked-up rows. `forward`
    are the ops before the backward pass. `values` is the analysis of their tensors, and `reduction` says whether gradients of the
    loss are averaged over micro-batches or added up.
    """

    def __init__(
        self,
        step: Step,
        graph: OpGraph,
        unrolled_graph: OpGraph,
        axes: Mapping[str, int | None],
        reduction: str | None,
        undivided_def: GraphDef | None,
    ) -> None:
        self.source, self.graph, self.undivided_def = step, graph, undivided_def
        batch = np.asarray(unrolled_graph.micro_batch).tolist()
        self.count = max([1, *(k + 1 for k in batch)])
        self.source_def = parse_graph(step.graph_def)
        self.nodes = {node.name: node for node in self.source_def.node}
        self.repeated_ops = {
            graph.names[i]
            for i, k, kind in zip(
                np.asarray(unrolled_graph.copy_of).tolist(), batch, unrolled_graph.op_types, strict=True
            )
            if k >= 0 and kind != ACCUMULATE
        }
        self.roles = roles(graph)
        self.has_warned = False
        self.is_given = reduction is not None
        self.unproven: list[str] = []  # warnings that are withdrawn if gradients turn out to be the undivided batch's
        self._refuse_early_updates()
        self.once = [name for name in self.nodes if name not in self.repeated_ops]
        self.rows = rows_tensors(
            self.nodes, self.once, self.repeated_ops, {f.signature.name: f for f in self.source_def.library.function}
        )
        self._read_batch(axes, reduction)
        self._refuse_samples()
        self._warn_of_statistics(axes)
        if self.count > 1:
            self._warn_of_sizes(axes)

    def _refuse_early_updates(self) -> None:
        """Raises `InvalidInput` if a repeated op writes a variable: others would read it meanwhile. Random states are allowed."""
        import tensorflow as tf

        if self.count == 1:
            return
        for name in self.repeated_ops:
            for op in variable_writes(self.source_def, self.nodes[name]):
                kind = tf.dtypes.as_dtype(op.attr["dtype"].type or op.attr["T"].type)
                if kind.is_floating or kind.is_complex:
                    raise InvalidInput(
                        f"op {name!r} of step {self.source.name!r} writes a variable that gradients of the same step wait for; "
                        "micro-batches need a step that writes variables behind all gradients (a graph from an earlier release "
                        "does not know conditional updates: profile the step again)"
                    )

    def _read_batch(self, axes: Mapping[str, int | None], reduction: str | None) -> None:
        """Analyzes the batch in the forward ops. Decides how gradients are added up, and warns if no way is right."""
        backward = {
            name
            for k, name in zip(self.graph.forward_of.tolist(), self.graph.names, strict=True)
            if k >= 0 or is_backward(name)
        }
        names = [self.graph.names[i] for i in self.graph.order.tolist()]
        for node in (self.nodes[name] for name in names):  # tapes add up the gradients of a variable by unnamed ops
            if node.op == "AddN" and any(producer in backward for producer, _ in data_inputs(node)):
                backward.add(node.name)
        update = {name for name, kind in zip(self.graph.names, self.roles, strict=True) if kind == UPDATE}
        differentiated_ops = {self.graph.names[i] for i in set(self.graph.forward_of.tolist()) if i >= 0}
        scalar_outputs = {
            split(spec.name)[0] for spec in self.source.outputs if not spec.shape and "float" in spec.dtype
        }
        # Gradients that lead to the returned loss, as those of a gradient penalty, are forward ops. The lists that a loop
        # fills for its gradient lead to the loss as well, but do not follow from what is differentiated.
        leads_to_loss = ancestors(self.nodes, names, scalar_outputs)
        leads_to_loss = ancestors(self.nodes, names, leads_to_loss & differentiated_ops - backward - update)
        follows = differentiated_ops - backward
        for name in names:
            if any(producer in follows for producer, _ in data_inputs(self.nodes[name])):
                follows.add(name)
        backward -= ancestors(self.nodes, names, backward & leads_to_loss & follows)
        self.forward = dict.fromkeys(name for name in names if name not in backward | update)
        self.values = read_batch_values(
            self.source_def, list(self.forward), axes, self.count, undivided_graph=self.undivided_def
        )
        share_with_gradients(self.values, [name for name in self.graph.names if name in backward])
        self.trains = bool(differentiated_ops)
        loss = loss_of(self.values, list(self.forward), differentiated_ops or scalar_outputs, scalar_outputs)
        self.loss_terms = set(loss.terms)
        for name in reversed(self.forward):
            if name in self.loss_terms and self.nodes[name].op == "Identity":
                self.loss_terms.add(next(data_inputs(self.nodes[name]))[0])
        powers = {value.power if isinstance(value, Total) and value.exact else None for value in loss.terms.values()}
        self.reduction = reduction or ("sum" if powers == {1} and not loss.unclear else "mean")
        if self.count == 1:
            self.values.shared_totals.clear()
        elif loss.terms and self.source.updates:
            self._warn_of_reduction(loss, powers, reduction)
            self._warn_of_mixing_gradients(loss, axes)

    def _warn_of_reduction(self, loss: Loss, powers: set[int | None], reduction: str | None) -> None:
        """Warns about a loss that is not proven to be the mean or the sum of its micro-batches' losses; it may be intended."""
        label, name = self.source.name, list(loss.terms)[-1]
        other_ops = None if self.undivided_def is None else other_number_of_ops(self.source_def, self.undivided_def)
        while self.nodes[name].op == "Identity":
            name = next(data_inputs(self.nodes[name]))[0]
        if loss.problems or (
            powers not in ({0}, {1}) and any(isinstance(value, Total) for value in loss.terms.values())
        ):
            name, reason = next(
                iter(loss.problems.items()),
                (name, "combines the samples in another way, or one that the graph does not show"),
            )
            message = (
                f"the loss of step {label!r} may be neither the mean nor the sum of its micro-batches' losses, as op {name!r} "
                f"{reason}: gradients are those of the {self.reduction}, and may differ from those of the undivided batch"
            )
            if other_ops is None and UNPROVEN.issuperset(loss.problems.values()):
                self.unproven.append(message)
                return
        elif other_ops is not None:
            message = (
                f"the graph of step {label!r} depends on the number of samples: it has {other_ops} for the undivided batch, so "
                "gradients may differ from those of the undivided batch"
            )
            self.unproven.append(message)
            return
        elif powers == {1} and loss.unclear and reduction is None:
            name, reason = next(iter(loss.unclear.items()))
            message = (
                f"op {name!r} of step {label!r} {reason}, and the graph does not say whether the loss is then a mean: gradients "
                "are averaged over micro-batches; give reduction='mean' or 'sum'"
            )
        elif powers not in ({0}, {1}) and reduction is None:
            message = (
                f"the graph of step {label!r} does not say whether its loss is a mean or a sum over the batch: gradients are "
                "averaged over micro-batches; return the loss alone, or give reduction='mean' or 'sum'"
            )
            self.unproven.append(message)
            return
        elif reduction == "mean" and powers == {1}:
            message = (
                f"the loss {name!r} of step {label!r} looks like a sum over the batch; gradients are averaged over "
                "micro-batches, which is the undivided batch's for a mean: give reduction='sum' for a sum"
            )
        elif reduction == "sum" and powers == {0}:
            message = (
                f"the loss {name!r} of step {label!r} looks like a mean over the batch; with reduction='sum' its gradients are "
                "added up, and the step is that of a larger loss"
            )
        else:
            return
        self._warn(message, 7)

    def _warn_of_mixing_gradients(self, loss: Loss, axes: Mapping[str, int | None]) -> None:
        """Warns of a backward pass that combines samples where the loss does not; statistics of the batch are warned of."""
        if loss.problems or self.values.normalizes:
            return
        ops = [self.graph.names[i] for i in self.graph.order.tolist() if self.roles[i] != UPDATE]
        backward = set(ops) - self.forward.keys()
        for name, reason in mixing_gradients(self.source_def, ops, backward, axes, self.count).items():
            message = (
                f"op {name!r} in the backward pass of step {self.source.name!r} {reason}: gradients are those of the "
                "micro-batches, and may differ from those of the undivided batch"
            )
            self.unproven.append(message)
            return

    def _refuse_samples(self) -> None:
        """Raises `InvalidInput` if an op that runs once reads a tensor with an entry per sample, except for table rows."""
        if self.count == 1:
            return
        weights = {tuple(spec.shape) for spec in self.source.variables}
        once_ops = {name: self.nodes[name] for name in self.once}
        for name in self.once:
            for tensor in rows_of_one_batch(self.nodes[name], once_ops, self.repeated_ops):
                if self.values.shape(tensor) != ():  # one number is written to all rows
                    raise InvalidInput(
                        f"op {name!r} of step {self.source.name!r}, which runs once per step, writes {tensor[0]!r} at the "
                        "indices of all micro-batches, and that has entries for one micro-batch; write one number, or rows "
                        "that follow from the batch"
                    )
            for tensor in data_inputs(self.nodes[name]):
                if tensor in self.rows or tensor[0] not in self.repeated_ops:
                    continue
                value, shape = self.values.of(tensor), self.values.shape(tensor)
                of_samples = isinstance(value, Samples) and (
                    value.axis is not None or self.nodes[tensor[0]].op == "Placeholder"
                )
                if shape and tensor[0] not in self.forward and self.values.batch > 1 and shape not in weights:
                    of_samples |= shape[0] == self.values.batch and shape[1:] in weights  # a gradient per sample
                if of_samples:
                    advice = (
                        "a variable with an entry per sample, such as the state of a layer with `stateful=True`, has no part "
                        "per micro-batch"
                        if self.nodes[name].op == "AssignVariableOp"
                        else "compute gradients before what is conditional, and update variables from gradients or statistics "
                        "alone"
                    )
                    raise InvalidInput(
                        f"op {name!r} of step {self.source.name!r}, which runs once per step, reads {tensor[0]!r}, which has an "
                        f"entry per sample and differs from micro-batch to micro-batch; {advice}"
                    )

    def _warn_of_statistics(self, axes: Mapping[str, int | None]) -> None:
        """Warns of a number that updates read, other than gradients, if it is not proven to be that of the undivided batch."""
        read = {
            tensor: name for name in self.once for tensor in data_inputs(self.nodes[name]) if tensor[0] in self.forward
        }
        tensors = [tensor for tensor in read if tensor[0] in self.repeated_ops and tensor[0] not in self.loss_terms]
        if self.count == 1 or not tensors:
            return
        forward = list(self.forward)
        values = read_batch_values(self.source_def, forward, axes, self.count, axes, self.undivided_def)
        statistic = unproven_statistic(values, forward, tensors, self.rows)
        if statistic is not None:
            op = f"op {read[statistic]!r} of step {self.source.name!r}"
            message = (
                f"{op} reads the rows {statistic[0]!r} of every micro-batch, which may depend on other samples of the batch: "
                "what the op writes may differ from the undivided batch's"
                if statistic in self.rows
                else f"{op} reads the number {statistic[0]!r} of every micro-batch, which may be no mean over the batch: floats "
                "are averaged and integers are added, and what the op writes may differ from the undivided batch's"
            )
            self._warn(message, 6)

    def _warn_of_sizes(self, axes: Mapping[str, int | None]) -> None:
        """Warns of an update that reads the number of samples. It runs once per step, but the number is a micro-batch's."""
        entries = {self.values.batch} | {prod(shape) for shape in map(self.values.shape, self.values.inputs) if shape}
        counts: set[str] = set()
        for name in self.once:
            node = self.nodes[name]
            sources = list(data_inputs(node))
            value_node = self.nodes[sources[-1][0]] if node.op == "AssignVariableOp" else node
            reads = [self.nodes[source] for source, _ in data_inputs(value_node)]
            adds_to_itself = value_node.op in _ADDING and any(
                read.op == "ReadVariableOp" and read.input[0] == node.input[0] for read in reads
            )
            adds = node.op.startswith("AssignAdd") or adds_to_itself
            addends = [self.values.constant(tensor) for tensor in data_inputs(value_node)] if adds else []
            if self.undivided_def is not None:
                reads_size = isinstance(self.values.of_batch_size((name, 0)), Total)
            else:
                reads_size = any(
                    a is not None and a.size == 1 and a.item() > 1 and a.item() in entries for a in addends
                ) or self.values.counts_samples(node, axes)
            if reads_size or any(source in counts for source, _ in sources):
                counts.add(name)
            if name in counts and any(variable_writes(self.source_def, node)):
                message = (
                    f"op {name!r} of step {self.source.name!r} reads the number of samples of a micro-batch, and runs once per "
                    "step: what it writes may differ from the undivided batch's"
                )
                self._warn(message, 6)
                return

    def _warn(self, message: str, stacklevel: int) -> None:
        self.has_warned = True
        warnings.warn(message, stacklevel=stacklevel + 1)

    def compare_gradients(
        self, unrolled_step: Step, undivided_step: Step | None, axes: Mapping[str, int | None], batch: object | None
    ) -> None:
        """Computes what updates read from the backward pass, and warns if it is not what the undivided batch gives.

        Warnings of what the graph does not show are withdrawn if it is, on `batch` and on samples of the example inputs.
        """
        if self.has_warned:
            return
        axis_of_input = [axes.get(split(spec.name)[0]) for spec in self.source.inputs]
        batches = [] if batch is None else [split_batch(self.source, self.count, batch)]
        for seed in range(_DRAWN_BATCHES if self.unproven else 1 - len(batches)):
            batches.append(draw_micro_batches(self.source, axis_of_input, self.count, seed))
        batch_name = "samples of the example inputs" if batch is None else "the first batch"
        compare = partial(self._gradient_differences, unrolled_step, undivided_step, axis_of_input, batches)
        differences = compare()
        if self.unproven:
            if not _are_all_zero(differences):
                other_reduction, factor = ("sum", self.count) if self.reduction == "mean" else ("mean", 1 / self.count)
                if not self.is_given and _are_all_zero(compare(factor)):
                    advice = f"; in examples it is the {other_reduction} of the micro-batches' losses: give reduction="
                    advice += repr(other_reduction)
                else:
                    advice = ""
                self._warn(self.unproven[0] + advice, 5)
        elif differences[0] is not None and differences[0][1] > 0:
            op, share = differences[0]
            message = (
                f"gradients of step {self.source.name!r} in micro-batches are not those of the undivided batch: what op "
                f"{op!r} reads differs by {share:.1%}, computed on {batch_name}"
            )
            self._warn(message, 5)
        if not self.has_warned:
            self._warn_of_outputs(unrolled_step, undivided_step, axis_of_input, batches[0], batch_name)

    def _warn_of_outputs(
        self,
        unrolled_step: Step,
        undivided_step: Step | None,
        axis_of_input: Sequence[int | None],
        micro_batches: Sequence[object],
        batch_name: str,
    ) -> None:
        """Warns of a returned scalar beside the loss, such as a norm, that is not the undivided batch's."""
        producers = [behind_identities(self.nodes, spec.name)[0] for spec in self.source.outputs]
        scalars = [
            k
            for k, (spec, producer) in enumerate(zip(self.source.outputs, producers, strict=True))
            if unrolled_step.outputs[k].shape == spec.shape == ()
            and producer in self.repeated_ops
            and producer not in self.loss_terms
        ]
        if undivided_step is None or not scalars or not self._is_comparable(undivided_step):
            return
        differences = output_differences(unrolled_step, undivided_step, micro_batches, axis_of_input, scalars)
        for k, share in differences.items():
            label = self.source.output_names[k] if self.source.output_names else producers[k]
            message = (
                f"the number {label!r} that step {self.source.name!r} returns is the mean or sum of those of the micro-batches, "
                f"which is not that of the undivided batch: it differs by {share:.1%}, computed on {batch_name}"
            )
            self._warn(message, 6)

    def _is_comparable(self, undivided_step: Step) -> bool:
        """Whether the undivided step is small, and its statistics of the batch are not warned of already."""
        tensor_bytes = self.count * int(self.graph.tensor_bytes.sum())
        return not self.values.normalizes and max(tensor_bytes, undivided_step.parameter_bytes) <= MOST_BYTES

    def _gradient_differences(
        self,
        unrolled_step: Step,
        undivided_step: Step | None,
        axis_of_input: Sequence[int | None],
        batches: Sequence[Sequence[object]],
        factor: float = 1.0,
    ) -> list[tuple[str, float] | None]:
        """Returns, per batch, the op whose gradient differs most and by how much; None if it is not known."""
        if undivided_step is None or not self._is_comparable(undivided_step):
            return [None] * len(batches)
        gradients = {name for name, kind in zip(self.graph.names, self.roles, strict=True) if kind == BACKWARD}
        reads = [
            GradientRead(name, position, tensor in self.rows)
            for name in self.once
            for position, tensor in enumerate(data_inputs(self.nodes[name]))
            if tensor[0] in self.repeated_ops & gradients and self.is_float(tensor)
        ]
        return largest_differences(unrolled_step, undivided_step, batches, axis_of_input, reads, factor)

    def is_averaged(self, tensor: Tensor) -> bool:
        """Whether updates read the mean of `tensor` over micro-batches instead of the sum.

        Statistics that are no gradients are always averaged, because a metric may divide by a constant number of samples. Rows
        of samples, such as the outputs that center loss writes to a table, are joined as they are.
        """
        if self.trains and tensor[0] in self.forward and tensor[0] not in self.loss_terms:
            return tensor not in self.rows
        return self.reduction == "mean" or tensor[0] not in self.varying

    def is_mean(self, tensor: Tensor) -> bool:
        """Whether the step returns the mean of `tensor` over micro-batches instead of the sum."""
        value = self.values.of(tensor)
        if isinstance(value, Total) and value.power in (0, 1) and (value.exact or value.share is not None):
            return value.power == 0
        return self.reduction == "mean" or tensor[0] not in self.varying

    @cached_property
    def varying(self) -> set[str]:
        """The ops whose outputs differ between micro-batches, including backward ops."""
        varying = {name for name, _ in self.values.values}
        for name in (self.graph.names[i] for i in self.graph.order.tolist()):
            if any(source in varying for source, _ in data_inputs(self.nodes[name])):
                varying.add(name)
        return varying

    def penalties(self) -> set[tuple[str, Tensor]]:
        """Returns (op, input) of terms that are the same for all micro-batches, within gradients and losses that are summed."""
        penalties: set[tuple[str, Tensor]] = set()
        gradients = [
            tensor for name in self.once for tensor in data_inputs(self.nodes[name]) if tensor not in self.rows
        ]
        waiting = [tensor for tensor in gradients if not self.is_averaged(tensor)]
        waiting += [tensor for spec in self.source.outputs if not self.is_mean(tensor := split(spec.name))]
        visited: set[Tensor] = set()
        while waiting:
            tensor = waiting.pop()
            node = self.nodes[tensor[0]]
            if tensor in visited or node.name not in self.repeated_ops or node.op not in _LINEAR:
                continue
            visited.add(tensor)
            for source in data_inputs(node):
                if source[0] in self.varying:
                    waiting.append(source)
                elif node.op in _ADDING:
                    penalties.add((node.name, source))
        return penalties

    def logical_op(self, name: str) -> str | None:
        """Returns the op that combines a boolean over micro-batches (all finite, any sample of a kind); None if unknown."""
        node = self.nodes[name]
        tensors = list(data_inputs(node))
        sources = [source for source, _ in tensors]
        of_samples = bool(tensors) and isinstance(self.values.of(tensors[0]), Samples)
        if node.op in _FINITE or (node.op in ("All", "Any") and (of_samples or self.nodes[sources[0]].op in _FINITE)):
            return "LogicalAnd" if node.op in ("All", "IsFinite") else "LogicalOr"
        inner = {self.logical_op(source) for source in sources} if node.op in _LOGICAL else {None}
        if node.op == "LogicalNot":
            return {"LogicalAnd": "LogicalOr", "LogicalOr": "LogicalAnd"}.get(str(inner.pop()))
        return node.op if inner == {node.op} else None

    def is_float(self, tensor: Tensor) -> bool:
        """Whether a tensor holds real floating-point numbers."""
        import tensorflow as tf

        return bool(tf.dtypes.as_dtype(output_types(self.nodes[tensor[0]])[tensor[1]]).is_floating)


def _are_all_zero(differences: Sequence[tuple[str, float] | None]) -> bool:
    """Whether the gradients of all batches are known to be equal; see `largest_differences`."""
    return all(difference is not None and difference[1] == 0 for difference in differences)
