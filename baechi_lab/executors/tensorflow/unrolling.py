"""A traced step of one micro-batch -> the step of several, as TensorFlow runs it.

The same ops under the same names as `bl.unroll` gives them: forward and backward ops once per micro-batch, variables and
updates once, gradients accumulated. What a mean over the batch needs besides is added under `baechi_lab/`: sums of
gradients are divided by the number of micro-batches. The order of a schedule is told to TensorFlow by control
dependencies (see `ordering`). Replicas of a stage have variables and updates of their own; see `ringing`.

Every micro-batch has equally many samples. Whether the loss is a mean or a sum over them is read from the graph
(`batch_values`), unless `reduction` says it. A loss that is divided by a number that the inputs tell, such as the words that
count, is divided by the micro-batch's share of the undivided batch's number (`batch_totals`). Terms that do not look at the
batch (a penalty on weights) count once per step. A loss that mixes samples otherwise is warned of; statistics of the batch
are those of the micro-batch. Random ops draw other numbers for every micro-batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from ...errors import InvalidInput, UnknownNameError
from ...graph import OpGraph, Placement
from ...graph.step import Step, TensorSpec
from ...passes.all_reduce import ALL_REDUCE
from ...passes.roles import UPDATE, roles
from ...passes.unroll import ACCUMULATE
from ...profilers.tensorflow.apart import keep_apart
from ...profilers.tensorflow.bodies import writes
from ...profilers.tensorflow.nodes import data_inputs, join, output_types, split
from ...profilers.tensorflow.pairing import is_backward
from ...simulator.pipelined_graph import PipelinedGraph
from ..inputs import batch_axes
from .accumulating import Sums, Tensor, argument_names, constant, made_node, rows_tensors
from .batch_totals import BatchTotals
from .batch_values import Loss, Samples, Total, loss_of, read_batch_values, share_with_gradients
from .ordering import waits_of
from .ringing import Rings, Shares
from .sends import SUMS
from .session import PREFIX, parse_graph

REDUCTIONS = ("mean", "sum")

_ADDING = frozenset({"Add", "AddV2", "AddN", "Sub", "Pack"})
_LINEAR = _ADDING | {"Identity", "Cast", "Neg", "Mul", "Sum", "RealDiv", "DivNoNan"}
_FINITE = frozenset({"IsFinite", "IsInf", "IsNan"})
_LOGICAL = frozenset({"LogicalAnd", "LogicalOr", "LogicalNot"})
_STALE = ("_class", "_output_shapes")
"""Attributes that name ops by their old names, and shapes of which updates of looked-up rows see longer ones."""
_STREAM = 0x27D4EB2F
"""Distance between the seeds of micro-batches: odd and large, so that counting seeds of steps do not meet them."""


def unrolled_step(
    step: Step, graph: OpGraph, placed: Placement, pipe: PipelinedGraph, reduction: str | None = None,
    axes: Mapping[str, int | None] | None = None,
) -> Step:  # fmt: skip
    """The step that `pipe` makes of `step`, whose graph is `graph`, placed as `placed`.

    Its inputs are those of micro-batch 0, then 1, ...; its outputs those of `step`: a float scalar is the mean (or sum)
    over micro-batches, an integer scalar the sum, anything else is stacked with the micro-batch as first axis. Behind its
    variables come those of replicas (`w/replica1`).

    Raises:
        UnknownNameError: `reduction` is none.
        InvalidInput: an update reads something of every micro-batch that cannot be added up.
    """
    if reduction not in (None, *REDUCTIONS):
        raise UnknownNameError.of("reduction", str(reduction), REDUCTIONS)
    axes = batch_axes(step, 1, None) if axes is None else axes
    return _Unroller(step, graph, placed, pipe, reduction, {split(name)[0]: axis for name, axis in axes.items()}).step()


class _Unroller:
    """One step's copies; made and used once."""

    def __init__(
        self, step: Step, graph: OpGraph, placed: Placement, pipe: PipelinedGraph, reduction: str | None,
        axes: Mapping[str, int | None],
    ) -> None:  # fmt: skip
        self.source, self.graph, self.pipe = step, graph, pipe
        self.whole = pipe.graph
        self.origin = np.asarray(self.whole.copy_of).tolist()
        self.batch = np.asarray(self.whole.micro_batch).tolist()
        self.count = max([1, *(k + 1 for k in self.batch)])
        self.read = parse_graph(step.graph_def)
        self.nodes = {node.name: node for node in self.read.node}
        self.repeated = {
            graph.names[i]
            for i, k, kind in zip(self.origin, self.batch, self.whole.op_types, strict=True)
            if k >= 0 and kind != ACCUMULATE
        }
        self.shares = Shares(graph, placed)
        self.made = type(self.read)()
        self.made.versions.CopyFrom(self.read.versions)
        self.made.library.CopyFrom(self.read.library)
        self._refuse_early_updates()
        once = [name for name in self.nodes if name not in self.repeated]
        rows = rows_tensors(self.nodes, once, self.repeated, {f.signature.name: f for f in self.read.library.function})
        self._read_batch(axes, reduction)
        self._refuse_samples(once, rows)
        self.totals = BatchTotals(self.made, self.values, self.repeated, self._name, self.count)
        self.portions: dict[str, str] = {}
        self.penalties = self._penalties(once, rows) if self.reduction == "sum" else set()
        self.sums = Sums(
            self.made, rows, self.count, self._is_averaged, self._sum_name, self._logical, SUMS.rstrip("/")
        )  # fmt: skip
        self.rings = Rings(
            self.made, graph, self.whole, self.shares, self.sums, self._gradients(once) if placed.replicas else {},
            lambda name, output: [join(copy, output) for copy in self._names(name)], SUMS.rstrip("/"),
        )  # fmt: skip

    def step(self) -> Step:
        """The unrolled step."""
        places = self._copy_all()
        self._order(places)
        self.totals.feed(places)
        old = self.source
        outputs = tuple(self._output(spec) for spec in old.outputs)
        inputs = [
            TensorSpec(self._fed(spec.name, k), spec.dtype, spec.shape)
            for k in range(self.count)
            for spec in old.inputs
        ]
        copies = [
            (TensorSpec(f"{name}:0", spec.dtype, spec.shape), value)
            for spec, value in zip(old.variables, old.initial_values, strict=True)
            for name in self._names(split(spec.name)[0])[1:]
        ]
        return Step(
            name=self.whole.name,
            graph_def=self.made.SerializeToString(deterministic=True),
            inputs=tuple(inputs),
            outputs=outputs,
            example_inputs=old.example_inputs * self.count,
            variables=(*old.variables, *(spec for spec, _ in copies)),
            initial_values=(*old.initial_values, *(value for _, value in copies)),
            slots=old.slots,
            updates=tuple(name for update in old.updates for name in self._names(split(update)[0])),
            info={**old.info, "micro_batches": self.count},
        )

    # -- what micro-batches are to the undivided batch ------------------------------------------------------------------

    def _read_batch(self, axes: Mapping[str, int | None], reduction: str | None) -> None:
        """Follow the batch through the forward ops; decides how gradients are joined, and warns where none is right."""
        role = roles(self.graph)
        backward = [
            k >= 0 or is_backward(name)
            for k, name in zip(self.graph.forward_of.tolist(), self.graph.names, strict=True)
        ]
        order = [i for i in self.graph.order.tolist() if not backward[i] and role[i] != UPDATE]
        self.forward = dict.fromkeys(self.graph.names[i] for i in order)
        self.values = read_batch_values(self.read, list(self.forward), axes, self.count)
        share_with_gradients(
            self.values, [name for name, later in zip(self.graph.names, backward, strict=True) if later]
        )
        differentiated = {self.graph.names[i] for i in set(self.graph.forward_of.tolist()) if i >= 0}
        self.trains = bool(differentiated)
        returned = {split(spec.name)[0] for spec in self.source.outputs if not spec.shape and "float" in spec.dtype}
        loss = loss_of(self.values, list(self.forward), differentiated or returned, returned)
        powers = {value.power if isinstance(value, Total) and value.exact else None for value in loss.terms.values()}
        self.reduction = reduction or ("sum" if powers == {1} and not loss.unclear else "mean")
        if self.count == 1:
            self.values.shared.clear()
        elif loss.terms and self.source.updates:
            self._warn_of_reduction(loss, powers, reduction)

    def _warn_of_reduction(self, loss: Loss, powers: set[int | None], reduction: str | None) -> None:
        """A loss that is neither a mean nor a sum of its micro-batches' is no error: only its user knows what it means."""
        label, name = self.source.name, list(loss.terms)[-1]
        while self.nodes[name].op == "Identity":
            name = next(data_inputs(self.nodes[name]))[0]
        if loss.problems or (
            powers not in ({0}, {1}) and any(isinstance(value, Total) for value in loss.terms.values())
        ):
            name, reason = next(iter(loss.problems.items()), (name, "combines the samples of the batch otherwise"))
            message = (
                f"the loss of step {label!r} is neither the mean nor the sum of its micro-batches' losses, as op {name!r} "
                f"{reason}: gradients are those of the {self.reduction}, not those of the undivided batch"
            )
        elif powers == {1} and loss.unclear and reduction is None:
            name, reason = next(iter(loss.unclear.items()))
            message = (
                f"op {name!r} of step {label!r} {reason}, and the graph does not say whether the loss is then a mean: gradients "
                "are averaged over micro-batches; give reduction='mean' or 'sum'"
            )
        elif powers not in ({0}, {1}) and reduction is None:
            message = (
                f"step {label!r} does not return its loss, so whether that is a mean or a sum over the batch is not known: "
                "gradients are averaged over micro-batches; return the loss, or give reduction='mean' or 'sum'"
            )
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
        warnings.warn(message, stacklevel=7)

    def _refuse_samples(self, once: list[str], rows: set[Tensor]) -> None:
        """What has an entry per sample cannot be read by an update of all micro-batches, but for rows of tables."""
        if self.count == 1:
            return
        for name in once:
            for tensor in data_inputs(self.nodes[name]):
                value = self.values.of(tensor)
                if not isinstance(value, Samples) or tensor in rows or tensor[0] not in self.repeated:
                    continue
                if value.axis is not None or self.nodes[tensor[0]].op == "Placeholder":
                    raise InvalidInput(
                        f"op {name!r} of step {self.source.name!r}, which runs once per step, reads {tensor[0]!r}, which has an "
                        "entry per sample and differs from micro-batch to micro-batch; compute gradients before what is "
                        "conditional, and update variables from gradients or statistics alone"
                    )

    def _is_averaged(self, tensor: Tensor) -> bool:
        """Whether updates read the mean of the micro-batches' `tensor`, else their sum.

        Statistics that are no gradients are averaged in any case: a metric may divide one by a constant number of samples.
        """
        return self.reduction == "mean" or tensor[0] not in self._varying or (self.trains and tensor[0] in self.forward)

    def _is_mean(self, tensor: Tensor) -> bool:
        """Whether the step returns the mean of the micro-batches' `tensor`, else their sum."""
        value = self.values.of(tensor)
        if isinstance(value, Total) and value.power in (0, 1) and (value.exact or value.share is not None):
            return value.power == 0
        return self.reduction == "mean" or tensor[0] not in self._varying

    @cached_property
    def _varying(self) -> set[str]:
        """Ops that differ from micro-batch to micro-batch, backward ops included."""
        found = {name for name, _ in self.values.values}
        for name in (self.graph.names[i] for i in self.graph.order.tolist()):
            if any(source in found for source, _ in data_inputs(self.nodes[name])):
                found.add(name)
        return found

    def _penalties(self, once: list[str], rows: set[Tensor]) -> set[tuple[str, Tensor]]:
        """(op, input): terms that are the same for all micro-batches, added to gradients and losses that are added up."""
        found: set[tuple[str, Tensor]] = set()
        gradients = [tensor for name in once for tensor in data_inputs(self.nodes[name]) if tensor not in rows]
        waiting = [tensor for tensor in gradients if not self._is_averaged(tensor)]
        waiting += [tensor for spec in self.source.outputs if not self._is_mean(tensor := split(spec.name))]
        seen: set[Tensor] = set()
        while waiting:
            tensor = waiting.pop()
            node = self.nodes[tensor[0]]
            if tensor in seen or node.name not in self.repeated or node.op not in _LINEAR:
                continue
            seen.add(tensor)
            for source in data_inputs(node):
                if source[0] in self._varying:
                    waiting.append(source)
                elif node.op in _ADDING:
                    found.add((node.name, source))
        return found

    def _refuse_early_updates(self) -> None:
        """Each micro-batch would write the variable, and others read it meanwhile. Random generators may keep a state."""
        import tensorflow as tf

        if self.count == 1:
            return
        for name in self.repeated:
            for op in writes(self.read, self.nodes[name]):
                kind = tf.dtypes.as_dtype(op.attr["dtype"].type or op.attr["T"].type)
                if kind.is_floating or kind.is_complex:
                    raise InvalidInput(
                        f"op {name!r} of step {self.source.name!r} writes a variable that gradients of the same step wait for; "
                        "micro-batches need a step that writes variables behind all gradients (a graph from an earlier release "
                        "does not know conditional updates: profile the step again)"
                    )

    def _logical(self, name: str) -> str | None:
        """How the answers of micro-batches to one question make the whole batch's: is all of it finite, is any of it not?"""
        node = self.nodes[name]
        sources = [source for source, _ in data_inputs(node)]
        if node.op in _FINITE or (node.op in ("All", "Any") and self.nodes[sources[0]].op in _FINITE):
            return "LogicalAnd" if node.op in ("All", "IsFinite") else "LogicalOr"
        inner = {self._logical(source) for source in sources} if node.op in _LOGICAL else {None}
        if node.op == "LogicalNot":
            return {"LogicalAnd": "LogicalOr", "LogicalOr": "LogicalAnd"}.get(str(inner.pop()))
        return node.op if inner == {node.op} else None

    # -- names -------------------------------------------------------------------------------------------------------

    def _name(self, name: str, k: int) -> str:
        """Copy `k` of op `name`: of micro-batch `k`, or on replica `k` what is done once; one of each is the graph itself."""
        if name in self.repeated:
            return f"{name}/mb{k}" if self.count > 1 else name
        return f"{name}/replica{k}" if k > 0 else name

    def _names(self, name: str) -> list[str]:
        """All copies."""
        return [self._name(name, k) for k in range(self.count if name in self.repeated else self.shares.width(name))]

    def _gradients(self, once: list[str]) -> dict[Tensor, int]:
        """What ops that are done once read of every micro-batch of a stage with replicas, with its type."""
        read = (tensor for name in once for tensor in data_inputs(self.nodes[name]) if tensor[0] in self.repeated)
        shared = (tensor for tensor in read if self.shares.group(tensor[0]) >= 0)
        return {(name, output): output_types(self.nodes[name])[output] for name, output in shared}

    def _tensor(self, reference: str, k: int) -> str:
        name, output = split(reference)
        return f"{self._name(name, k if name in self.repeated else 0)}:{max(output, 0)}"

    def _fed(self, reference: str, k: int) -> str:
        name, _, output = self._tensor(reference, k).partition(":")
        return f"{self.totals.fed.get(name, name)}:{output}"

    def _sum_name(self, name: str, output: int, k: int) -> str | None:
        """The accumulating op of the unrolled graph, for micro-batch `k`."""
        for position, tensor in enumerate(self.graph.outputs(self.graph.index[name])):
            if self.graph.tensor_names[tensor] == str(output):
                found = f"{name}/accumulate{position}/mb{k}"
                return found if found in self.whole.index else None
        return None

    # -- copies ------------------------------------------------------------------------------------------------------

    def _copy_all(self) -> dict[str, Any]:
        """Every op of the unrolled graph as a node, by name."""
        for name, kind, i, k in zip(self.whole.names, self.whole.op_types, self.origin, self.batch, strict=True):
            if kind in (ACCUMULATE, ALL_REDUCE):
                continue  # made with what reads it
            old = self.nodes[self.graph.names[i]]
            node = self.made.node.add()
            node.CopyFrom(old)
            node.name = name
            for key in _STALE:
                node.attr.pop(key, None)
            del node.input[:]
            node.input.extend(self._inputs(old, k))
            if k > 0:
                self._reseed(node, k)
        return {node.name: node for node in self.made.node}

    def _inputs(self, old: Any, k: int) -> Iterator[str]:
        """The inputs of a copy; `k` is -1 - r for what replica r does once."""
        controls = []
        for reference in old.input:
            name, output = split(reference)
            again = name in self.repeated
            at = k if again else self.shares.replica(name, old.name, k)
            if output < 0:
                controls += self._awaited(name, old.name, k) if again and k < 0 else [self._name(name, at)]
            elif k >= 0 and self.totals.enters((name, output), old.name):
                yield self.totals.share((name, output))
            elif k >= 0 and (old.name, (name, output)) in self.penalties:
                yield self._portion(old.name, (name, output), at)
            elif k >= 0 or not again:
                yield join(self._name(name, at), output)
            else:
                yield self._summed(name, output, self.shares.replica(name, old.name, k))
        yield from (join(name, -1) for name in dict.fromkeys(controls))

    def _portion(self, reader: str, tensor: Tensor, k: int) -> str:
        """One micro-batch's part of a term that all have in common."""
        import tensorflow as tf

        dtype = output_types(self.nodes[tensor[0]])[tensor[1]]
        base = f"{PREFIX}/portion/{reader}/{tensor[0]}/{tensor[1]}/mb{k}"
        if base not in self.portions:
            part = constant(
                self.made, f"{base}/part", tf.constant(1.0 / self.count, tf.float64), tf.dtypes.as_dtype(dtype)
            )
            whole = join(self._name(tensor[0], k), tensor[1])
            self.portions[base] = made_node(self.made, "Mul", base, [whole, part], T=dtype)
        return self.portions[base]

    def _awaited(self, name: str, reader: str, k: int) -> list[str]:
        """The micro-batches for which what is done once waits: all, on a replica its own."""
        together = self.shares.group(name) >= 0 and self.shares.group(name) == self.shares.group(reader)
        return self._names(name)[-1 - k :: self.shares.width(name)] if together else self._names(name)

    def _summed(self, name: str, output: int, replica: int) -> str:
        parts = [join(copy, output) for copy in self._names(name)]
        if self.count == 1:
            return parts[0]
        if self.shares.group(name) >= 0:
            return self.rings.of((name, output), replica)
        return self.sums.of((name, output), output_types(self.nodes[name])[output], parts)

    def _reseed(self, node: Any, k: int) -> None:
        """Other random numbers than those of micro-batch 0; seeds of 0 are drawn by TensorFlow for every op."""
        import tensorflow as tf

        if "seed2" in node.attr and (node.attr["seed"].i or node.attr["seed2"].i):
            node.attr["seed2"].i = (node.attr["seed2"].i + k * _STREAM) & 0x7FFFFFFF
        arguments = argument_names(node)
        if node.op.startswith("Stateless") and "seed" in arguments:
            at, kind = arguments.index("seed"), tf.dtypes.as_dtype(node.attr["Tseed"].type)
            shift = np.array([k * _STREAM & 0x3FFFFFFF, 0])
            added = constant(self.made, f"{PREFIX}/seed/{node.name}/shift", tf.constant(shift, tf.int64), kind)
            moved = self.made.node.add(op="AddV2", name=f"{PREFIX}/seed/{node.name}")
            moved.input.extend([node.input[at], added])
            moved.attr["T"].type = kind.as_datatype_enum
            node.input[at] = moved.name

    # -- order -------------------------------------------------------------------------------------------------------

    def _order(self, nodes: dict[str, Any]) -> None:
        """What waits for what under the schedule."""
        names = self.whole.names
        waits = waits_of(self.pipe)
        for op, others in waits.items():
            nodes[names[op]].input.extend(f"^{names[k]}" for k in others)
        if waits:
            keep_apart(self.made, f"{PREFIX}/apart")

    # -- outputs -----------------------------------------------------------------------------------------------------

    def _output(self, spec: TensorSpec) -> TensorSpec:
        name, output = self._before_updates(*split(spec.name))
        if name not in self.repeated or self.count == 1:
            return TensorSpec(f"{name}:{output}", spec.dtype, spec.shape)
        dtype = output_types(self.nodes[name])[output]
        parts = [join(copy, output) for copy in self._names(name)]
        if not spec.shape and not spec.dtype.startswith(("bool", "string")):
            joined = self.sums.of((name, output), dtype, parts, averaged=self._is_mean((name, output)))
            return TensorSpec(_full(joined), spec.dtype, ())
        node = self.made.node.add(op="Pack", name=f"{PREFIX}/output/{name}/{output}")
        node.input.extend(parts)
        node.attr["T"].type, node.attr["N"].i, node.attr["axis"].i = dtype, len(parts), 0
        return TensorSpec(f"{node.name}:0", spec.dtype, (self.count, *spec.shape))

    def _before_updates(self, name: str, output: int) -> tuple[str, int]:
        """Behind the Identity ops that only wait for the updates."""
        while name not in self.repeated and self.nodes[name].op == "Identity":
            before = next(data_inputs(self.nodes[name]))
            if before[0] not in self.repeated and self.nodes[before[0]].op != "Identity":
                break
            name, output = before
        return name, output


def _full(name: str) -> str:
    return name if ":" in name else f"{name}:0"
