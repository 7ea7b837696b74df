"""Several walks on one problem, in threads: trials of the best starts, then rounds in which they share what they find.

What a search ends with may differ by a tenth from seed to seed, and six times the time gained less than a hundredth: the large
decisions are made early and not taken back. Long budgets are therefore several such searches, and cold rounds from the best.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from ...graph import Placement
from ...simulator.schedulers.pct import path_computation_time
from ..evaluation.orders import Candidate, measure
from .engine import Budget, Space, Walk
from .trials import Trial, Trials

UNTIL, STALE, CLOSE = 0.6, 0.003, 1.04
"""Until which share of the rounds a walk that gained less than a share of its cost begins a new trial; and how far from
the best cost that may end for the walk to go on from there."""

RESTART_OPS = 40
"""Most ops for which every second round starts from a random candidate: there one good start is not worth much."""

ROUNDS, MOST_ROUNDS, CYCLE = 5, 25, 3000
"""Fewest and most rounds in which the walks share what they found, and simulations of a walk in one of those between: a
new cycle from coarse to fine finds more than a longer one, up to about this many."""

LATE, PARTS_SHARE = 0.5, 0.15
"""From which share of the rounds on annealing is cold and parts are re-optimised, and in which share of a round."""

RESTARTS = 24
"""Rounds on graphs that small."""

SEARCHES, SEARCH_SECONDS, SEARCH_OPS, AGAIN = 5, 12.0, 300_000_000, 0.4
"""Most searches of a budget, how much of it makes one (seconds, or simulated ops per walk: about as long), and the share of
the whole that goes to going on from the best of them afterwards."""

OTHERS = 8
"""Placements found of late that are kept for walks to take parts from; half of them may come from trials."""

TELL_SECONDS = 0.2
"""How often progress is reported."""


class Team:
    """`workers` walks on `space` within `budget`; `tell(best cost, simulations)` hears of progress."""

    def __init__(
        self, space: Space, workers: int, seed: int, budget: Budget, tell: Callable[[float, int], None]
    ):  # fmt: skip
        self.space, self.budget, self.tell = space, budget, tell
        self.walks = [Walk(space, np.random.default_rng([seed, k])) for k in range(workers)]
        self.before = 0
        self.others: deque[Candidate] = deque(maxlen=OTHERS)
        self.known: tuple[float, Candidate] | None = None
        self.orders = {False}
        self.small = space.graph.n <= RESTART_OPS

    @property
    def used(self) -> int:
        """Simulations of all walks."""
        return sum(walk.used for walk in self.walks)

    @property
    def leader(self) -> Walk:
        """The walk with the best candidate."""
        return min((w for w in self.walks if w.state is not None), key=lambda w: w.cost)

    @property
    def best(self) -> tuple[float, Candidate]:
        """Cost and candidate of the best that any search has found."""
        leader = self.leader
        return self.known if self.known is not None and self.known[0] < leader.cost else (leader.cost, leader.best)

    @property
    def results(self) -> list[Candidate]:
        """The best of all, and what the other walks have found."""
        return [self.best[1], *(walk.best for walk in self.walks if walk.state is not None and walk is not self.leader)]

    def search(self, candidates: Sequence[Candidate], before: int) -> None:
        """Spend the budget, starting from `candidates` (best first); `before`: simulations already spent of it."""
        self.before = before
        self.orders = {c.rank is not None for c in candidates}
        starts, begun, searches = sorted(candidates, key=lambda c: c.key), self._spent(), self._searches()
        left = (1.0 - begun) * (1.0 if searches == 1 else 1.0 - AGAIN)
        bests = []
        for k in range(searches):
            if k and self._spent() >= 1.0:
                break
            until, spent, used = begun + left * (k + 1) / searches, self._spent(), self.used
            self.others.clear()  # what an earlier search found would lead this one to the same
            self.trials = Trials(self.space, starts, self.small, len(self.walks))
            found = self._tried(until)
            price = (self._spent() - spent) / max(self.used - used, 1)
            self._rounds(found, until, price)
            bests.append(self.leader.best)
            self.known = self.best
        if searches > 1:
            self.others = deque(bests, OTHERS)
            self._rounds([self.best[1]], 1.0, price, late=True)

    def _searches(self) -> int:
        """Into how many searches the budget is divided."""
        if self.small:
            return 1
        left, each = 1.0 - self._spent(), []
        if self.budget.seconds is not None:
            each.append(left * self.budget.seconds / SEARCH_SECONDS)
        if self.budget.evaluations is not None:
            each.append(left * self.budget.evaluations * self.space.graph.n / len(self.walks) / SEARCH_OPS)
        return min(max(int(min(each)), 1), SEARCHES)

    def _spent(self) -> float:
        return self.budget.spent(self.before + self.used)

    def _tried(self, until: float) -> list[Candidate]:
        """What the trials find, best first, when a search may spend the budget `until` that share of it."""
        trials, done = self.trials, []
        share = trials.share * (until - self._spent())
        for k in range(0, trials.count, len(self.walks)):
            walks = self.walks[: trials.count - k]
            batch = [trials.next() for _ in walks]
            for walk, trial in zip(walks, batch, strict=True):
                walk.begin(trial.start, afresh=True)
            self._together(walks, share * len(batch) / trials.count, [trial.levels for trial in batch])
            for walk, trial in zip(walks, batch, strict=True):
                trials.note(trial, walk.here)
                done.append((walk.here, walk.found))
        found = [candidate for _, candidate in sorted(done, key=lambda x: x[0])]
        self.others += reversed(found[: OTHERS // 2])
        return found

    def _affordable(self, share: float, price: float) -> int:
        """Rounds that fit into a `share` of the budget where a simulation takes `price` of it."""
        if self.small:
            return RESTARTS
        fits = share / (price * CYCLE * len(self.walks)) if price > 0.0 else 0.0
        return min(max(ROUNDS, round(fits)), MOST_ROUNDS)

    def _rounds(self, candidates: Sequence[Candidate], until: float, price: float, late: bool = False) -> None:
        """Cycles of all walks `until` a share of the budget is spent; those that fall behind continue from the leader.

        `late`: all of them as cold as the later ones usually are.
        """
        rounds = self._affordable(until - self._spent(), price)
        for k, walk in enumerate(self.walks):
            walk.begin(candidates[min(k, len(candidates) - 1)])
        stale = [False] * len(self.walks)
        for number in range(rounds):
            left = until - self._spent()
            if left <= 0.0:
                break
            free = bool(self.trials.layers) and number < UNTIL * rounds and not late
            plans = [self.trials.next() if free and old else None for old in stale]
            for walk, plan in zip(self.walks, plans, strict=True):
                self._prepare(walk, plan, free, self.small and number % 2 == 1 and number < rounds - 1)
            before = [walk.here for walk in self.walks]
            parts, usual = 0.0, self.trials.levels
            if late or number >= LATE * rounds:
                parts, usual = PARTS_SHARE, self.trials.late
            levels = [usual if plan is None else plan.levels for plan in plans]
            self._together(self.walks, left / (rounds - number), levels, parts)
            self.others += [walk.found for walk in self.walks]
            leader = self.leader
            for k, (walk, plan) in enumerate(zip(self.walks, plans, strict=True)):
                gained = before[k] - walk.here
                stale[k] = gained < STALE * before[k] if plan is None else walk.here > CLOSE * leader.cost
                behind = late or number >= rounds // 2 or walk.cost > 1.05 * leader.cost
                if walk is not leader and behind and not (free and walk.kept is not None):
                    walk.begin(leader.best)

    def _prepare(self, walk: Walk, plan: Trial | None, free: bool, anywhere: bool) -> None:
        """Where a walk goes on: from anywhere, with a new trial, from its own line of search, or from the best it knows."""
        if anywhere:
            walk.begin(self._anywhere(walk), afresh=True)
        elif plan is not None:
            walk.begin(plan.start, afresh=True)
        elif walk.kept is not None and not free:
            walk.begin(walk.best)
        if walk.kept is None:
            self._reorder(walk)

    def _anywhere(self, walk: Walk) -> Candidate:
        """A random candidate: every unit on any device that it may use, with random priorities where they are searched."""
        space, rng = self.space, walk.rng
        able = space.groups.allowed
        home = np.where(able, rng.random(able.shape), -1.0).argmax(axis=1)[space.groups.of]
        n = space.graph.n
        by_rank = (self.orders == {True, False} and rng.random() < 0.8) or self.orders == {True}
        rank = space.position + rng.normal(0.0, n * rng.random(), n) if by_rank else None
        return measure(space.model, walk.work, "restart", home.astype(np.int32), rank)

    def _reorder(self, walk: Walk) -> None:
        """Ops have moved since the priorities were computed: take those of the present assignment if they are better."""
        if not walk.by_rank or len(self.space.samples.table):
            return
        best = walk.best
        placed = Placement(device=best.device)
        rank = -path_computation_time(self.space.graph, self.space.cluster, placed)
        again = measure(self.space.model, walk.work, best.name, best.device, rank, best.makespan_us)
        if again.key < best.key:
            walk.begin(again)

    def _together(self, walks: Sequence[Walk], share: float, levels: Sequence[Any], parts: float = 0.0) -> None:
        """Every walk does one cycle with its part of `share` of the whole budget."""
        others = () if self.small else tuple(self.others)
        shares = [self.budget.part(share, len(walks)) for _ in walks]
        with ThreadPoolExecutor(len(walks)) as pool:
            running = {
                pool.submit(walk.cycle, mine, level, parts, others)
                for walk, mine, level in zip(walks, shares, levels, strict=True)
            }
            try:
                while running and not self.budget.stopped:
                    done, running = wait(running, timeout=TELL_SECONDS)
                    for future in done:
                        future.result()
                    self.tell(self.best[0], self.used)
            finally:  # also when interrupted or asked to stop
                for mine in shares:
                    mine.stopped = True
