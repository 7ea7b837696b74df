"""What the tensors of one micro-batch are to the undivided batch, read from the forward graph.

A tensor that looks at the batch has an entry per sample along one axis (`Samples`), or is one for all samples
(`Total`): the undivided batch's is then the sum of the micro-batches' (`power` 1), their mean (0), or something else.
A loss that is divided by a total, such as the number of words that count, is no mean of its micro-batches' losses. Where the
total follows from the inputs alone, without variables, the undivided batch's is known before the first forward op: each
micro-batch then divides by its share of it (`shared`), and the mean is exact again. What mixes samples in other ways
(batch statistics, losses that compare samples) is a `Problem`.

The rules know the ops that losses are made of. Of others an output with the length of the batch along the same axis is
taken for samples, a scalar for a total of unknown kind. O(ops + edges).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from ...profilers.tensorflow.inlining import CONTROL_FLOW_OPS
from ...profilers.tensorflow.nodes import data_inputs, output_types
from ...profilers.tensorflow.shapes import SHAPES

Tensor = tuple[str, int]
Shape = tuple[int, ...] | None
"""-1 for a length that depends on the data; None where the rank does."""


@dataclass(frozen=True)
class Samples:
    """An entry per sample along `axis` (None: unknown).

    `power`: of totals that each entry was multiplied by. `counts`: how many entries may have been added up so far.
    """

    axis: int | None
    counts: frozenset[float] = frozenset({1.0})
    power: int | None = 0


@dataclass(frozen=True)
class Total:
    """One value for all samples: b times as many samples make it b ** `power` times as large (None: unknown).

    `exact`: the undivided batch's is the sum (power 1) or mean (power 0) of the micro-batches', not just of that size.
    `counts`: how many entries may have been added up. `penalty`: a constant was added to a sum. `share`: the power that
    remains where the graph has a number of entries as a constant.
    """

    power: int | None
    exact: bool = True
    counts: frozenset[float] = frozenset({1.0})
    penalty: bool = False
    share: int | None = None


Value = Samples | Total | None
"""None: the same for all micro-batches."""

_MOST_COUNTS = 1000
_VARIANT = 21
"""TensorFlow's DT_VARIANT, the type of lists of tensors."""
_SHAPED = frozenset({"Reshape", "BroadcastTo", "Tile", "Fill", "StridedSlice", "Slice", "Range"})
"""Ops whose further inputs are shapes or indices."""
_LINEAR = _SHAPED | frozenset(
    {"Identity", "Cast", "Neg", "Squeeze", "ExpandDims", "Transpose", "Pack", "EnsureShape", "CheckNumerics", "StopGradient",
     "PreventGradient", "Snapshot"}
)  # fmt: skip
_SUMS = frozenset({"Add", "AddV2", "AddN", "Sub"})
_DIVISIONS = frozenset({"RealDiv", "Div", "DivNoNan", "TruncateDiv", "FloorDiv"})
_PRODUCTS = frozenset({"Mul", "MulNoNan"})
_SCALING = frozenset({"Maximum", "Minimum", "Abs", "Relu", *_SUMS})
"""Ops that scale as their inputs do, beside constants that only keep a divisor from 0."""
_FIXED = frozenset({"Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "LogicalAnd", "LogicalOr", "LogicalNot",
                    "IsFinite", "IsNan", "IsInf", "Sign"})  # fmt: skip
