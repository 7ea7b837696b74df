"""Analysis of the forward graph: how tensors of micro-batches relate to those of the undivided batch.

A tensor that depends on the batch has an entry per sample along one axis (`Samples`), or one value for all samples
(`Total`). The undivided batch's total is the sum of the micro-batches' totals (`power` 1), their mean (0), or neither.

A loss that is divided by a total, such as the number of counted words, is not the mean of its micro-batches' losses. If that
total depends on the inputs alone and on no variable, the undivided batch's total is known before the first forward op. Each
micro-batch then divides by its share of that total (`shared`), and the mean is exact. Ops that mix samples in other ways
(batch statistics, losses that compare samples) are recorded in `problems`.

There are rules for the ops that losses consist of. For other ops, an output with the length of the batch along the same axis
counts as samples, and a scalar as a total of unknown kind. O(ops + edges).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...profilers.tensorflow.function_bodies import Library, body_graph, is_handed_on, tensor_specs
from ...profilers.tensorflow.inlining import CONTROL_FLOW_OPS
from ...profilers.tensorflow.nodes import called_functions, data_inputs, output_types
from ...profilers.tensorflow.shapes import SHAPES
from .constant_ops import CONSTANT_OPS
from .gradient_sums import argument_names

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

Tensor = tuple[str, int]
Shape = tuple[int, ...] | None
"""-1 for a length that depends on the data; None if the rank depends on it."""


@dataclass(frozen=True)
class Samples:
    """One entry per sample along `axis` (None: unknown).

    `power`: the power of the totals by which each entry was multiplied. `counts`: the possible numbers of entries added up
    so far.
    """

    axis: int | None
    counts: frozenset[float] = frozenset({1.0})
    power: int | None = 0


@dataclass(frozen=True)
class Total:
    """One value for all samples. With b times as many samples it is b ** `power` times as large (None: unknown).

    `exact`: the undivided batch's value equals the sum (power 1) or mean (power 0) of the micro-batches' values; otherwise only
    its magnitude is known. `counts`: the possible numbers of entries added up. `share`: the power that remains if the graph
    contains a number of entries as a constant.
    """

    power: int | None
    exact: bool = True
    counts: frozenset[float] = frozenset({1.0})
    share: int | None = None


Value = Samples | Total | None
"""None: the value is the same for all micro-batches."""

_MOST_COUNTS = 1000  # pairs of possible counts whose sums are followed
LISTS = ("EmptyTensorList", "TensorList")
"""Ops on lists, which the forward pass fills for the backward pass."""
_VARIANT = 21
"""TensorFlow's DT_VARIANT, the type of lists of tensors."""
_SHAPED = frozenset({"Reshape", "BroadcastTo", "Tile", "Fill", "StridedSlice", "Slice", "Range"})
"""Ops whose inputs after the first are shapes or indices."""
_PASS_ON = frozenset({"Identity", "EnsureShape", "CheckNumerics", "StopGradient", "PreventGradient", "Snapshot"})
_LINEAR = _SHAPED | _PASS_ON | {"Cast", "Neg", "Squeeze", "ExpandDims", "Transpose", "Pack"}
_HOMOGENEOUS = _LINEAR | {"Sum", "Mean", "Max", "Min", "ConcatV2", "Pad", "PadV2", "Split", "SplitV", "Unpack"}
"""Ops whose output is multiplied by a number if their samples are; the others among them are in `_SCALING`."""
_SUMS = frozenset({"Add", "AddV2", "AddN", "Sub"})
_DIVISIONS = frozenset({"RealDiv", "Div", "DivNoNan", "TruncateDiv", "FloorDiv"})
_PRODUCTS = frozenset({"Mul", "MulNoNan"})
_SCALING = frozenset({"Maximum", "Minimum", "Abs", "Relu", *_SUMS})
"""Ops whose output scales like their inputs. A constant input may only keep a divisor from being 0."""
_COMPARISONS = frozenset({"Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"})
_FIXED = _COMPARISONS | {"LogicalAnd", "LogicalOr", "LogicalNot", "IsFinite", "IsNan", "IsInf", "Sign"}
_ARITHMETIC = frozenset({"Pow", "SquaredDifference", "FloorMod", "Xlogy", "Xdivy", "BitwiseAnd", "Atan2", "Xlog1py"})
_BROADCASTING = _SUMS | _DIVISIONS | _PRODUCTS | _SCALING | _FIXED | _ARITHMETIC | {"Select", "SelectV2"}
REDUCTIONS = {
    "Sum": "AddV2",
    "Mean": "AddV2",
    "Max": "Maximum",
    "Min": "Minimum",
    "All": "LogicalAnd",
    "Any": "LogicalOr",
}
"""Reduction -> the op that combines its results over micro-batches."""
_ALONG_LAST = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "TopKV2", "TopK", "NthElement"), 1),
    **{f"{kind}FFT{dims or ''}{'D' if dims else ''}": dims or 1 for kind in ("", "I", "R", "IR") for dims in (0, 2, 3)},
    **dict.fromkeys(("Svd", "Qr", "Lu", "Cholesky", "Eig", "SelfAdjointEigV2", "MatrixInverse", "MatrixSolve"), 2),
    **dict.fromkeys(("MatrixDeterminant", "LogMatrixDeterminant", "MatrixSolveLs", "MatrixTriangularSolve"), 2),
    **dict.fromkeys(("MatrixExponential", "MatrixLogarithm", "MatrixSquareRoot", "TridiagonalSolve"), 2),
    **dict.fromkeys(("MatrixBandPart", "MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3"), 2),
}
"""Ops that combine entries along the last axes of their first input, with the number of these axes."""
_ALONG_SECOND = frozenset({"ReverseV2", "Roll", "Cumsum", "Cumprod", "CumulativeLogsumexp", "ArgMax", "ArgMin"})
_ALONG_FIRST = frozenset({"RandomShuffle", "InvertPermutation", "SpaceToBatchND", "BatchToSpaceND", "DiagPart", "Diag"})
_SPATIAL = (
    "Conv",
    "DepthwiseConv",
    "MaxPool",
    "AvgPool",
    "Resize",
    "DepthToSpace",
    "SpaceToDepth",
    "Extract",
    "Dilation",
)
"""Ops whose first input has the batch as its first axis."""
_REARRANGING = frozenset({"StridedSlice", "Split", "SplitV", "Unpack", "Reshape", "GatherV2", "GatherNd"})
_INDEXING = frozenset({"Pack", "ConcatV2", "Gather", "GatherV2", "GatherNd", "ResourceGather", "ResourceGatherNd"})
"""Ops for which positions of samples are indices, or become indices."""
_MATRIX = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"})
_COUNTING = (
    "UnsortedSegment",
    "Segment",
    "SparseSegment",
    "Bincount",
    "DenseBincount",
    "Unique",
    "Histogram",
    "ScatterNd",
    "TensorScatter",
)
"""Ops that add up, count or arrange entries by values of the batch, whichever samples they belong to."""
_SELECTIONS = frozenset({"Select", "SelectV2"})
RANDOM_OPS = re.compile(
    r"(Stateless|Stateful)?(Random|TruncatedNormal|Multinomial|Uniform|StandardNormal|ParameterizedTruncated)"
)
_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"})
_SIZES = frozenset({"Shape", "ShapeN", "Size"})
_POSITIONS = _PASS_ON | _SUMS | _PRODUCTS | _DIVISIONS | {"Cast", "ExpandDims", "Reshape"}
"""Ops whose output is a position, or a function of it, if an input is."""
_SIZE_ARGUMENTS = frozenset(
    "shape dims multiples size size_splits begin end strides start limit delta axis paddings depth num_segments "
    "element_shape num_elements output_shape".split()
)
"""Arguments that are sizes or positions, which are those of a micro-batch."""
_SHAPE_CONSTANT = re.compile(r"(^|/)Shape(_\d+)?$")
"""Names that TensorFlow gives to the constant that it puts in the place of `tf.shape` where sizes are known."""
_WORKS_ALONG = "may work along the samples of the batch"
_READS_SIZES = "reads a number in its rounds that depends on the number of samples"
_CARRIES_VALUES = "carries values from one sample to the next"
_REDUCES_AXIS = "reduces an axis in its rounds that is as long as the batch"
_SCATTERS_ENTRIES = "puts entries at places that depend on the data"
UNPROVEN = frozenset({_SCATTERS_ENTRIES, _WORKS_ALONG, _READS_SIZES, _CARRIES_VALUES, _REDUCES_AXIS})
"""Problems that an op may have, as far as the graph shows."""
_NORMALISING = ("FusedBatchNorm", "batch_norm", "batchnorm", "BatchNorm")


