"""The budget of a search: seconds, simulations, or both, of which the first one that runs out ends the search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...graph import Placement
from ...graph.kernels.compiling import working_seconds


class Budget:
    """A limit of seconds, of simulations (`evaluations`), or of both; simulations make a search reproducible on any machine.

    The seconds in which kernels are compiled, once per installation, are not counted.
    """

    def __init__(self, seconds: float | None, evaluations: int | None):
        self.seconds, self.evaluations = seconds, evaluations
        self.began = working_seconds()
        self.stopped = self.interrupted = False

    @property
    def elapsed(self) -> float:
        """Seconds since the budget was made."""
        return working_seconds() - self.began

    def portion(self, share: float, among: int) -> Budget:
        """Returns a budget of `share` of this one for each of `among` chains, which share its simulations but not its seconds."""
        seconds = None if self.seconds is None else self.seconds * share
        count = None if self.evaluations is None else max(int(self.evaluations * share / among), 1)
        return Budget(seconds, count)

    def spent(self, used: int) -> float:
        """Returns the share of the budget that is spent after `used` simulations (1: all)."""
        if self.stopped:
            return 1.0
        by_count = 0.0 if self.evaluations is None else used / max(self.evaluations, 1)
        by_time = 0.0 if self.seconds is None else self.elapsed / max(self.seconds, 1e-9)
        return min(1.0, max(by_count, by_time))


@dataclass(frozen=True)
class Window:
    """The part of a `budget` between its shares `first` and `last`; `before` simulations do not count."""

    budget: Budget
    before: int
    first: float = 0.0
    last: float = 1.0

    def portion(self, first: float, last: float) -> Window:
        """Returns the window between other shares of the same budget."""
        return Window(self.budget, self.before, first, last)

    def progress(self, used: int) -> float | None:
        """Returns the position in the window after `used` simulations, from 0 to 1; None after its end."""
        spent_share = self.budget.spent(used - self.before)
        if spent_share >= self.last:
            return None
        return min(max((spent_share - self.first) / (self.last - self.first), 0.0), 1.0)

    def evaluations_left(self, used: int) -> int | None:
        """Returns the simulations left after `used` ones; None if only seconds are limited."""
        if self.budget.evaluations is None:
            return None
        return int(np.ceil(self.last * self.budget.evaluations)) - (used - self.before)


class SearchReport(NamedTuple):
    """The entries of a search in `Placement.info`.

    `start` names the start and `start_us` is its objective. `evaluations` and `seconds` are what the search spent, `interrupted`
    says whether Ctrl-C ended it. `history` has (seconds, evaluations, best objective in us) of every improvement.
    """

    start: str
    start_us: float
    evaluations: int
    seconds: float
    interrupted: bool
    history: tuple[tuple[float, int, float], ...]

    @classmethod
    def of(cls, placement: Placement) -> SearchReport:
        """Returns the report in the placement that a search returned."""
        return cls(*(placement.info[key] for key in cls._fields))
