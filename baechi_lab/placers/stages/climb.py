"""Hill climbing over the borders of stages: what no dynamic programme sees, because only the simulation says it.

Idea: the goals of the programmes are bounds, and two cuts with equal bounds may differ in how their pipelines fill and
drain. The units, sorted by stage and then by their own order, are a line along which every tensor runs forward; moving a
border along it, alone or with all after it, leaves the stages a pipeline. Moves begin long and are halved when none helps.

Complexity: one measurement per move, at most `moves_allowed` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

MOST_MOVES = 200
MOST_OPS = 1_000_000
"""Moves that are measured: so many, and of large graphs as many as simulate so many ops."""


def moves_allowed(ops: int) -> int:
    """Moves that are measured where a simulation has so many ops.

    >>> moves_allowed(100), moves_allowed(100_000)
    (200, 10)
    """
    return min(MOST_MOVES, MOST_OPS // max(ops, 1))


def climb(
    stage: NDArray[np.int64], cost: float, measure: Callable[[NDArray[np.int64]], float], moves: int
) -> tuple[NDArray[np.int64], float]:
    """The best stage of every unit that was found from `stage`, and its cost.

    Args:
        stage: int64[units], 0 to S - 1, each with a unit; units are numbered along their order.
        cost: what `measure` says of it. measure: the cost of other stages; infinite where they are not allowed.
        moves: measurements at most.

    >>> best, cost = climb(np.array([0, 1, 1, 1]), 9.0, lambda stage: float(np.bincount(stage, [3, 3, 3, 3]).max()), 9)
    >>> best.tolist(), cost
    ([0, 0, 1, 1], 6.0)
    """
    line = np.argsort(stage, kind="stable")
    borders = np.flatnonzero(np.diff(stage[line])) + 1
    step, seen = 1 << max(len(line) // 4, 1).bit_length() - 1, {borders.tobytes()}
    while step:
        better = None
        for moved in _moves(borders, step, len(line)):
            if moved.tobytes() in seen:
                continue
            if not moves:
                return _stages(line, borders), cost
            moves -= 1
            seen.add(moved.tobytes())
            found = measure(_stages(line, moved))
            if found < cost:
                better, cost = moved, found
        if better is None:
            step //= 2
        else:
            borders = better
    return _stages(line, borders), cost


def _moves(borders: NDArray[np.int64], step: int, units: int) -> Iterator[NDArray[np.int64]]:
    """Runs of neighbouring borders, moved together; every stage keeps a unit."""
    for first in range(len(borders)):
        for last in range(first + 1, len(borders) + 1):
            for sign in (-step, step):
                moved = borders.copy()
                moved[first:last] += sign
                if np.all(np.diff(moved, prepend=0, append=units) > 0):
                    yield moved


def _stages(line: NDArray[np.int64], borders: NDArray[np.int64]) -> NDArray[np.int64]:
    stage = np.empty(len(line), dtype=np.int64)
    stage[line] = np.searchsorted(borders, np.arange(len(line)), side="right")
    return stage
