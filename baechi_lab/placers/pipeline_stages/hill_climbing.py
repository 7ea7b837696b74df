"""Hill climbing over the borders of pipeline stages, with the simulated step time as its objective.

Idea: dynamic programs minimise bounds, and two cuts with equal bounds may fill and drain differently. The units, sorted
by stage and then by their own order, form a line along which every tensor runs forward. Moving one border along the line,
or several neighbouring ones, keeps a pipeline. Moves start long and are halved when none improves the step.

Complexity: one simulation per move, at most `max_moves`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

MAX_MOVES = 200
MAX_SIMULATED_OPS = 1_000_000
"""Moves that are measured: at most `MAX_MOVES`, and on large graphs at most so many simulated ops."""


def max_moves(ops: int) -> int:
    """Most moves that are measured if one simulation has so many ops.

    >>> max_moves(100), max_moves(100_000)
    (200, 10)
    """
    return min(MAX_MOVES, MAX_SIMULATED_OPS // max(ops, 1))


def climb_stage_borders(
    stage: NDArray[np.int64], cost: float, measure: Callable[[NDArray[np.int64]], float], moves: int
) -> tuple[NDArray[np.int64], float]:
    """Returns the best stage of every unit that was found from `stage`, and its cost.

    Args:
        stage: int64[units], 0 to S - 1, each used; units are numbered along their order.
        cost: the cost of `stage`.
        measure: the cost of other stages; infinite where they are not allowed.
        moves: most measurements.

    >>> largest_stage = lambda stage: float(np.bincount(stage, [3, 3, 3, 3]).max())
    >>> best, cost = climb_stage_borders(np.array([0, 1, 1, 1]), 9.0, largest_stage, 9)
    >>> best.tolist(), cost
    ([0, 0, 1, 1], 6.0)
    """
    line = np.argsort(stage, kind="stable")
    borders = np.flatnonzero(np.diff(stage[line])) + 1
    step, visited = 1 << max(len(line) // 4, 1).bit_length() - 1, {borders.tobytes()}
    while step:
        better = None
        for candidate in _border_moves(borders, step, len(line)):
            if candidate.tobytes() in visited:
                continue
            if not moves:
                return _stage_of_units(line, borders), cost
            moves -= 1
            visited.add(candidate.tobytes())
            candidate_cost = measure(_stage_of_units(line, candidate))
            if candidate_cost < cost:
                better, cost = candidate, candidate_cost
        if better is None:
            step //= 2
        else:
            borders = better
    return _stage_of_units(line, borders), cost


def _border_moves(borders: NDArray[np.int64], step: int, units: int) -> Iterator[NDArray[np.int64]]:
    """Moves runs of neighbouring borders together. Every stage keeps at least one unit."""
    for first in range(len(borders)):
        for last in range(first + 1, len(borders) + 1):
            for sign in (-step, step):
                candidate = borders.copy()
                candidate[first:last] += sign
                if np.all(np.diff(candidate, prepend=0, append=units) > 0):
                    yield candidate


def _stage_of_units(line: NDArray[np.int64], borders: NDArray[np.int64]) -> NDArray[np.int64]:
    stage = np.empty(len(line), dtype=np.int64)
    stage[line] = np.searchsorted(borders, np.arange(len(line)), side="right")
    return stage
