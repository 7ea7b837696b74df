"""`search`: improves a placement until its time limit or its number of evaluations is reached.

Idea: simulated annealing on device assignments and schedule priorities, on coarse units first. Several chains start from the
best fast rules, each under first in first out and under priorities by upward rank, and share what they find:

1. Every fast placer's assignment is simulated under the orders that suit it (`search.starts`).
2. Short trials that move whole layers, for two fifths of the budget where a graph has layers; the best results go on, one
   per worker (`search.multistart`).
3. Cycles: merge units on one device into a few dozen units (`search.coarsen`), anneal, split them into
   more units, anneal, ... (`search.chain`). After each round a slow worker continues from the leader, and each
   cycle begins by taking over better segments of other placements (`search.combine`).
   Units also follow the layers of the graph: ops that share a weight move as one (`search.structure`).
   Under priorities, ops of a unit that run one after the other are simulated as one (`search.runs`), without the edges
   that others imply (`search.reduced`).
   Budgets of about half a minute or more are two to five such searches, and rounds from the best (`search.multistart`).
4. Large graphs: most of the time is spent on a contracted graph (`search.contract`), whose simulations are several times
   faster and nearly as exact; its result is projected onto the ops and joins the starts.

`search.parameters` holds the parameters, `docs/search-log.md` the experiments and their gains. The period of endless
micro-batches and steps of several have other costs: see `search.period` and `search.stages`.

Memory limits, colocation groups and allowed devices are kept by every accepted candidate. Complexity: one simulation
per candidate (`evaluation.evaluate`), many of which stop early. Source: Kirkpatrick, Gelatt and Vecchi 1983,
doi:10.1126/science.220.4598.671; multi-level: Karypis and Kumar 1998, doi:10.1137/S1064827595287997;
combining: Sanders and Schulz 2012, doi:10.1137/1.9781611972924.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...checks import check_callback, check_number, check_text, check_whole, is_list
from ...errors import InfeasiblePlacement, InvalidInput, in_short
from ...graph import Cluster, OpGraph, Placement
from ...graph.arguments import refuse_replicas
from ...graph.placement import with_keys_of
from ...graph.units import format_us
from ...simulator import simulate
from ..base import Placer
from ..evaluation.cost import Samples
from ..evaluation.orders import Candidate
from ..memory_trades.selection import check_give_up
from ..pipeline_stages.objective import Objective
from .budget import Budget, SearchReport
from .instance import Instance
from .islands import search_on_islands
from .multistart import MultiStart
from .parameters import SEARCH, SearchParameters
from .period import search_period
from .stages import best_of_few_assignments, search_stages
from .starts import Starts, choose, contracted_graph, restrict_to_merged

OBJECTIVES = ("makespan", "latency", "p90", "throughput", "step")
PIPELINES = ("throughput", "step")
MOST_WORKERS = 1024
"""Most threads, and most islands."""


@dataclass(frozen=True)
class Progress:
    """The argument of a callback: seconds and simulations spent, and the best objective in us (infinite before the first)."""

    seconds: float
    evaluations: int
    makespan_us: float
    start: str

    def __str__(self) -> str:
        if not np.isfinite(self.makespan_us):
            return f"{self.seconds:.1f} s, asking the rules for a start, {self.evaluations:,} simulations"
        return (
            f"{self.seconds:.1f} s, {format_us(self.makespan_us)} from {self.start}, {self.evaluations:,} simulations"
        )


@dataclass(frozen=True)
class Search(Placer):
    """Anytime search from the best rule, or from a given start: moves groups and priorities until the budget is spent.

    Args:
        time_limit: seconds, without those of compiling at the first use; 0 returns the start.
        evaluations: simulations; with `time_limit=None` the result does not depend on the machine, but on `workers`, each
            of which follows a chain of its own with its share of them.
        start: a placement, a placer's name, or None for the best of the fast rules. Of a coarse graph, the placement may be of
            the original ops. The step of the ops is never longer than under a start that places the groups.
        schedulers: "fifo", "planned" (priorities are searched too), or both.
        objective: "makespan" (or "latency", the same), "p90": the 90th percentile under errors of the profile of `error`
            (0.2: +-20 %), "throughput": the period of endless micro-batches (`sum`: as in `bl.throughput`), or "step": of
            `micro_batches` under a `schedule`. The last two start from `contiguous`; `evaluations` are moves, and steps.
        replicas: let equal devices share a pipeline stage ("throughput" and "step"); see `search.stages`.
        workers: threads; another number of them searches elsewhere.
        executor: search on `islands` that exchange what they find, on a `concurrent.futures.Executor`, a
            `dask.distributed.Client` or a `RayExecutor`; "here": one after the other in this process. Each island has the
            whole `time_limit`; `evaluations` are divided, and without `time_limit` the result does not depend on the executor.
        islands: how many of them; another number searches elsewhere.
        give_up: "recompute", "offload" or both where memory binds: then the result is a placement of its `graph`, the given
            graph or one that gives up time for memory, whichever is faster (`placers.memory_trades`).
        callback: called with a `Progress` now and then; returning True stops the search.
        numbers: the `SearchParameters` that it works with; None: `SEARCH`, those that were tuned.
    """

    name = "search"
    anytime = True
    time_limit: float | None = 10.0
    evaluations: int | None = None
    seed: int = 0
    start: Any = None
    schedulers: tuple[str, ...] = ("fifo", "planned")
    objective: str = "makespan"
    error: float = 0.2
    micro_batches: int = 8
    schedule: str | None = "1f1b"
    replicas: bool = False
    sum: bool = False
    workers: int = 2
    islands: int = 4
    give_up: tuple[str, ...] = ()
    executor: Any = field(default=None, compare=False)
    numbers: SearchParameters | None = None
    callback: Callable[[Progress], object] | None = field(default=None, compare=False)

    def validate(self) -> None:
        for key in ("time_limit", "evaluations", "seed", "error"):
            if getattr(self, key) is not None:
                check_number(key, getattr(self, key))
        if self.time_limit is None and self.evaluations is None:
            raise InvalidInput("time_limit and evaluations are both None; at least one must end the search")
        check_text("objective", self.objective, OBJECTIVES)
        if self.objective in PIPELINES:
            self._goal.validate()
        elif self.replicas:
            raise InvalidInput(
                f"replicas is True with objective {self.objective!r}; replicas share micro-batches, of which 'throughput' and "
                "'step' know"
            )
        names = tuple(self.schedulers) if is_list(self.schedulers) else ()
        if not names or not all(isinstance(name, str) and name in ("fifo", "planned") for name in names):
            raise InvalidInput(f"schedulers is {in_short(self.schedulers)}; it must name 'fifo', 'planned' or both")
        check_give_up(self.give_up, self.objective)
        check_callback("callback", self.callback, "progress")
        for key, count in (("workers", self.workers), ("islands", self.islands)):
            if check_whole(key, count) > MOST_WORKERS:
                raise InvalidInput(f"{key} is {in_short(count)}; it must be at most {MOST_WORKERS}")
        if self.numbers is not None and not isinstance(self.numbers, SearchParameters):
            raise InvalidInput(f"numbers is {self.numbers!r}; it must be a SearchParameters, or None")

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        budget = Budget(self.time_limit, self.evaluations)
        start_placement = self._resolve_start(graph, cluster)
        if graph.n == 0:
            return Placement(device=np.zeros(0, dtype=np.int32))
        if self.executor is not None:
            return search_on_islands(self, graph, cluster, start_placement, self._round_ended)
        if self.objective in PIPELINES:
            return self._pipeline(graph, cluster, budget, start_placement)
        best = _Run(self, graph, cluster, budget, start_placement).placement()
        if start_placement is None or self.objective == "p90" or graph.original is None:
            return best
        # One of two placements of groups whose ops take less time: the search compared groups that run as one op.
        start_placement = start_placement.replace(info={**best.info, "returned": "the start"})
        candidates = [with_keys_of(graph, placement) for placement in (best, start_placement)]
        steps = [simulate(graph.original, cluster, placement) for placement in candidates]  # type: ignore[arg-type]
        return candidates[1] if steps[1].feasible and steps[1].makespan_us < steps[0].makespan_us else candidates[0]

    def _round_ended(self, budget: Budget, used: int, best: float) -> None:
        if self.callback is not None and self.callback(Progress(budget.elapsed, used, best, "the islands")) is True:
            budget.stopped = True

    @property
    def _goal(self) -> Objective:
        return Objective(self.objective, self.micro_batches, self.schedule, self.sum, self.replicas)

    def _pipeline(
        self, graph: OpGraph, cluster: Cluster, budget: Budget, start_placement: Placement | None
    ) -> Placement:
        """Searches for a period, or for a step of several micro-batches, from the best start."""
        from ..registry import make_placer

        goal = self._goal
        refusal: InfeasiblePlacement | InvalidInput | None = None
        starts = [] if start_placement is None else [(start_placement.placer, start_placement)]
        goal_params = {k: v for k, v in goal._asdict().items() if k != "name"}
        try:
            cut = make_placer("contiguous", objective=goal.name, **goal_params).assign(graph, cluster)
            starts.append(("contiguous", cut))
        except (InfeasiblePlacement, InvalidInput) as error:  # no cut fits, or the schedule can run none
            refusal = error
        feasible_starts = [
            (us, k)
            for k, (_, start) in enumerate(starts)
            if (us := _objective_us(goal, graph, cluster, start)) < np.inf
        ]
        if not feasible_starts and (assignment := best_of_few_assignments(graph, cluster, goal)) is not None:
            feasible_starts = [(_objective_us(goal, graph, cluster, assignment), len(starts))]
            starts.append(("all assignments", assignment))
        if not feasible_starts:
            if refusal is not None and start_placement is None:
                raise refusal
            raise InfeasiblePlacement(
                "search cannot start: no start keeps within memory",
                int(graph.persistent_bytes.sum()),
                cluster.memory_bytes.tolist(),
            )
        start_us, at = min(feasible_starts)
        name, start = starts[at]
        history = [(budget.elapsed, 0, start_us)]

        def tell(us: float, used: int) -> None:
            if us < history[-1][2]:
                history.append((budget.elapsed, used, us))
            if self.callback is not None and not budget.stopped:
                budget.stopped = self.callback(Progress(budget.elapsed, used, us, name)) is True

        numbers = self.numbers or SEARCH
        if goal.name == "throughput" and not goal.replicas:
            best, us, used = search_period(graph, cluster, goal, start, budget, self.workers, self.seed, tell, numbers)
        else:
            best, us, used = search_stages(graph, cluster, goal, start, budget, self.seed, tell, numbers)
        report = SearchReport(name, start_us, used, budget.elapsed, budget.interrupted, tuple(history))
        return Placement(
            device=best.device,
            replicas=best.replicas,
            order=best.order,
            priority=best.priority,
            info={**report._asdict(), goal.key: us},
            interrupted=budget.interrupted,
        )

    def _resolve_start(self, graph: OpGraph, cluster: Cluster) -> Placement | None:
        from ..registry import make_placer

        if self.start is None:
            return None
        if isinstance(self.start, Placement):
            if not self.replicas:
                refuse_replicas(self.start, "search without replicas=True")
            return _of_groups(self.start, graph).checked(graph, cluster.n)
        return make_placer(self.start).assign(graph, cluster)


def _of_groups(start: Placement, graph: OpGraph) -> Placement:
    """Converts a placement of ops to one of their groups: each is on the device of most of its work, ordered by its first op."""
    original = graph.original
    if original is None or graph.group_of is None or start.n != original.n or start.n == graph.n:
        return start
    start = start.on(original)
    work_us = np.zeros((graph.n, int(start.device.max(initial=0)) + 1))
    np.add.at(work_us, (graph.group_of, start.device), original.duration_us + 1e-9)
    order = None
    if start.rank is not None:
        order = np.full(graph.n, np.inf)
        np.minimum.at(order, graph.group_of, start.rank)
    device = work_us.argmax(axis=1).astype(np.int32)
    group_placement = Placement(device=device, order=order, placer=start.placer)
    return with_keys_of(graph, group_placement).replace(member_order=start.rank)


def _objective_us(goal: Objective, graph: OpGraph, cluster: Cluster, start: Placement) -> float:
    """Returns the objective of a start; infinite if it exceeds memory or forms no pipeline for the schedule."""
    try:
        return goal.improved_us(graph, cluster, start, goal.measure(graph, cluster, start), np.inf)
    except InvalidInput:
        return np.inf


class _Run:
    """One search: its starts, a contracted graph if the graph is large, and then the graph itself."""

    def __init__(
        self, params: Search, graph: OpGraph, cluster: Cluster, budget: Budget, start_placement: Placement | None
    ):
        self.params, self.graph, self.cluster = params, graph, cluster
        self.budget, self.start_placement = budget, start_placement
        self.parameters, samples = params.numbers or SEARCH, None
        if params.objective == "p90":
            samples = error_samples(graph, cluster, params.error, self.parameters.samples, params.seed)
        before = budget.elapsed
        self.instance = Instance(graph, cluster, samples, self.parameters)
        self.reading_seconds = budget.elapsed - before
        self.starts = Starts(self.instance, params.schedulers, params.seed)
        self.chains = MultiStart(self.instance, params.workers, params.seed, budget, self._tell)
        self.used_before, self.best, self.interrupted = 0, np.inf, False
        self.start_name, self.start_cost = "", np.inf
        self.history: list[tuple[float, int, float]] = []

    def placement(self) -> Placement:
        """Searches from the best start, on coarse graphs first, until the budget is spent; returns the best placement."""
        if self.start_placement is None:
            in_a_hurry = self._would_end_after(self.parameters.reducing_time, 0.5)
            candidates = self.starts.from_rules(self._rules_took_long, in_a_hurry)
        else:
            first = self.starts.from_placement(self.start_placement)
            measured_starts = self.starts.measure_orders(first.name, first.device)
            candidates = [first, *sorted(measured_starts, key=lambda c: c.key)]
        self.chains.chains[0].start_from(candidates[0])
        self.start_name, self.start_cost = candidates[0].name, self.chains.leader.cost
        best = candidates[0]
        try:
            self._tell(self.start_cost, 0)
            if self.budget.spent(0) < 1.0 and (self.cluster.n > 1 or self.instance.groups.of.max() > 0):
                candidates = self._search_contracted_graph(candidates) + candidates
                if self.budget.spent(self.used_before) < 1.0:
                    self.chains.search(candidates, self.used_before)
                else:
                    self.chains.chains[0].start_from(min(candidates, key=lambda c: c.key))
        except KeyboardInterrupt:  # Ctrl-C: the best placement so far is the answer
            self.budget.stopped = self.interrupted = True
        cost, candidate = self.chains.best
        if cost <= self.start_cost:
            best = candidate
        used = self.used_before + self.chains.used
        report = SearchReport(
            self.start_name, self.start_cost, used, self.budget.elapsed, self.interrupted, tuple(self.history)
        )
        return Placement(device=best.device, order=best.rank, info=report._asdict(), interrupted=self.interrupted)

    def _tell(self, best: float, used: int) -> None:
        """Records progress: `best` is the objective of a placement of the graph, `used` the simulations of this part."""
        self.best = min(self.best, best)
        used += self.used_before
        if not self.history or self.best < self.history[-1][2]:
            self.history.append((self.budget.elapsed, used, self.best))
        self._ask(used)

    def _ask(self, used: int) -> None:
        if self.params.callback is not None and not self.budget.stopped:
            if self.params.callback(Progress(self.budget.elapsed, used, self.best, self.start_name)) is True:
                self.budget.stopped = True

    def _rules_took_long(self) -> bool:
        try:
            self._ask(0)
        except KeyboardInterrupt:  # Ctrl-C: the best start so far is the answer
            self.budget.stopped = self.interrupted = True
        return self.budget.stopped or self.budget.elapsed > self.parameters.rules_share * (
            self.budget.seconds or np.inf
        )

    def _would_end_after(self, times: float, share: float) -> bool:
        """Whether work that takes `times` as long as reading the graph would end after `share` of the time limit."""
        return self.budget.elapsed + times * self.reading_seconds > share * (self.budget.seconds or np.inf)

    def _search_contracted_graph(self, candidates: list[Candidate]) -> list[Candidate]:
        """Searches on the contracted graph of a large graph, and projects the result onto the ops."""
        if (
            self.params.objective == "p90"
            or self.budget.spent(0) >= 1.0
            or self._would_end_after(self.parameters.contracting_time, 0.8)
        ):
            return []
        p = self.parameters
        contraction = contracted_graph(self.graph, self.cluster, p)
        if contraction is None:
            return []
        coarse, member = contraction
        instance = Instance(coarse, self.cluster, parameters=p)
        starts = Starts(instance, self.params.schedulers, self.params.seed)
        coarse_starts: list[Candidate] = []
        for candidate in choose(candidates, p.contracted_starts, p.fifo_share):
            device, rank = restrict_to_merged(member, candidate, self.cluster, self.instance.work)
            if instance.allowed[np.arange(coarse.n), device].all():
                coarse_starts += starts.measure_orders(candidate.name, device, rank)
        if not coarse_starts:
            return []
        coarse_budget = self.budget.portion(p.contracted_budget * (1.0 - self.budget.spent(0)), 1)
        chains = MultiStart(
            instance, self.params.workers, self.params.seed, coarse_budget, lambda _, used: self._tell(np.inf, used)
        )
        try:
            chains.search(coarse_starts, 0)
        except KeyboardInterrupt:
            self.budget.stopped = self.interrupted = True
        self.used_before += chains.used
        projected_candidates: list[Candidate] = []
        for best in chains.results:
            rank = None if best.rank is None else best.rank[member]
            projected_candidates += self.starts.measure_orders(f"{best.name} (contracted)", best.device[member], rank)
        return sorted(projected_candidates, key=lambda c: c.key)


def error_samples(graph: OpGraph, cluster: Cluster, error: float, count: int, seed: int) -> Samples:
    """Draws `count` samples of costs under profile errors; returns them with the position of their 90th percentile."""
    from ...simulator.robustness import sample_costs

    table, latency, per_byte = sample_costs(graph, cluster, error, count, seed)
    return Samples(table, latency, per_byte, int(np.ceil(0.9 * count)) - 1)
