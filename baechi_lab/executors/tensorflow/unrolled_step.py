"""Unrolls a traced step of one micro-batch into a step of several.

The ops have the names of `bl.unroll`: forward and backward ops once per micro-batch, variables and updates once, gradients
accumulated. For a mean over the batch, ops under `baechi_lab/` divide sums of gradients by the number of micro-batches.
Control dependencies enforce the order of a schedule, since TensorFlow runs any op that is ready. Replicas of a stage have
their own variables and updates; see `replica_rings`.

All micro-batches have the same number of samples. `batch_division` says whether gradients are averaged over micro-batches or
added up, unless `reduction` is given, and warns of a loss that mixes samples in another way. A loss that is divided by a number
that follows from the inputs, such as the number of counted words, is divided by the micro-batch's share of the undivided
batch's number (`batch_totals`). Terms that do not depend on the batch (a penalty on weights) count once per step. Statistics of
the batch are computed per micro-batch. Random ops draw different numbers for every micro-batch, unless the seed is an input and
the undivided batch draws no more numbers.

In the order of a schedule, every device runs its units one after the other, and one op at a time: each op waits for the
previous one. Ops that run once before all micro-batches are left to TensorFlow; the first unit waits for them. No op waits
for an op on another device just for the order, so the order adds no message.

Within a unit ops are in topological order, by the placement's plan, else by index. If a schedule does not split the backward
pass, gradients of weights come before those of inputs as far as the graph allows, as in the simulator. The simulator chooses
among the ops whose inputs have arrived; here the order is fixed in advance. O(ops log ops + edges).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from ...errors import UnknownNameError
from ...graph import OpGraph, Placement, Step, TensorSpec
from ...passes.all_reduce import ALL_REDUCE
from ...passes.unroll import ACCUMULATE
from ...profilers.tensorflow.nodes import data_inputs, join, output_types, split
from ...profilers.tensorflow.prevent_fusion import prevent_fusion
from ...simulator.pipeline_stages import B
from ...simulator.pipelined_graph import PipelinedGraph
from ..inputs import batch_axes
from .batch_division import BatchDivision
from .batch_totals import BatchTotals
from .gradient_sums import Sums, Tensor, add_node, argument_names, constant
from .replica_rings import Rings, Shares
from .sends import SUMS
from .session import PREFIX, parse_graph

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef


def control_dependencies(pipe: PipelinedGraph) -> dict[int, list[int]]:
    """Returns op -> the ops that it waits for under the schedule, besides those that it reads. Empty without a schedule.

    >>> from baechi_lab import Cluster, OpGraph, Placement
    >>> from baechi_lab.simulator.pipelined_graph import make_pipelined_graph
    >>> graph = OpGraph.from_edges([1, 2, 4, 2], [(0, 1, 8), (1, 2, 8), (2, 3, 8)], forward_of=[-1, -1, 1, 0])
    >>> pipe = make_pipelined_graph(graph, Cluster.uniform(2), Placement(device=[0, 1, 1, 0]), 2, "gpipe")
    >>> control_dependencies(pipe)               # ops 0-3 are micro-batch 0, 4-7 micro-batch 1; device 0: 0F0 0F1 0B0 0B1
    {4: [0], 3: [4], 7: [3], 5: [1], 2: [5], 6: [2]}
    """
    if pipe.schedule is None or pipe.unit is None:
        return {}
    graph, device, unit_of = pipe.graph, pipe.placement.device, np.asarray(pipe.unit)
    units: dict[tuple[int, int], list[int]] = defaultdict(list)
    for op, place in enumerate(zip(device.tolist(), unit_of.tolist(), strict=True)):
        units[place].append(op)
    # The readers of every op within its unit and device, and the number of such inputs of every op.
    source, reader = graph.edge_source, graph.consumers
    same = (device[source] == device[reader]) & (unit_of[source] == unit_of[reader])
    readers: dict[int, list[int]] = defaultdict(list)
    missing = [0] * graph.n
    for a, b in zip(source[same].tolist(), reader[same].tolist(), strict=True):
        readers[a].append(b)
        missing[b] += 1
    # The sort key of every op within its unit; the lowest runs first.
    is_backward = np.zeros(graph.n, dtype=np.bool_)
    if pipe.stages is not None and not pipe.schedule.splits:
        is_backward = pipe.stages.phase[np.asarray(graph.copy_of)] == B
    rank = np.zeros(graph.n) if pipe.placement.rank is None else pipe.placement.rank
    urgency = list(zip(is_backward.tolist(), rank.tolist(), range(graph.n), strict=True))
    waits: dict[int, list[int]] = {}
    predecessors, last_device = list[int](), -1
    for unit_device, unit in sorted(units):
        ops = units[unit_device, unit]
        predecessors, last_device = (predecessors if unit_device == last_device else []), unit_device
        if unit == 0:
            predecessors = [op for op in ops if not readers[op]]
            continue
        for op in _order_by_urgency(ops, readers, missing, urgency):
            waits[op], predecessors = predecessors, [op]
    ring = {op for op, kind in enumerate(graph.op_types) if kind == ALL_REDUCE}  # TensorFlow lacks some of their edges
    edges = zip(graph.edge_source.tolist(), graph.consumers.tolist(), strict=True)
    data_edges = {(a, b) for a, b in edges if b in waits and a not in ring and b not in ring}
    control_inputs = {op: [k for k in awaited_ops if (k, op) not in data_edges] for op, awaited_ops in waits.items()}
    return {op: awaited_ops for op, awaited_ops in control_inputs.items() if awaited_ops}


def _order_by_urgency(
    ops: list[int], readers: dict[int, list[int]], missing: list[int], urgency: list[tuple[bool, float, int]]
) -> list[int]:
    """Returns a topological order of a unit's `ops`; among ready ops the most urgent comes first."""
    ready = [urgency[op] for op in ops if not missing[op]]
    heapify(ready)
    order = []
    while ready:
        op = heappop(ready)[2]
        order.append(op)
        for k in readers[op]:
            missing[k] -= 1
            if not missing[k]:
                heappush(ready, urgency[k])
    return order


