"""What a tensor of a micro-batch is to that of the undivided batch: samples, a total, or the same (`Value`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
