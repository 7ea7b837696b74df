"""`auto`: run every fast placer, simulate the placements, return the best.

Idea: no placer wins everywhere (Mayer et al. 2017 compare six partitioners under three schedulers and find no winner), and
simulating is cheap. So every fast registered placer places the graph and its optimized form, and every scheduler simulates
it. The fastest placement that keeps all rules wins; `auto` is never worse than any of these placers. The decisions of a dynamic
scheduler become the placement's planned order, so the result needs no scheduler. Groups of `bl.optimize` are simulated as
their ops, since the order of groups may differ: first in each order of the groups, then with a dynamic scheduler choosing among
the ops themselves (`pct of ops`), whose choices become `Placement.member_order`.

For a small graph all placements and orders are then searched (`evaluation.enumerate`). If that search is complete,
`info["status"]` is "OPTIMAL", as for `exact`: no placement and no order has a shorter step. Otherwise the fastest placements are
annealed by some simulations (`evaluation.anneal`): first without memory limits, and with them only if the result exceeds them.
Without that, more memory often made the step longer: placements that exceed a limit are repaired, and repairs anneal.

For the period of endless micro-batches or a step of several, the placers with such objectives are run, and every placement is
measured by the objective, once: devices follow the schedule, not a scheduler.

Equal placements are simulated once. `info["table"]` has one row per attempt.
Complexity: the sum of the placers, spread over threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import islice

import numpy as np

from ..checks import check_whole
from ..errors import BaechiLabError, InvalidInput, in_short
from ..graph import Cluster, OpGraph, Placement, allowed_devices
from ..graph.costs import durations
from ..graph.kernels.compiling import working_seconds
from ..graph.kernels.jit import HAS_NUMBA
from ..graph.placement import with_keys_of
from ..simulator import simulate_step
from ..simulator.schedulers import SCHEDULERS
from .base import Placer
from .evaluation.cost import Objective as Cost
from .evaluation.cost import make_objective
from .evaluation.enumerate import best_schedule
from .evaluation.improve import improve
from .evaluation.model import make_model, memory_matters
from .evaluation.moves import make_units
from .memory.exhaustive import first_fitting
from .memory.feasible import without_repairs
from .memory.packing import infeasible_placement, raise_if_impossible
from .memory_trades.selection import check_give_up
from .pipeline_stages.hill_climbing import max_moves
from .pipeline_stages.objective import Objective
from .problem import groups_of
from .registry import make_placer, placer_class, placer_names
from .second_compiler import compile_in_second_process
from .simulation_cache import SimulationCache, order_of_starts, simulate_ops

LATENCY = Objective()
LP_PLACERS = ("sct", "m-sct")
LP_OPS = 1500
"""Largest graph for which a linear program is solved. Above, it takes longer than all other placers together."""
SEARCH_MOVES, ANYTIME_SECONDS = 200_000, 5.0
"""Evaluations of `search` for a period (a fraction of a second), and seconds for other anytime placers that are named."""
MOST_OPS, SMALL, SIMULATIONS = 16, 10, (100_000, 10_000)
"""Largest graph whose schedules are all tried, and simulations after which that ends: for up to `SMALL` ops, which nearly always
takes milliseconds, and for more, where it takes less than a tenth of a second.
"""
PARTITIONERS = ("metis", "scotch")
ON_FEWER_DEVICES = ("contiguous", "m-etf", *PARTITIONERS)
"""Placers that also place on the first devices alone: fast ones that are often best there."""
FEW_DEVICES, FEW_OPS = 4, 5_000
"""Sizes of clusters and graphs of which one has to be passed for all of these: with few devices a large graph gains little by
it. For other large graphs the partitioners alone place the smallest form, on all devices but the last.
"""
ALL_COUNTS = 8
"""Largest cluster of which every smaller number of devices is tried. Of a larger one, powers of two and all but one are tried."""
EVERY_SCHEDULE = "every schedule"
ANNEALING, ANNEALED_OPS, LEAST_ANNEALING, STARTS = 4_000, 400_000, 50, 4
"""Simulations of an annealing, which are fewer on large graphs: so many ops altogether, or none at all if fewer simulations are
left than the least number. Half of them are divided among the fastest placements as starts, half go on from the best result.
"""
WITHOUT_LIMITS = 4
"""How many times as many simulations an annealing has that does not follow memory, where each takes less time."""


@dataclass(frozen=True)
class Attempt:
    """One row of the table: placer, graph, scheduler, and the measured placement or the error.

    `placer` also says on how many devices, and whether the placement was annealed; `rule` is the name of the registered placer
    alone. With `of_ops`, the scheduler chose among the ops of groups.
    """

    placer: str
    graph: str
    scheduler: str
    makespan_us: float
    peak_bytes: int
    feasible: bool
    place_seconds: float
    error: str = ""
    rule: str = ""
    annealed: bool = False
    of_ops: bool = False


Attempts = list[tuple[Attempt, Placement | None]]
"""Rows of the table with their placements."""


@dataclass(frozen=True)
class Auto(Placer):
    """The best of every fast placer under every scheduler (a portfolio), of the ops and, unless groups are given, of groups.

    Four of them also place on fewer devices, the first ones: small graphs on every number below that of up to eight devices.

    Args:
        placers: names to ask; None means every registered placer that is fast.
        optimized: also place the optimized graph.
        lp_ops: most ops for which a linear program is solved.
        workers: threads; None means one per core.
        objective: "latency" (one step), "throughput" (the period, as `bl.throughput` has it) or "step" (`micro_batches`
            under a `schedule`); replicas, sum: as in `contiguous`.
        give_up: "recompute", "offload" or both where memory binds, as in `search`.
        callback: called with `(answers so far, all)` after every placer; returning True asks no more of them.
    """

    name = "auto"
    placers: tuple[str, ...] | None = None
    optimized: bool = True
    lp_ops: int = LP_OPS
    workers: int | None = None
    objective: str = "latency"
    micro_batches: int = 8
    schedule: str | None = "1f1b"
    replicas: bool = False
    sum: bool = False
    give_up: tuple[str, ...] = ()
    callback: Callable[[int, int], object] | None = field(default=None, compare=False)

    def validate(self) -> None:
        self._goal.validate()
        check_give_up(self.give_up, self.objective)
        if self.placers is not None and not isinstance(self.placers, list | tuple):
            raise InvalidInput(f"placers is {in_short(self.placers)}; it must be a list of names of placers, or None")
        for name in self.placers or ():
            if name == self.name:
                raise InvalidInput("placers names 'auto' itself; name the placers that it should ask")
            placer_class(name)
        check_whole("lp_ops", self.lp_ops, 0)
        if self.workers is not None:
            check_whole("workers", self.workers, also=", or None")

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        if graph.n == 0:
            return Placement(device=np.zeros(0, dtype=np.int32), info={"table": ()})
        raise_if_impossible(graph, cluster)
        proof: dict[str, object] = {}
        whole_portfolio = self.placers is None and self.objective == "latency"
        simulations = SimulationCache(graph, cluster)
        placers_to_compile = fast_placers(graph, self.lp_ops) if whole_portfolio else ()
        with compile_in_second_process(placers_to_compile, _annealing_simulations(graph) > 0):
            forms = forms_of(graph, cluster, self.optimized)
            candidates: list[tuple[str, str, int | None]] = [
                (name, form_name, None) for form_name, form in forms.items() for name in self._names(form)
            ]
            if self.placers is None:
                candidates += fewer_devices(forms, cluster.n)
            jobs: list[Callable[[], Attempts]] = [
                lambda name=name, form_name=form_name, count=count: _run_attempts(  # type: ignore[misc]
                    name, form_name, forms[form_name], graph, cluster, self._goal, simulations, count
                )
                for name, form_name, count in candidates
            ]
            attempts = [pair for job_attempts in self._run(jobs) for pair in job_attempts]
            if self.objective == "latency" and self.placers is None and HAS_NUMBA and graph.n <= MOST_OPS:
                proof = _try_every_schedule(attempts, graph, cluster)
            if self.objective == "latency" and graph.original is not None:
                attempts += self._schedule_ops(attempts, graph.original, cluster)
            if whole_portfolio and HAS_NUMBA and not proof:
                attempts += _anneal_attempts(attempts, graph, cluster, simulations)
        table = tuple(asdict(attempt) for attempt, _ in attempts)
        if self.objective != "latency":  # a period or a step has a column of its own name instead of `makespan_us`
            goal_key = self._goal.key
            table = tuple({goal_key if k == "makespan_us" else k: v for k, v in row.items()} for row in table)
        fits = [(attempt, placement) for attempt, placement in attempts if placement is not None and attempt.feasible]
        fits.sort(key=lambda pair: pair[0].makespan_us)  # ties: the first
        if self.objective != "latency":  # measured by groups; for the latency, ops were simulated
            fits = list(islice((pair for pair in fits if self._ops_fit(graph, cluster, pair[1])), 1))
        if not fits:
            if self.objective != "latency":  # says in its own words why, or repairs
                placement = propose("contiguous", graph, graph, cluster, self._goal)
                return placement.replace(info={**placement.info, "table": table, "winner": "contiguous"})
            return self._repair_attempt(graph, cluster, attempts).replace(info={"table": table, "winner": "repair"})
        attempt, placement = fits[0]
        goal_info = proof if self.objective == "latency" else {self._goal.key: attempt.makespan_us}
        return placement.replace(info={"table": table, **winner_info(attempt), **goal_info})

    @property
    def _goal(self) -> Objective:
        return Objective(self.objective, self.micro_batches, self.schedule, self.sum, self.replicas)

    def _ops_fit(self, graph: OpGraph, cluster: Cluster, placement: Placement) -> bool:
        return self._goal.measure_ops(graph, cluster, placement, self._goal.measure(graph, cluster, placement)).feasible

    def _names(self, graph: OpGraph) -> list[str]:
        if self.placers is not None:
            return list(self.placers)
        fast = fast_placers(graph, self.lp_ops)
        if self.objective == "latency":
            return fast
        with_objective = [*(n for n in placers_of_objectives() if not placer_class(n).anytime), "search"]
        return [*fast, *(n for n in with_objective if n not in fast)]

    def _run(self, jobs: list[Callable[[], Attempts]]) -> list[Attempts]:
        """Returns the results of all jobs in the order of the jobs, whatever thread finishes first."""
        pool, answers = ThreadPoolExecutor(self.workers or os.cpu_count() or 1), []
        try:
            for answer in pool.map(lambda job: job(), jobs):
                answers.append(answer)
                if self.callback is not None and self.callback(len(answers), len(jobs)) is True:
                    break
        finally:  # also when interrupted: what has not begun is left out
            pool.shutdown(cancel_futures=True)
        return answers

    def _schedule_ops(self, attempts: Attempts, original: OpGraph, cluster: Cluster) -> Attempts:
        """Lets dynamic schedulers choose among the ops of every placement of groups; the fastest has the choices as its order.

        Left out are equal placements, and those whose busiest device alone works as long as the fastest step so far.
        """
        fastest_us = min((a.makespan_us for a, p in attempts if p is not None and a.feasible), default=np.inf)
        duration_us, ops = durations(original, cluster), np.arange(original.n)
        candidates: dict[bytes, tuple[Attempt, Placement]] = {}
        for attempt, placement in attempts:
            if placement is None:
                continue
            device = placement.on(original).device
            loads_us = np.bincount(device, duration_us[ops, device], cluster.n)
            if loads_us.max(initial=0.0) < fastest_us:
                candidates.setdefault(placement.device.tobytes(), (attempt, placement))
        jobs = [
            lambda attempt=attempt, placement=placement, scheduler=scheduler: (  # type: ignore[misc]
                attempt,
                placement,
                scheduler,
                *simulate_ops(original, cluster, placement, scheduler),
            )
            for attempt, placement in candidates.values()
            for scheduler in SCHEDULERS.names()
            if scheduler not in ("fifo", "planned")
        ]
        with ThreadPoolExecutor(self.workers or os.cpu_count() or 1) as pool:
            answers = list(pool.map(lambda job: job(), jobs))
        rows: Attempts = []
        for attempt, placement, scheduler, us, peak, feasible in answers:
            ordered_placement = None
            if feasible and us < fastest_us:
                # The order in which the scheduler runs the ops.
                timeline = simulate_step(original, cluster, placement.on(original), scheduler)
                order = order_of_starts(original, timeline.start_us, timeline.end_us)
                ordered_placement = placement.replace(member_order=order.astype(np.float64))
                us, peak, feasible = simulate_ops(original, cluster, ordered_placement)
                fastest_us = min(fastest_us, us)
            peak_bytes = int(peak.max(initial=0))
            row = replace(
                attempt, scheduler=scheduler, of_ops=True, makespan_us=us, peak_bytes=peak_bytes, feasible=feasible
            )
            rows.append((row, ordered_placement))
        return rows

    def _repair_attempt(self, graph: OpGraph, cluster: Cluster, attempts: Attempts) -> Placement:
        from .memory.repair import repair

        starts = [(a.peak_bytes, k) for k, (a, p) in enumerate(attempts) if p is not None]
        start = attempts[min(starts)[1]][1] if starts else None
        repaired_placement = repair(graph, cluster, start, last_resort=True)
        if repaired_placement is not None:
            return repaired_placement
        proof = first_fitting(graph, cluster)[1]
        why = proof or "neither a rule nor the repair found a placement that fits, which is no proof that none exists"
        raise infeasible_placement(why, graph, cluster, is_proof=bool(proof))


def winner_info(attempt: Attempt) -> dict[str, object]:
    """Returns the entries of `Placement.info` that say which placement was taken: in words, and one by one."""
    scheduler = attempt.scheduler + (" of ops" if attempt.of_ops else "")
    words = f"{attempt.placer} on the {parts_of(attempt.graph)}" + (f", scheduler {scheduler}" if scheduler else "")
    return {
        "winner": words,
        "winner_rule": attempt.rule,
        "winner_annealed": attempt.annealed,
        "winner_scheduler": attempt.scheduler,
    }


def _try_every_schedule(attempts: Attempts, graph: OpGraph, cluster: Cluster) -> dict[str, object]:
    """Searches all placements and orders of a small graph for one that is faster than all attempts, and adds it to them.

    Returns the entries of `Placement.info` that say that the fastest one is optimal; none if the search did not end.
    """
    began = working_seconds()
    is_op_graph = graph.original is None  # groups are simulated as their ops, which is not what is searched
    known_us = [a.makespan_us for a, placement in attempts if placement and a.feasible]
    known_bound_us = min(known_us, default=np.inf) if is_op_graph else np.inf
    best = best_schedule(graph, cluster, known_bound_us, SIMULATIONS[0 if graph.n <= SMALL else 1])
    us, is_feasible = known_bound_us, True
    if best.placement is not None:
        ordered_placement = with_keys_of(graph, best.placement)
        us, peak, is_feasible = simulate_ops(graph.original or graph, cluster, ordered_placement)
        form_name, seconds = "raw" if graph.group_of is None else "given", working_seconds() - began
        attempt = Attempt(EVERY_SCHEDULE, form_name, "planned", us, int(peak.max(initial=0)), is_feasible, seconds)
        attempts.append((attempt, ordered_placement))
    if is_op_graph and best.complete and is_feasible and np.isfinite(us):
        return {"status": "OPTIMAL", "bound_us": us, "gap": 0.0}
    return {}


class _Annealing:
    """Improves attempts of `auto` on the first devices of its cluster, each result simulated.

    `objectives`: without memory limits first, which a placement often keeps anyway, then with them if they can be exceeded.
    """

    def __init__(self, graph: OpGraph, devices: Cluster, simulations: SimulationCache, rng: np.random.Generator):
        self.units = make_units(groups_of(graph), graph.position, allowed_devices(graph, devices))
        model = make_model(graph, devices)
        self.objectives = [make_objective(model, track=t) for t in sorted({False, memory_matters(model)})]
        self.simulations, self.rng = simulations, rng

    def improve(
        self, objective: Cost, attempt: Attempt, start: Placement, simulation_count: int
    ) -> tuple[Attempt, Placement]:
        """Returns the attempt and its placement after so many simulations. Groups are annealed as one op each."""
        began = working_seconds()
        plan = improve(objective, self.units, start.device, start.rank, attempt.makespan_us, simulation_count, self.rng)
        scheduler = "fifo" if plan.order is None else "planned"
        placement = start.replace(device=plan.device, order=plan.order, priority=None, member_order=None)
        simulated, placement = self.simulations.simulate(placement, scheduler)
        improved_attempt = replace(
            attempt,
            placer=attempt.placer if attempt.annealed else f"{attempt.placer}, annealed",
            annealed=True,
            scheduler=scheduler,
            of_ops=False,
            makespan_us=simulated.makespan_us,
            peak_bytes=int(simulated.peak_bytes.max(initial=0)),
            feasible=simulated.feasible,
            place_seconds=working_seconds() - began,
        )
        return improved_attempt, placement


def _anneal_attempts(attempts: Attempts, graph: OpGraph, cluster: Cluster, simulations: SimulationCache) -> Attempts:
    """Anneals the fastest placements that fit: those on the first two devices there, then those on the first three, and so on.

    The results of fewer devices are among the starts; otherwise one more device would often make the step longer.
    """
    steps, rng = _annealing_simulations(graph), np.random.default_rng(0)
    rows: Attempts = []
    for count in range(2, cluster.n + 1) if cluster.n <= ALL_COUNTS else [cluster.n]:
        if steps == 0:
            break
        annealing = _Annealing(graph, cluster.resized(count), simulations, rng)
        starts: dict[bytes, tuple[Attempt, Placement]] = {}  # the fastest one for each assignment of devices
        for attempt, placement in sorted([*attempts, *rows], key=lambda pair: pair[0].makespan_us):
            if placement is not None and attempt.feasible and placement.device.max() < count:
                starts.setdefault(placement.device.tobytes(), (attempt, placement))
        for objective in annealing.objectives:
            half = steps // 2 * (1 if objective.track else WITHOUT_LIMITS)
            results = [annealing.improve(objective, *start, half // STARTS) for start in list(starts.values())[:STARTS]]
            if fits := [pair for pair in results if pair[0].feasible]:
                results.append(annealing.improve(objective, *min(fits, key=lambda pair: pair[0].makespan_us), half))
            rows += results
            if not results or results[-1][0].feasible:
                break
    return rows


def _annealing_simulations(graph: OpGraph) -> int:
    simulation_count = min(ANNEALING, ANNEALED_OPS // graph.n)
    return simulation_count if simulation_count >= LEAST_ANNEALING else 0


def fast_placers(graph: OpGraph, lp_ops: int = LP_OPS) -> list[str]:
    """Returns the names of all registered placers that are fast on a graph of this size."""
    classes = {n: placer_class(n) for n in placer_names() if n != Auto.name}
    fast = [n for n, c in classes.items() if not c.anytime and getattr(c, "objective", "latency") == "latency"]
    return [n for n in fast if n not in LP_PLACERS or graph.n <= lp_ops]


def placers_of_objectives() -> list[str]:
    """Returns the names of all registered placers that take an objective."""
    classes = {n: placer_class(n) for n in placer_names() if n != Auto.name}
    return [n for n, c in classes.items() if {"objective", "micro_batches"} <= set(c.__dataclass_fields__)]


def forms_of(graph: OpGraph, cluster: Cluster, optimized: bool = True) -> dict[str, OpGraph]:
    """Returns the graphs to place by name: the optimized one if it is smaller, and the given one."""
    if graph.group_of is not None:
        return {"given": graph}
    if optimized:
        from ..passes import optimize

        coarse = optimize(graph, cluster)
        if coarse.n < graph.n:
            return {"optimized": coarse, "raw": graph}
    return {"raw": graph}


def fewer_devices(forms: dict[str, OpGraph], device_count: int) -> list[tuple[str, str, int]]:
    """Returns (placer, form, count) of what also places on the first `count` of `device_count` devices alone.

    What is best for a part of the devices is often faster than what a placer makes of all of them.
    """
    if device_count <= 2:  # `single` is what one device gives
        return []
    powers = [2**k for k in range(1, (device_count - 1).bit_length())]
    if max(form.n for form in forms.values()) <= FEW_OPS:
        counts = range(2, device_count) if device_count <= ALL_COUNTS else sorted({*powers, device_count - 1})
        return [(name, form_name, count) for count in counts for form_name in forms for name in ON_FEWER_DEVICES]
    smallest = min(forms, key=lambda form_name: forms[form_name].n)
    candidates = [(name, smallest, device_count - 1) for name in PARTITIONERS]
    if device_count > FEW_DEVICES:
        other_placers = [name for name in ON_FEWER_DEVICES if name not in PARTITIONERS]
        candidates += [(name, form_name, count) for count in powers for form_name in forms for name in other_placers]
    return candidates


def parts_of(form_name: str) -> str:
    """Says what is placed of a form of the graph.

    >>> parts_of("raw"), parts_of("contracted")
    ('ops', 'contracted graph')
    """
    return {"raw": "ops", "given": "given groups", "optimized": "groups"}.get(form_name, f"{form_name} graph")


def propose(name: str, form: OpGraph, graph: OpGraph, cluster: Cluster, goal: Objective = LATENCY) -> Placement:
    """Places `form` by the placer `name` and maps the placement to `graph`. The placer gets the goal unless that is latency."""
    parameters: dict[str, object] = {}
    if goal.name != "latency" and name in placers_of_objectives():
        goal_parameters = {"objective": goal.name, **{k: v for k, v in goal._asdict().items() if k != "name"}}
        parameters = {k: v for k, v in goal_parameters.items() if k in placer_class(name).__dataclass_fields__}
        if placer_class(name).anytime:
            parameters["time_limit"] = ANYTIME_SECONDS
        if name == "search":  # the same on any machine
            steps = max_moves(graph.n * goal.micro_batches)
            anneals_loads = goal.name == "throughput" and not goal.replicas  # by loads, which takes microseconds
            parameters |= {"time_limit": None, "evaluations": SEARCH_MOVES if anneals_loads else steps, "workers": 1}
    placement = with_keys_of(form, make_placer(name, **parameters).assign(form, cluster))
    return placement if form is graph else placement.on(graph)


def _run_attempts(
    placer: str,
    form_name: str,
    form: OpGraph,
    graph: OpGraph,
    cluster: Cluster,
    goal: Objective,
    simulations: SimulationCache,
    count: int | None = None,
) -> Attempts:
    """Places `form` by `placer` and simulates the placement on `graph` under every scheduler, or measures another goal.

    If `graph` is coarse and its original is known, each placement is simulated on the original. With `count` the placer knows
    only so many devices, the first ones.
    """
    name = placer if count is None else f"{placer} for {count} devices"
    began = working_seconds()
    try:
        cluster_to_use = cluster if count is None else cluster.resized(count)
        # Repairs take longer than all else: on all devices and all but one they suffice.
        repairs = nullcontext() if cluster_to_use.n >= cluster.n - 1 else without_repairs()
        with repairs:
            placement = propose(placer, form, graph, cluster_to_use, goal)
    except BaechiLabError as error:  # a placer that finds nothing, or lacks its package, is a row without a placement
        seconds = working_seconds() - began
        return [(Attempt(name, form_name, "", float("inf"), 0, False, seconds, str(error), placer), None)]
    seconds = working_seconds() - began
    if goal.name != "latency":
        schedule = (goal.schedule or "") if goal.name == "step" else ""
        try:
            measurement = goal.measure(graph, cluster, placement)
        except InvalidInput as error:  # its stages are no pipeline for the schedule
            return [(Attempt(name, form_name, schedule, float("inf"), 0, False, seconds, str(error), placer), None)]
        peak = int(measurement.peak_bytes.max(initial=0))
        attempt = Attempt(name, form_name, schedule, measurement.us, peak, measurement.feasible, seconds, rule=placer)
        return [(attempt, placement)]
    rows: Attempts = []
    for scheduler in SCHEDULERS.names():
        if scheduler == "planned" and placement.rank is None:
            continue
        plan, simulated_plan = simulations.simulate(placement, scheduler)
        peak_bytes = int(plan.peak_bytes.max(initial=0))
        attempt = Attempt(name, form_name, scheduler, plan.makespan_us, peak_bytes, plan.feasible, seconds, rule=placer)
        rows.append((attempt, simulated_plan))
    return rows
