"""Unrolls a traced step of one micro-batch into a step of several.

The ops have the names of `bl.unroll`: forward and backward ops once per micro-batch, variables and updates once, gradients
accumulated. For a mean over the batch, ops under `baechi_lab/` divide sums of gradients by the number of micro-batches. Control
dependencies enforce the order of a schedule (see `schedule_order`). Replicas of a stage have their own variables and updates; see
`replica_rings`.

All micro-batches have the same number of samples. Whether the loss is a mean or a sum over samples follows from the graph
(`batch_values`), unless `reduction` is given. A loss that is divided by a number that follows from the inputs, such as the
number of counted words, is divided by the micro-batch's share of the undivided batch's number (`batch_totals`). Terms that do
not depend on the batch (a penalty on weights) count once per step. A warning names a loss that mixes samples in another way.
Statistics of the batch are computed per micro-batch. Random ops draw different numbers for every micro-batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ...errors import InvalidInput, UnknownNameError
from ...graph import OpGraph, Placement, Step, TensorSpec
from ...passes.all_reduce import ALL_REDUCE
from ...passes.roles import BACKWARD, UPDATE, roles
from ...passes.unroll import ACCUMULATE
from ...profilers.tensorflow.backward_pairing import is_backward
from ...profilers.tensorflow.function_bodies import variable_writes
from ...profilers.tensorflow.nodes import data_inputs, join, output_types, split
from ...profilers.tensorflow.prevent_fusion import prevent_fusion
from ...simulator.pipelined_graph import PipelinedGraph
from ..inputs import batch_axes
from .batch_totals import BatchTotals
from .batch_values import UNPROVEN, Samples, Total, ancestors, read_batch_values
from .gradient_comparison import MOST_BYTES, GradientRead, largest_difference, sample_batches
from .gradient_sums import Sums, Tensor, add_node, argument_names, constant, rows_tensors
from .loss_terms import Loss, loss_of, mixing_gradients, share_with_gradients, unproven_statistic
from .replica_rings import Rings, Shares
from .schedule_order import control_dependencies
from .sends import SUMS
from .session import PREFIX, parse_graph
from .undivided_graph import other_number_of_ops

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

REDUCTIONS = ("mean", "sum")

_ADDING = frozenset({"Add", "AddV2", "AddN", "Sub", "Pack"})
_LINEAR = _ADDING | {"Identity", "Cast", "Neg", "Mul", "Sum", "RealDiv", "DivNoNan"}
_FINITE = frozenset({"IsFinite", "IsInf", "IsNan"})
_LOGICAL = frozenset({"LogicalAnd", "LogicalOr", "LogicalNot"})
_STALE = ("_class", "_output_shapes")
"""Attributes that become wrong: names of original ops, and shapes, which are longer for updates of looked-up rows."""
_STREAM = 0x27D4EB2F
"""Difference between the seeds of micro-batches: odd and large, so that consecutive seeds of steps do not collide."""


def unrolled_step(
    step: Step,
    graph: OpGraph,
    placed: Placement,
    pipe: PipelinedGraph,
    reduction: str | None = None,
    axes: Mapping[str, int | None] | None = None,
    undivided: Step | None = None,
    batch: object | None = None,
) -> Step:
    """Returns `step`, whose graph is `graph` and placement `placed`, unrolled as in `pipe`.

    The inputs are those of micro-batch 0, then 1, ... The outputs are those of `step`: a float scalar is the mean (or sum) over
    micro-batches, an integer scalar the sum, and any other output is stacked with the micro-batch as first axis. Variables of
    replicas (`w/replica1`) follow the variables of `step`. `undivided` is the step of the undivided batch, if it is known, and
    `batch` its inputs: gradients are compared on them, or on samples of the example inputs.

    Raises:
        UnknownNameError: `reduction` is unknown.
        InvalidInput: an update reads a tensor of every micro-batch that cannot be added up.
    """
    if reduction not in (None, *REDUCTIONS):
        raise UnknownNameError.of("reduction", str(reduction), REDUCTIONS)
    axes = batch_axes(step, 1, None) if axes is None else axes
    axes = {split(name)[0]: axis for name, axis in axes.items()}
    undivided_graph = None if undivided is None else parse_graph(undivided.graph_def)
    unroller = _Unroller(step, graph, placed, pipe, reduction, axes, undivided_graph)
    unrolled = unroller.step()
    unroller.compare_gradients(unrolled, undivided, axes, batch)
    return unrolled


class _Unroller:
    """Unrolls one step; used once."""

    def __init__(
        self,
        step: Step,
        graph: OpGraph,
        placed: Placement,
        pipe: PipelinedGraph,
        reduction: str | None,
        axes: Mapping[str, int | None],
        undivided: GraphDef | None,
    ) -> None:
        self.source, self.graph, self.pipe, self.undivided = step, graph, pipe, undivided
        self.unrolled = pipe.graph
        self.origin = np.asarray(self.unrolled.copy_of).tolist()
        self.batch = np.asarray(self.unrolled.micro_batch).tolist()
        self.count = max([1, *(k + 1 for k in self.batch)])
        self.source_def = parse_graph(step.graph_def)
        self.nodes = {node.name: node for node in self.source_def.node}
        self.repeated = {
            graph.names[i]
            for i, k, kind in zip(self.origin, self.batch, self.unrolled.op_types, strict=True)
            if k >= 0 and kind != ACCUMULATE
        }
        self.shares = Shares(graph, placed)
        self.graph_def = type(self.source_def)()
        self.graph_def.versions.CopyFrom(self.source_def.versions)
        self.graph_def.library.CopyFrom(self.source_def.library)
        self.roles = roles(graph)
        self.warned = False
        self.unproven: list[str] = []  # warnings that are withdrawn if gradients turn out to be the undivided batch's
        self._refuse_early_updates()
        self.once = [name for name in self.nodes if name not in self.repeated]
        self.rows = rows_tensors(
            self.nodes, self.once, self.repeated, {f.signature.name: f for f in self.source_def.library.function}
        )
        self._read_batch(axes, reduction)
        self._refuse_samples()
        self._warn_of_statistics(axes)
        if self.count > 1:
            self._warn_of_sizes(axes)
        self.totals = BatchTotals(self.graph_def, self.values, self.repeated, self._name, self.count)
        self.portions: dict[str, str] = {}
        self.penalties = self._penalties() if self.reduction == "sum" else set()
        self.sums = Sums(
            self.graph_def, self.rows, self.count, self._is_averaged, self._sum_name, self._logical, SUMS.rstrip("/")
        )
        self.rings = Rings(
            graph_def=self.graph_def,
            graph=graph,
            unrolled=self.unrolled,
            shares=self.shares,
            sums=self.sums,
            gradients=self._gradients() if placed.replicas else {},
            copies=lambda name, output: [join(copy, output) for copy in self._names(name)],
            prefix=SUMS.rstrip("/"),
        )

    def step(self) -> Step:
        # A node for every op of the unrolled graph.
        for name, kind, i, k in zip(self.unrolled.names, self.unrolled.op_types, self.origin, self.batch, strict=True):
            if kind in (ACCUMULATE, ALL_REDUCE):
                continue  # added with its reader
            original = self.nodes[self.graph.names[i]]
            node = self.graph_def.node.add()
            node.CopyFrom(original)
            node.name = name
            for key in _STALE:
                node.attr.pop(key, None)
            del node.input[:]
            node.input.extend(self._inputs(original, k))
            if k > 0:
                self._reseed(node, k)
        places = {node.name: node for node in self.graph_def.node}
        # The control dependencies of the schedule.
        names = self.unrolled.names
        waits = control_dependencies(self.pipe)
        for op, predecessors in waits.items():
            places[names[op]].input.extend(f"^{names[k]}" for k in predecessors)
        if waits:
            prevent_fusion(self.graph_def, f"{PREFIX}/apart")
        self.totals.feed(places)
        source = self.source
        outputs = tuple(self._output(spec) for spec in source.outputs)
        inputs = [
            TensorSpec(self._fed_name(spec.name, k), spec.dtype, spec.shape)
            for k in range(self.count)
            for spec in source.inputs
        ]
        copies = [
            (TensorSpec(f"{name}:0", spec.dtype, spec.shape), value)
            for spec, value in zip(source.variables, source.initial_values, strict=True)
            for name in self._names(split(spec.name)[0])[1:]
        ]
        return Step(
            name=self.unrolled.name,
            graph_def=self.graph_def.SerializeToString(deterministic=True),
            inputs=tuple(inputs),
            outputs=outputs,
            example_inputs=source.example_inputs * self.count,
            variables=(*source.variables, *(spec for spec, _ in copies)),
            initial_values=(*source.initial_values, *(value for _, value in copies)),
            slots=source.slots,
            updates=tuple(name for update in source.updates for name in self._names(split(update)[0])),
            info={**source.info, "micro_batches": self.count},
        )

    # -- what micro-batches are to the undivided batch ------------------------------------------------------------------

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
        differentiated = {self.graph.names[i] for i in set(self.graph.forward_of.tolist()) if i >= 0}
        scalar_outputs = {
            split(spec.name)[0] for spec in self.source.outputs if not spec.shape and "float" in spec.dtype
        }
        # Gradients that lead to the returned loss, as those of a gradient penalty, are forward ops. The lists that a loop
        # fills for its gradient lead to the loss as well, but do not follow from what is differentiated.
        leads_to_loss = ancestors(self.nodes, names, scalar_outputs)
        leads_to_loss = ancestors(self.nodes, names, leads_to_loss & differentiated - backward - update)
        follows = differentiated - backward
        for name in names:
            if any(producer in follows for producer, _ in data_inputs(self.nodes[name])):
                follows.add(name)
        backward -= ancestors(self.nodes, names, backward & leads_to_loss & follows)
        self.forward = dict.fromkeys(name for name in names if name not in backward | update)
        self.values = read_batch_values(self.source_def, list(self.forward), axes, self.count, undivided=self.undivided)
        share_with_gradients(self.values, [name for name in self.graph.names if name in backward])
        self.trains = bool(differentiated)
        loss = loss_of(self.values, list(self.forward), differentiated or scalar_outputs, scalar_outputs)
        self.loss_terms = set(loss.terms)
        for name in reversed(self.forward):
            if name in self.loss_terms and self.nodes[name].op == "Identity":
                self.loss_terms.add(next(data_inputs(self.nodes[name]))[0])
        powers = {value.power if isinstance(value, Total) and value.exact else None for value in loss.terms.values()}
        self.reduction = reduction or ("sum" if powers == {1} and not loss.unclear else "mean")
        if self.count == 1:
            self.values.shared.clear()
        elif loss.terms and self.source.updates:
            self._warn_of_reduction(loss, powers, reduction)
            self._warn_of_mixing_gradients(loss, axes)

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

    def _warn_of_reduction(self, loss: Loss, powers: set[int | None], reduction: str | None) -> None:
        """Warns about a loss that is not proven to be the mean or the sum of its micro-batches' losses; it may be intended."""
        label, name = self.source.name, list(loss.terms)[-1]
        other_ops = None if self.undivided is None else other_number_of_ops(self.source_def, self.undivided)
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

    def _warn(self, message: str, stacklevel: int) -> None:
        self.warned = True
        warnings.warn(message, stacklevel=stacklevel + 1)

    def compare_gradients(
        self, unrolled: Step, undivided: Step | None, axes: Mapping[str, int | None], batch: object | None
    ) -> None:
        """Computes what updates read from the backward pass, and warns if it is not what the undivided batch gives.

        Warnings of what the graph does not show are withdrawn if it is, on `batch` and on samples of the example inputs.
        """
        if self.warned:
            return
        batches = [batch, None] if self.unproven and batch is not None else [batch]
        differences = [self._gradient_difference(unrolled, undivided, axes, inputs) for inputs in batches]
        if self.unproven:
            if not all(difference is not None and difference[1] == 0 for difference in differences):
                self._warn(self.unproven[0], 5)
        elif differences[0] is not None and differences[0][1] > 0:
            op, share = differences[0]
            batch_name = "samples of the example inputs" if batch is None else "the first batch"
            message = (
                f"gradients of step {self.source.name!r} in micro-batches are not those of the undivided batch: what op "
                f"{op!r} reads differs by {share:.1%}, computed on {batch_name}"
            )
            self._warn(message, 5)

    def _gradient_difference(
        self, unrolled: Step, undivided: Step | None, axes: Mapping[str, int | None], batch: object | None
    ) -> tuple[str, float] | None:
        """Returns the op whose gradient differs most and by how much, see `largest_difference`; None if it is not known."""
        if undivided is None or self.values.normalizes:
            return None  # statistics of the batch are warned of
        tensor_bytes = self.count * int(self.graph.tensor_bytes.sum())
        if max(tensor_bytes, undivided.parameter_bytes) > MOST_BYTES:
            return None
        gradients = {name for name, kind in zip(self.graph.names, self.roles, strict=True) if kind == BACKWARD}
        reads = [
            GradientRead(name, position, tensor in self.rows)
            for name in self.once
            for position, tensor in enumerate(data_inputs(self.nodes[name]))
            if tensor[0] in self.repeated & gradients and self._is_float(tensor)
        ]
        axis_of_input = [axes.get(split(spec.name)[0]) for spec in self.source.inputs]
        arrays = sample_batches(self.source, axis_of_input, self.count, batch)
        return largest_difference(unrolled, undivided, arrays, axis_of_input, reads)

    def _is_float(self, tensor: Tensor) -> bool:
        import tensorflow as tf

        return bool(tf.dtypes.as_dtype(output_types(self.nodes[tensor[0]])[tensor[1]]).is_floating)

    def _refuse_samples(self) -> None:
        """Raises `InvalidInput` if an op that runs once reads a tensor with an entry per sample, except for table rows."""
        if self.count == 1:
            return
        weights = {tuple(spec.shape) for spec in self.source.variables}
        for name in self.once:
            for tensor in data_inputs(self.nodes[name]):
                if tensor in self.rows or tensor[0] not in self.repeated:
                    continue
                value, shape = self.values.of(tensor), self.values.shape(tensor)
                of_samples = isinstance(value, Samples) and (
                    value.axis is not None or self.nodes[tensor[0]].op == "Placeholder"
                )
                if shape and tensor[0] not in self.forward and self.values.batch > 1 and shape not in weights:
                    of_samples |= shape[0] == self.values.batch and shape[1:] in weights  # a gradient per sample
                if of_samples:
                    raise InvalidInput(
                        f"op {name!r} of step {self.source.name!r}, which runs once per step, reads {tensor[0]!r}, which has an "
                        "entry per sample and differs from micro-batch to micro-batch; compute gradients before what is "
                        "conditional, and update variables from gradients or statistics alone"
                    )

    def _warn_of_statistics(self, axes: Mapping[str, int | None]) -> None:
        """Warns of a number that updates read, other than gradients, if it is not proven to be that of the undivided batch."""
        read = {
            tensor: name for name in self.once for tensor in data_inputs(self.nodes[name]) if tensor[0] in self.forward
        }
        tensors = [t for t in read if t[0] in self.repeated and t not in self.rows and t[0] not in self.loss_terms]
        if self.count == 1 or not tensors:
            return
        forward = list(self.forward)
        values = read_batch_values(self.source_def, forward, axes, self.count, axes, self.undivided)
        statistic = unproven_statistic(values, forward, tensors)
        if statistic is not None:
            message = (
                f"op {read[statistic]!r} of step {self.source.name!r} reads the number {statistic[0]!r} of every micro-batch, "
                "which may be no mean over the batch: floats are averaged and integers are added, and what the op writes may "
                "differ from the undivided batch's"
            )
            self._warn(message, 6)

    def _warn_of_sizes(self, axes: Mapping[str, int | None]) -> None:
        """Warns of an update that reads the number of samples. It runs once per step, but the number is a micro-batch's."""
        entries = {self.values.batch} | {prod(shape) for shape in map(self.values.shape, self.values.inputs) if shape}
        counts: set[str] = set()
        for name in self.once:
            node = self.nodes[name]
            sources = list(data_inputs(node))
            written = self.nodes[sources[-1][0]] if node.op == "AssignVariableOp" else node
            reads = [self.nodes[source] for source, _ in data_inputs(written)]
            adds_to_itself = written.op in _ADDING and any(
                read.op == "ReadVariableOp" and read.input[0] == node.input[0] for read in reads
            )
            adds = node.op.startswith("AssignAdd") or adds_to_itself
            added = [self.values.constant(tensor) for tensor in data_inputs(written)] if adds else []
            if self.undivided is not None:
                reads_size = isinstance(self.values.of_batch_size((name, 0)), Total)
            else:
                reads_size = any(
                    a is not None and a.size == 1 and a.item() > 1 and a.item() in entries for a in added
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

    def _is_averaged(self, tensor: Tensor) -> bool:
        """Whether updates read the mean of `tensor` over micro-batches instead of the sum.

        Statistics that are no gradients are always averaged, because a metric may divide by a constant number of samples.
        """
        if self.trains and tensor[0] in self.forward and tensor[0] not in self.loss_terms:
            return True
        return self.reduction == "mean" or tensor[0] not in self._varying

    def _is_mean(self, tensor: Tensor) -> bool:
        """Whether the step returns the mean of `tensor` over micro-batches instead of the sum."""
        value = self.values.of(tensor)
        if isinstance(value, Total) and value.power in (0, 1) and (value.exact or value.share is not None):
            return value.power == 0
        return self.reduction == "mean" or tensor[0] not in self._varying

    @cached_property
    def _varying(self) -> set[str]:
        """The ops whose outputs differ between micro-batches, including backward ops."""
        varying = {name for name, _ in self.values.values}
        for name in (self.graph.names[i] for i in self.graph.order.tolist()):
            if any(source in varying for source, _ in data_inputs(self.nodes[name])):
                varying.add(name)
        return varying

    def _penalties(self) -> set[tuple[str, Tensor]]:
        """Returns (op, input) of terms that are the same for all micro-batches, within gradients and losses that are summed."""
        penalties: set[tuple[str, Tensor]] = set()
        gradients = [
            tensor for name in self.once for tensor in data_inputs(self.nodes[name]) if tensor not in self.rows
        ]
        waiting = [tensor for tensor in gradients if not self._is_averaged(tensor)]
        waiting += [tensor for spec in self.source.outputs if not self._is_mean(tensor := split(spec.name))]
        visited: set[Tensor] = set()
        while waiting:
            tensor = waiting.pop()
            node = self.nodes[tensor[0]]
            if tensor in visited or node.name not in self.repeated or node.op not in _LINEAR:
                continue
            visited.add(tensor)
            for source in data_inputs(node):
                if source[0] in self._varying:
                    waiting.append(source)
                elif node.op in _ADDING:
                    penalties.add((node.name, source))
        return penalties

    def _refuse_early_updates(self) -> None:
        """Raises `InvalidInput` if a repeated op writes a variable: others would read it meanwhile. Random states are allowed."""
        import tensorflow as tf

        if self.count == 1:
            return
        for name in self.repeated:
            for op in variable_writes(self.source_def, self.nodes[name]):
                kind = tf.dtypes.as_dtype(op.attr["dtype"].type or op.attr["T"].type)
                if kind.is_floating or kind.is_complex:
                    raise InvalidInput(
                        f"op {name!r} of step {self.source.name!r} writes a variable that gradients of the same step wait for; "
                        "micro-batches need a step that writes variables behind all gradients (a graph from an earlier release "
                        "does not know conditional updates: profile the step again)"
                    )

    def _logical(self, name: str) -> str | None:
        """Returns the op that combines a boolean over micro-batches (all finite, any sample of a kind); None if unknown."""
        node = self.nodes[name]
        tensors = list(data_inputs(node))
        sources = [source for source, _ in tensors]
        of_samples = bool(tensors) and isinstance(self.values.of(tensors[0]), Samples)
        if node.op in _FINITE or (node.op in ("All", "Any") and (of_samples or self.nodes[sources[0]].op in _FINITE)):
            return "LogicalAnd" if node.op in ("All", "IsFinite") else "LogicalOr"
        inner = {self._logical(source) for source in sources} if node.op in _LOGICAL else {None}
        if node.op == "LogicalNot":
            return {"LogicalAnd": "LogicalOr", "LogicalOr": "LogicalAnd"}.get(str(inner.pop()))
        return node.op if inner == {node.op} else None

    # -- names -------------------------------------------------------------------------------------------------------

    def _name(self, name: str, k: int) -> str:
        """Returns the name of copy `k` of an op: of micro-batch `k`, or for an op that runs once, of replica `k`."""
        if name in self.repeated:
            return f"{name}/mb{k}" if self.count > 1 else name
        return f"{name}/replica{k}" if k > 0 else name

    def _names(self, name: str) -> list[str]:
        return [self._name(name, k) for k in range(self.count if name in self.repeated else self.shares.width(name))]

    def _gradients(self) -> dict[Tensor, int]:
        """Returns tensor -> type of the tensors of replicated stages that ops which run once read from micro-batches."""
        read = (tensor for name in self.once for tensor in data_inputs(self.nodes[name]) if tensor[0] in self.repeated)
        shared = (tensor for tensor in read if self.shares.group(tensor[0]) >= 0)
        return {(name, output): output_types(self.nodes[name])[output] for name, output in shared}

    def _fed_name(self, reference: str, k: int) -> str:
        name, output = split(reference)
        copied_name = self._name(name, k if name in self.repeated else 0)
        return f"{self.totals.fed.get(copied_name, copied_name)}:{max(output, 0)}"

    def _sum_name(self, name: str, output: int, k: int) -> str | None:
        """Returns the name of the op in the unrolled graph that accumulates micro-batch `k`; None if there is none."""
        for position, tensor in enumerate(self.graph.outputs(self.graph.index[name])):
            if self.graph.tensor_names[tensor] == str(output):
                sum_name = f"{name}/accumulate{position}/mb{k}"
                return sum_name if sum_name in self.unrolled.index else None
        return None

    # -- copies ------------------------------------------------------------------------------------------------------

    def _inputs(self, original: NodeDef, k: int) -> Iterator[str]:
        """Yields the inputs of a copy; `k` is -1 - r for an op that replica r runs once."""
        controls = []
        for reference in original.input:
            name, output = split(reference)
            is_repeated = name in self.repeated
            at = k if is_repeated else self.shares.replica(name, original.name, k)
            if output < 0:
                controls += (
                    self._awaited_copies(name, original.name, k) if is_repeated and k < 0 else [self._name(name, at)]
                )
            elif k >= 0 and self.totals.enters((name, output), original.name):
                yield self.totals.share((name, output))
            elif k >= 0 and (original.name, (name, output)) in self.penalties:
                # One micro-batch's share of a term that is the same for all.
                import tensorflow as tf

                dtype = output_types(self.nodes[name])[output]
                base = f"{PREFIX}/portion/{original.name}/{name}/{output}/mb{at}"
                if base not in self.portions:
                    inverse_count = constant(
                        self.graph_def,
                        f"{base}/part",
                        tf.constant(1.0 / self.count, tf.float64),
                        tf.dtypes.as_dtype(dtype),
                    )
                    whole_term = join(self._name(name, at), output)
                    self.portions[base] = add_node(self.graph_def, "Mul", base, [whole_term, inverse_count], T=dtype)
                yield self.portions[base]
            elif k >= 0 or not is_repeated:
                yield join(self._name(name, at), output)
            else:
                yield self._summed_output(name, output, self.shares.replica(name, original.name, k))
        yield from (join(name, -1) for name in dict.fromkeys(controls))

    def _awaited_copies(self, name: str, reader: str, k: int) -> list[str]:
        """Returns the copies of `name` for which an op that runs once waits: all, or on a replica its own."""
        together = self.shares.group(name) >= 0 and self.shares.group(name) == self.shares.group(reader)
        return self._names(name)[-1 - k :: self.shares.width(name)] if together else self._names(name)

    def _summed_output(self, name: str, output: int, replica: int) -> str:
        copies = [join(copy, output) for copy in self._names(name)]
        is_same = name not in self._varying and (name, output) not in self.rows and not self._is_float((name, output))
        if self.count == 1 or is_same:
            return copies[0]  # a number that is the same for all micro-batches is not added up
        if self.shares.group(name) >= 0:
            return self.rings.of((name, output), replica)
        return self.sums.of((name, output), output_types(self.nodes[name])[output], copies)

    def _reseed(self, node: NodeDef, k: int) -> None:
        """Changes the seeds of micro-batch `k`. TensorFlow draws seeds of 0 for every op."""
        import tensorflow as tf

        if "seed2" in node.attr and (node.attr["seed"].i or node.attr["seed2"].i):
            node.attr["seed2"].i = (node.attr["seed2"].i + k * _STREAM) & 0x7FFFFFFF
        arguments = argument_names(node)
        if node.op.startswith("Stateless") and "seed" in arguments:
            at, kind = arguments.index("seed"), tf.dtypes.as_dtype(node.attr["Tseed"].type)
            shift = np.array([k * _STREAM & 0x3FFFFFFF, 0])
            shift_node = constant(
                self.graph_def, f"{PREFIX}/seed/{node.name}/shift", tf.constant(shift, tf.int64), kind
            )
            shifted_seed = self.graph_def.node.add(op="AddV2", name=f"{PREFIX}/seed/{node.name}")
            shifted_seed.input.extend([node.input[at], shift_node])
            shifted_seed.attr["T"].type = kind.as_datatype_enum
            node.input[at] = shifted_seed.name

    # -- outputs -----------------------------------------------------------------------------------------------------

    def _output(self, spec: TensorSpec) -> TensorSpec:
        name, output = self._before_updates(*split(spec.name))
        if name not in self.repeated or self.count == 1:
            return TensorSpec(f"{name}:{output}", spec.dtype, spec.shape)
        dtype = output_types(self.nodes[name])[output]
        copies = [join(copy, output) for copy in self._names(name)]
        if not spec.shape and not spec.dtype.startswith(("bool", "string")):
            combined = self.sums.of((name, output), dtype, copies, averaged=self._is_mean((name, output)))
            return TensorSpec(combined if ":" in combined else f"{combined}:0", spec.dtype, ())
        node = self.graph_def.node.add(op="Pack", name=f"{PREFIX}/output/{name}/{output}")
        node.input.extend(copies)
        node.attr["T"].type, node.attr["N"].i, node.attr["axis"].i = dtype, len(copies), 0
        return TensorSpec(f"{node.name}:0", spec.dtype, (self.count, *spec.shape))

    def _before_updates(self, name: str, output: int) -> tuple[str, int]:
        """Skips the Identity ops that only wait for the updates."""
        while name not in self.repeated and self.nodes[name].op == "Identity":
            before = next(data_inputs(self.nodes[name]))
            if before[0] not in self.repeated and self.nodes[before[0]].op != "Identity":
                break
            name, output = before
        return name, output
