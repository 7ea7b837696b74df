"""Trials: short annealings that show which start, and which structure of the graph, are worth going on with.

What a walk finds depends most on the few large decisions that it makes first: which layers share a device. The graph's
coarse structures (`search.structure`) offer these as units, but which of them suits is not known before: layers of
weights for one graph, outer name scopes for another. So every coarse structure is tried once from the best start, then
the best of them again and again, also from other starts that are nearly as good. Graphs without such structures,
and those of a few ops, get one ordinary cycle per start.

Source: racing among configurations (Maron and Moore 1994, "Hoeffding races"), here one round and best takes all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..evaluation.orders import Candidate
from .engine import LATE_LEVELS, LEVELS, SMALL_LEVELS, Space
from .starts import choose

STARTS, SHARE = 4, 0.15
"""Starts that get an ordinary cycle where there are no coarse structures, and the share of the budget for these."""

TURNS, TURNS_SHARE = (0, 1, 0, 2, 0, 3, 0, 1), 0.4
"""Where there are: the starts of the trials, one after the other, as places among the best; and their share."""

NEAR = 1.1
"""Starts slower than this many times the best one get no such trial."""

LAYERS = 4
"""Most coarse structures that are tried."""

HEAT = (0.02, 0.005)
"""First and last temperature on these, in units of the makespan; the first ordinary level follows, half as hot."""


class Trial(NamedTuple):
    """One trial: from where, the levels to anneal, and which coarse structure is among them (negative: none)."""

    start: Candidate
    levels: tuple[Any, ...]
    layer: int


class Trials:
    """The trials of a search on `space` from `candidates` (best first) by `walks` walks."""

    def __init__(self, space: Space, candidates: Sequence[Candidate], small: bool, walks: int):
        self.layers = [] if small else space.layers[:LAYERS]
        self.levels: Any = SMALL_LEVELS if small else LEVELS
        self.late: Any = SMALL_LEVELS if small else LATE_LEVELS
        starts = choose(candidates, max(STARTS, walks))
        near = [c for c in starts if c.makespan_us <= NEAR * starts[0].makespan_us]
        self.starts = near if self.layers else starts
        self.count = max(len(TURNS), walks) if self.layers else len(starts)
        self.share = TURNS_SHARE if self.layers else SHARE
        self.made, self.best, self.least = 0, 0, np.inf

    def next(self) -> Trial:
        """The next trial; after the first `count` they begin again with the first start."""
        k, self.made = self.made, self.made + 1
        if not self.layers:
            return Trial(self.starts[k % len(self.starts)], self.levels, -1)
        first = k < len(self.layers)
        layer = k if first else self.best
        start = 0 if first else TURNS[k % len(TURNS)] % len(self.starts)
        wanted, hot, cold = self.levels[0]
        return Trial(self.starts[start], ((self.layers[layer], *HEAT), (wanted, hot / 2, cold)), layer)

    def note(self, trial: Trial, cost: float) -> None:
        """What came of `trial`: the structure of the best one so far is tried again."""
        if trial.layer >= 0 and cost < self.least:
            self.least, self.best = cost, trial.layer
