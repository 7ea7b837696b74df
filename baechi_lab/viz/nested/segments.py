"""Levels for many boxes without names that divide them: repeated blocks if the structure repeats, else intervals of time.

Idea: items are in topological order, each with a label for its kind. If the sequence of labels equals itself shifted by
`p` over a long run, the graph repeats a block of `p` items (as layers of a network do), and the borders are put where
fewest tensors cross them. Otherwise the sequence is cut into equal segments, also where fewest tensors cross. Deviation from
graph isomorphism: a block is recognized by the order and kinds of its items, with a few mismatches, and not by its edges; a
wrong guess only makes the picture less clear.
O(m^2 / 2) comparisons of bytes for m items, in one pass of NumPy per shift.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.csr import Ints

SHORTLIST = 40  # shifts that are compared in full
MISMATCH = 4
"""Cost of a mismatch, in matches: a run still grows if four of five items match."""


@dataclass(frozen=True)
class Cut:
    """`segment_of`: the segment of every item, ascending; `repeated`: the number of equal blocks, `first`: the first of them."""

    segment_of: Ints
    count: int
    repeated: int = 0
    first: int = 0


def segments(labels: Ints, source: Ints, target: Ints, limit: int) -> Cut:
    """Cuts `m` items, numbered in topological order, into at most `limit` parts; edges are pairs of items."""
    m = len(labels)
    width = crossings(m, source, target)
    repeat = repeats(labels)
    if repeat is not None:
        start, period, count = repeat
        padded_width = np.concatenate([[0], width, [0]])
        costs = []
        for shift in range(-(period // 2), period - period // 2):
            borders = start + shift + period * np.arange(count + 1)
            inside = borders[(borders > 0) & (borders < m)]
            outside = np.count_nonzero((borders < 0) | (borders > m))
            costs.append(
                (outside, float(padded_width[inside].mean()) if len(inside) else 0.0, abs(shift), start + shift)
            )
        start = max(0, min(costs)[3])
        while count > 1 and start + count * period > m:
            count -= 1
        if 1 < count <= limit - 2:
            blocks = [start + k * period for k in range(count + 1) if start + k * period < m]
            before = _pieces(0, start, period, (limit - count) // 2, width)
            after = _pieces(start + count * period, m, period, (limit - count) // 2, width)
            inner = np.array(sorted({*before, *(b for b in blocks if b > 0), *after}))
            part_of_label = np.searchsorted(inner, np.arange(m), side="right")
            return Cut(part_of_label, len(inner) + 1, count, len(before) + int(start > 0))
        if count > limit - 2:
            return _even_cut(m, limit, width, np.array([start + k * period for k in range(count + 1)]))
    return _even_cut(m, limit, width)


def crossings(m: int, source: Ints, target: Ints) -> Ints:
    """Returns int64[m - 1]: the number of items up to `i` that have an edge to an item after `i`."""
    last = np.arange(m)
    np.maximum.at(last, source, target)
    change = np.zeros(m + 1, dtype=np.int64)
    change[np.arange(m)] += 1
    np.subtract.at(change, last, 1)
    return np.cumsum(change)[: m - 1]


def repeats(labels: Ints) -> tuple[int, int, int] | None:
    """Returns start, period and number of the repetitions that cover most items, or None if there are none.

    A period below 3, or a run of equal labels, does not count.
    """
    m = len(labels)
    if m < 8:
        return None
    kinds = (np.unique(labels, return_inverse=True)[1] % 251).astype(np.uint8)
    shifts = np.arange(1, m // 2 + 1)
    equal = np.array([np.count_nonzero(kinds[p:] == kinds[:-p]) for p in shifts.tolist()])
    scores: list[tuple[float, int, int, int]] = []
    for p in shifts[np.argsort(-equal, kind="stable")[:SHORTLIST]].tolist():
        # Of a run that is counted below, four in five items match, and with `p` more it covers 0.4 of all and two periods.
        if p < 3 or equal[p - 1] < MISMATCH / (MISMATCH + 1) * max(p, 0.4 * m - p):
            continue
        total = np.concatenate([[0], np.cumsum(np.where(kinds[p:] == kinds[:-p], 1, -MISMATCH))])
        lowest = np.minimum.accumulate(total)
        end = int(np.argmax(total - lowest))
        start, end = int(np.argmin(total[: end + 1])), end
        covered_length = end - start + p
        if covered_length >= 2 * p and covered_length >= 0.4 * m and not _is_monotonous(kinds[start : start + p]):
            scores.append((covered_length - p * 1e-3, -p, start, covered_length // p))
    if not scores:
        return None
    top = max(scores)[0]
    # The shortest period of those that cover about as much: two blocks at a time cover no more than one.
    _, period, start, count = max((s for s in scores if s[0] >= 0.9 * top), key=lambda s: s[1])
    return start, -period, count


def _is_monotonous(kinds: NDArray[np.uint8]) -> bool:
    """Whether nearly all items are of one kind, as in a chain or a generated graph."""
    return bool(np.bincount(kinds).max() > 0.9 * len(kinds))


def _even_cut(m: int, limit: int, width: Ints, allowed: Ints | None = None) -> Cut:
    """Returns the borders of parts of about equal size where fewest edges cross, at most `limit` parts per level."""
    levels = max(1, int(np.ceil(np.log(max(m, 2)) / np.log(limit) - 1e-9)))
    count = int(np.clip(np.ceil(m ** (1 / levels)), 2, limit)) if levels > 1 else min(limit, max(2, m // 6))
    if allowed is not None:
        ideal = np.linspace(0, len(allowed) - 1, min(count, len(allowed) - 1) + 1)[1:-1]
        borders = allowed[np.round(ideal).astype(np.int64)]
    else:
        slack = m // (4 * count)
        borders = np.array([_narrowest(width, k * m // count, slack) for k in range(1, count)])
    borders = np.unique(borders[(borders > 0) & (borders < m)])
    part_of_label: NDArray[np.int64] = np.searchsorted(borders, np.arange(m), side="right")
    return Cut(part_of_label, len(borders) + 1)


def _pieces(low: int, high: int, period: int, limit: int, width: Ints) -> list[int]:
    """Returns borders before or after the repeated blocks, for parts of about their size."""
    count = min((high - low) // period, limit)
    return [_narrowest(width, low + k * (high - low) // count, period // 3) for k in range(1, count)]


def _narrowest(width: Ints, ideal: int, slack: int) -> int:
    """Returns the border near `ideal` that fewest edges cross; ties: the nearest."""
    low, high = max(ideal - slack, 1), min(ideal + slack, len(width))
    near = np.arange(low, high + 1)
    return int(near[np.lexsort((abs(near - ideal), width[near - 1]))[0]])