@dataclass
class BatchValues:
    """The analysis of a step; see `read_batch_values`.

    `batch`: samples of a micro-batch. `values`: every tensor that differs between micro-batches. `trained`: ops whose outputs
    depend on variables or random numbers. `shared`: totals of which each micro-batch reads its share of the undivided batch's
    total, with the power by which the share is smaller. `problems`: op -> reason why micro-batches cannot compute what it
    computes. `unclear`: op -> its division by a constant that may be a number of samples. `undivided`: the graph of the undivided
    batch; None if it is unknown. `positions`: constants whose entries are not those of the undivided batch's samples.
    `normalizes`: whether a layer normalizes by statistics of the batch, of which `bl.unroll` warns.
    """

    graph_def: GraphDef
    micro_batches: int
    nodes: Mapping[str, NodeDef] = field(init=False)
    inputs: Sequence[Tensor] = ()
    batch: int = 1
    values: dict[Tensor, Value] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)
    shared: dict[Tensor, int] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    unclear: dict[str, str] = field(default_factory=dict)
    undivided: GraphDef | None = None
    positions: set[str] = field(default_factory=set)
    normalizes: bool = False

    def __post_init__(self) -> None:
        self.nodes = {node.name: node for node in self.graph_def.node}
        self._constants: dict[Tensor, NDArray[Any] | None] = {}
        self.undivided_values = None if self.undivided is None else BatchValues(self.undivided, self.micro_batches)
        self._normalizing_layers = {name.split("/batchnorm/")[0] for name in self.nodes if "/batchnorm/" in name}

    def is_normalizing(self, node: NodeDef) -> bool:
        """Whether an op belongs to a batch normalization, of which `bl.unroll` warns."""
        layer = node.name.rpartition("/moments/")[0]
        return layer in self._normalizing_layers or any(word in node.name + node.op for word in _NORMALISING)

    def counts_samples(self, node: NodeDef, axes: Mapping[str, int | None]) -> bool:
        """Whether an op is `tf.shape(x)[k]` with as many entries as a micro-batch has samples, along an axis of samples."""
        if node.op != "StridedSlice" or not node.attr["shrink_axis_mask"].i:
            return False
        sizes, begin, *_ = data_inputs(node)
        if self.nodes[sizes[0]].op != "Const" or not _SHAPE_CONSTANT.search(sizes[0]):
            return False
        entries, at = self.constant(sizes), self.constant(begin)
        if entries is None or at is None or np.ndim(entries) != 1 or np.size(at) != 1:
            return False
        axis = int(np.ravel(at)[0])
        if axis not in axes.values() or axis >= len(entries) or int(entries[axis]) != self.batch:
            return False
        if self.undivided_values is None or sizes[0] not in self.undivided_values.nodes:
            return True
        undivided_entries = self.undivided_values.constant(sizes)  # the same ones for a table, for example
        return undivided_entries is None or not np.array_equal(undivided_entries, entries)

    def of(self, tensor: Tensor) -> Value:
        """Returns the tensor's value; None if it is the same for all micro-batches."""
        return self.values.get(tensor)

    def shape(self, tensor: Tensor) -> Shape:
        """Returns the shape in the graph, with -1 for an unknown length."""
        shapes = self.nodes[tensor[0]].attr[SHAPES].list.shape
        if tensor[1] >= len(shapes) or shapes[tensor[1]].unknown_rank:
            return None
        return tuple(int(d.size) for d in shapes[tensor[1]].dim)

    def drawn_axis(self, tensor: Tensor, shape: tuple[int, ...]) -> int | None:
        """Returns the axis of samples of random numbers, which is longer for the undivided batch, or as long as the batch."""
        undivided = None if self.undivided_values is None else self.undivided_values.nodes.get(tensor[0])
        if self.undivided_values is not None and undivided is not None and undivided.op == self.nodes[tensor[0]].op:
            sizes = zip(shape, self.undivided_values.shape(tensor) or (), strict=False)
            axes = [axis for axis, (size, undivided_size) in enumerate(sizes) if size != undivided_size]
        else:
            axes = [axis for axis, size in enumerate(shape) if size == self.batch and size > 1]
        return axes[0] if axes else None

    def of_batch_size(self, tensor: Tensor) -> Value:
        """Returns the value of a constant that is another one for the undivided batch; None for any other tensor.

        A constant with an entry per sample is recorded in `positions` unless all micro-batches read those of the undivided batch.
        """
        if self.undivided_values is None or tensor[0] not in self.undivided_values.nodes:
            return None
        nodes = self.nodes[tensor[0]], self.undivided_values.nodes[tensor[0]]
        if nodes[0].op == "Const" and nodes[0].attr["value"] == nodes[1].attr["value"]:
            return None
        divided, undivided = self.constant(tensor), self.undivided_values.constant(tensor)
        if divided is None or undivided is None or np.array_equal(divided, undivided):
            return None
        is_numeric = np.issubdtype(divided.dtype, np.number) or divided.dtype.name == "bfloat16"
        if is_numeric and divided.shape == undivided.shape:
            is_shape = divided.ndim and np.issubdtype(divided.dtype, np.integer)
            if is_shape and np.all((undivided == divided) | (undivided == divided * self.micro_batches)):
                return None
            power = self._growth(divided, undivided)
            return Total(power, exact=power is not None, share=None if power is None else 0)
        same_rank = divided.ndim == undivided.ndim
        axes = [axis for axis in range(divided.ndim) if same_rank and divided.shape[axis] != undivided.shape[axis]]
        if len(axes) == 1 and undivided.shape[axes[0]] == self.micro_batches * divided.shape[axes[0]]:
            repeated = np.concatenate([divided] * self.micro_batches, axes[0])
            if np.array_equal(repeated, undivided):
                return None
            if is_numeric and (power := self._growth(repeated, undivided)) is not None:
                return Samples(axes[0], power=power)
        self.positions.add(tensor[0])
        return None

    def _growth(self, divided: NDArray[Any], undivided: NDArray[Any]) -> int | None:
        """Returns p if `undivided` is `divided` times the number of micro-batches to the power p; None if there is no p."""
        largest = np.argmax(np.abs(divided.astype(np.float64)))
        ratio = float(undivided.ravel()[largest]) / (float(divided.ravel()[largest]) or np.nan)
        if not 0 < ratio < np.inf:
            return None
        power = round(np.log(ratio) / np.log(self.micro_batches))
        expected = divided.astype(np.float64) * float(self.micro_batches) ** power
        tolerance = 1e-5 if divided.itemsize > 2 else 1e-2
        return power if np.allclose(undivided.astype(np.float64), expected, rtol=tolerance, atol=0) else None

    def constant(self, tensor: Tensor) -> NDArray[Any] | None:
        """Returns the value of a tensor that follows from constants and shapes, else None."""
        if tensor not in self._constants:
            self._constants[tensor] = self._evaluated(tensor)
        return self._constants[tensor]

    def _evaluated(self, tensor: Tensor) -> NDArray[Any] | None:
        import tensorflow as tf

        node = self.nodes[tensor[0]]
        if node.op == "Const":
            return tf.make_ndarray(node.attr["value"].tensor)
        shape = self.shape(next(data_inputs(node), tensor))
        if node.op == "Rank" and shape is not None:
            return np.array(len(shape))
        if node.op in ("Shape", "Size") and shape is not None and -1 not in shape:
            return np.array(shape) if node.op == "Shape" else np.array(prod(shape))
        compute = CONSTANT_OPS.get(node.op)
        values = [self.constant(source) for source in data_inputs(node)] if compute else [None]
        if compute is None or any(value is None for value in values):
            return None
        with np.errstate(all="ignore"):
            value = compute(node, *values)
        return value if node.op != "Unpack" or value is None else np.take(value, tensor[1], node.attr["axis"].i)


