"""The best cuts of a line of units into stages, by dynamic programming over all its intervals.

Source: the dynamic programmes of PipeDream (Narayanan et al. 2019, doi:10.1145/3341301.3359646, section 3.1) and of
Tarnawski et al., NeurIPS 2020, section 5.1.2 (on a linearisation). Units between two places where the line may be cut count as
one. The places' end j moves along the line; what the intervals [i, j) of all i send and receive changes with it on ranges
of i, of which only both ends are noted: adding them up from j towards the front gives every interval in turn. Several goals
share one such sweep.

Complexity: O(units + tensors) for the changes and O(places^2 * devices * replicas) for the programme. It is
solved on few places first; what that costs bounds the intervals that are looked at among all places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph.kernels.csr import distinct, offsets
from ...graph.kernels.jit import njit
from .chain import Chain
from .cut import fresh, least_work, leave_out, relax, stages_of
from .units import Units

COARSE, MOST = 200, 4000
"""Places where the line may be cut: at first, and at most."""

Stages = list[tuple[int, int, int, int]]
"""First unit, last + 1, first device of the chain, number of devices of every stage."""

LOW_RECEIVED, LOW_SENT, HIGH_RECEIVED, HIGH_SENT = range(0, 8, 2)
"""Columns of what an interval receives and sends, from and to units before and behind it: a count, and bytes after it."""


def cut_line(units: Units, chain: Chain, goal: tuple[float, float]) -> tuple[float, Stages]:
    """Least cost and its stages; (inf, []) if none fits.

    `goal` = (ahead, micro_batches), see `cut`; (0, 1) asks for the period.
    """
    return cut_lines(units, chain, [goal])[0]


def cut_lines(units: Units, chain: Chain, goals: Sequence[tuple[float, float]]) -> list[tuple[float, Stages]]:
    """`cut_line` for each goal."""
    found: list[tuple[float, Stages]] = [(np.inf, [])] * len(goals)
    for most in (COARSE, MOST):
        places = np.unique(np.linspace(0, units.n, min(most, units.n) + 1).round().astype(np.int64))
        sums = chain.work[places], chain.barred[places], _before(units.held)[places], _before(units.gradient)[places]
        tables = [fresh(len(places), len(chain.kind), chain.whole) for _ in goals]
        best, came = (np.stack([table[k] for table in tables]) for k in (0, 1))
        bound = np.array([cost for cost, _ in found])
        _intervals((best, came), chain, sums, _changes(units, places), (np.array(goals, dtype=np.float64), bound))
        for k, cost in enumerate(best[:, -1, -1].tolist()):
            if cost <= found[k][0] and np.isfinite(cost):
                stages = stages_of(came[k], len(places) - 1, len(chain.kind))
                found[k] = cost, [(int(places[i]), int(places[j]), d, r) for i, j, d, r in stages]
    return found


def _before(column: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(column)])


def _changes(units: Units, places: NDArray[np.int64]) -> tuple[Any, Any, Any, Any]:
    """How what intervals send and receive changes when the block of units before place j + 1 joins them.

    Rows `pointer[j]:pointer[j + 1]`: the blocks i from `first` to `last` change in `column` by `change` bytes, and by a tensor of
    its sign. A tensor is received once, from below where its producer lies before the interval; it is sent once, to below where
    any reader lies before the interval. Returns pointer, ends int64[rows, 2], column, change.
    """
    blocks = len(places) - 1
    block = np.searchsorted(places, np.arange(units.n), side="right") - 1
    tensor = np.repeat(np.arange(len(units.producer)), np.diff(units.reader_ptr))
    key = distinct(tensor.astype(np.int64) * max(blocks, 1) + block[units.reader])
    tensor, reader = key // max(blocks, 1), key % max(blocks, 1)
    away = reader != block[units.producer[tensor]]  # what is read in the same block is never sent
    tensor, reader = tensor[away], reader[away]
    made, size = block[units.producer[tensor]], units.size[tensor].astype(np.float64)
    first = np.diff(tensor, prepend=-1) > 0
    last = np.diff(tensor, append=len(units.producer)) > 0
    before = np.where(first, -1, np.concatenate([[-1], reader[:-1]]))  # the reader before it
    up, down, end = reader > made, reader < made, np.flatnonzero(last)
    least, most = reader[first], reader[last]
    # The last reader below the producer, of tensors that have one.
    below = np.flatnonzero(down & (last | np.concatenate([up[1:], [False]])))
    own, low = made[end], np.minimum(made[end], least)
    sent_low, sent_high = np.flatnonzero(least < own), np.flatnonzero(most > own)
    rows = [
        (reader[up], np.maximum(made, before)[up] + 1, reader[up], LOW_RECEIVED, size[up]),
        (reader[down], before[down] + 1, reader[down], HIGH_RECEIVED, size[down]),
        (made[below], 0 * below, reader[below], HIGH_RECEIVED, -size[below]),
        (own[sent_low], least[sent_low] + 1, own[sent_low], LOW_SENT, size[end][sent_low]),
        (own[sent_high], 0 * sent_high, low[sent_high], HIGH_SENT, size[end][sent_high]),
        (most[sent_high], 0 * sent_high, low[sent_high], HIGH_SENT, -size[end][sent_high]),
    ]
    when = np.concatenate([row[0] for row in rows])
    order = np.argsort(when, kind="stable")
    ends = np.stack([np.concatenate([row[k] for row in rows]) for k in (1, 2)], axis=1)[order]  # type: ignore[misc]
    column = np.concatenate([np.full(len(row[0]), row[3]) for row in rows])[order]
    sign = np.concatenate([np.full(len(row[0]), 1.0 if k not in (2, 5) else -1.0) for k, row in enumerate(rows)])[order]
    change = np.concatenate([row[4] for row in rows])[order]
    return offsets(when, blocks), ends.astype(np.int64), column, np.stack([sign, change], axis=1)


@njit(cache=True)
def _intervals(tables: Any, chain: Any, sums: Any, changes: Any, asked: Any) -> None:
    """Fill `tables`, `best` and `came` of every goal; `asked` are the goals and what is known of each cost: see `_changes`."""
    best, came = tables
    pointer, ends, column, change = changes
    goals, bound = asked
    blocks = best.shape[1] - 1
    edge = np.zeros((blocks, 8))  # what changes from block i + 1 to block i
    cross = np.zeros((blocks + 1, 8))  # of the interval from i on
    for j in range(1, blocks + 1):
        for k in range(pointer[j - 1], pointer[j]):
            c, first, last = column[k], ends[k, 0], ends[k, 1]
            for x in range(2):
                edge[last, c + x] += change[k, x]
                if first > 0:
                    edge[first - 1, c + x] -= change[k, x]
        cross[j] = 0.0
        for i in range(j - 1, -1, -1):
            for x in range(8):
                cross[i, x] = cross[i + 1, x] + edge[i, x]
        for g in range(len(goals)):
            _ends(best[g], came[g], chain, sums, cross, j, goals[g, 0], goals[g, 1], bound[g])
            if not chain.whole:
                leave_out(best[g], came[g], j)


@njit(cache=True)
def _ends(best: Any, came: Any, chain: Any, sums: Any, cross: Any, j: Any, ahead: Any, count: Any, bound: Any) -> None:
    """All stages that end with block j, the shortest first.

    `relax` is asked only where a stage may be better by its work alone; and what costs more than `bound` is on no way to
    anything better than what is known.
    """
    work, kind, run = sums[0], chain.kind, chain.run
    devices, most = len(kind), run.max() if len(run) else 1
    for i in range(j - 1, -1, -1):
        if count * least_work(work, i, j) / most > bound:
            break
        asked = False
        for d in range(devices):
            if best[i, d] < best[j, d + 1] and best[i, d] <= bound and not asked:
                alone = work[j, kind[d]] - work[i, kind[d]]
                least = (ahead * work[i, kind[d]] + count * alone / run[d]) * (1.0 - 1e-12)
                if least <= bound:
                    for r in range(1, run[d] + 1):
                        asked = asked or least < best[j, d + r]
        if asked:
            relax(best, came, chain, sums, i, j, cross[i, :4], cross[i, 4:], (ahead, count))
