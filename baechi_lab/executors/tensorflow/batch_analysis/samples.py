"""Rules for ops on samples: the axis of the samples in the output, and whether the op mixes or selects them.

`counts` and `power` of an output are those of `values.Samples`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....profilers.tensorflow.nodes import data_inputs, output_types
from .batch_values import SCATTERS_ENTRIES, WORKS_ALONG, Samples, Tensor, Total, Value
from .op_inputs import OpInputs
from .op_kinds import (
    ALONG_FIRST,
    ALONG_LAST,
    ALONG_SECOND,
    BROADCASTING,
    CONVOLUTIONS,
    COUNTING,
    DIVISIONS,
    FIXED,
    HOMOGENEOUS,
    INDEXING,
    MATRIX,
    PASS_ON,
    PRODUCTS,
    REARRANGING,
    SCALING,
    SELECTIONS,
    SHAPED,
    SPATIAL,
    VARIANT,
)

_BETWEEN_BLOCKS = PASS_ON | {"ExpandDims", "Squeeze", "Reshape"}


class SampleRules(OpInputs):
    """Values of outputs of ops that read samples and do not reduce them."""

    def value_of_samples(self, output: int) -> Value:
        """Returns the value of an op that reads samples and is neither a reduction nor a product."""
        op, shape = self.node.op, self.batch_values.shape((self.node.name, output))
        samples = [(index, v) for index, v in enumerate(self.values) if isinstance(v, Samples)]
        counts, power = frozenset[float]().union(*(v.counts for _, v in samples)), self.samples_power()
        rank = None if shape is None else len(shape)
        if output_types(self.node)[output] == VARIANT:
            return Samples(None, counts, power)
        counts_per_row = op == "DenseBincount" and rank == 2
        if (
            op.startswith(COUNTING)
            and not counts_per_row
            and any(v.axis is not None for index, v in samples if index or not op.startswith("Unsorted"))
        ):
            scatters = op.startswith(("ScatterNd", "TensorScatter"))
            problem = SCATTERS_ENTRIES if scatters else "counts or joins entries by their values"
            return self.report_problem(problem, Samples(None, counts, power))
        if rank is None or any(v.axis is None for _, v in samples):
            if self.node.name in self.batch_values.trained_ops and self._may_work_along_samples():
                return self.report_problem(WORKS_ALONG, Samples(None, counts, power))
            return Total(None, exact=False) if shape == () else Samples(None, counts, power)
        axes = [v.axis for _, v in samples]
        index, axis = samples[0][0], samples[0][1].axis
        source = self.shapes[index]
        if axis is None or source is None:
            return Samples(None, counts, power)
        if op not in INDEXING and self.reads_positions():
            return self.report_problem("reads positions of samples in the batch", Samples(None, counts, power))
        if op in BROADCASTING:
            output_axes = {v.axis + rank - len(self.shapes[i] or ()) for i, v in samples}  # type: ignore[operator]
            if len(output_axes) > 1:
                return self.report_problem("compares samples with each other", Samples(None, counts, power))
            return Samples(output_axes.pop(), counts, power)
        if reason := self._mixing_samples(index, axis, source, shape or ()):
            keeps_rank = rank == len(source) and op not in REARRANGING
            return self.report_problem(reason, Samples(axis if keeps_rank else None, counts, power))
        output_axis = self._output_axis(axis, source, shape or ())
        if output_axis is None and rank == 0:
            return Total(None, exact=False)
        if output_axis is not None and (output_axis >= rank or (len(set(axes)) > 1 and op in ("Pack", "ConcatV2"))):
            output_axis = None
        return Samples(output_axis, counts, power)

    def _mixing_samples(self, index: int, axis: int, source: tuple[int, ...], shape: tuple[int, ...]) -> str | None:
        """Returns how an op combines or selects the samples along `axis` of input `index`; None if it treats all alike."""
        op, batch, length = self.node.op, self.batch_values.batch, source[axis]
        works_along_samples = (
            (index == 0 and axis >= len(source) - ALONG_LAST.get(op, 0))
            or (op in ALONG_SECOND and self._names_axis(axis, len(source)))
            or (op in ALONG_FIRST and axis == 0 and not self._moves_blocks())
            or (op == "ReverseSequence" and axis == self.node.attr["seq_dim"].i)
        )
        if works_along_samples or (op.startswith(SPATIAL) and index == 0 and axis != 0):
            return "works along the samples of the batch"
        if op == "Reshape":
            output_axis = _axis_after_reshape(axis, source, shape, batch)
            rows = batch if output_axis is None or shape[output_axis] < 0 or batch == 1 else shape[output_axis]
            return "divides the samples of the batch among rows" if rows % batch else None
        if op == "StridedSlice" and index == 0 and self._slices_samples(axis, source):
            return "takes a part of the samples of the batch"
        if op in ("Split", "SplitV", "Unpack") and self._splits_samples(axis, source):
            return "takes a part of the samples of the batch"
        if op.startswith("Gather") and index == 0 and -1 not in shape and self._gathers_samples(axis, length):
            return "takes samples by their indices"
        return None

    def _moves_blocks(self) -> bool:
        """Whether an op puts blocks of space behind the samples, as dilated convolutions do before they run, or back again."""
        node = self.node
        while node.op != "SpaceToBatchND":
            if node is self.node:
                is_between = node.op == "BatchToSpaceND"
            else:
                is_between = node.op in _BETWEEN_BLOCKS or node.op.startswith(CONVOLUTIONS)
            if not is_between:
                return False
            source = list(data_inputs(node))[-1 if node.op.endswith("BackpropInput") else 0]
            if node is not self.node and self._rows(source) != self._rows((node.name, 0)):
                return False
            node = self.batch_values.nodes[source[0]]
        return node is self.node or self._rows(next(data_inputs(node))) == self._rows((self.node.name, 0))

    def _rows(self, tensor: Tensor) -> int:
        """Returns the length of the first axis; -1 if it is unknown."""
        return (self.batch_values.shape(tensor) or (-1,))[0]

    def _splits_samples(self, axis: int, source: tuple[int, ...]) -> bool:
        """Whether an op splits its input along the samples into parts that are not whole batches."""
        op, lengths = self.node.op, [1]
        split_axis: NDArray[Any] | None = np.array(self.node.attr["axis"].i)
        if op != "Unpack":
            split_axis = self.batch_values.constant(self.inputs[0 if op == "Split" else 2])
            sizes = None if op == "Split" else self.batch_values.constant(self.inputs[1])
            lengths = [source[axis] // self.node.attr["num_split"].i] if sizes is None else np.ravel(sizes).tolist()
        along_samples = split_axis is not None and int(split_axis) % len(source) == axis
        return along_samples and any(length % self.batch_values.batch for length in lengths)

    def _gathers_samples(self, axis: int, length: int) -> bool:
        """Whether indices select samples. Indices 0, 1, 2, ..., which choose one entry of each sample, do not."""
        if self.node.op != "GatherNd":
            gather_axis = self.batch_values.constant(self.inputs[2]) if self.node.op == "GatherV2" else 0
            return gather_axis is None or int(gather_axis) == axis
        index_shape = self.shapes[1]
        if index_shape and axis >= index_shape[-1]:
            return False
        producer = self.batch_values.nodes[self.inputs[1][0]]
        indices = self.batch_values.constant(next(data_inputs(producer), self.inputs[1]))
        return axis != 0 or indices is None or not np.array_equal(np.unique(indices), np.arange(length))

    def _slices_samples(self, axis: int, source: Sequence[int]) -> bool:
        """Whether an index takes a part of the samples that is not one or more whole batches."""
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

    def _may_work_along_samples(self) -> bool:
        """Whether an op works along an axis that is as long as the batch, or several times as long."""
        op, source, batch = self.node.op, self.shapes[0], self.batch_values.batch
        if not source:
            return False
        lengths = [*source[max(len(source) - ALONG_LAST.get(op, 0), 0) :]]
        lengths += [
            size for axis, size in enumerate(source) if op in ALONG_SECOND and self._names_axis(axis, len(source))
        ]
        lengths += source[: op in ALONG_FIRST]
        return any(length <= 0 or (length % batch == 0 if batch > 1 else length == 1) for length in lengths)

    def _names_axis(self, axis: int, rank: int) -> bool:
        """Whether the op's last input, a constant, names `axis`."""
        axes = self.batch_values.constant(self.inputs[-1])
        return axes is not None and axis in {int(a) % rank for a in np.ravel(axes)}

    def _output_axis(self, axis: int, source: Sequence[int], shape: Sequence[int]) -> int | None:
        """Returns the axis of samples in the output; None if unknown."""
        op = self.node.op
        if op == "Reshape":
            return _axis_after_reshape(axis, source, shape, self.batch_values.batch)
        if op in ("Transpose", "ConjugateTranspose"):
            order = self.batch_values.constant(self.inputs[1])
            return None if order is None else [int(a) for a in order].index(axis)
        if op in ("ExpandDims", "Pack", "OneHot"):
            new_axis = self.batch_values.constant(self.inputs[1]) if op == "ExpandDims" else self.node.attr["axis"].i
            return None if new_axis is None else axis + (int(new_axis) % len(shape) <= axis)
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
            gather_axis = self.batch_values.constant(self.inputs[2]) if op == "GatherV2" else 0
            return None if gather_axis is None else axis + int(gather_axis)
        return axis if axis < len(shape) else None

    def _slice_entries(self, axis: int, rank: int) -> tuple[int | None, int | None]:
        """Returns the output axis of `axis`, and the position of its index, in indexing such as `x[:, None, ..., 0]`.

        Both are None if it is indexed by a number; the position is None if no index names it.
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

    def samples_power(self) -> int | None:
        """Returns the power of the totals by which each entry of the output is multiplied."""
        powers = [value.power for value in self.values if value is not None]
        if self.node.op in PRODUCTS | MATRIX | {"Einsum"}:
            return None if None in powers else sum(p for p in powers if p is not None)
        if self.node.op in DIVISIONS and len(self.values) == 2 and None not in powers:
            dividend_power, divisor_power = (0 if value is None else value.power or 0 for value in self.values)
            return dividend_power - divisor_power
        first = self.values[0]
        if first is not None and (self.node.op in SHAPED or self.node.op.startswith("Gather")):
            return first.power
        if set(powers) == {0}:
            return 0
        return self._power_of_scaled_samples()

    def _power_of_scaled_samples(self) -> int | None:
        """Returns the power if samples were multiplied by a share; None unless the op scales with some power of it."""
        op, is_selection = self.node.op, self.node.op in SELECTIONS
        values = list(zip(self.inputs, self.values, strict=True))[is_selection:]
        powers = {value.power for _, value in values if value is not None}
        power = powers.pop() if len(powers) == 1 else None
        if power is None:
            return None
        if op in BROADCASTING:
            constants = [self.batch_values.constant(tensor) for tensor, value in values if value is None]
            if op == "Pow":
                if len(constants) != 1 or values[0][1] is None or constants[0] is None or np.size(constants[0]) != 1:
                    return None
                exponent = float(np.ravel(constants[0])[0])
                return power * int(exponent) if exponent.is_integer() else None
            if any(constant is None or np.any(constant) for constant in constants):
                return None
            degree = 2 if op == "SquaredDifference" else 0 if op in FIXED else 1
            return degree * power if op in SCALING | FIXED | SELECTIONS | {"SquaredDifference"} else None
        return 2 * power if op == "Square" else power if op in HOMOGENEOUS else None


def _axis_after_reshape(axis: int, source: Sequence[int], shape: Sequence[int], batch: int) -> int | None:
    """Returns the first output axis that can hold the batch and has as many entries before it as `axis` has.

    >>> _axis_after_reshape(0, (2, 3, 5), (6, 5), 2), _axis_after_reshape(1, (3, 2, 5), (3, 10), 2)
    (0, 1)
    >>> _axis_after_reshape(1, (3, 2, 5), (6, 5), 2) is None
    True
    >>> _axis_after_reshape(0, (2, 5), (1, 2, 5), 2), _axis_after_reshape(0, (8,), (1, 8), 1)
    (1, 0)
    """
    before, outer = 1, prod(source[:axis])
    for at, size in enumerate(shape):
        if before == outer and (size != 1 or batch == 1):
            return at
        before *= size
    return None
