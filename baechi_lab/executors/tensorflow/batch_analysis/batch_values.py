"""`BatchValues`: the result of the analysis of a step, and the shapes, constants and batch sizes that it reads from the graph."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ....profilers.tensorflow.nodes import data_inputs
from ....profilers.tensorflow.shapes import SHAPES
from ..constant_ops import CONSTANT_OPS

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

Tensor = tuple[str, int]
Shape = tuple[int, ...] | None
"""-1 for a length that depends on the data; None if the rank depends on it."""


@dataclass(frozen=True)
class Samples:
    """One entry per sample along `axis` (None: unknown).

    `power`: the power of the number of samples with which each entry grows, because it was multiplied or divided by totals: 0
    for the samples themselves, -1 after a division by their sum; None if unknown. `counts`: how many entries were added up
    to make one entry of this tensor, all numbers that are possible; 1 if none were.
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


def without_counts(value: Value) -> Value:
    """Returns a value without its numbers of entries."""
    return value and replace(value, counts=frozenset())


def merge_values(first: Value, second: Value, is_scalar: bool) -> Value:
    """Returns the value of a tensor that has one of two values."""
    varying = [value for value in (first, second) if value is not None]
    has_total = is_scalar or any(isinstance(value, Total) for value in varying)
    # The mean of what is the same for all is the same; a sum of it is not.
    is_mergeable = len(varying) == 2 or not any(isinstance(value, Total) and value.power != 0 for value in varying)
    counts = frozenset[float]().union(*(value.counts for value in varying))
    if len({without_counts(value) for value in varying}) < 2 and is_mergeable:
        return replace(varying[0], counts=counts) if varying else None
    return Total(None, exact=False, counts=counts) if has_total else Samples(None, counts)


WORKS_ALONG = "may work along the samples of the batch"
READS_SIZES = "reads a number in its iterations that depends on the number of samples"
CARRIES_VALUES = "carries values from one sample to the next"
REDUCES_AXIS = "reduces an axis in its iterations that is as long as the batch"
SCATTERS_ENTRIES = "puts entries at places that depend on the data"
UNPROVEN = frozenset({SCATTERS_ENTRIES, WORKS_ALONG, READS_SIZES, CARRIES_VALUES, REDUCES_AXIS})
"""Problems that an op may have, as far as the graph shows."""
_NORMALISING = ("FusedBatchNorm", "batch_norm", "batchnorm", "BatchNorm")
_SHAPE_CONSTANT = re.compile(r"(^|/)Shape(_\d+)?$")
"""Names that TensorFlow gives to the constant that it puts in the place of `tf.shape` where sizes are known."""


