"""How much a search may spend: seconds, or simulations, or whichever ends first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...graph.kernels.compiling import working_seconds


class Budget:
    """Seconds or simulations, whichever is given; `evaluations` makes a search reproducible on any machine.

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
        """A budget of `share` of this one: its seconds side by side, its simulations divided `among` chains."""
        seconds = None if self.seconds is None else self.seconds * share
        count = None if self.evaluations is None else max(int(self.evaluations * share / among), 1)
        return Budget(seconds, count)

    def spent(self, used: int) -> float:
        """Share of the budget that is gone (1: all), given the simulations done."""
        if self.stopped:
            return 1.0
        by_count = 0.0 if self.evaluations is None else used / max(self.evaluations, 1)
        by_time = 0.0 if self.seconds is None else self.elapsed / max(self.seconds, 1e-9)
        return min(1.0, max(by_count, by_time))


@dataclass(frozen=True)
class Window:
    """What lies between the shares `first` and `last` of a `budget`; `before`: simulations that do not count."""

    budget: Budget
    before: int
    first: float = 0.0
    last: float = 1.0

    def portion(self, first: float, last: float) -> Window:
        """The window between other shares of the same budget."""
        return Window(self.budget, self.before, first, last)

    def progress(self, used: int) -> float | None:
        """Where in the window a search is after `used` simulations, 0 to 1; None once its end is reached.

        >>> window = Window(Budget(None, 100), 0, 0.5, 1.0)
        >>> [window.progress(used) for used in (0, 75, 100)]
        [0.0, 0.5, None]
        """
        spent_share = self.budget.spent(used - self.before)
        return (
            None
            if spent_share >= self.last
            else min(max((spent_share - self.first) / (self.last - self.first), 0.0), 1.0)
        )

    def evaluations_left(self, used: int) -> int | None:
        """Simulations left after `used` ones; None where time is counted alone."""
        if self.budget.evaluations is None:
            return None
        return int(np.ceil(self.last * self.budget.evaluations)) - (used - self.before)
