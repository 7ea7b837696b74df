"""`read_batch_values`: applies the rules to all forward ops of a step, in topological order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ....profilers.tensorflow.inlining import CONTROL_FLOW_OPS
from ....profilers.tensorflow.nodes import data_inputs, output_types
from ..constant_ops import CONSTANT_OPS
from ..gradient_sums import argument_names
from .batch_values import BatchValues, Samples, Shape, Total, Value, merge_values
from .control_flow import ControlFlowRules
from .op_kinds import (
    KEY_OF_SEED,
    LISTS,
    MATRIX,
    PASS_ON,
    RANDOM_OPS,
    REDUCTIONS,
    SHAPE_OPS,
    SIZE_ARGUMENTS,
    SIZE_OPS,
    VARIANT,
)
from .samples import SampleRules
from .totals import TotalRules

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef


def read_batch_values(
    graph_def: GraphDef,
    forward: Sequence[str],
    axes: Mapping[str, int | None],
    micro_batches: int,
    trained_ops: Iterable[str] = (),
    undivided_graph: GraphDef | None = None,
) -> BatchValues:
    """Propagates the batch through the `forward` ops, which are in topological order.

    `axes`: input name -> the batch's axis, None if unknown. Inputs that are missing are the same for all micro-batches.
    `trained_ops`: further ops that count as trained. `undivided_graph`: the graph of the undivided batch, if known; it tells
    which constants depend on the number of samples.
    """
    inputs = [(name, 0) for name in axes]
    batch_values = BatchValues(
        graph_def, micro_batches, inputs, trained_ops=set(trained_ops), undivided_graph=undivided_graph
    )
    for name, axis in axes.items():
        shape = batch_values.shape((name, 0))
        batch_values.batch = max(batch_values.batch, shape[axis] if shape and axis is not None else 1)
    analyzed_ops = set(forward)
    for name in forward:
        node = batch_values.nodes[name]
        if any(producer not in analyzed_ops for producer, _ in data_inputs(node)):
            batch_values.trained_ops.add(name)  # of gradients, such as the code of a custom gradient
        OpRule(batch_values, node, axes).apply()
    return batch_values


class OpRule(TotalRules, SampleRules, ControlFlowRules):
    """The analysis of one op: computes the values of its outputs from those of its inputs."""

    def apply(self) -> None:
        """Stores the values of the outputs."""
        node, known_values = self.node, self.batch_values
        random = RANDOM_OPS.match(node.op) is not None
        if node.op == "VarHandleOp" or random or any(p in known_values.trained_ops for p, _ in self.inputs):
            known_values.trained_ops.add(node.name)
        if node.op == "Placeholder":
            shape = known_values.shape((node.name, 0))
            if node.name in self.axes and shape != ():
                known_values.values[node.name, 0] = Samples(self.axes[node.name])
            return
        if known_values.counts_samples(node, self.axes):
            known_values.values[node.name, 0] = Total(1, share=0)
            return
        if not any(self.values) and self._follows_batch_size():
            return
        if random and not any(self.values):
            if node.op == KEY_OF_SEED:
                return
            if known_values.is_same_draw(node):
                known_values.same_draws.add(node.name)
                return
        drawn_by_shape = random and not any(isinstance(v, Samples) and v.axis is not None for v in self.values)
        if drawn_by_shape or not any(self.values) or self._reads_sizes():
            shape = known_values.shape((node.name, 0)) if random else ()
            if shape:
                known_values.values[node.name, 0] = Samples(known_values.drawn_axis((node.name, 0), shape))
            return
        for output in range(len(output_types(node))):
            value = self._output(output)
            if value is not None:
                known_values.values[node.name, output] = value

    def _follows_batch_size(self) -> bool:
        """Stores the values of a constant that is another one for the undivided batch. Returns whether it is."""
        if self.node.op != "Const" and self.node.op not in CONSTANT_OPS:
            return False
        tensors = [(self.node.name, output) for output in range(len(output_types(self.node)))]
        values = {tensor: self.batch_values.of_batch_size(tensor) for tensor in tensors}
        self.batch_values.values.update({tensor: value for tensor, value in values.items() if value is not None})
        return any(value is not None for value in values.values())

    def _reads_sizes(self) -> bool:
        """Whether numbers of samples are the only inputs that differ from the undivided batch's, and only as sizes."""
        values = zip(self.values, argument_names(self.node), strict=False)
        return all(
            value is None or (isinstance(value, Total) and value.share == 0 and argument in SIZE_ARGUMENTS)
            for value, argument in values
        )

    def _output(self, output: int) -> Value:
        op = self.node.op
        if op in SHAPE_OPS:
            return self._size(output)
        if op.startswith("FusedBatchNorm"):
            self.batch_values.normalizes |= self.node.attr["is_training"].b
            return Samples(0) if output == 0 else Total(0)
        if op in CONTROL_FLOW_OPS:
            return self.value_of_control_flow(output)
        if op.startswith(LISTS):
            return self._list(output)
        if op in PASS_ON:
            return self.values[0]
        if op in REDUCTIONS:
            return self.value_of_reduction()
        if op == "L2Loss" and isinstance(self.values[0], Samples):
            return Total(1)
        if op in MATRIX or op == "Einsum":
            return self._product()
        if all(value is None or isinstance(value, Total) for value in self.values):
            return Total(None, exact=False) if output_types(self.node)[output] == VARIANT else self.value_of_totals()
        self.share_totals()
        return self.value_of_samples(output)

    def _size(self, output: int) -> Value:
        if self.node.op not in SIZE_OPS:
            return self.values[0]
        shape = self.shapes[min(output, len(self.shapes) - 1)]
        if shape is not None and -1 not in shape:
            return None
        return Total(1 if self.node.op == "Size" else None, exact=self.node.op == "Size")

    def _list(self, output: int) -> Value:
        """Returns the value of an output of an op on a list of tensors. The value of a list is that of its tensors, stacked."""
        op, of_list = self.node.op, self.values[0]
        if op in ("TensorListSetItem", "TensorListPushBack"):
            item = self.values[-1]
            if isinstance(item, Samples) and item.axis is not None:
                item = replace(item, axis=item.axis + 1)
            return merge_values(of_list, item, is_scalar=False)
        reads_item = op == "TensorListGetItem" or (op == "TensorListPopBack" and output == 1)
        if reads_item and isinstance(of_list, Samples):
            return replace(of_list, axis=of_list.axis - 1) if of_list.axis else replace(of_list, axis=None)
        return None if op == "TensorListLength" else of_list

    def _product(self) -> Value:
        """Returns the value of a matrix product or `Einsum`: the axis of samples is kept or summed over."""
        if all(value is None or isinstance(value, Total) for value in self.values):
            return self.value_of_totals()
        self.share_totals()
        if self.reads_positions():
            return self.report_problem("reads positions of samples in the batch", Samples(None))
        labels, out = self._labels()
        at = [
            None if value.axis is None else names[value.axis]
            for value, names in zip(self.values, labels, strict=True)
            if isinstance(value, Samples)
        ]
        if None in at:
            return Samples(None)
        if len(set(at)) > 1:
            return self.report_problem("compares samples with each other", Samples(None))
        power = self.samples_power()
        if at[0] in out:  # type: ignore[operator]
            return Samples(out.index(at[0]), power=power)  # type: ignore[arg-type]
        return self.reduced_total(Samples(None, power=power), 1, frozenset({1.0}))

    def _labels(self) -> tuple[list[str], str]:
        """Returns the axes of the factors and of the product, one letter per axis."""
        if self.node.op == "Einsum":
            factor_labels, _, product_labels = self.node.attr["equation"].s.decode().partition("->")
            names = factor_labels.split(",")
            if "." in factor_labels:
                names = [self._replace_ellipsis(n, s) for n, s in zip(names, self.shapes, strict=True)]
                product_labels = self._replace_ellipsis(product_labels, self.batch_values.shape((self.node.name, 0)))
            return names, product_labels
        ranks = [len(shape or (0, 0)) for shape in self.shapes]
        keys = ("transpose_a", "transpose_b") if self.node.op == "MatMul" else ("adj_x", "adj_y")
        lead = "ABCDEFGH"[: max(ranks) - 2]
        sides = ["mk", "kn"]
        for i, key in enumerate(keys):
            sides[i] = sides[i][::-1] if self.node.attr[key].b else sides[i]
        return [lead[len(lead) - rank + 2 :] + side for rank, side in zip(ranks, sides, strict=True)], lead + "mn"

    @staticmethod
    def _replace_ellipsis(labels: str, shape: Shape) -> str:
        """Replaces `...` by letters."""
        extra = len(shape or ()) - len(labels.replace("...", ""))
        return labels.replace("...", "ABCDEFGH"[8 - extra :])