@dataclass
class BatchValues:
    """The analysis of a step: how each tensor of a micro-batch relates to that of the undivided batch (`read_batch_values`).

    Args:
        graph_def: the graph of a step of one micro-batch.
        micro_batches: number of micro-batches of the undivided batch.
        inputs: the inputs that hold the batch.
        batch: samples of a micro-batch.
        values: value of every tensor that differs between micro-batches.
        trained_ops: ops whose outputs depend on variables or random numbers.
        shared_totals: totals of which each micro-batch reads its share of the undivided batch's total, with the power of the
            number of micro-batches by which the share is smaller.
        problems: op -> reason why micro-batches cannot compute what it computes.
        unclear: op -> its division by a constant that may be a number of samples.
        undivided_graph: the graph of the undivided batch; None if it is unknown.
        positions: constants with an entry per sample that differ from the undivided batch's.
        same_draws: random ops that draw the undivided batch's numbers in every micro-batch.
        normalizes: whether a layer normalizes by statistics of the batch, of which `bl.unroll` warns.
    """

    graph_def: GraphDef
    micro_batches: int
    nodes: Mapping[str, NodeDef] = field(init=False)
    inputs: Sequence[Tensor] = ()
    batch: int = 1
    values: dict[Tensor, Value] = field(default_factory=dict)
    trained_ops: set[str] = field(default_factory=set)
    shared_totals: dict[Tensor, int] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    unclear: dict[str, str] = field(default_factory=dict)
    undivided_graph: GraphDef | None = None
    positions: set[str] = field(default_factory=set)
    same_draws: set[str] = field(default_factory=set)
    normalizes: bool = False

    def __post_init__(self) -> None:
        self.nodes = {node.name: node for node in self.graph_def.node}
        self._constants: dict[Tensor, NDArray[Any] | None] = {}
        self.undivided_values = (
            None if self.undivided_graph is None else BatchValues(self.undivided_graph, self.micro_batches)
        )
        self._normalizing_layers = {name.split("/batchnorm/")[0] for name in self.nodes if "/batchnorm/" in name}

    def is_normalizing(self, node: NodeDef) -> bool:
        """Whether an op belongs to a batch normalization, of which `bl.unroll` warns."""
        layer = node.name.rpartition("/moments/")[0]
        return layer in self._normalizing_layers or any(word in node.name + node.op for word in _NORMALISING)

    def counts_samples(self, node: NodeDef, axes: Mapping[str, int | None]) -> bool:
        """Whether an op is `tf.shape(x)[k]` with as many entries as a micro-batch has samples, along an axis of samples."""
        if node.op != "StridedSlice" or not node.attr["shrink_axis_mask"].i:
            return False
        sizes, position, *_ = data_inputs(node)
        if self.nodes[sizes[0]].op != "Const" or not _SHAPE_CONSTANT.search(sizes[0]):
            return False
        entries, at = self.constant(sizes), self.constant(position)
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

    def is_same_draw(self, node: NodeDef) -> bool:
        """Whether a random op draws as many numbers for the undivided batch, and the same ones for the same seed."""
        undivided_node = None if self.undivided_values is None else self.undivided_values.nodes.get(node.name)
        if self.undivided_values is None or undivided_node is None or undivided_node.op != node.op:
            return False
        shape = self.shape((node.name, 0))
        is_known = shape is not None and -1 not in shape
        return node.op.startswith("Stateless") and is_known and self.undivided_values.shape((node.name, 0)) == shape

    def drawn_axis(self, tensor: Tensor, shape: tuple[int, ...]) -> int | None:
        """Returns the axis along which random numbers have an entry per sample; None if there is none.

        It is the axis that is longer in the graph of the undivided batch. Without that graph, it is one as long as the batch.
        """
        undivided_node = None if self.undivided_values is None else self.undivided_values.nodes.get(tensor[0])
        if (
            self.undivided_values is not None
            and undivided_node is not None
            and undivided_node.op == self.nodes[tensor[0]].op
        ):
            sizes = zip(shape, self.undivided_values.shape(tensor) or (), strict=False)
            axes = [axis for axis, (size, undivided_size) in enumerate(sizes) if size != undivided_size]
        else:
            axes = [axis for axis, size in enumerate(shape) if size == self.batch and size > 1]
        return axes[0] if axes else None

    def of_batch_size(self, tensor: Tensor) -> Value:
        """Returns the value of a constant that differs from the undivided batch's constant; None for any other tensor.

        A constant with an entry per sample is recorded in `positions` unless all micro-batches read those of the undivided batch.
        """
        if self.undivided_values is None or tensor[0] not in self.undivided_values.nodes:
            return None
        nodes = self.nodes[tensor[0]], self.undivided_values.nodes[tensor[0]]
        if nodes[0].op == "Const" and nodes[0].attr["value"] == nodes[1].attr["value"]:
            return None
        value, undivided_value = self.constant(tensor), self.undivided_values.constant(tensor)
        if value is None or undivided_value is None or np.array_equal(value, undivided_value):
            return None
        is_numeric = np.issubdtype(value.dtype, np.number) or value.dtype.name == "bfloat16"
        if is_numeric and value.shape == undivided_value.shape:
            is_shape = value.ndim and np.issubdtype(value.dtype, np.integer)
            if is_shape and np.all((undivided_value == value) | (undivided_value == value * self.micro_batches)):
                return None
            power = self._growth(value, undivided_value)
            return Total(power, exact=power is not None, share=None if power is None else 0)
        same_rank = value.ndim == undivided_value.ndim
        axes = [axis for axis in range(value.ndim) if same_rank and value.shape[axis] != undivided_value.shape[axis]]
        if len(axes) == 1 and undivided_value.shape[axes[0]] == self.micro_batches * value.shape[axes[0]]:
            repeated_value = np.concatenate([value] * self.micro_batches, axes[0])
            if np.array_equal(repeated_value, undivided_value):
                return None
            if is_numeric and (power := self._growth(repeated_value, undivided_value)) is not None:
                return Samples(axes[0], power=power)
        self.positions.add(tensor[0])
        return None

    def _growth(self, value: NDArray[Any], undivided_value: NDArray[Any]) -> int | None:
        """Returns p if `undivided_value` is `value` times the number of micro-batches to the power p; None if there is no p."""
        largest = np.argmax(np.abs(value.astype(np.float64)))
        ratio = float(undivided_value.ravel()[largest]) / (float(value.ravel()[largest]) or np.nan)
        if not 0 < ratio < np.inf:
            return None
        power = round(np.log(ratio) / np.log(self.micro_batches))
        expected = value.astype(np.float64) * float(self.micro_batches) ** power
        tolerance = 1e-5 if value.itemsize > 2 else 1e-2
        return power if np.allclose(undivided_value.astype(np.float64), expected, rtol=tolerance, atol=0) else None

    def constant(self, tensor: Tensor) -> NDArray[Any] | None:
        """Returns the value of a tensor that follows from constants and shapes, else None."""
        if tensor not in self._constants:
            self._constants[tensor] = self._evaluate(tensor)
        return self._constants[tensor]

    def _evaluate(self, tensor: Tensor) -> NDArray[Any] | None:
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


def is_float(kind: int) -> bool:
    """Whether TensorFlow's data type `kind` is a floating-point type."""
    import tensorflow as tf

    return bool(tf.dtypes.as_dtype(kind).is_floating)


def ancestors(nodes: Mapping[str, NodeDef], ops: Sequence[str], names: set[str]) -> set[str]:
    """Returns `names` and the ops from which they follow; `ops` in topological order."""
    leading = set(names)
    for name in reversed(ops):
        if name in leading:
            leading |= {producer for producer, _ in data_inputs(nodes[name])}
    return leading