_BROADCASTING = _SUMS | _DIVISIONS | _PRODUCTS | _SCALING | _FIXED | frozenset(
    {"Select", "SelectV2", "Pow", "SquaredDifference", "FloorMod", "Xlogy", "Xdivy", "BitwiseAnd", "Atan2", "Xlog1py"}
)  # fmt: skip
REDUCTIONS = {
    "Sum": "AddV2",
    "Mean": "AddV2",
    "Max": "Maximum",
    "Min": "Minimum",
    "All": "LogicalAnd",
    "Any": "LogicalOr",
}
"""Reductions, and the op that joins those of several micro-batches."""
_ALONG_LAST = frozenset({"Softmax", "LogSoftmax", "TopKV2", "TopK"})
_ALONG_SECOND = frozenset({"ReverseV2", "Roll", "Cumsum", "Cumprod", "ArgMax", "ArgMin"})
_MATRIX = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"})
_SELECTIONS = frozenset({"Select", "SelectV2"})
_RANDOM = re.compile(
    r"(Stateless|Stateful)?(Random|TruncatedNormal|Multinomial|Uniform|StandardNormal|ParameterizedTruncated)"
)
_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"})
_SIZES = frozenset({"Shape", "ShapeN", "Size"})
_NORMALISING = ("FusedBatchNorm", "batch_norm", "batchnorm", "BatchNorm")
"""Batch normalisation is warned of by `bl.unroll`."""


@dataclass
class BatchValues:
    """What is known of a step; see `read_batch_values`.

    `batch`: samples of a micro-batch. `values`: of every tensor that differs from micro-batch to micro-batch. `trained`: ops
    whose outputs depend on variables, or on random numbers. `shared`: totals that enter each micro-batch as its share of the
    undivided batch's, with the power by which the share is smaller. `problems`: ops that mix samples in a way that micro-batches
    cannot, with the reason. `unclear`: ops that divide by a constant which may be a number of samples.
    """

    graph_def: Any
    micro_batches: int
    nodes: Mapping[str, Any] = field(init=False)
    batch: int = 1
    values: dict[Tensor, Value] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)
    shared: dict[Tensor, int] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    unclear: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = {node.name: node for node in self.graph_def.node}

    def of(self, tensor: Tensor) -> Value:
        """The tensor's value; None for what is the same for all micro-batches."""
        return self.values.get(tensor)

    def shape(self, tensor: Tensor) -> Shape:
        """The shape that the graph gives, -1 for an open length."""
        known = self.nodes[tensor[0]].attr[SHAPES].list.shape
        if tensor[1] >= len(known) or known[tensor[1]].unknown_rank:
            return None
        return tuple(int(d.size) for d in known[tensor[1]].dim)

    def constant(self, tensor: Tensor) -> Any:
        """The value of what constants and shapes tell, None for anything else."""
        import tensorflow as tf

        node = self.nodes[tensor[0]]
        if node.op == "Const":
            return tf.make_ndarray(node.attr["value"].tensor)
        shape = self.shape(next(data_inputs(node), tensor))
        if node.op in ("Shape", "Size") and shape is not None and -1 not in shape:
            return np.array(shape) if node.op == "Shape" else np.array(prod(shape))
        compute = _CONSTANTS.get(node.op)
        values = [self.constant(source) for source in data_inputs(node)] if compute else [None]
        if compute is None or any(value is None for value in values):
            return None
        return compute(node, *values)


def _slice(node: Any, x: Any, begin: Any, end: Any, strides: Any) -> Any:
    """`x[begin:end]` or `x[begin]` of one axis."""
    if len(begin) != 1:
        return None
    if node.attr["shrink_axis_mask"].i:
        return x[int(begin[0])]
    first, last = (None if node.attr[f"{key}_mask"].i else int(at[0]) for key, at in (("begin", begin), ("end", end)))
    return x[first : last : int(strides[0])]


_CONSTANTS: dict[str, Callable[..., Any]] = {
    "Identity": lambda node, x: x,
    "Cast": lambda node, x: x,
    "Neg": lambda node, x: -x,
    "Prod": lambda node, x, axes: np.prod(x, axis=tuple(int(a) for a in np.ravel(axes))),
    "StridedSlice": _slice,
    "Mul": lambda node, x, y: x * y,
    **{op: lambda node, x, y: x + y for op in ("Add", "AddV2")},
    **{op: lambda node, x, y: x / y if np.all(y) else None for op in ("RealDiv", "Div", "DivNoNan", "FloorDiv")},
    "Maximum": lambda node, x, y: np.maximum(x, y),
    "Pack": lambda node, *parts: np.stack(parts),
}
"""What follows from shapes and constants, such as the number of entries of a tensor."""


