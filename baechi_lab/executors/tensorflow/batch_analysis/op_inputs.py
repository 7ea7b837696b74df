"""An op with the values of its inputs: what all rules of the analysis share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ....profilers.tensorflow.nodes import data_inputs, output_types
from ..gradient_sums import argument_names
from .batch_values import BatchValues, Samples, Tensor, Total, Value
from .op_kinds import POSITIONS, SHAPED, SIZE_ARGUMENTS, VARIANT

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef


class OpInputs(ABC):
    """An op, its inputs with their values and shapes, and what it reads of the whole batch."""

    def __init__(self, batch_values: BatchValues, node: NodeDef, axes: Mapping[str, int | None]) -> None:
        self.batch_values, self.node, self.axes = batch_values, node, axes
        self.inputs = list(data_inputs(node))
        self.values = [batch_values.of(tensor) for tensor in self.inputs]
        self.shapes = [batch_values.shape(tensor) for tensor in self.inputs]
        self._results: list[Value] | None = None  # of a loop or conditional
        self._graphs: dict[str, tuple[GraphDef, list[Tensor], GraphDef | None]] = {}  # of its bodies
        self._trained_arguments: set[Tensor] = set()

    @abstractmethod
    def apply(self) -> None:
        """Stores the values of the outputs. `analysis.OpRule` does it, which knows the rules for all kinds of ops."""

    def share_totals(self) -> None:
        """Records which totals an op reads as shares of the undivided batch's totals: an op on samples or on trained totals."""
        import tensorflow as tf

        for tensor, value in zip(self.inputs, self.values, strict=True):
            if not isinstance(value, Total):
                continue
            if self.node.op in SHAPED and tensor != self.inputs[0]:
                continue  # a shape
            is_trained = tensor[0] in self.batch_values.trained_ops
            reads_samples = any(isinstance(v, Samples) for v in self.values)
            if is_trained and self.node.name in self.batch_values.trained_ops and not reads_samples:
                continue
            kind = tf.dtypes.as_dtype(output_types(self.batch_values.nodes[tensor[0]])[tensor[1]])
            if is_trained or value.share is None or (value.share and not kind.is_floating):
                self.report_problem("reads a value of the whole batch for each of its samples", None)
            else:
                self.batch_values.shared_totals[tensor] = value.share

    def reads_positions(self) -> bool:
        """Whether the op reads positions of samples, other than as sizes."""
        arguments = zip(self.inputs, argument_names(self.node), strict=False)
        return any(argument not in SIZE_ARGUMENTS and self._is_position(tensor) for tensor, argument in arguments)

    def _is_position(self, tensor: Tensor) -> bool:
        """Whether a tensor follows from `tf.range` of the number of samples, or from a constant with an entry per sample."""
        if tensor[0] in self.batch_values.positions:
            return True
        node = self.batch_values.nodes[tensor[0]]
        if node.op == "Range":
            return any(self.batch_values.of(source) is not None for source in data_inputs(node))
        passes_on = node.op in POSITIONS and self.batch_values.of(tensor) is None
        return passes_on and any(map(self._is_position, data_inputs(node)))

    def is_scalar(self, output: int) -> bool:
        """Whether an output is one number, and no list of tensors."""
        is_list = output_types(self.node)[output] == VARIANT
        return self.batch_values.shape((self.node.name, output)) == () and not is_list

    def report_problem(self, reason: str, value: Value) -> Value:
        """Records why micro-batches cannot compute what the op computes; returns `value`."""
        if self.batch_values.is_normalizing(self.node):
            self.batch_values.normalizes = True
        else:
            self.batch_values.problems.setdefault(self.node.name, reason)
        return value
