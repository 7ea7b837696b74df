"""Rounding the relaxation of `integer_program`: held groups are rounded, repeated groups follow (section 5 of the paper)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .op_sequence import OpSequence
from .program_columns import ProgramColumns

ROUNDED = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
"""Thresholds of rounding: a group of which a larger share is dropped is dropped as a whole."""


def round_plans(program: ProgramColumns, values: NDArray[np.float64]) -> list[OpSequence]:
    """Yields a plan per threshold in `ROUNDED` for the column values of the relaxation; it may exceed the budget."""
    share = {key: float(values[column]) for key, column in program.M.items() if program.ends_gap(*key)}
    dropped = [{key for key in share if share[key] > least} for least in ROUNDED]
    return [program.groups.sequence(repeated_when_due(program, keys)) for keys in dropped]


def repeated_when_due(program: ProgramColumns, dropped: set[tuple[int, int]]) -> NDArray[np.bool_]:
    """Returns bool[stages, groups]: the groups that run again if they are not held in the gaps `dropped` (last stage, group)."""
    groups = program.groups
    is_repeated = np.zeros((groups.stages, groups.count), dtype=np.bool_)
    live_groups = {i for i in range(groups.count) if program.in_gap(0, i) and (program.gap_end[i][0], i) not in dropped}
    for t, needed in enumerate(groups.needs):
        required = set(needed)
        for i in range(groups.count - 1, -1, -1):
            if i in required and i not in live_groups:
                is_repeated[t, i] = True
                required.update(groups.reads[i])
                live_groups |= {i} if program.in_gap(t, i) else set()
        for i in needed:
            if not program.in_gap(t + 1, i) or (program.gap_end[i][t + 1], i) in dropped:
                live_groups.discard(i)
    return is_repeated