def read_batch_values(
    graph_def: Any, forward: Sequence[str], axes: Mapping[str, int | None], micro_batches: int
) -> BatchValues:
    """Follow the batch through the `forward` ops, which are in topological order.

    `axes`: the batch's axis in each input, by the input's name; None where it is unknown. An input that is not in it is the same
    for all micro-batches.
    """
    found = BatchValues(graph_def, micro_batches)
    for name, axis in axes.items():
        shape = found.shape((name, 0))
        found.batch = max(found.batch, shape[axis] if shape and axis is not None else 1)
    for name in forward:
        _Rule(found, found.nodes[name], axes).apply()
    return found


class _Rule:
    """One op: from what its inputs are to what its outputs are."""

    def __init__(self, found: BatchValues, node: Any, axes: Mapping[str, int | None]) -> None:
        self.found, self.node, self.axes = found, node, axes
        self.inputs = list(data_inputs(node))
        self.values = [found.of(tensor) for tensor in self.inputs]
        self.shapes = [found.shape(tensor) for tensor in self.inputs]

    def apply(self) -> None:
        """Store what the outputs are."""
        node, found = self.node, self.found
        random = _RANDOM.match(node.op) is not None
        if node.op == "VarHandleOp" or random or any(p in found.trained for p, _ in self.inputs):
            found.trained.add(node.name)
        if node.op == "Placeholder":
            shape = found.shape((node.name, 0))
            if node.name in self.axes and shape != ():
                found.values[node.name, 0] = Samples(self.axes[node.name])
            return
        if not any(self.values):
            shape = found.shape((node.name, 0)) if random else ()
            if shape:
                axes = [a for a, size in enumerate(shape) if size == found.batch]
                found.values[node.name, 0] = Samples(axes[0] if axes and found.batch > 1 else None)
            return
        for output in range(len(output_types(node))):
            value = self._output(output)
            if value is not None:
                found.values[node.name, output] = value

    # -- kinds of ops ------------------------------------------------------------------------------------------------

    def _output(self, output: int) -> Value:
        op = self.node.op
        if op in _SHAPES:
            return self._size(output)
        if op.startswith("FusedBatchNorm"):
            return Samples(0) if output == 0 else Total(0)
        if op in CONTROL_FLOW_OPS:
            return self._control_flow(output)
        if op in REDUCTIONS:
            return self._reduction()
        if op == "L2Loss" and isinstance(self.values[0], Samples):
            return Total(1)
        if op in _MATRIX or op == "Einsum":
            return self._product()
        if all(value is None or isinstance(value, Total) for value in self.values):
            return self._of_totals()
        self._share_totals()
        return self._of_samples(output)

    def _size(self, output: int) -> Value:
        if self.node.op not in _SIZES:
            return self.values[0]
        shape = self.shapes[min(output, len(self.shapes) - 1)]
        if shape is not None and -1 not in shape:
            return None
        return Total(1 if self.node.op == "Size" else None, exact=self.node.op == "Size")

    def _control_flow(self, output: int) -> Value:
        """Loops and conditionals are not looked into: what they return per sample stays so, a total is of unknown kind."""
        import tensorflow as tf

        shape = self.found.shape((self.node.name, output))
        if self.node.op.endswith("While") and self.values[output] is None and shape == ():
            if not tf.dtypes.as_dtype(output_types(self.node)[output]).is_floating:
                return None
        self._share_totals()
        one = shape == () and output_types(self.node)[output] != _VARIANT
        return Total(None, exact=False) if one else Samples(None)

    def _reduction(self) -> Value:
        value, shape = self.values[0], self.shapes[0]
        if not isinstance(value, Samples):
            return self._of_totals()
        axes = self.found.constant(self.inputs[1]) if len(self.inputs) > 1 else None
        out = self.found.shape((self.node.name, 0))
        rank = None if shape is None else len(shape)
        reduced = None if axes is None or rank is None else {int(a) % max(rank, 1) for a in np.ravel(axes)}
        all_of_it = (
            out is not None and prod(out) == 1 and shape is not None and (rank == len(reduced or ()) or out == ())
        )
        if value.axis is None and not all_of_it:
            return value
        if not all_of_it and (reduced is None or value.axis not in reduced):
            kept = self.node.attr["keep_dims"].b
            axis = value.axis if kept or reduced is None else value.axis - sum(a < value.axis for a in reduced)  # type: ignore[operator]
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
        known = None if value.power is None else value.power + power
        if self.node.name not in self.found.trained:
            return Total(known, False, counts, share=None if value.power else known)
        return Total(known, counts=counts)

    def _counts(self, counts: frozenset[float], shape: Shape, reduced: set[int] | None) -> frozenset[float]:
        if self.node.op != "Sum" or shape is None or reduced is None:
            return counts
        entries = prod(shape[a] for a in reduced)
        return counts | {c * entries for c in counts}

    def _product(self) -> Value:
        """Matrix products and `Einsum`: an axis of samples is kept, or summed over."""
        if all(value is None or isinstance(value, Total) for value in self.values):
            return self._of_totals()
        self._share_totals()
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
        """The axes of both factors and of the product, one letter each."""
        if self.node.op == "Einsum":
            left, _, out = self.node.attr["equation"].s.decode().partition("->")
            names = left.split(",")
            if "." in left:
                names = [self._spelled(n, s) for n, s in zip(names, self.shapes, strict=True)]
                out = self._spelled(out, self.found.shape((self.node.name, 0)))
            return names, out
        ranks = [len(shape or (0, 0)) for shape in self.shapes]
        keys = ("transpose_a", "transpose_b") if self.node.op == "MatMul" else ("adj_x", "adj_y")
        lead = "ABCDEFGH"[: max(ranks) - 2]
        sides = ["mk", "kn"]
        for i, key in enumerate(keys):
            sides[i] = sides[i][::-1] if self.node.attr[key].b else sides[i]
        return [lead[len(lead) - rank + 2 :] + side for rank, side in zip(ranks, sides, strict=True)], lead + "mn"

    @staticmethod
    def _spelled(labels: str, shape: Shape) -> str:
        """Letters in place of `...`."""
        extra = len(shape or ()) - len(labels.replace("...", ""))
        return labels.replace("...", "ABCDEFGH"[8 - extra :])

    # -- totals ------------------------------------------------------------------------------------------------------

    def _of_totals(self) -> Value:
        """An op that reads totals and what is the same for all micro-batches."""
        totals = [(t, v) for t, v in zip(self.inputs, self.values, strict=True) if isinstance(v, Total)]
        if not totals:
            return None
        if self.node.name not in self.found.trained:
            power = self._power("power")
            counts = frozenset[float]().union(*(v.counts for _, v in totals))
            return Total(power, False, counts, share=self._power("share"))
        trained = [v for t, v in totals if t[0] in self.found.trained]
        self._share_totals()
        op, first = self.node.op, trained[0] if trained else None
        if first is None:
            return None  # variables with shares of totals: the same for all
        if op in _LINEAR or op in ("Sum", "Mean", "ConcatV2"):
            counts = self._counts(first.counts, self.shapes[0], set(range(len(self.shapes[0] or ()))))
            if len({v.power for v in trained}) > 1:
                return self._problem("joins a sum over the batch and a mean over it", Total(None, exact=False))
            beside = (
                op in ("Pack", "ConcatV2") and first.power == 1 and len(trained) < len(self.values) - (op == "ConcatV2")
            )
            penalty = beside or any(v.penalty for v in trained)
            return replace(first, exact=all(v.exact for v in trained), counts=counts, penalty=penalty)
        if op in _SUMS:
            if len({v.power for v in trained}) > 1:
                return self._problem("adds a sum over the batch to a mean over it", Total(None, exact=False))
            penalty = any(v.penalty for v in trained) or (len(trained) < len(self.values) and first.power == 1)
            counts = reduce(_added_counts, (v.counts for v in trained))
            return replace(first, exact=all(v.exact for v in trained), counts=counts, penalty=penalty)
        if len(trained) == 1 and op in _SELECTIONS and self.inputs[0][0] not in self.found.trained:
            return first
        if len(trained) == 1 and op in (_PRODUCTS | _DIVISIONS | _MATRIX | {"Einsum"}):
            is_first = self.inputs[0][0] in self.found.trained and self.values[0] is not None
            if is_first or op not in _DIVISIONS:
                return self._scaled(first, 1 if is_first else 0)
        if all(v.exact for v in trained):
            return self._problem(
                "is not linear in what it reads, which is added up over the batch", Total(None, exact=False)
            )
        return Total(None, exact=False)

    def _scaled(self, total: Total, other: int) -> Total:
        """A trained total, multiplied or divided by a constant or by a share of another total."""
        factor = self.values[other]
        if not isinstance(factor, Total):
            return self._divided(total, self.found.constant(self.inputs[other]))
        if total.power is None or factor.power is None:
            return Total(None, exact=False)
        return replace(total, power=total.power + (-factor.power if self.node.op in _DIVISIONS else factor.power))

    def _divided(self, total: Total, constant: Any) -> Total:
        """A sum over the batch, divided by how many were added up, is a mean; by that of the whole batch, it stays a sum.

        Another divisor may have been counted as well. A factor may be one over a count, or not.
        """
        if total.power != 1 or constant is None or np.size(constant) != 1 or float(np.ravel(constant)[0]) == 0:
            return total
        factor, divides = float(np.ravel(constant)[0]), self.node.op in _DIVISIONS
        by = factor if divides else 1.0 / factor
        counted = any(abs(count - by) <= 1e-5 * count for count in total.counts)
        if divides and counted:
            return replace(total, power=0, penalty=False)
        whole = any(abs(count * self.found.micro_batches - by) <= 1e-5 * by for count in total.counts)
        odd = divides or counted or round(factor, 3) != round(factor, 7)
        if by > 1.5 and abs(by - round(by)) <= 1e-5 * by and odd and not whole:
            self.found.unclear[self.node.name] = f"divides a sum over the batch by {by:g}"
        return total

    def _power(self, key: str) -> int | None:
        """How an untrained total of totals scales with the batch."""
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
            found = {getattr(v, key) for _, v in scaled if isinstance(v, Total)}
            return found.pop() if small and len(found) == 1 else 0 if not found else None
        return None

    def _divides_count(self) -> bool:
        """Is the constant that a total divides the number of entries that were added up in it?"""
        count, total = self.found.constant(self.inputs[0]), self.values[-1]
        if self.values[0] is not None or count is None or np.size(count) != 1 or not isinstance(total, Total):
            return False
        return any(abs(known - float(np.ravel(count)[0])) <= 1e-5 * known for known in total.counts if known > 1)

    def _is_small(self, tensor: Tensor) -> bool:
        """A constant of at most 1 keeps a divisor from 0; another may itself have been counted from the micro-batch."""
        value = self.found.constant(tensor)
        return value is not None and bool(np.all(np.abs(value.astype(float)) <= 1))

    # -- samples -----------------------------------------------------------------------------------------------------

    def _share_totals(self) -> None:
        """Totals enter an op that works on samples, or on trained totals, as shares of the undivided batch's."""
        import tensorflow as tf

        for tensor, value in zip(self.inputs, self.values, strict=True):
            if not isinstance(value, Total):
                continue
            if (
                self.node.op in ("Reshape", "BroadcastTo", "Tile", "Fill", "StridedSlice", "Slice", "Range")
                and tensor != self.inputs[0]
            ):
                continue  # a shape
            trained = tensor[0] in self.found.trained
            if trained and (self.node.name in self.found.trained and not self._reads_samples()):
                continue
            kind = tf.dtypes.as_dtype(output_types(self.found.nodes[tensor[0]])[tensor[1]])
            if trained or value.share is None or (value.share and not kind.is_floating):
                self._problem("reads a value of the whole batch for each of its samples", None)
            else:
                self.found.shared[tensor] = value.share

    def _reads_samples(self) -> bool:
        return any(isinstance(value, Samples) for value in self.values)

    def _of_samples(self, output: int) -> Value:
        """An op that reads samples, and is no reduction or product."""
        op, shape = self.node.op, self.found.shape((self.node.name, output))
        samples = [(k, v) for k, v in enumerate(self.values) if isinstance(v, Samples)]
        counts, power = frozenset[float]().union(*(v.counts for _, v in samples)), self._samples_power()
        rank = None if shape is None else len(shape)
        if output_types(self.node)[output] == _VARIANT:
            return Samples(None, counts, power)
        if rank is None or any(v.axis is None for _, v in samples):
            return Total(None, exact=False) if shape == () else Samples(None, counts, power)
        axes = [v.axis for _, v in samples]
        k, axis = samples[0][0], samples[0][1].axis
        source = self.shapes[k]
        if axis is None or source is None:
            return Samples(None, counts, power)
        if op in _BROADCASTING:
            placed = {v.axis + rank - len(self.shapes[i] or ()) for i, v in samples}  # type: ignore[operator]
            if len(placed) > 1:
                return self._problem("compares samples with each other", Samples(None, counts, power))
            return Samples(placed.pop(), counts, power)
        if (op in _ALONG_LAST and axis == len(source) - 1) or (
            op in _ALONG_SECOND and self._names_axis(axis, len(source))
        ):
            return self._problem(
                "works along the samples of the batch", Samples(axis if rank == len(source) else None, counts, power)
            )
        moved = self._moved(axis, source, shape or ())
        if moved is None and rank == 0:
            return Total(None, exact=False)
        if moved is not None and (moved >= rank or (len(set(axes)) > 1 and op in ("Pack", "ConcatV2"))):
            moved = None
        return Samples(moved, counts, power)

    def _samples_power(self) -> int | None:
        """The power of the totals that enter each entry, after this op."""
        powers = [value.power for value in self.values if value is not None]
        if self.node.op in _PRODUCTS | _MATRIX | {"Einsum"}:
            return None if None in powers else sum(p for p in powers if p is not None)
        if self.node.op in _DIVISIONS and len(self.values) == 2 and None not in powers:
            of, by = (0 if value is None else value.power or 0 for value in self.values)
            return of - by
        first = self.values[0]
        if first is not None and (self.node.op in _SHAPED or self.node.op.startswith("Gather")):
            return first.power
        return powers[0] if len(set(powers)) == 1 else None

    def _names_axis(self, axis: int, rank: int) -> bool:
        named = self.found.constant(self.inputs[-1])
        return named is not None and axis in {int(a) % rank for a in np.ravel(named)}

    def _moved(self, axis: int, source: Sequence[int], shape: Sequence[int]) -> int | None:
        """Where the axis of samples is in the output; None where that is not known."""
        op = self.node.op
        if op == "Reshape":
            return _reshaped(axis, source, shape, self.found.batch)
        if op in ("Transpose", "ConjugateTranspose"):
            order = self.found.constant(self.inputs[1])
            return None if order is None else [int(a) for a in order].index(axis)
        if op in ("ExpandDims", "Pack", "OneHot"):
            at = self.found.constant(self.inputs[1]) if op == "ExpandDims" else self.node.attr["axis"].i
            return None if at is None else axis + (int(at) % len(shape) <= axis)
        if op in ("Squeeze", "Unpack"):
            gone = list(self.node.attr["squeeze_dims"].list.i) if op == "Squeeze" else [self.node.attr["axis"].i]
            gone = [a % len(source) for a in gone] or [a for a, size in enumerate(source) if size == 1 and a != axis]
            return None if axis in gone else axis - sum(a < axis for a in gone)
        if op == "StridedSlice":
            return self._sliced(axis, len(source), self.shapes[1])
        if op in ("GatherV2", "ResourceGather", "Gather") and not isinstance(self.values[0], Samples):
            at = self.found.constant(self.inputs[2]) if op == "GatherV2" else 0
            return None if at is None else axis + int(at)
        return axis if axis < len(shape) else None

    def _sliced(self, axis: int, rank: int, begin: Shape) -> int | None:
        """Where an axis is behind an index such as `x[:, None, ..., 0]`."""
        shrunk, new, ellipsis = (self.node.attr[f"{key}_mask"].i for key in ("shrink_axis", "new_axis", "ellipsis"))
        before = after = 0
        for k in range(begin[0] if begin else 0):
            if ellipsis >> k & 1:
                named = sum(not new >> j & 1 for j in range(k + 1, begin[0] if begin else 0))
                after += rank - before - named
                before = rank - named
            elif new >> k & 1:
                after += 1
                continue
            else:
                before, after = before + 1, after + (not shrunk >> k & 1)
            if axis < before:
                return None if shrunk >> k & 1 else after - (before - axis)
        return after + axis - before

    def _problem(self, reason: str, value: Value) -> Value:
        if not any(word in self.node.name or word in self.node.op for word in _NORMALISING):
            self.found.problems.setdefault(self.node.name, reason)
        return value


