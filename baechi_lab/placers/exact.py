"""`exact`: the best possible placement and order, proven by constraint programming.

Idea: OR-tools CP-SAT on the model of `exact_model.py`, warm-started from `search`, its objective bounded from below by
`bounds` and from above by what is known. The relaxed model comes first: if the simulation of its solution takes no
longer than its bound, both are optimal. Otherwise the strict model, which never idles and serves transfers at once as
the simulator does, closes the gap; where times were rounded it is left out and the gap is reported.

Times are scaled to whole numbers. Where no small scale makes them whole they are rounded, and the bound is lowered by
the largest error that rounding can cause: half a unit for every op and transfer. `info` of the result: `status`
("OPTIMAL" or "FEASIBLE"), `bound_us`, `gap` (0 is proven optimal), `scale_error_us`, `models` and their `solves`.

Complexity: exponential (the problem is NP-hard without communication); see the benchmarks for what is solved. Source:
CP-SAT, Perron and Didier, OR-tools (https://developers.google.com/optimization).
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np

from ..errors import InfeasiblePlacement, InvalidInput, MissingPackage
from ..graph import Cluster, OpGraph, Placement, durations
from ..graph.units import format_us
from ..simulator import bounds, simulate
from .base import Placer
from .exact_model import scaled_times
from .exact_process import SolverProcess
from .packing import packing_proof

LARGEST_MODEL = 40_000
"""Pairs of transfers and ops in a model; larger ones would take minutes to build and prove nothing."""

CLOSE = 1e-6
"""Relative difference below which two times count as equal."""


@dataclass(frozen=True)
class ExactProgress:
    """What a callback gets: seconds spent, step time of the best schedule and largest lower bound so far, in us."""

    seconds: float
    makespan_us: float
    bound_us: float

    def __str__(self) -> str:
        if not np.isfinite(self.makespan_us):
            return f"{self.seconds:.1f} s, looking for a first schedule"
        return f"{self.seconds:.1f} s, {format_us(self.makespan_us)}, lower bound {format_us(self.bound_us)}"


@dataclass(frozen=True)
class Exact(Placer):
    """The proven optimum of a small graph by constraint programming, or the proven gap (needs ortools).

    Parameters:
        time_limit: seconds for everything. seed: of the solver and the warm start. workers: threads of the solver.
        warm_start: share of the time that `search` may use for a first placement.
        callback: called with an `ExactProgress` ten times a second; returning True ends the proof with what is known.
    """

    name = "exact"
    anytime = True
    time_limit: float = 60.0
    seed: int = 0
    workers: int = 2
    warm_start: float = 0.1
    callback: Callable[[ExactProgress], Any] | None = field(default=None, compare=False)

    def validate(self) -> None:
        for key, low, high in (("time_limit", 0.0, np.inf), ("warm_start", 0.0, 1.0)):
            value = getattr(self, key)
            if not isinstance(value, (int, float)) or not low <= value <= high or value == np.inf:
                raise InvalidInput(f"{key} is {value!r}; it must be a number from {low:g} to {high:g}")
        if self.seed < 0 or self.workers < 1:
            raise InvalidInput(f"seed is {self.seed} and workers {self.workers}; they must be at least 0 and 1")

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        if importlib.util.find_spec("ortools") is None:
            raise MissingPackage.of("ortools", "solvers", "placer 'exact'")
        size = model_size(graph, cluster)
        if size > LARGEST_MODEL:
            raise InvalidInput(
                f"the instance is too large for 'exact': {graph.n} ops, {graph.tensor_count} tensors and {cluster.n} "
                f"devices make {size} pairs to order; at most {LARGEST_MODEL} are allowed (use 'search')"
            )
        if graph.n == 0:
            return Placement(device=np.zeros(0, dtype=np.int32))
        with SolverProcess() as solver:
            return _Solve(self, graph, cluster, solver).placement()


def model_size(graph: OpGraph, cluster: Cluster) -> int:
    """Pairs whose order the model decides."""
    sends = graph.tensor_count * (cluster.n - 1)
    return graph.n**2 + (0 if cluster.comm == "parallel" else sends**2)


class _Solve:
    """One instance: the best schedule known, the best bound known, and the two models that bring them together."""

    def __init__(self, params: Exact, graph: OpGraph, cluster: Cluster, solver: SolverProcess):
        self.params, self.graph, self.cluster, self.solver = params, graph, cluster, solver
        self.began, self.stopped = time.perf_counter(), False
        self.timeline: Any = None
        self.bound = bounds(graph, cluster).best
        self.solves: list[str] = []
        self._keep(self._warm_start())

    def _keep(self, best: Placement) -> None:
        self.best, self.timeline = best, simulate(self.graph, self.cluster, best)
        self.within = max(self.timeline.makespan_us, 1e-9)
        self._rescale()

    def _rescale(self) -> None:
        """Whole numbers for schedules of up to `within` microseconds."""
        self.times = scaled_times(self.graph, self.cluster, self.within)
        most = self.graph.n + self.graph.tensor_count * (self.cluster.n - 1)
        self.error = 0.0 if self.times.exact else 0.5 * most / self.times.scale

    def placement(self) -> Placement:
        for strict in (False, True):
            if self._proven() or self.stopped or self._left() <= 0 or (strict and not self.times.exact):
                break
            self._solve(strict)
        makespan = self.timeline.makespan_us
        gap = 0.0 if self._proven() else makespan / self.bound - 1.0 if self.bound > 0 else float("inf")
        info = {
            "status": "OPTIMAL" if self._proven() else "FEASIBLE", "bound_us": self.bound, "gap": gap,
            "scale_error_us": self.error, "solves": tuple(self.solves),
        }  # fmt: skip
        return self.best.replace(info=info)

    def _left(self) -> float:
        return self.params.time_limit - (time.perf_counter() - self.began)

    def _stop(self) -> bool:
        """Tell the callback how far it is; True once it wants an end."""
        if self.params.callback is not None and not self.stopped:
            known = np.inf if self.timeline is None else self.timeline.makespan_us
            progress = ExactProgress(time.perf_counter() - self.began, known, self.bound)
            self.stopped = self.params.callback(progress) is True
        return self.stopped

    def _proven(self) -> bool:
        return self.timeline.makespan_us <= self.bound * (1 + CLOSE) + CLOSE

    def _warm_start(self) -> Placement:
        from .search import Search

        seconds = min(self.params.time_limit * self.params.warm_start, 10.0)
        search = Search(
            time_limit=seconds, evaluations=20_000, seed=self.params.seed, workers=1, callback=lambda _: self._stop()
        )
        try:
            return search.assign(self.graph, self.cluster).replace(info={})
        except InfeasiblePlacement as refused:
            if packing_proof(self.graph, self.cluster) is not None:
                raise
            return self._decide(refused)

    def _decide(self, refused: InfeasiblePlacement) -> Placement:
        """No placement that fits is known: let the solver find one, or prove that there is none."""
        slowest = durations(self.graph, self.cluster).max(axis=1).sum()
        sends = (self.cluster.latency_us.max() + self.cluster.us_per_byte.max() * self.graph.tensor_bytes).sum()
        self.within = max(float(slowest + 2 * self.cluster.n * sends), 1e-9)
        self._rescale()
        answer = self._ask(False, {"device": None})
        if answer["status"] == "INFEASIBLE":
            needed, has = int(self.graph.persistent_bytes.sum()), self.cluster.memory_bytes.tolist()
            message = "no placement and no order keeps within memory, proven by constraint programming"
            raise InfeasiblePlacement(message, needed, has) from refused
        if answer["device"] is None:
            raise refused
        found = Placement(device=np.array(answer["device"]), order=np.array(answer["order"]))
        if not simulate(self.graph, self.cluster, found).feasible:
            raise refused
        return found

    def _ask(self, strict: bool, hint: dict[str, Any]) -> dict[str, Any]:
        slack = 0 if self.times.exact else self.graph.n + 1
        answer = self.solver.solve(self.graph, self.cluster, {
            "strict": strict, "within_us": self.within,
            "horizon": int(np.ceil(self.within * self.times.scale)) + slack,
            "lowest": max(int(np.floor((self.bound - self.error) * self.times.scale + CLOSE)), 0),
            "seconds": max(self._left(), 0.01), "seed": self.params.seed, "workers": self.params.workers, **hint,
        }, self._stop)  # fmt: skip
        self.solves.append(f"{'strict' if strict else 'relaxed'}: {answer['status']}, {answer['seconds']:.2f} s")
        return answer

    def _solve(self, strict: bool) -> None:
        known = self.timeline
        hint = {
            "device": known.device.tolist(), "start_us": known.start_us.tolist(), "end_us": known.end_us.tolist()
        }  # fmt: skip
        answer = self._ask(strict, hint)
        if answer["bound"] is not None:
            self.bound = max(self.bound, answer["bound"] / self.times.scale - self.error)
        if answer["device"] is not None:
            self._adopt(np.array(answer["device"]), np.array(answer["order"]))
        if answer["status"] == "INFEASIBLE":  # nothing within the horizon: what is known is optimal
            self.bound = max(self.bound, self.timeline.makespan_us - self.error)

    def _adopt(self, device: Any, order: Any) -> None:
        """The solver's schedule, its devices numbered in the way that simulates best."""
        numberings = permutations(range(self.cluster.n)) if self.cluster.n <= 4 else [tuple(range(self.cluster.n))]
        for numbering in numberings:
            for plan in (order, None):
                placed = Placement(device=np.array(numbering, dtype=np.int32)[device], order=plan)
                timeline = simulate(self.graph, self.cluster, placed)
                if timeline.feasible and timeline.makespan_us < self.timeline.makespan_us:
                    self.best, self.timeline = placed, timeline