REDUCTIONS = ("mean", "sum")

_STALE = ("_class", "_output_shapes")
"""Attributes that become wrong: names of original ops, and shapes, which are longer for updates of looked-up rows."""
_STREAM = 0x27D4EB2F
"""Difference between the seeds of two micro-batches: odd and large, so that seeds of consecutive steps do not collide."""


def unrolled_step(
    step: Step,
    graph: OpGraph,
    placement: Placement,
    pipe: PipelinedGraph,
    reduction: str | None = None,
    axes: Mapping[str, int | None] | None = None,
    step_of_batch: Step | None = None,
    batch: object | None = None,
) -> Step:
    """Returns `step`, whose graph is `graph` and placement `placement`, unrolled as in `pipe`.

    The inputs are those of micro-batch 0, then 1, ... The outputs are those of `step`: a float scalar is the mean (or sum) over
    micro-batches, an integer scalar the sum, and any other output is stacked with the micro-batch as first axis. Variables of
    replicas (`w/replica1`) follow the variables of `step`. `step_of_batch` is the step of the undivided batch, if known, and
    `batch` its inputs: gradients are compared on them, or on samples of the example inputs.

    Raises:
        UnknownNameError: `reduction` is unknown.
        InvalidInput: an update reads a tensor of every micro-batch that cannot be added up.
    """
    if reduction is not None and not (isinstance(reduction, str) and reduction in REDUCTIONS):
        raise UnknownNameError.of("reduction", str(reduction), REDUCTIONS)
    axes = batch_axes(step, 1, None) if axes is None else axes
    axes = {split(name)[0]: axis for name, axis in axes.items()}
    undivided_graph = None if step_of_batch is None else parse_graph(step_of_batch.graph_def)
    division = BatchDivision(step, graph, pipe.graph, axes, reduction, undivided_graph)
    step_of_micro_batches = _Unroller(division, placement, pipe).step()
    division.compare_gradients(step_of_micro_batches, step_of_batch, axes, batch)
    return step_of_micro_batches


