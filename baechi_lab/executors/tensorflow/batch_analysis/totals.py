"""Rules for ops on totals: sums and means over the batch, and what is computed from them."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from math import prod

import numpy as np
from numpy.typing import NDArray

from .batch_values import Samples, Shape, Tensor, Total, Value
from .op_inputs import OpInputs
from .op_kinds import DIVISIONS, FIXED, LINEAR, MATRIX, PRODUCTS, REDUCTIONS, SCALING, SELECTIONS, SUMS

_MOST_COUNTS = 1000  # pairs of possible counts whose sums are followed


class TotalRules(OpInputs):
    """Values of outputs of ops that read totals, or reduce samples to totals."""

    def value_of_reduction(self) -> Value:
        """Returns the value of a reduction: of samples along another axis, a total of samples, or a reduced total."""
        value, shape = self.values[0], self.shapes[0]
        if not isinstance(value, Samples):
            return self.value_of_totals()
        axes = self.batch_values.constant(self.inputs[1]) if len(self.inputs) > 1 else None
        out = self.batch_values.shape((self.node.name, 0))
        rank = None if shape is None else len(shape)
        reduced_axes = None if axes is None or rank is None else {int(a) % max(rank, 1) for a in np.ravel(axes)}
        all_of_it = (
            out is not None and prod(out) == 1 and shape is not None and (rank == len(reduced_axes or ()) or out == ())
        )
        if value.axis is None and not all_of_it:
            return value
        if not all_of_it and (reduced_axes is None or value.axis not in reduced_axes):
            axis = value.axis
            if axis is not None and reduced_axes is not None and not self.node.attr["keep_dims"].b:
                axis -= sum(a < axis for a in reduced_axes)
            return Samples(axis, self._counts(value.counts, shape, reduced_axes))
        counts = self._counts(value.counts, shape, reduced_axes)
        if shape is not None and value.axis is not None and shape[value.axis] > 0:
            counts |= {float(shape[value.axis])}
        if self.node.op == "Mean":
            reduces_unknown_axis = (
                shape is not None and reduced_axes is not None and any(shape[a] < 0 for a in reduced_axes)
            )
            if reduces_unknown_axis or shape is None:
                return self.report_problem(
                    "averages over a number of entries that depends on the data", Total(None, exact=False)
                )
            return self.reduced_total(value, 0, counts)
        if self.node.op == "Sum":
            return self.reduced_total(value, 1, counts)
        return replace(self.reduced_total(value, 0, counts), exact=False)

    def reduced_total(self, value: Samples, power: int, counts: frozenset[float]) -> Total:
        """Returns the total of samples: their sum (`power` 1) or their mean (0)."""
        total_power = None if value.power is None else value.power + power
        if self.node.name not in self.batch_values.trained_ops:
            return Total(total_power, False, counts, share=None if value.power else total_power)
        return Total(total_power, counts=counts)

    def _counts(self, counts: frozenset[float], shape: Shape, reduced_axes: set[int] | None) -> frozenset[float]:
        if self.node.op != "Sum" or shape is None or reduced_axes is None:
            return counts
        entries = prod(shape[a] for a in reduced_axes)
        return counts | {c * entries for c in counts}

    def value_of_totals(self) -> Value:
        """Returns the value of an op that reads totals and tensors that are the same for all micro-batches."""
        totals = [(t, v) for t, v in zip(self.inputs, self.values, strict=True) if isinstance(v, Total)]
        if not totals:
            return None
        if self.node.name not in self.batch_values.trained_ops:
            power = self._power("power")
            counts = frozenset[float]().union(*(v.counts for _, v in totals))
            return Total(power, False, counts, share=self._power("share"))
        trained_totals = [v for t, v in totals if t[0] in self.batch_values.trained_ops]
        self.share_totals()
        op, first = self.node.op, trained_totals[0] if trained_totals else None
        if first is None:  # variables with shares of totals, which are the same for all micro-batches
            power = self._power("power")
            return None if power == 0 else Total(power, exact=power == 1)
        if op in LINEAR or op in ("Sum", "Mean", "ConcatV2"):
            counts = self._counts(first.counts, self.shapes[0], set(range(len(self.shapes[0] or ()))))
            if len({v.power for v in trained_totals}) > 1:
                return self.report_problem("joins a sum over the batch and a mean over it", Total(None, exact=False))
            return replace(first, exact=all(v.exact for v in trained_totals), counts=counts)
        if op in SUMS:
            if len({v.power for v in trained_totals}) > 1:
                return self.report_problem("adds a sum over the batch to a mean over it", Total(None, exact=False))
            counts = reduce(_added_counts, (v.counts for v in trained_totals))
            return replace(first, exact=all(v.exact for v in trained_totals), counts=counts)
        if len(trained_totals) == 1 and op in SELECTIONS and self.inputs[0][0] not in self.batch_values.trained_ops:
            return first
        if len(trained_totals) == 1 and op in (PRODUCTS | DIVISIONS | MATRIX | {"Einsum"}):
            is_first = self.inputs[0][0] in self.batch_values.trained_ops and self.values[0] is not None
            if is_first or op not in DIVISIONS:
                return self._scaled_total(first, 1 if is_first else 0)
        if all(v.exact for v in trained_totals):
            return self.report_problem(
                "is not linear in what it reads, which is added up over the batch", Total(None, exact=False)
            )
        return Total(None, exact=False)

    def _scaled_total(self, total: Total, factor_index: int) -> Total:
        """Returns the value of a trained total that is multiplied or divided by a constant or by a share of another total."""
        factor = self.values[factor_index]
        if not isinstance(factor, Total):
            return self._divided_total(total, self.batch_values.constant(self.inputs[factor_index]))
        if total.power is None or factor.power is None:
            return Total(None, exact=False)
        return replace(total, power=total.power + (-factor.power if self.node.op in DIVISIONS else factor.power))

    def _divided_total(self, total: Total, constant: NDArray[np.generic] | None) -> Total:
        """Returns the value of `total` divided by `constant`.

        A sum divided by the number of its entries is a mean. A sum divided by the number of entries of the whole batch stays a
        sum, unless an input of a micro-batch has as many. Any other integer divisor may be a number of samples, so the op is
        recorded as unclear. A factor may be the inverse of a count.
        """
        if total.power != 1 or constant is None or np.size(constant) != 1 or float(np.ravel(constant)[0]) == 0:
            return total
        factor, divides = float(np.ravel(constant)[0]), self.node.op in DIVISIONS
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
        if op in LINEAR or op in REDUCTIONS or op == "ConcatV2":
            return totals[0] if len(set(totals)) == 1 else None
        if op in FIXED:
            return 0
        if op in PRODUCTS:
            return sum(p for p in totals if p is not None)
        if op in DIVISIONS or op == "Reciprocal":
            signed_powers = [p if k == 0 and op != "Reciprocal" else -p for k, p in enumerate(powers) if p is not None]
            return sum(signed_powers) + (key == "power" and self._divides_count())
        if set(totals) == {0}:
            return 0
        if op in SCALING or op in SELECTIONS:
            factors = [(t, v) for t, v in zip(self.inputs, self.values, strict=True)][op in SELECTIONS :]
            small = all(v is not None or self._is_small(t) for t, v in factors)
            powers_of_totals = {getattr(v, key) for _, v in factors if isinstance(v, Total)}
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


def _added_counts(a: frozenset[float], b: frozenset[float]) -> frozenset[float]:
    """Returns the possible numbers of entries of a sum of two sums."""
    return a | b | {x + y for x in a for y in b} if len(a) * len(b) <= _MOST_COUNTS else a | b