def read_batch_values(
    graph_def: GraphDef,
    forward: Sequence[str],
    axes: Mapping[str, int | None],
    micro_batches: int,
    trained: Iterable[str] = (),
    undivided: GraphDef | None = None,
) -> BatchValues:
    """Propagates the batch through the `forward` ops, which are in topological order.

    `axes`: input name -> the batch's axis, None if unknown. Inputs that are missing are the same for all micro-batches.
    `trained`: further ops that count as trained. `undivided`: the graph of the undivided batch, if it is known; it tells which
    constants depend on the number of samples.
    """
    inputs = [(name, 0) for name in axes]
    batch_values = BatchValues(graph_def, micro_batches, inputs, trained=set(trained), undivided=undivided)
    for name, axis in axes.items():
        shape = batch_values.shape((name, 0))
        batch_values.batch = max(batch_values.batch, shape[axis] if shape and axis is not None else 1)
    analyzed = set(forward)
    for name in forward:
        node = batch_values.nodes[name]
        if any(producer not in analyzed for producer, _ in data_inputs(node)):
            batch_values.trained.add(name)  # of gradients, such as the code of a custom gradient
        _OpRule(batch_values, node, axes).apply()
    return batch_values


class _OpRule:
    """The analysis of one op: computes the values of its outputs from those of its inputs."""

    def __init__(self, batch_values: BatchValues, node: NodeDef, axes: Mapping[str, int | None]) -> None:
        self.batch_values, self.node, self.axes = batch_values, node, axes
        self.inputs = list(data_inputs(node))
        self.values = [batch_values.of(tensor) for tensor in self.inputs]
        self.shapes = [batch_values.shape(tensor) for tensor in self.inputs]
        self._results: list[Value] | None = None  # of a loop or conditional
        self._graphs: dict[str, tuple[GraphDef, list[Tensor], GraphDef | None]] = {}  # of its bodies
        self._trained_arguments: set[Tensor] = set()

    def apply(self) -> None:
        """Stores the values of the outputs."""
        node, known_values = self.node, self.batch_values
        random = RANDOM_OPS.match(node.op) is not None
        if node.op == "VarHandleOp" or random or any(p in known_values.trained for p, _ in self.inputs):
            known_values.trained.add(node.name)
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
            value is None or (isinstance(value, Total) and value.share == 0 and argument in _SIZE_ARGUMENTS)
            for value, argument in values
        )

    # -- kinds of ops ------------------------------------------------------------------------------------------------

    def _output(self, output: int) -> Value:
        op = self.node.op
        if op in _SHAPES:
            return self._size(output)
        if op.startswith("FusedBatchNorm"):
            self.batch_values.normalizes |= self.node.attr["is_training"].b
            return Samples(0) if output == 0 else Total(0)
        if op in CONTROL_FLOW_OPS:
            return self._control_flow(output)
        if op.startswith(LISTS):
            return self._list(output)
        if op in _PASS_ON:
            return self.values[0]
        if op in REDUCTIONS:
            return self._reduction()
        if op == "L2Loss" and isinstance(self.values[0], Samples):
            return Total(1)
        if op in _MATRIX or op == "Einsum":
            return self._product()
        if all(value is None or isinstance(value, Total) for value in self.values):
            return Total(None, exact=False) if output_types(self.node)[output] == _VARIANT else self._of_totals()
        self._share_totals()
        return self._of_samples(output)

    def _size(self, output: int) -> Value:
        if self.node.op not in _SIZES:
            return self.values[0]
        shape = self.shapes[min(output, len(self.shapes) - 1)]
        if shape is not None and -1 not in shape:
            return None
        return Total(1 if self.node.op == "Size" else None, exact=self.node.op == "Size")

    def _list(self, output: int) -> Value:
        """Value of an output of an op on a list of tensors. The value of a list is that of its tensors, stacked."""
        op, of_list = self.node.op, self.values[0]
        if op in ("TensorListSetItem", "TensorListPushBack"):
            item = self.values[-1]
            if isinstance(item, Samples) and item.axis is not None:
                item = replace(item, axis=item.axis + 1)
            return _merge_values(of_list, item, is_scalar=False)
        reads_item = op == "TensorListGetItem" or (op == "TensorListPopBack" and output == 1)
        if reads_item and isinstance(of_list, Samples):
            return replace(of_list, axis=of_list.axis - 1) if of_list.axis else replace(of_list, axis=None)
        return None if op == "TensorListLength" else of_list

    def _control_flow(self, output: int) -> Value:
        """Value of an output of a loop or conditional."""
        if self._results is None:
            if not self.node.op.endswith("While"):
                branches = [self._branch(name) for name in called_functions(self.node)]
                self._share_condition()
                self._results = [self._of_branches(values, k) for k, values in enumerate(zip(*branches, strict=True))]
            elif self._loops_over_samples():
                self._results = self._loop_over_samples()
            else:
                self._results = self._loop()
        return self._results[output]

    def _branch(self, name: str) -> list[Value]:
        """Returns the values of the outputs of a branch of a conditional, whose problems are those of the conditional."""
        body = self._analyzed(name, self.inputs[1:], self.values[1:])  # the first input is the condition
        for tensor in body.shared_arguments():
            self.batch_values.shared[self.inputs[1:][body.arguments.index(tensor)]] = body.values.shared[tensor, 0]
        self._add_problems(body)
        return [body.values.of(tensor) for tensor in body.results]

    def _analyzed(self, name: str, inputs: Sequence[Tensor], values: Sequence[Value]) -> _Body:
        """Returns the analysis of a body whose arguments are `inputs` and have these values."""
        batch_values = self.batch_values
        functions = {function.signature.name: function for function in batch_values.graph_def.library.function}
        if name not in self._graphs:
            self._graphs[name] = (*body_graph(functions[name], batch_values.graph_def), self._undivided_body(name))
        graph, results, undivided = self._graphs[name]
        inner = BatchValues(graph, batch_values.micro_batches, batch=batch_values.batch, undivided=undivided)
        arguments = [argument.name for argument in functions[name].signature.input_arg]
        for argument, tensor, value in zip(arguments, inputs, values, strict=True):
            if value is not None:
                inner.values[argument, 0] = value
            if tensor[0] in batch_values.trained or tensor in self._trained_arguments:
                inner.trained.add(argument)
        for node in graph.node:
            _OpRule(inner, inner.nodes[node.name], {}).apply()
        return _Body(inner, arguments, results)

    def _add_problems(self, body: _Body) -> None:
        for reason in body.values.problems.values():
            self._problem(reason, None)
        if body.reads_whole_batch():
            self._problem("reads a value of the whole batch for each of its samples", None)
        for reason in body.values.unclear.values():
            self.batch_values.unclear[self.node.name] = reason

    # -- loops ---------------------------------------------------------------------------------------------------------

    def _loop(self) -> list[Value]:
        """Returns the values of the outputs of a loop: of its arguments, joined with what its rounds make of them.

        Rounds are analyzed until no value changes any more, which takes a few of them: a value only becomes less known.
        """
        names = [self.node.attr[key].func.name for key in ("body", "cond")]
        function = Library(self.batch_values.graph_def).functions[names[0]]
        is_constant = [is_handed_on(function, k) for k in range(len(self.inputs))]
        values = self.values
        while True:
            body = self._analyzed(names[0], self.inputs, values)
            results = [body.values.of(tensor) for tensor in body.results]
            joined = [
                self._carried(k, before, after) for k, (before, after) in enumerate(zip(values, results, strict=True))
            ]
            trained = {t for t, (name, _) in zip(self.inputs, body.results, strict=True) if name in body.values.trained}
            if list(map(_kind, joined)) == list(map(_kind, values)) and trained <= self._trained_arguments:
                break
            values, self._trained_arguments = joined, self._trained_arguments | trained
        self._add_problems(body)
        condition = self._analyzed(names[1], self.inputs, values)
        self._add_problems(condition)
        if condition.values.of(condition.results[0]) is not None:
            nodes = condition.values.nodes
            leading = ancestors(nodes, list(nodes), {condition.results[0][0]})
            at = [k for k, name in enumerate(condition.arguments) if name in leading and values[k] is not None]
            if all(is_constant[k] and self._is_known_of_batch(k) for k in at):
                self.batch_values.shared.update({self.inputs[k]: 0 for k in at})
            else:
                self._problem("chooses its number of rounds by a value of the batch", None)
        for name in body.shared_arguments():
            k = body.arguments.index(name)
            if is_constant[k]:
                self.batch_values.shared[self.inputs[k]] = body.values.shared[name, 0]
            else:
                self._problem("reads a value of the whole batch for each of its samples", None)
        rounds = Library(self.batch_values.graph_def).rounds(self.node) or 1
        return [
            replace(value, counts=value.counts | {count * rounds for count in value.counts}, share=None)
            if isinstance(value, Total)
            else value
            for value in values
        ]

    def _carried(self, k: int, before: Value, after: Value) -> Value:
        """Returns the value of an argument of a loop whose rounds turn `before` into `after`."""
        if before is None and isinstance(after, Total) and after.power == 1:
            initial = self.batch_values.constant(self.inputs[k])
            if initial is not None and not np.any(initial):
                return after  # a sum that begins at 0
        return _merge_values(before, after, self._is_scalar(k))

    def _loops_over_samples(self) -> bool:
        """Whether a loop takes one sample after the other from a list."""
        return any(
            isinstance(value, Samples) and value.axis == 0 and kind == _VARIANT
            for value, kind in zip(self.values, output_types(self.node), strict=True)
        )

    def _loop_over_samples(self) -> list[Value]:
        """Returns the values of the outputs of a loop whose rounds are those of single samples. The body is not analyzed."""
        if reason := self._mixing_loop():
            self._problem(reason, None)
        self._share_totals()
        results: list[Value] = []
        for k, kind in enumerate(output_types(self.node)):
            if self.values[k] is None and not _is_float(kind) and kind != _VARIANT:
                results.append(None)
            elif kind == _VARIANT:
                results.append(Samples(0))
            else:
                results.append(Total(None, exact=False) if self._is_scalar(k) else Samples(None))
        return results

    def _share_condition(self) -> None:
        """Lets all micro-batches choose the branch of the undivided batch, if its inputs alone tell which."""
        if self._is_known_of_batch(0):
            self.batch_values.shared[self.inputs[0]] = 0
        elif self.values[0] is not None:
            self._problem("chooses what to compute by a value of the batch", None)

    def _is_known_of_batch(self, k: int) -> bool:
        """Whether all micro-batches can read input `k` of the undivided batch, which its inputs alone tell."""
        value = self.values[k]
        return isinstance(value, Total) and value.share == 0 and self.inputs[k][0] not in self.batch_values.trained

    def _undivided_body(self, name: str) -> GraphDef | None:
        """Returns the body of the undivided batch that corresponds to branch or body `name`; None if it is unknown."""
        undivided = self.batch_values.undivided_values
        node = None if undivided is None else undivided.nodes.get(self.node.name)
        if undivided is None or node is None or node.op != self.node.op:
            return None
        branch = list(called_functions(node))[list(called_functions(self.node)).index(name)]
        functions = {function.signature.name: function for function in undivided.graph_def.library.function}
        return body_graph(functions[branch], undivided.graph_def)[0]

    def _of_branches(self, values: Sequence[Value], output: int) -> Value:
        """Returns the value of an output of a conditional whose branches have these values."""
        is_scalar = self._is_scalar(output)
        if all(value is None for value in values) and self.values[0] is not None:
            return Total(None, exact=False) if is_scalar else Samples(None)
        return reduce(partial(_merge_values, is_scalar=is_scalar), values)

    def _is_scalar(self, output: int) -> bool:
        is_list = output_types(self.node)[output] == _VARIANT
        return self.batch_values.shape((self.node.name, output)) == () and not is_list

    def _mixing_loop(self) -> str | None:
        """How a loop over samples may combine them: by a size that it reads, a reduction, or what its rounds carry."""
        if self._rounds_read_sizes():
            return _READS_SIZES
        library, batch = Library(self.batch_values.graph_def), self.batch_values.batch
        body = library.functions[self.node.attr["body"].func.name]
        if any(_is_float(kind) and not is_handed_on(body, k) for k, kind in enumerate(output_types(self.node))):
            return _CARRIES_VALUES
        shapes = {reference: shape for reference, (shape, _) in tensor_specs(body).items()}
        for node in body.node_def if batch > 1 else ():
            reduced = node.op in REDUCTIONS and shapes.get(node.input[0], ()).count(batch)
            if reduced and shapes.get(f"{node.name}:output:0", ()).count(batch) < reduced:
                return _REDUCES_AXIS
        return None

    def _rounds_read_sizes(self) -> bool:
        """Whether floats that the rounds of a loop read are other ones for the undivided batch."""
        sizes = (isinstance(v, Total) and v.share == 0 and v.power != 0 for v in self.values)
        if any(is_size and _is_float(kind) for is_size, kind in zip(sizes, output_types(self.node), strict=True)):
            return True
        name = self.node.attr["body"].func.name
        undivided, graph_def = self._undivided_body(name), self.batch_values.graph_def
        if undivided is None:
            return False
        functions = {function.signature.name: function for function in graph_def.library.function}
        graph, _ = body_graph(functions[name], graph_def)
        inner = BatchValues(graph, self.batch_values.micro_batches, undivided=undivided)
        constants = [node for node in graph.node if node.op == "Const" and _is_float(node.attr["dtype"].type)]
        return any(inner.of_batch_size((node.name, 0)) is not None for node in constants) or bool(inner.positions)

    def _reduction(self) -> Value:
        value, shape = self.values[0], self.shapes[0]
        if not isinstance(value, Samples):
            return self._of_totals()
        axes = self.batch_values.constant(self.inputs[1]) if len(self.inputs) > 1 else None
        out = self.batch_values.shape((self.node.name, 0))
        rank = None if shape is None else len(shape)
        reduced = None if axes is None or rank is None else {int(a) % max(rank, 1) for a in np.ravel(axes)}
        all_of_it = (
            out is not None and prod(out) == 1 and shape is not None and (rank == len(reduced or ()) or out == ())
        )
        if value.axis is None and not all_of_it:
            return value
        if not all_of_it and (reduced is None or value.axis not in reduced):
            keeps_dims = self.node.attr["keep_dims"].b
            axis = value.axis if keeps_dims or reduced is None else value.axis - sum(a < value.axis for a in reduced)  # type: ignore[operator]
            return Samples(axis, self._counts(value.counts, shape, reduced))
        counts = self._counts(value.counts, shape, reduced)
        if shape is not None and value.axis is not None and shape[value.axis] > 0:
            counts |= {float(shape[value.axis])}
        if self.node.op == "Mean":
            divided = shape is not None and reduced is not None and any(shape[a] < 0 for a in reduced)
            if divided or shape is None:
                return self._problem(
                    "averages over a number of entries that depends on the data", Total(None, exact=False)
                )
            return self._reduced(value, 0, counts)
        if self.node.op == "Sum":
            return self._reduced(value, 1, counts)
        return replace(self._reduced(value, 0, counts), exact=False)

    def _reduced(self, value: Samples, power: int, counts: frozenset[float]) -> Total:
        total_power = None if value.power is None else value.power + power
        if self.node.name not in self.batch_values.trained:
            return Total(total_power, False, counts, share=None if value.power else total_power)
        return Total(total_power, counts=counts)

    def _counts(self, counts: frozenset[float], shape: Shape, reduced: set[int] | None) -> frozenset[float]:
        if self.node.op != "Sum" or shape is None or reduced is None:
            return counts
        entries = prod(shape[a] for a in reduced)
        return counts | {c * entries for c in counts}

    def _product(self) -> Value:
        """Value of a matrix product or `Einsum`: the axis of samples is kept or summed over."""
        if all(value is None or isinstance(value, Total) for value in self.values):
            return self._of_totals()
        self._share_totals()
        if self._reads_positions():
            return self._problem("reads positions of samples in the batch", Samples(None))
        labels, out = self._labels()
        at = [
            None if value.axis is None else names[value.axis]
            for value, names in zip(self.values, labels, strict=True)
            if isinstance(value, Samples)
        ]
        if None in at:
            return Samples(None)
        if len(set(at)) > 1:
            return self._problem("compares samples with each other", Samples(None))
        power = self._samples_power()
        if at[0] in out:  # type: ignore[operator]
            return Samples(out.index(at[0]), power=power)  # type: ignore[arg-type]
        return self._reduced(Samples(None, power=power), 1, frozenset({1.0}))

    def _labels(self) -> tuple[list[str], str]:
        """Returns the axes of the factors and of the product, one letter per axis."""
        if self.node.op == "Einsum":
            factor_labels, _, product_labels = self.node.attr["equation"].s.decode().partition("->")
            names = factor_labels.split(",")
            if "." in factor_labels:
                names = [self._spelled(n, s) for n, s in zip(names, self.shapes, strict=True)]
                product_labels = self._spelled(product_labels, self.batch_values.shape((self.node.name, 0)))
            return names, product_labels
        ranks = [len(shape or (0, 0)) for shape in self.shapes]
        keys = ("transpose_a", "transpose_b") if self.node.op == "MatMul" else ("adj_x", "adj_y")
        lead = "ABCDEFGH"[: max(ranks) - 2]
        sides = ["mk", "kn"]
        for i, key in enumerate(keys):
            sides[i] = sides[i][::-1] if self.node.attr[key].b else sides[i]
        return [lead[len(lead) - rank + 2 :] + side for rank, side in zip(ranks, sides, strict=True)], lead + "mn"

    @staticmethod
    def _spelled(labels: str, shape: Shape) -> str:
        """Replaces `...` by letters."""
        extra = len(shape or ()) - len(labels.replace("...", ""))
        return labels.replace("...", "ABCDEFGH"[8 - extra :])

    # -- totals ------------------------------------------------------------------------------------------------------

    def _of_totals(self) -> Value:
        """Value of an op that reads totals and tensors that are the same for all micro-batches."""
        totals = [(t, v) for t, v in zip(self.inputs, self.values, strict=True) if isinstance(v, Total)]
        if not totals:
            return None
        if self.node.name not in self.batch_values.trained:
            power = self._power("power")
            counts = frozenset[float]().union(*(v.counts for _, v in totals))
            return Total(power, False, counts, share=self._power("share"))
        trained = [v for t, v in totals if t[0] in self.batch_values.trained]
        self._share_totals()
        op, first = self.node.op, trained[0] if trained else None
        if first is None:  # variables with shares of totals, which are the same for all micro-batches
            power = self._power("power")
            return None if power == 0 else Total(power, exact=power == 1)
        if op in _LINEAR or op in ("Sum", "Mean", "ConcatV2"):
            counts = self._counts(first.counts, self.shapes[0], set(range(len(self.shapes[0] or ()))))
            if len({v.power for v in trained}) > 1:
                return self._problem("joins a sum over the batch and a mean over it", Total(None, exact=False))
            return replace(first, exact=all(v.exact for v in trained), counts=counts)
        if op in _SUMS:
            if len({v.power for v in trained}) > 1:
                return self._problem("adds a sum over the batch to a mean over it", Total(None, exact=False))
            counts = reduce(_added_counts, (v.counts for v in trained))
            return replace(first, exact=all(v.exact for v in trained), counts=counts)
        if len(trained) == 1 and op in _SELECTIONS and self.inputs[0][0] not in self.batch_values.trained:
            return first
        if len(trained) == 1 and op in (_PRODUCTS | _DIVISIONS | _MATRIX | {"Einsum"}):
            is_first = self.inputs[0][0] in self.batch_values.trained and self.values[0] is not None
            if is_first or op not in _DIVISIONS:
                return self._scaled(first, 1 if is_first else 0)
        if all(v.exact for v in trained):
            return self._problem(
                "is not linear in what it reads, which is added up over the batch", Total(None, exact=False)
            )
        return Total(None, exact=False)

    def _scaled(self, total: Total, factor_index: int) -> Total:
        """Value of a trained total that is multiplied or divided by a constant or by a share of another total."""
        factor = self.values[factor_index]
        if not isinstance(factor, Total):
            return self._divided(total, self.batch_values.constant(self.inputs[factor_index]))
        if total.power is None or factor.power is None:
            return Total(None, exact=False)
        return replace(total, power=total.power + (-factor.power if self.node.op in _DIVISIONS else factor.power))

    def _divided(self, total: Total, constant: NDArray[np.generic] | None) -> Total:
        """Value of `total` divided by `constant`.

        A sum divided by the number of its entries is a mean. A sum divided by the number of entries of the whole batch stays a
        sum, unless an input of a micro-batch has as many. Any other integer divisor may be a number of samples, so the op is
        recorded as unclear. A factor may be the inverse of a count.
        """
        if total.power != 1 or constant is None or np.size(constant) != 1 or float(np.ravel(constant)[0]) == 0:
            return total
        factor, divides = float(np.ravel(constant)[0]), self.node.op in _DIVISIONS
        divisor = factor if divides else 1.0 / factor
        divides_by_count = any(abs(count - divisor) <= 1e-5 * count for count in total.counts)
        if divides and divides_by_count:
            return replace(total, power=0)
        is_undivided_count = any(
            abs(count * self.batch_values.micro_batches - divisor) <= 1e-5 * divisor for count in total.counts
        )
        entries = {prod(shape) for shape in map(self.batch_values.shape, self.batch_values.inputs) if shape}
        is_undivided_count &= not any(abs(count - divisor) <= 1e-5 * divisor for count in entries)
        odd = divides or divides_by_count or round(factor, 3) != round(factor, 7)
        if divisor > 1.5 and abs(divisor - round(divisor)) <= 1e-5 * divisor and odd and not is_undivided_count:
            self.batch_values.unclear[self.node.name] = f"divides a sum over the batch by {divisor:g}"
        return total

    def _power(self, key: str) -> int | None:
        """Returns the power by which an untrained op on totals scales with the batch; None if unknown."""
        op, powers = self.node.op, [getattr(v, key, None) for v in self.values]
        totals = [p for p, v in zip(powers, self.values, strict=True) if v is not None]
        if any(p is None for p in totals):
            return None
        if op in _LINEAR or op in REDUCTIONS or op == "ConcatV2":
            return totals[0] if len(set(totals)) == 1 else None
        if op in _FIXED:
            return 0
        if op in _PRODUCTS:
            return sum(p for p in totals if p is not None)
        if op in _DIVISIONS or op == "Reciprocal":
            signed = [p if k == 0 and op != "Reciprocal" else -p for k, p in enumerate(powers) if p is not None]
            return sum(signed) + (key == "power" and self._divides_count())
        if set(totals) == {0}:
            return 0
        if op in _SCALING or op in _SELECTIONS:
            scaled = [(t, v) for t, v in zip(self.inputs, self.values, strict=True)][op in _SELECTIONS :]
            small = all(v is not None or self._is_small(t) for t, v in scaled)
            powers_of_totals = {getattr(v, key) for _, v in scaled if isinstance(v, Total)}
            return (
                powers_of_totals.pop() if small and len(powers_of_totals) == 1 else 0 if not powers_of_totals else None
            )
        return None

    def _divides_count(self) -> bool:
        """Whether a constant is divided by a total, and is the number of entries that the total adds up."""
        count, total = self.batch_values.constant(self.inputs[0]), self.values[-1]
        if self.values[0] is not None or count is None or np.size(count) != 1 or not isinstance(total, Total):
            return False
        return any(
            abs(entries - float(np.ravel(count)[0])) <= 1e-5 * entries for entries in total.counts if entries > 1
        )

    def _is_small(self, tensor: Tensor) -> bool:
        """Whether a tensor is a constant of at most 1, which only keeps a divisor from being 0. Larger ones may be counts."""
        value = self.batch_values.constant(tensor)
        return value is not None and bool(np.all(np.abs(value.astype(float)) <= 1))

    # -- samples -----------------------------------------------------------------------------------------------------

    def _share_totals(self) -> None:
        """Records which totals an op reads as shares of the undivided batch's totals: an op on samples or on trained totals."""
        import tensorflow as tf

        for tensor, value in zip(self.inputs, self.values, strict=True):
            if not isinstance(value, Total):
                continue
            if self.node.op in _SHAPED and tensor != self.inputs[0]:
                continue  # a shape
            trained = tensor[0] in self.batch_values.trained
            reads_samples = any(isinstance(v, Samples) for v in self.values)
            if trained and self.node.name in self.batch_values.trained and not reads_samples:
                continue
            kind = tf.dtypes.as_dtype(output_types(self.batch_values.nodes[tensor[0]])[tensor[1]])
            if trained or value.share is None or (value.share and not kind.is_floating):
                self._problem("reads a value of the whole batch for each of its samples", None)
            else:
                self.batch_values.shared[tensor] = value.share

    def _of_samples(self, output: int) -> Value:
        """Value of an op that reads samples and is neither a reduction nor a product."""
        op, shape = self.node.op, self.batch_values.shape((self.node.name, output))
        samples = [(k, v) for k, v in enumerate(self.values) if isinstance(v, Samples)]
        counts, power = frozenset[float]().union(*(v.counts for _, v in samples)), self._samples_power()
        rank = None if shape is None else len(shape)
        if output_types(self.node)[output] == _VARIANT:
            return Samples(None, counts, power)
        per_row = op == "DenseBincount" and rank == 2
        if (
            op.startswith(_COUNTING)
            and not per_row
            and any(v.axis is not None for k, v in samples if k or not op.startswith("Unsorted"))
        ):
            scatters = op.startswith(("ScatterNd", "TensorScatter"))
            problem = _SCATTERS_ENTRIES if scatters else "counts or joins entries by their values"
            return self._problem(problem, Samples(None, counts, power))
        if rank is None or any(v.axis is None for _, v in samples):
            if self.node.name in self.batch_values.trained and self._may_work_along_samples():
                return self._problem(_WORKS_ALONG, Samples(None, counts, power))
            return Total(None, exact=False) if shape == () else Samples(None, counts, power)
        axes = [v.axis for _, v in samples]
        k, axis = samples[0][0], samples[0][1].axis
        source = self.shapes[k]
        if axis is None or source is None:
            return Samples(None, counts, power)
        if op not in _INDEXING and self._reads_positions():
            return self._problem("reads positions of samples in the batch", Samples(None, counts, power))
        if op in _BROADCASTING:
            placed = {v.axis + rank - len(self.shapes[i] or ()) for i, v in samples}  # type: ignore[operator]
            if len(placed) > 1:
                return self._problem("compares samples with each other", Samples(None, counts, power))
            return Samples(placed.pop(), counts, power)
        if reason := self._mixing_samples(k, axis, source, shape or ()):
            rank_kept = rank == len(source) and op not in _REARRANGING
            return self._problem(reason, Samples(axis if rank_kept else None, counts, power))
        output_axis = self._output_axis(axis, source, shape or ())
        if output_axis is None and rank == 0:
            return Total(None, exact=False)
        if output_axis is not None and (output_axis >= rank or (len(set(axes)) > 1 and op in ("Pack", "ConcatV2"))):
            output_axis = None
        return Samples(output_axis, counts, power)

    def _mixing_samples(self, k: int, axis: int, source: tuple[int, ...], shape: tuple[int, ...]) -> str | None:
        """How an op combines or selects samples that input `k` has along `axis`; None where it treats all alike."""
        op, batch, length = self.node.op, self.batch_values.batch, source[axis]
        along = (
            (k == 0 and axis >= len(source) - _ALONG_LAST.get(op, 0))
            or (op in _ALONG_SECOND and self._names_axis(axis, len(source)))
            or (op in _ALONG_FIRST and axis == 0)
            or (op == "ReverseSequence" and axis == self.node.attr["seq_dim"].i)
        )
        if along or (op.startswith(_SPATIAL) and k == 0 and axis != 0):
            return "works along the samples of the batch"
        if op == "Reshape":
            at = _reshaped(axis, source, shape, batch)
            rows = batch if at is None or shape[at] < 0 or batch == 1 else shape[at]
            return "divides the samples of the batch among rows" if rows % batch else None
        if op == "StridedSlice" and k == 0 and self._slices_samples(axis, source):
            return "takes a part of the samples of the batch"
        if op in ("Split", "SplitV", "Unpack") and self._splits_samples(axis, source):
            return "takes a part of the samples of the batch"
        if op.startswith("Gather") and k == 0 and -1 not in shape and self._gathers_samples(axis, length):
            return "takes samples by their indices"
        return None

    def _reads_positions(self) -> bool:
        arguments = zip(self.inputs, argument_names(self.node), strict=False)
        return any(argument not in _SIZE_ARGUMENTS and self._is_position(tensor) for tensor, argument in arguments)

    def _is_position(self, tensor: Tensor) -> bool:
        """Whether a tensor follows from `tf.range` of the number of samples, or from a constant with an entry per sample."""
        if tensor[0] in self.batch_values.positions:
            return True
        node = self.batch_values.nodes[tensor[0]]
        if node.op == "Range":
            return any(self.batch_values.of(source) is not None for source in data_inputs(node))
        passes_on = node.op in _POSITIONS and self.batch_values.of(tensor) is None
        return passes_on and any(map(self._is_position, data_inputs(node)))

    def _splits_samples(self, axis: int, source: tuple[int, ...]) -> bool:
        """Whether the parts into which an op splits its input are other than whole batches behind each other."""
        op, lengths = self.node.op, [1]
        at: NDArray[Any] | None = np.array(self.node.attr["axis"].i)
        if op != "Unpack":
            at = self.batch_values.constant(self.inputs[0 if op == "Split" else 2])
            sizes = None if op == "Split" else self.batch_values.constant(self.inputs[1])
            lengths = [source[axis] // self.node.attr["num_split"].i] if sizes is None else np.ravel(sizes).tolist()
        along_samples = at is not None and int(at) % len(source) == axis
        return along_samples and any(length % self.batch_values.batch for length in lengths)

    def _gathers_samples(self, axis: int, length: int) -> bool:
        """Whether indices, other than 0, 1, 2, ... as in a choice of one entry of each sample, select samples."""
        if self.node.op != "GatherNd":
            at = self.batch_values.constant(self.inputs[2]) if self.node.op == "GatherV2" else 0
            return at is None or int(at) == axis
        index_shape = self.shapes[1]
        if index_shape and axis >= index_shape[-1]:
            return False
        producer = self.batch_values.nodes[self.inputs[1][0]]
        indices = self.batch_values.constant(next(data_inputs(producer), self.inputs[1]))
        return axis != 0 or indices is None or not np.array_equal(np.unique(indices), np.arange(length))

    def _samples_power(self) -> int | None:
        """Returns the power of the totals by which each entry of the output is multiplied."""
        powers = [value.power for value in self.values if value is not None]
        if self.node.op in _PRODUCTS | _MATRIX | {"Einsum"}:
            return None if None in powers else sum(p for p in powers if p is not None)
        if self.node.op in _DIVISIONS and len(self.values) == 2 and None not in powers:
            of, by = (0 if value is None else value.power or 0 for value in self.values)
            return of - by
        first = self.values[0]
        if first is not None and (self.node.op in _SHAPED or self.node.op.startswith("Gather")):
            return first.power
        if set(powers) == {0}:
            return 0
        return self._power_of_scaled_samples()

    def _power_of_scaled_samples(self) -> int | None:
        """Returns the power where samples were multiplied by a share: None unless the op scales with some power of it."""
        op, is_selection = self.node.op, self.node.op in _SELECTIONS
        values = list(zip(self.inputs, self.values, strict=True))[is_selection:]
        powers = {value.power for _, value in values if value is not None}
        power = powers.pop() if len(powers) == 1 else None
        if power is None:
            return None
        if op in _BROADCASTING:
            constants = [self.batch_values.constant(tensor) for tensor, value in values if value is None]
            if op == "Pow":
                if len(constants) != 1 or values[0][1] is None or constants[0] is None or np.size(constants[0]) != 1:
                    return None
                exponent = float(np.ravel(constants[0])[0])
                return power * int(exponent) if exponent.is_integer() else None
            if any(constant is None or np.any(constant) for constant in constants):
                return None
            degree = 2 if op == "SquaredDifference" else 0 if op in _FIXED else 1
            return degree * power if op in _SCALING | _FIXED | _SELECTIONS | {"SquaredDifference"} else None
        return 2 * power if op == "Square" else power if op in _HOMOGENEOUS else None

    def _may_work_along_samples(self) -> bool:
        """Whether an op works along an axis that is as long as the batch, or several times as long."""
        op, source, batch = self.node.op, self.shapes[0], self.batch_values.batch
        if not source:
            return False
        lengths = [*source[max(len(source) - _ALONG_LAST.get(op, 0), 0) :]]
        lengths += [
            size for axis, size in enumerate(source) if op in _ALONG_SECOND and self._names_axis(axis, len(source))
        ]
        lengths += source[: op in _ALONG_FIRST]
        return any(length <= 0 or (length % batch == 0 if batch > 1 else length == 1) for length in lengths)

    def _names_axis(self, axis: int, rank: int) -> bool:
        axes = self.batch_values.constant(self.inputs[-1])
        return axes is not None and axis in {int(a) % rank for a in np.ravel(axes)}

    def _output_axis(self, axis: int, source: Sequence[int], shape: Sequence[int]) -> int | None:
        """Returns the axis of samples in the output; None if unknown."""
        op = self.node.op
        if op == "Reshape":
            return _reshaped(axis, source, shape, self.batch_values.batch)
        if op in ("Transpose", "ConjugateTranspose"):
            order = self.batch_values.constant(self.inputs[1])
            return None if order is None else [int(a) for a in order].index(axis)
        if op in ("ExpandDims", "Pack", "OneHot"):
            at = self.batch_values.constant(self.inputs[1]) if op == "ExpandDims" else self.node.attr["axis"].i
            return None if at is None else axis + (int(at) % len(shape) <= axis)
        if op in ("Squeeze", "Unpack"):
            removed_axes = (
                list(self.node.attr["squeeze_dims"].list.i) if op == "Squeeze" else [self.node.attr["axis"].i]
            )
            removed_axes = [a % len(source) for a in removed_axes] or [
                a for a, size in enumerate(source) if size == 1 and a != axis
            ]
            return None if axis in removed_axes else axis - sum(a < axis for a in removed_axes)
        if op == "StridedSlice":
            return self._slice_entries(axis, len(source))[0]
        if op in ("GatherV2", "ResourceGather", "Gather") and not isinstance(self.values[0], Samples):
            at = self.batch_values.constant(self.inputs[2]) if op == "GatherV2" else 0
            return None if at is None else axis + int(at)
        return axis if axis < len(shape) else None

    def _slice_entries(self, axis: int, rank: int) -> tuple[int | None, int | None]:
        """Returns, of indexing such as `x[:, None, ..., 0]`, where an axis is in the output, and which index it has.

        Both are None where it is indexed by a number; the second where no index names it.
        """
        index_shape = self.shapes[1]
        shrunk_axes, new_axes, ellipsis = (
            self.node.attr[f"{key}_mask"].i for key in ("shrink_axis", "new_axis", "ellipsis")
        )
        before = after = 0
        for k in range(index_shape[0] if index_shape else 0):
            if ellipsis >> k & 1:
                sliced_axes = sum(not new_axes >> j & 1 for j in range(k + 1, index_shape[0] if index_shape else 0))
                after += rank - before - sliced_axes
                before = rank - sliced_axes
                if axis < before:
                    return after - (before - axis), None
            elif new_axes >> k & 1:
                after += 1
            else:
                before, after = before + 1, after + (not shrunk_axes >> k & 1)
                if axis < before:
                    return (None, None) if shrunk_axes >> k & 1 else (after - 1, k)
        return after + axis - before, None

    def _slices_samples(self, axis: int, source: Sequence[int]) -> bool:
        """Whether an index takes a part of the samples: neither all, nor whole batches of several put behind each other."""
        _, k = self._slice_entries(axis, len(source))
        if k is None or source[axis] < 0:
            return False
        indices = [self.batch_values.constant(tensor) for tensor in self.inputs[1:]]
        masks = [self.node.attr[f"{key}_mask"].i >> k & 1 for key in ("begin", "end")]
        limits = [None if mask else index for mask, index in zip(masks, indices[:2], strict=True)]
        if indices[2] is None or any(i is None and not m for i, m in zip(indices[:2], masks, strict=True)):
            return True
        start, stop = (None if limit is None else int(np.ravel(limit)[k]) for limit in limits)
        samples = range(source[axis])[slice(start, stop, int(np.ravel(indices[2])[k]))]
        batch = self.batch_values.batch
        return samples.step != 1 or samples.start % batch != 0 or len(samples) % batch != 0

    def _problem(self, reason: str, value: Value) -> Value:
        if self.batch_values.is_normalizing(self.node):
            self.batch_values.normalizes = True
        else:
            self.batch_values.problems.setdefault(self.node.name, reason)
        return value


@dataclass(frozen=True)
class _Body:
    """The analysis of a body of a loop or conditional: names of its arguments, and the tensors that it returns."""

    values: BatchValues
    arguments: list[str]
    results: list[Tensor]

    def shared_arguments(self) -> list[str]:
        """Returns the arguments of which every micro-batch reads its share of the undivided batch's."""
        return [name for name in self.arguments if (name, 0) in self.values.shared]

    def reads_whole_batch(self) -> bool:
        """Whether an op reads a value of the undivided batch that is computed in the body, so that no micro-batch knows it.

        The number of samples in the scale of a total is that of the micro-batch, as the total is.
        """
        values = self.values
        varying = {name for name in self.arguments if values.of((name, 0)) is not None}
        inside = values.shared.keys() - {(name, 0) for name in self.arguments}
        leading = ancestors(values.nodes, list(values.nodes), {name for name, _ in inside})
        if varying & leading:
            return True
        inputs = [set(data_inputs(node)) for node in values.nodes.values()]
        return any(isinstance(values.of(tensor), Samples) for read in inputs if read & inside for tensor in read)


def _kind(value: Value) -> Value:
    """Returns a value without its numbers of entries."""
    return value and replace(value, counts=frozenset())


def _merge_values(first: Value, second: Value, is_scalar: bool) -> Value:
    """Returns the value of a tensor that has one of two values."""
    varying = [value for value in (first, second) if value is not None]
    has_total = is_scalar or any(isinstance(value, Total) for value in varying)
    # The mean of what is the same for all is the same; a sum of it is not.
    is_mergeable = len(varying) == 2 or not any(isinstance(value, Total) and value.power != 0 for value in varying)
    counts = frozenset[float]().union(*(value.counts for value in varying))
    if len({_kind(value) for value in varying}) < 2 and is_mergeable:
        return replace(varying[0], counts=counts) if varying else None
    return Total(None, exact=False, counts=counts) if has_total else Samples(None, counts)


def _is_float(kind: int) -> bool:
    import tensorflow as tf

    return bool(tf.dtypes.as_dtype(kind).is_floating)


def _added_counts(a: frozenset[float], b: frozenset[float]) -> frozenset[float]:
    """Returns the possible numbers of entries of a sum of two sums."""
    return a | b | {x + y for x in a for y in b} if len(a) * len(b) <= _MOST_COUNTS else a | b


def _reshaped(axis: int, source: Sequence[int], shape: Sequence[int], batch: int) -> int | None:
    """Returns the first output axis that can hold the batch and has as many entries before it as `axis` has.

    >>> _reshaped(0, (2, 3, 5), (6, 5), 2), _reshaped(1, (3, 2, 5), (3, 10), 2), _reshaped(1, (3, 2, 5), (6, 5), 2)
    (0, 1, None)
    >>> _reshaped(0, (2, 5), (1, 2, 5), 2), _reshaped(0, (8,), (1, 8), 1)
    (1, 0)
    """
    before, outer = 1, prod(source[:axis])
    for at, size in enumerate(shape):
        if before == outer and (size != 1 or batch == 1):
            return at
        before *= size
    return None


def ancestors(nodes: Mapping[str, NodeDef], ops: Sequence[str], names: set[str]) -> set[str]:
    """Returns `names` and the ops from which they follow; `ops` in topological order."""
    leading = set(names)
    for name in reversed(ops):
        if name in leading:
            leading |= {producer for producer, _ in data_inputs(nodes[name])}
    return leading
