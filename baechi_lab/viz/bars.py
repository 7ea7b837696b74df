"""Level of detail: merges the rows of a lane into fewer bars, which show neither less nor more work."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Bars(NamedTuple):
    """Bar `k` spans `start[k] .. end[k]` and stands for `row_count[k]` rows, of which `row[k]` is the longest."""

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    row_count: NDArray[np.int64]
    row: NDArray[np.int64]


def merge_bars(start: NDArray[np.float64], end: NDArray[np.float64], limit: int) -> Bars:
    """Merges the rows of one lane, float64[k] microseconds each, into at most `2 * limit + 1` bars.

    With more than `limit` rows, the lane's span is cut into `limit` cells; rows shorter than a cell that start in the
    same cell become one bar (a longer row stays alone: at most `limit` of them fit side by side). O(k log k).

    >>> bars = merge_bars(np.arange(6.0), np.arange(6.0) + 1, limit=2)
    >>> bars.start.tolist(), bars.end.tolist(), bars.row_count.tolist()
    ([0.0, 3.0], [3.0, 6.0], [3, 3])
    """
    order = np.lexsort((end, start))
    start, end = start[order], end[order]
    if len(order) <= limit:
        return Bars(start, end, np.ones(len(order), dtype=np.int64), order)
    low = float(start.min())
    cell = (float(end.max()) - low) / limit
    cell_index = np.minimum(np.floor((start - low) / cell), limit - 1) if cell > 0 else np.zeros(len(order))
    alone = end - start >= cell if cell > 0 else np.zeros(len(order), dtype=bool)
    starts_bar = np.r_[True, (cell_index[1:] != cell_index[:-1]) | alone[1:] | alone[:-1]]
    first = np.flatnonzero(starts_bar)
    bar = np.cumsum(starts_bar) - 1
    longest = np.lexsort((-(end - start), bar))[first]
    return Bars(start[first], np.maximum.reduceat(end, first), np.diff(np.r_[first, len(order)]), order[longest])


def covered_us(start: NDArray[np.float64], end: NDArray[np.float64]) -> float:
    """Returns the time in which at least one row runs, in the unit of `start` and `end` float64[k]. O(k log k).

    >>> covered_us(np.array([4.0, 0.0, 1.0]), np.array([6.0, 3.0, 2.0]))
    5.0
    """
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    return float((end - np.maximum(start, np.append(0.0, end[:-1]))).clip(0.0).sum())
