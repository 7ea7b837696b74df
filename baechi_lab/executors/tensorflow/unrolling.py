"""A traced step of one micro-batch -> the step of several, as TensorFlow runs it.

The same ops under the same names as `bl.unroll` gives them: forward and backward ops once per micro-batch, variables and
updates once, gradients accumulated. What a mean over the batch needs besides is added under `baechi_lab/`: sums of
gradients are divided by the number of micro-batches. The order of a schedule is told to TensorFlow by control
dependencies (see `ordering`). Replicas of a stage have variables and updates of their own; see `ringing`.

What is assumed: the loss is a mean over the samples (`reduction="mean"`) or a sum over them ("sum"), every micro-batch
has equally many, and ops look at one sample at a time; statistics of the batch are those of the micro-batch. Of a
"sum", terms that do not look at the batch (a penalty on weights) count once per micro-batch. Random ops draw
other numbers for every micro-batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...errors import InvalidInput, UnknownNameError
from ...graph import OpGraph, Placement
from ...graph.step import Step, TensorSpec
from ...passes.all_reduce import ALL_REDUCE
from ...passes.unroll import ACCUMULATE
from ...profilers.tensorflow.apart import keep_apart
from ...profilers.tensorflow.bodies import writes
from ...profilers.tensorflow.nodes import data_inputs, join, output_types, split
from ...simulator.pipelined import Pipelined
from .accumulating import Sums, Tensor, argument_names, constant, rows_tensors
from .ordering import waits_of
from .ringing import Rings, Shares
from .sends import SUMS
from .session import PREFIX, parse_graph

REDUCTIONS = ("mean", "sum")

_THROUGH = frozenset({"Identity", "Cast", "Neg", "Mul", "AddV2", "Add", "AddN", "Sub", "Reshape", "Squeeze"})
_FINITE = frozenset({"IsFinite", "IsInf", "IsNan"})
_LOGICAL = frozenset({"LogicalAnd", "LogicalOr", "LogicalNot"})
_STALE = ("_class", "_output_shapes")
"""Attributes that name ops by their old names, and shapes of which updates of looked-up rows see longer ones."""
_STREAM = 0x27D4EB2F
"""Distance between the seeds of micro-batches: odd and large, so that counting seeds of steps do not meet them."""


def unrolled_step(step: Step, graph: OpGraph, placed: Placement, pipe: Pipelined, reduction: str = "mean") -> Step:
    """The step that `pipe` makes of `step`, whose graph is `graph`, placed as `placed`.

    Its inputs are those of micro-batch 0, then 1, ...; its outputs those of `step`: a float scalar is the mean (or sum)
    over micro-batches, an integer scalar the sum, anything else is stacked with the micro-batch as first axis. Behind its
    variables come those of replicas (`w/replica1`).

    Raises:
        UnknownNameError: `reduction` is none.
        InvalidInput: an update reads something of every micro-batch that cannot be added up.
    """
    if reduction not in REDUCTIONS:
        raise UnknownNameError.of("reduction", reduction, REDUCTIONS)
    return _Unroller(step, graph, placed, pipe, reduction).step()


class _Unroller:
    """One step's copies; made and used once."""

    def __init__(self, step: Step, graph: OpGraph, placed: Placement, pipe: Pipelined, reduction: str) -> None:
        self.source, self.graph, self.pipe, self.reduction = step, graph, pipe, reduction
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
        divisor = self.count if reduction == "mean" else 1
        self.sums = Sums(self.made, rows, divisor, self._sum_name, self._logical, SUMS.rstrip("/"))
        self.rings = Rings(
            self.made, graph, self.whole, self.shares, self.sums, self._gradients(once) if placed.replicas else {},
            lambda name, output: [join(copy, output) for copy in self._names(name)], SUMS.rstrip("/"),
        )  # fmt: skip

    def step(self) -> Step:
        """The unrolled step."""
        if self.count > 1:
            self._warn_of_reduction()
        places = self._copy_all()
        self._order(places)
        old = self.source
        outputs = tuple(self._output(spec) for spec in old.outputs)
        inputs = [
            TensorSpec(self._tensor(spec.name, k), spec.dtype, spec.shape)
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
                        f"op {name!r} of step {self.source.name!r} writes a variable that the gradients of the same step need, so "
                        "micro-batches cannot wait for each other's gradients; give micro-batches only to steps that write "
                        "variables behind all gradients, and profile again what an older version has profiled"
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
            elif k >= 0 or not again:
                yield join(self._name(name, at), output)
            else:
                yield self._summed(name, output, self.shares.replica(name, old.name, k))
        yield from (join(name, -1) for name in dict.fromkeys(controls))

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
            return TensorSpec(_full(self.sums.of((name, output), dtype, parts)), spec.dtype, ())
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

    def _warn_of_reduction(self) -> None:
        """A loss that looks like the other reduction is no error: only its user knows what it means."""
        for spec in self.source.outputs:
            if spec.shape or not spec.dtype.startswith(("float", "bfloat")):
                continue
            seen = self._reductions(split(spec.name)[0])
            if self.reduction == "mean" and "Sum" in seen and "Mean" not in seen:
                warnings.warn(
                    f"output {spec.name!r} looks like a sum over the batch; gradients are averaged over micro-batches, "
                    "which is the undivided batch's for a mean: give reduction='sum' for a sum",
                    stacklevel=6,
                )
            elif self.reduction == "sum" and seen == {"Mean"}:
                warnings.warn(
                    f"output {spec.name!r} looks like a mean over the batch; with reduction='sum' its gradients are "
                    "added up, and the step is that of a larger loss",
                    stacklevel=6,
                )

    def _reductions(self, name: str) -> set[str]:
        """Types of the first ops that reduce the batch, seen from an output."""
        found, waiting, seen = set(), [name], {name}
        while waiting:
            node = self.nodes[waiting.pop()]
            if node.op in _THROUGH:
                sources = [
                    p for p, _ in data_inputs(node) if p not in seen and (p in self.repeated or node.name == name)
                ]
                seen.update(sources)
                waiting += sources
            elif node.name in self.repeated:
                found.add(node.op)
        return found


def _full(name: str) -> str:
    return name if ":" in name else f"{name}:0"
