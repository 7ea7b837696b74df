"""Several chains on one problem, in threads: trials of the best starts, then rounds in which chains share their candidates.

The results of two seeds may differ by a tenth, and six times the time gained less than a hundredth: the large decisions are made
early and not reversed. A long budget is therefore divided into several such searches, and rounds from the best result.

Trials are short annealings that choose the candidates with which a search continues. The result of a chain depends most on its
first few large decisions: which layers share a device. So the layers of the graph (`search.structure`), if they are few, are the
units of several trials from the best start. Graphs without layers, and those of a few ops, get one ordinary cycle per start.

Source: racing among configurations (Maron and Moore 1994, "Hoeffding races"), here one round and best takes all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple

import numpy as np

from ...graph import Placement
from ...simulator.schedulers.pct import path_computation_time
from ..evaluation.orders import Candidate, measure
from .budget import Budget
from .chain import Chain
from .instance import Instance
from .parameters import Level
from .starts import choose


class MultiStart:
    """`workers` chains on `instance` within `budget`; `tell(best cost, simulations)` is called with the progress."""

    def __init__(self, instance: Instance, workers: int, seed: int, budget: Budget, tell: Callable[[float, int], None]):
        self.instance, self.parameters, self.budget, self.tell = instance, instance.parameters, budget, tell
        self.chains = [Chain(instance, np.random.default_rng([seed, k])) for k in range(workers)]
        self.before = 0
        self.partners: deque[Candidate] = deque(maxlen=self.parameters.others)
        self.best_known: tuple[float, Candidate] | None = None
        self.orders = {False}
        self.small = instance.graph.n <= self.parameters.restart_ops

    @property
    def used(self) -> int:
        """The number of simulations of all chains."""
        return sum(chain.used for chain in self.chains)

    @property
    def leader(self) -> Chain:
        """The chain with the best candidate."""
        return min((chain for chain in self.chains if chain.state is not None), key=lambda chain: chain.cost)

    @property
    def best(self) -> tuple[float, Candidate]:
        """Cost and candidate of the best result of all searches."""
        leader = self.leader
        if self.best_known is not None and self.best_known[0] < leader.cost:
            return self.best_known
        return leader.cost, leader.best

    @property
    def results(self) -> list[Candidate]:
        """The best candidate of all, followed by those of the other chains."""
        other_chains = [chain for chain in self.chains if chain.state is not None and chain is not self.leader]
        return [self.best[1], *(chain.best for chain in other_chains)]

    def search(self, candidates: Sequence[Candidate], before: int) -> None:
        """Spends the budget, starting from `candidates` (best first); `before` simulations are already spent."""
        self.before = before
        self.orders = {c.rank is not None for c in candidates}
        starts = sorted(candidates, key=lambda c: c.key)
        spent_before = self._spent_share()
        searches = self.search_count()
        share_left = (1.0 - spent_before) * (1.0 if searches == 1 else 1.0 - self.parameters.again_share)
        bests = []
        for k in range(searches):
            if k and self._spent_share() >= 1.0:
                break
            until, spent_share, used = spent_before + share_left * (k + 1) / searches, self._spent_share(), self.used
            self.partners.clear()  # results of an earlier search would lead this one to the same result
            self.trials = Trials(self.instance, starts, self.small, len(self.chains))
            new_candidates = self._run_trials(until)
            price = (self._spent_share() - spent_share) / max(self.used - used, 1)
            self._rounds(new_candidates, until, price)
            bests.append(self.leader.best)
            self.best_known = self.best
        if searches > 1:
            self.partners = deque(bests, self.parameters.others)
            self._rounds([self.best[1]], 1.0, price)

    def search_count(self) -> int:
        """Returns the number of searches into which the budget is divided."""
        if self.small:
            return 1
        share_left, each, p = 1.0 - self._spent_share(), [], self.parameters
        if self.budget.seconds is not None:
            each.append(share_left * self.budget.seconds / p.search_seconds)
        if self.budget.evaluations is not None:
            each.append(share_left * self.budget.evaluations * self.instance.graph.n / len(self.chains) / p.search_ops)
        return min(max(int(min(each)), 1), p.searches)

    def _spent_share(self) -> float:
        return self.budget.spent(self.before + self.used)

    def _run_trials(self, until: float) -> list[Candidate]:
        """Runs the trials of a search that may spend the budget `until` this share; returns their results, best first."""
        trials, trial_results = self.trials, []
        share = trials.share * (until - self._spent_share())
        for k in range(0, trials.count, len(self.chains)):
            chains = self.chains[: trials.count - k]
            batch = [trials.next() for _ in chains]
            for chain, trial in zip(chains, batch, strict=True):
                chain.start_from(trial.start, restart=True)
            self._together(chains, share * len(batch) / trials.count, [trial.levels for trial in batch])
            trial_results += [(chain.current_cost, chain.current_best) for chain in chains]
        candidates_by_result = [candidate for _, candidate in sorted(trial_results, key=lambda x: x[0])]
        self.partners += reversed(candidates_by_result[: self.parameters.others // 2])
        return candidates_by_result

    def affordable_rounds(self, share: float, price: float) -> int:
        """Returns the number of rounds in a `share` of the budget if a simulation takes `price` of it."""
        p = self.parameters
        if self.small:
            return p.restarts
        fits = share / (price * p.cycle_steps * len(self.chains)) if price > 0.0 else 0.0
        return min(max(p.rounds, round(fits)), p.most_rounds)

    def _rounds(self, candidates: Sequence[Candidate], until: float, price: float) -> None:
        """Runs cycles of all chains `until` a share of the budget is spent; slow chains continue from the leader."""
        rounds = self.affordable_rounds(until - self._spent_share(), price)
        for k, chain in enumerate(self.chains):
            chain.start_from(candidates[min(k, len(candidates) - 1)])
        for number in range(rounds):
            share_left = until - self._spent_share()
            if share_left <= 0.0:
                break
            for chain in self.chains:
                # The chain's next cycle starts from a random candidate, or from its best one.
                if self.small and number % 2 == 1 and number < rounds - 1:
                    # Every unit on a random allowed device, with random priorities if they are searched.
                    instance, rng, n = self.instance, chain.rng, self.instance.graph.n
                    allowed = instance.groups.allowed
                    group_device = np.where(allowed, rng.random(allowed.shape), -1.0).argmax(axis=1)[instance.groups.of]
                    rank = instance.position + rng.normal(0.0, n * rng.random(), n) if True in self.orders else None
                    chain.start_from(
                        measure(instance.model, chain.objective.work, "restart", group_device, rank), restart=True
                    )
                elif chain.best_before_restart is not None:
                    chain.start_from(chain.best)
                if chain.best_before_restart is None:
                    self._reorder(chain)
            self._together(self.chains, share_left / (rounds - number), [self.trials.levels] * len(self.chains))
            self.partners += [chain.current_best for chain in self.chains]
            leader = self.leader
            for chain in self.chains:
                if chain is not leader:
                    chain.start_from(leader.best)

    def _reorder(self, chain: Chain) -> None:
        """Computes priorities for the current assignment, and uses them if they are better, since ops have moved."""
        if not chain.state.by_rank or len(self.instance.samples.table):
            return
        best = chain.best
        placement = Placement(device=best.device)
        rank = -path_computation_time(self.instance.graph, self.instance.cluster, placement)
        candidate = measure(self.instance.model, chain.objective.work, best.name, best.device, rank, best.makespan_us)
        if candidate.key < best.key:
            chain.start_from(candidate)

    def _together(self, chains: Sequence[Chain], share: float, levels: Sequence[Sequence[Level]]) -> None:
        """Runs one cycle of every chain at the same time, with its part of `share` of the whole budget."""
        donors = () if self.small else tuple(self.partners)
        shares = [self.budget.portion(share, len(chains)) for _ in chains]
        with ThreadPoolExecutor(len(chains)) as pool:
            running = {
                pool.submit(chain.cycle, chain_share, level, donors)
                for chain, chain_share, level in zip(chains, shares, levels, strict=True)
            }
            try:
                while running and not self.budget.stopped:
                    finished_futures, running = wait(running, timeout=self.parameters.tell_seconds)
                    for future in finished_futures:
                        future.result()
                    self.tell(self.best[0], self.used)
            finally:  # also when interrupted or stopped
                for chain_share in shares:
                    chain_share.stopped = True


class Trial(NamedTuple):
    """One trial: its start, and the levels to anneal."""

    start: Candidate
    levels: Sequence[Level]


class Trials:
    """The trials of a search on `instance` from `candidates` (best first) by `chains` chains."""

    def __init__(self, instance: Instance, candidates: Sequence[Candidate], small: bool, chains: int):
        p = self.parameters = instance.parameters
        self.layers = None if small else instance.coarse_layers
        self.levels: Sequence[Level] = p.small_levels if small else p.levels
        self.starts = choose(candidates, max(p.trial_starts, chains), p.fifo_share)
        self.count = len(self.starts) if self.layers is None else max(p.layer_trials, chains)
        self.share = p.trial_share if self.layers is None else p.layer_trials_share
        self.trial_count = 0

    def next(self) -> Trial:
        """Returns the next trial."""
        k, self.trial_count = self.trial_count, self.trial_count + 1
        if self.layers is None:
            return Trial(self.starts[k % len(self.starts)], self.levels)
        _, hot, cold = self.levels[0]
        return Trial(self.starts[0], ((self.layers, hot, cold), self.levels[0]))
