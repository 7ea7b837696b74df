"""Adds ops to an unrolled graph that compute totals of the undivided batch, by which each micro-batch divides.

See `batch_analysis`. Copies of the ops that lead to a total compute it from the inputs of all micro-batches, before the first
forward op. The input ops of the step wait for their turn in the schedule, so the copies and the input ops both read a
placeholder under `baechi_lab/batch/`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING

from ...profilers.tensorflow.nodes import data_inputs, join, output_types
from .batch_analysis.batch_values import BatchValues, Samples, Total
from .batch_analysis.op_kinds import REDUCTIONS
from .gradient_sums import Tensor, add_node, constant
from .session import PREFIX

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

TOTALS = f"{PREFIX}/batch"
"""Scope of the ops."""


class BatchTotals:
    """The totals of one step. Every op is added once.

    Args:
        graph: the GraphDef that gets the ops.
        values: the analysis of the step.
        repeated_ops: the ops that run once per micro-batch.
        name_of: the name of an op for a micro-batch.
        micro_batches: how many there are.
    """

    def __init__(
        self,
        graph: GraphDef,
        values: BatchValues,
        repeated_ops: set[str],
        name_of: Callable[[str, int], str],
        micro_batches: int,
    ) -> None:
        self.graph, self.values, self.repeated_ops = graph, values, repeated_ops
        self.name_of, self.count = name_of, micro_batches
        self._copy_names: dict[tuple[str, int | None], str] = {}
        self._joined: dict[Tensor, str] = {}
        self._shares: dict[Tensor, str] = {}
        self.fed: dict[str, str] = {}
        """Input op of the step -> the placeholder that is fed instead."""

    def enters(self, tensor: Tensor, reader: str) -> bool:
        """Whether `reader` reads its share of the undivided batch's `tensor`."""
        of_totals = isinstance(self.values.of((reader, 0)), Total) and reader not in self.values.trained_ops
        return tensor in self.values.shared_totals and not of_totals

    def share(self, tensor: Tensor) -> str:
        """Returns the name of the tensor that each micro-batch reads instead of its own `tensor`."""
        import tensorflow as tf

        if tensor not in self._shares:
            total, power = self._undivided_name(tensor), self.values.shared_totals[tensor]
            if power:
                dtype = output_types(self.values.nodes[tensor[0]])[tensor[1]]
                base = f"{TOTALS}/{tensor[0]}/{tensor[1]}/share"
                factor = tf.constant(float(self.count) ** -power, tf.float64)
                factor_name = constant(self.graph, f"{base}/factor", factor, tf.dtypes.as_dtype(dtype))
                total = add_node(self.graph, "Mul", base, [total, factor_name], T=dtype)
            self._shares[tensor] = total
        return self._shares[tensor]

    def feed(self, nodes: dict[str, NodeDef]) -> None:
        """Replaces input ops that the copies read as well by Identity ops of the fed placeholders."""
        for name, source in self.fed.items():
            node, fed = nodes[name], self.graph.node.add()
            fed.CopyFrom(node)
            fed.name = source
            del fed.input[:]
            waits = list(node.input)
            node.ClearField("attr")
            node.op, node.attr["T"].type = "Identity", fed.attr["dtype"].type
            node.input[:] = [source, *waits]

    def _undivided_name(self, tensor: Tensor) -> str:
        """Returns the name of `tensor` for the undivided batch."""
        node = self.values.nodes[tensor[0]]
        if not any(isinstance(self.values.of(source), Samples) for source in data_inputs(node)):
            return self._copy(tensor, None)
        if tensor not in self._joined:
            self._joined[tensor] = self._join(tensor, REDUCTIONS.get(node.op, "AddV2"))
        return self._joined[tensor]

    def _join(self, tensor: Tensor, op: str) -> str:
        import tensorflow as tf

        node, base = self.values.nodes[tensor[0]], f"{TOTALS}/{tensor[0]}/{tensor[1]}"
        dtype = output_types(node)[tensor[1]]
        types = {} if op.startswith("Logical") else {"T": dtype}
        copies = [self._copy(tensor, k) for k in range(self.count)]
        total = reduce(lambda a, b: add_node(self.graph, op, f"{base}/join{copies.index(b)}", [a, b], **types), copies)
        if node.op != "Mean":
            return total
        inverse_count = constant(
            self.graph, f"{base}/part", tf.constant(1.0 / self.count, tf.float64), tf.dtypes.as_dtype(dtype)
        )
        return add_node(self.graph, "Mul", f"{base}/mean", [total, inverse_count], T=dtype)

    def _copy(self, tensor: Tensor, k: int | None) -> str:
        """Returns the name of `tensor` of micro-batch `k` (None: of the undivided batch), computed before the schedule starts."""
        name, output = tensor
        if name not in self.repeated_ops:
            return join(self.name_of(name, 0), output)
        node = self.values.nodes[name]
        if node.op == "Placeholder":
            at = self.name_of(name, k or 0)
            return self.fed.setdefault(at, f"{TOTALS}/{at}")
        if (name, k) not in self._copy_names:
            inputs = [
                self.share(source)
                if self.enters(source, name)
                else self._undivided_name(source)
                if k is None
                else self._copy(source, k)
                for source in data_inputs(node)
            ]
            copy = self.graph.node.add()
            copy.CopyFrom(node)
            copy.name = f"{TOTALS}/{name}" if k is None else f"{TOTALS}/{name}/mb{k}"
            for key in ("_class", "_output_shapes"):
                copy.attr.pop(key, None)
            del copy.input[:]
            copy.input.extend(inputs)
            self._copy_names[name, k] = copy.name
        return join(self._copy_names[name, k], output)
