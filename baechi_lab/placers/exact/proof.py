"""One proof of `exact`: the best known schedule, the best known bound, and the models that bring them together.

The placements and orders of a small graph are all tried first (`evaluation.enumerate`), which needs neither a solver nor a time
limit. If that is complete, it is the proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any, Protocol

import numpy as np

from ...errors import ExecutionError, InfeasiblePlacement
from ...graph import Cluster, OpGraph, Placement, durations
from ...graph.kernels.compiling import working_seconds
from ...graph.kernels.jit import HAS_NUMBA
from ...graph.units import format_us
from ...simulator import simulate
from ...simulator.bounds import bounds
from ..evaluation.enumerate import best_schedule
from ..memory.packing import infeasible_placement, packing_proof, raise_if_impossible
from .process import DIED, SolverProcess
from .variables import CLOSE, longest_chain, scaled_times


@dataclass(frozen=True)
class ExactProgress:
    """Progress for a callback: seconds spent, step time of the best schedule and largest lower bound so far, in us."""

    seconds: float
    makespan_us: float
    bound_us: float

    def __str__(self) -> str:
        if not np.isfinite(self.makespan_us):
            return f"{self.seconds:.1f} s, looking for a first schedule"
        return f"{self.seconds:.1f} s, {format_us(self.makespan_us)}, lower bound {format_us(self.bound_us)}"


class ProofLimits(Protocol):
    """The parameters of `exact`, see `placers.exact.placer`."""

    @property
    def time_limit(self) -> float: ...
    @property
    def seed(self) -> int: ...
    @property
    def workers(self) -> int: ...
    @property
    def warm_start(self) -> float: ...
    @property
    def callback(self) -> Callable[[ExactProgress], object] | None: ...


WARM_START_SECONDS = 10.0  # most seconds of the search for a first placement
EVALUATIONS = 100
"""Limits of the warm start: seconds, and simulations per pair of ops."""

LOOK_CLOSER, CLOSER_SECONDS = 400, 1.0
"""Pairs of ops from which on bounds of high effort are computed before a model, and the most time for them."""

MOST_OPS, SIMULATIONS = 16, 100_000 if HAS_NUMBA else 1_000
"""Largest graph whose placements and orders are all tried before a solver is asked, and simulations after which that ends: up to
10 ops nearly always take milliseconds, and none takes more than a second or two.
"""

NOTHING_FITS = "no placement and no order keeps within memory, proven by {}"

ADDED = 1e-3
"""Model units: far more than floating point adds to a bound, far less than one unit."""


class Proof:
    """Goes from a warm start and `bounds` to the optimum, or to the gap that is left at the time limit."""

    def __init__(self, params: ProofLimits, graph: OpGraph, cluster: Cluster, solver: SolverProcess):
        self.params, self.graph, self.cluster, self.solver = params, graph, cluster, solver
        self.start_seconds, self.stopped, self.interrupted = working_seconds(), False, False
        self.timeline: Any = None
        self.solves: list[str] = []
        self.bound = 0.0
        # Microseconds within which every schedule ends: all ops and all transfers one after the other.
        slowest = durations(graph, cluster).max(axis=1, initial=0.0).sum()
        sends = (cluster.latency_us.max() + cluster.us_per_byte.max() * graph.tensor_bytes).sum()
        self._scale_for(float(slowest + 2 * cluster.n * sends))
        self._raise_bound(bounds(graph, cluster).best)
        self.best = self._try_every_schedule() or self._warm_start()
        self.timeline = simulate(graph, cluster, self.best)
        self._scale_for(self.timeline.makespan_us)
        if graph.n**2 >= LOOK_CLOSER and not self._is_proven() and self._remaining_seconds() > 0:
            seconds = min(CLOSER_SECONDS, 0.1 * self._remaining_seconds())
            self._raise_bound(bounds(graph, cluster, effort="high", time_limit=seconds).best)

    def placement(self) -> Placement:
        """Returns the best placement, with the proven bound in `info`."""
        for strict in (False, True):
            if self._is_proven() or self.stopped or self._remaining_seconds() <= 0:
                break
            # The longest horizon, in model units, of a schedule that is shorter than the best known one.
            timeline, units = self.timeline, self.timeline.makespan_us * self.times.scale
            horizon = round(units) - 1 if self.times.exact else int(units * (1 - CLOSE / 2))
            hint = {
                "device": timeline.device.tolist(),
                "start_us": timeline.start_us.tolist(),
                "end_us": timeline.end_us.tolist(),
            }
            answer = self._ask_solver(strict, horizon, hint)
            if answer["device"] is not None:
                # Takes the solver's schedule, with the numbering of its devices that simulates best.
                numberings = (
                    permutations(range(self.cluster.n)) if self.cluster.n <= 4 else [tuple(range(self.cluster.n))]
                )
                for numbering, plan in product(numberings, (np.array(answer["order"]), None)):
                    device = np.array(numbering, dtype=np.int32)[np.array(answer["device"])]
                    placement = Placement(device=device, order=plan)
                    timeline = simulate(self.graph, self.cluster, placement)
                    if timeline.feasible and timeline.makespan_us < self.timeline.makespan_us:
                        self.best, self.timeline = placement, timeline
            if answer["status"] == "INFEASIBLE":  # nothing is shorter
                self._raise_bound((horizon + 1) / self.times.scale)
            elif answer["bound"] is not None:  # of what is shorter
                self._raise_bound(min(answer["bound"], horizon + 1) / self.times.scale)
        makespan, proven = self.timeline.makespan_us, self._is_proven()
        gap = 0.0 if proven else makespan / self.bound - 1.0 if self.bound > 0 else float("inf")
        error = 0.0 if self.times.exact else longest_chain(self.graph, self.cluster) / self.times.scale
        info = {
            "status": "OPTIMAL" if proven else "FEASIBLE",
            "bound_us": self.bound,
            "gap": gap,
            "scale_error_us": error,
            "solves": tuple(self.solves),
            "interrupted": self.interrupted,
        }
        return self.best.replace(info=info, interrupted=self.interrupted)

    # -- what is known -------------------------------------------------------------------------------------

    def _scale_for(self, within_us: float) -> None:
        """Scales times to whole numbers for schedules of up to `within_us`."""
        self.within = max(within_us, 1e-9)
        self.times = scaled_times(self.graph, self.cluster, self.within)

    def _raise_bound(self, bound_us: float) -> None:
        """Raises the lower bound. If times are whole, so is every step time, and the bound is rounded up."""
        if self.times.exact:
            bound_us = np.ceil(bound_us * self.times.scale - ADDED) / self.times.scale
        self.bound = max(self.bound, float(bound_us))

    def _within_bound(self, makespan_us: float) -> bool:
        return makespan_us <= self.bound * (1 + CLOSE) + CLOSE

    def _is_proven(self) -> bool:
        return self._within_bound(self.timeline.makespan_us)

    def _remaining_seconds(self) -> float:
        return self.params.time_limit - (working_seconds() - self.start_seconds)

    def _stop(self) -> bool:
        """Reports progress to the callback; returns True once the callback asked to stop."""
        if self.params.callback is not None and not self.stopped:
            makespan_us = np.inf if self.timeline is None else self.timeline.makespan_us
            progress = ExactProgress(working_seconds() - self.start_seconds, makespan_us, self.bound)
            self.stopped = self.params.callback(progress) is True
        return self.stopped

    # -- a first placement ---------------------------------------------------------------------------------

    def _try_every_schedule(self) -> Placement | None:
        """Returns the optimum of a small graph and proves it; None where the search of all schedules is not complete.

        Raises `InfeasiblePlacement` if no schedule keeps within memory.
        """
        if self.graph.n > MOST_OPS:
            return None
        best = best_schedule(self.graph, self.cluster, max_simulations=SIMULATIONS)
        if not best.complete:
            return None
        if best.placement is None:
            raise_if_impossible(self.graph, self.cluster)
            raise infeasible_placement(NOTHING_FITS.format("trying all of them"), self.graph, self.cluster)
        self.bound = best.makespan_us
        return best.placement

    def _warm_start(self) -> Placement:
        """Returns a first placement by search; if none fits, one by the solver, or raises what is proven."""
        from ..search.placer import Search

        self.solver.prepare()
        seconds = min(self.params.time_limit * self.params.warm_start, WARM_START_SECONDS)
        search = Search(
            time_limit=seconds,
            evaluations=EVALUATIONS * self.graph.n**2,
            seed=self.params.seed,
            workers=1,
            callback=lambda progress: self._stop() or self._within_bound(progress.makespan_us),
        )
        try:
            placement = search.assign(self.graph, self.cluster)
            self.interrupted = placement.interrupted  # then the start is the answer
            self.stopped = self.stopped or self.interrupted
            return placement.replace(info={})
        except InfeasiblePlacement as refused:
            if packing_proof(self.graph, self.cluster) is not None:
                raise
            # Without a known placement that fits: lets the solver find one, or prove that there is none.
            answer = self._ask_solver(False, int(np.ceil(self.within * self.times.scale)), {"device": None})
            if answer["status"] == "INFEASIBLE":
                reason = NOTHING_FITS.format("constraint programming")
                raise infeasible_placement(reason, self.graph, self.cluster) from refused
            if answer["device"] is None:
                raise refused
            placement = Placement(device=np.array(answer["device"]), order=np.array(answer["order"]))
            if not simulate(self.graph, self.cluster, placement).feasible:
                raise refused
            return placement

    # -- the models ----------------------------------------------------------------------------------------

    def _ask_solver(self, strict: bool, horizon: int, hint: dict[str, object]) -> dict[str, Any]:
        lowest = int(np.floor(self.bound * self.times.scale + ADDED))
        request = {
            "strict": strict,
            "within_us": self.within,
            "horizon": horizon,
            "lowest": min(lowest, horizon),
            "seconds": max(self._remaining_seconds(), 0.01),
            "seed": self.params.seed,
            "workers": self.params.workers,
            **hint,
        }
        try:
            answer = self.solver.solve(self.graph, self.cluster, request, self._stop)
        except ExecutionError as error:  # what is known without the solver is the answer
            answer, self.stopped = {**DIED, "reason": str(error)}, True
        why = f", {answer['reason']}" if "reason" in answer else ""
        self.solves.append(f"{'strict' if strict else 'relaxed'}: {answer['status']}, {answer['seconds']:.2f} s{why}")
        return answer