def _added_counts(a: frozenset[float], b: frozenset[float]) -> frozenset[float]:
    """How many entries are in a sum of two sums."""
    return a | b | {x + y for x in a for y in b} if len(a) * len(b) <= _MOST_COUNTS else a | b


def _reshaped(axis: int, source: Sequence[int], shape: Sequence[int], batch: int) -> int | None:
    """The output axis before which as many entries lie as before `axis`; of several the first that can hold the batch.

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


@dataclass(frozen=True)
class Loss:
    """What the gradients of a step are those of.

    `terms`: the last ops before the gradients, with what they are. `problems`, `unclear`: of `BatchValues`, the ops before
    them.
    """

    terms: Mapping[str, Value]
    problems: Mapping[str, str]
    unclear: Mapping[str, str]


def loss_of(values: BatchValues, forward: Sequence[str], differentiated: set[str], returned: set[str]) -> Loss:
    """Find the loss: what the step returns behind the ops that have backward ops, else the last of these.

    Args:
        values, forward: of `read_batch_values`.
        differentiated: the forward ops that have backward ops.
        returned: the ops that compute scalars which the step returns.
    """
    part, read = set(differentiated), set[str]()
    for name in reversed(forward):
        if name in part:
            sources = {producer for producer, _ in data_inputs(values.nodes[name])}
            part |= sources
            read |= sources
    terms: dict[str, Value] = {}
    for end in (name for name in forward if name in part and name not in read and _trains(values, name)):
        behind = {end}
        for name in forward:
            if any(producer in behind for producer, _ in data_inputs(values.nodes[name])):
                behind.add(name)
        results = {name: values.of((name, 0)) for name in forward if name in behind & returned}
        alike = len({value.power for value in results.values() if value is not None}) == 1
        terms.update(results if alike else {end: values.of((end, 0))})
    part |= set(terms)
    for name in reversed(forward):
        if name in part:
            part |= {producer for producer, _ in data_inputs(values.nodes[name])}
    problems, unclear = (
        {name: reason for name, reason in ops.items() if name in part} for ops in (values.problems, values.unclear)
    )
    return Loss(terms, problems, unclear)


def _trains(values: BatchValues, name: str) -> bool:
    return name in values.trained and values.of((name, 0)) is not None


def share_with_gradients(values: BatchValues, backward: Sequence[str]) -> None:
    """Gradients read the totals that the forward ops have divided by, also where nobody else reads the quotient."""
    import tensorflow as tf

    for name in backward:
        for tensor in data_inputs(values.nodes[name]):
            value = values.of(tensor)
            if isinstance(value, Total) and tensor[0] not in values.trained and value.share is not None:
                kind = tf.dtypes.as_dtype(output_types(values.nodes[tensor[0]])[tensor[1]])
                if kind.is_floating or not value.share:
                    values.shared[tensor] = value.share