class _Unroller:
    """Unrolls one step; used once."""

    def __init__(self, division: BatchDivision, placement: Placement, pipe: PipelinedGraph) -> None:
        self.division, self.pipe = division, pipe
        self.source, self.graph, self.unrolled_graph = division.source, division.graph, pipe.graph
        self.count, self.nodes, self.repeated_ops = division.count, division.nodes, division.repeated_ops
        self.shares = Shares(self.graph, placement)
        # Parsed anew: reading an attribute that a node lacks, as the analysis does, adds an empty one.
        self.graph_def = parse_graph(self.source.graph_def)
        del self.graph_def.node[:]
        self.totals = BatchTotals(self.graph_def, division.values, self.repeated_ops, self._name, self.count)
        self.portions: dict[str, str] = {}
        self.penalties = division.penalties() if division.reduction == "sum" else set()
        self.sums = Sums(
            self.graph_def,
            division.rows,
            self.count,
            division.is_averaged,
            self._sum_name,
            division.logical_op,
            SUMS.rstrip("/"),
        )
        self.rings = Rings(
            graph_def=self.graph_def,
            graph=self.graph,
            unrolled_graph=self.unrolled_graph,
            shares=self.shares,
            sums=self.sums,
            gradients=self._gradients() if placement.replicas else {},
            copies=lambda name, output: [join(copy, output) for copy in self._names(name)],
            prefix=SUMS.rstrip("/"),
        )

    def step(self) -> Step:
        """Returns the step: a node for every op of the unrolled graph, and control dependencies that enforce the schedule."""
        # A node for every op of the unrolled graph.
        unrolled_graph = self.unrolled_graph
        origins, batches = np.asarray(unrolled_graph.copy_of).tolist(), np.asarray(unrolled_graph.micro_batch).tolist()
        same_draws = self.division.values.same_draws
        same_seeds = same_draws | {source for name in same_draws for source, _ in data_inputs(self.nodes[name])}
        for name, kind, i, k in zip(unrolled_graph.names, unrolled_graph.op_types, origins, batches, strict=True):
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
            if k > 0 and original.name not in same_seeds:
                self._reseed(node, k)
        places = {node.name: node for node in self.graph_def.node}
        # The control dependencies of the schedule.
        names = self.unrolled_graph.names
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
            name=self.unrolled_graph.name,
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

    # -- names -------------------------------------------------------------------------------------------------------

    def _name(self, name: str, k: int) -> str:
        """Returns the name of copy `k` of an op: of micro-batch `k`, or for an op that runs once, of replica `k`."""
        if name in self.repeated_ops:
            return f"{name}/mb{k}" if self.count > 1 else name
        return f"{name}/replica{k}" if k > 0 else name

    def _names(self, name: str) -> list[str]:
        """Returns the names of all copies of an op."""
        return [
            self._name(name, k) for k in range(self.count if name in self.repeated_ops else self.shares.width(name))
        ]

    def _gradients(self) -> dict[Tensor, int]:
        """Returns tensor -> type of the tensors of replicated stages that ops which run once read from micro-batches."""
        read = (
            tensor
            for name in self.division.once
            for tensor in data_inputs(self.nodes[name])
            if tensor[0] in self.repeated_ops
        )
        shared_tensors = (tensor for tensor in read if self.shares.group(tensor[0]) >= 0)
        return {(name, output): output_types(self.nodes[name])[output] for name, output in shared_tensors}

    def _fed_name(self, reference: str, k: int) -> str:
        """Returns the name of micro-batch `k`'s copy of an input, or of the op that is fed in its place."""
        name, output = split(reference)
        copied_name = self._name(name, k if name in self.repeated_ops else 0)
        return f"{self.totals.fed.get(copied_name, copied_name)}:{max(output, 0)}"

    def _sum_name(self, name: str, output: int, k: int) -> str | None:
        """Returns the name of the op in the unrolled graph that accumulates micro-batch `k`; None if there is none."""
        for position, tensor in enumerate(self.graph.outputs(self.graph.index[name])):
            if self.graph.tensor_names[tensor] == str(output):
                sum_name = f"{name}/accumulate{position}/mb{k}"
                return sum_name if sum_name in self.unrolled_graph.index else None
        return None

    # -- copies ------------------------------------------------------------------------------------------------------

    def _inputs(self, original: NodeDef, k: int) -> Iterator[str]:
        """Yields the inputs of a copy; `k` is -1 - r for an op that replica r runs once."""
        controls = []
        for reference in original.input:
            name, output = split(reference)
            is_repeated = name in self.repeated_ops
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
        """Returns the name of an output that is summed over the micro-batches, for an op that runs once."""
        copies = [join(copy, output) for copy in self._names(name)]
        is_same = (
            name not in self.division.varying
            and (name, output) not in self.division.rows
            and not self.division.is_float((name, output))
        )
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
        """Returns an output of the step: a mean or sum over micro-batches, or all of them stacked."""
        name, output = self._before_updates(*split(spec.name))
        if name not in self.repeated_ops or self.count == 1:
            return TensorSpec(f"{name}:{output}", spec.dtype, spec.shape)
        dtype = output_types(self.nodes[name])[output]
        copies = [join(copy, output) for copy in self._names(name)]
        if not spec.shape and not spec.dtype.startswith(("bool", "string")):
            sum_name = self.sums.of((name, output), dtype, copies, is_mean=self.division.is_mean((name, output)))
            return TensorSpec(sum_name if ":" in sum_name else f"{sum_name}:0", spec.dtype, ())
        node = self.graph_def.node.add(op="Pack", name=f"{PREFIX}/output/{name}/{output}")
        node.input.extend(copies)
        node.attr["T"].type, node.attr["N"].i, node.attr["axis"].i = dtype, len(copies), 0
        return TensorSpec(f"{node.name}:0", spec.dtype, (self.count, *spec.shape))

    def _before_updates(self, name: str, output: int) -> tuple[str, int]:
        """Skips the Identity ops that only wait for the updates."""
        while name not in self.repeated_ops and self.nodes[name].op == "Identity":
            before = next(data_inputs(self.nodes[name]))
            if before[0] not in self.repeated_ops and self.nodes[before[0]].op != "Identity":
                break
            name, output = before
        return name, output
