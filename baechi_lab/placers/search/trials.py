"""Trials: short annealings that choose the start, and the structure of the graph, with which a search continues.

The result of a chain depends most on its first few large decisions: which layers share a device. The graph's coarse
structures (`search.structure`) are units for these decisions, but the best structure is not known: layers of
weights for one graph, outer name scopes for another. So every coarse structure is tried once from the best start, and then
the best of them several times. Graphs without such structures, and those of a few ops, get one ordinary cycle per start.

Source: racing among configurations (Maron and Moore 1994, "Hoeffding races"), here one round and best takes all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..evaluation.orders import Candidate
from .instance import Instance
from .parameters import Level
from .starts import choose


class Trial(NamedTuple):
    """One trial: its start, the levels to anneal, and the coarse structure among them (negative: none)."""

    start: Candidate
    levels: Sequence[Level]
    layer: int


class Trials:
    """The trials of a search on `instance` from `candidates` (best first) by `chains` chains."""

    def __init__(self, instance: Instance, candidates: Sequence[Candidate], small: bool, chains: int):
        p = self.parameters = instance.parameters
        self.layers = [] if small else instance.layers[: p.layers]
        self.levels: Sequence[Level] = p.small_levels if small else p.levels
        self.later_levels: Sequence[Level] = p.small_levels if small else p.late_levels
        self.starts = choose(candidates, max(p.trial_starts, chains), p.fifo_share)
        self.count = max(p.layer_trials, chains) if self.layers else len(self.starts)
        self.share = p.layer_trials_share if self.layers else p.trial_share
        self.trial_count, self.best, self.least = 0, 0, np.inf

    def next(self) -> Trial:
        """Returns the next trial."""
        k, self.trial_count = self.trial_count, self.trial_count + 1
        if not self.layers:
            return Trial(self.starts[k % len(self.starts)], self.levels, -1)
        layer = k if k < len(self.layers) else self.best
        unit_count, hot, cold = self.levels[0]
        levels = (self.layers[layer], *self.parameters.layer_heat), (unit_count, hot / 2, cold)
        return Trial(self.starts[0], levels, layer)

    def note(self, trial: Trial, cost: float) -> None:
        """Records the result of `trial`; the structure of the best trial so far is tried again."""
        if trial.layer >= 0 and cost < self.least:
            self.least, self.best = cost, trial.layer
