"""Proves the best period, or step of several micro-batches: bounds from the load model, assignments measured one by one.

The model (`exact.load_program`) gives the assignment with the least bound. It is measured as `bl.throughput` or `bl.simulate`
does, and then forbidden. The next bound of the model holds for everything not measured yet, so no assignment is better than the
best measured one once that bound reaches it (logic-based Benders decomposition: Hooker and Ottosson 2003,
doi:10.1007/s10107-003-0375-9). A period equals its bound, except for memory, so that one solution is mostly enough. A step
is longer than its bound, and the placements in between are all measured. Memory is checked by the measurement: one simulated
micro-batch for a period, the step itself otherwise.

An assignment is measured in the order in which its ops become ready. In another order its step may be shorter, or fit. So only
its own bound, which holds in any order, is proven of it. `info["bound_us"]` is the least of these and the model's.
`info["no_better_assignment"]` says whether all assignments that may be better in the order of readiness were measured.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np

from ...errors import ExecutionError, InvalidInput
from ...graph import Cluster, OpGraph, Placement
from ...graph.kernels.compiling import working_seconds
from ...simulator.bounds import bounds
from ...simulator.throughput import throughput
from ..pipeline_stages.objective import Objective
from ..problem import groups_of
from .load_program import load_request
from .process import SolverProcess
from .proof import ExactProgress, ProofLimits
from .variables import CLOSE

WARM_START_SECONDS = 5.0  # most seconds of the search for a first solution
EVALUATIONS = {"throughput": 100_000, "step": 300}
"""Most evaluations of the warm start."""


class PipelineProof:
    """Goes from a warm start to the optimum, or to the gap that is left at the time limit."""

    def __init__(
        self, params: ProofLimits, graph: OpGraph, cluster: Cluster, objective: Objective, solver: SolverProcess
    ):
        from ..search.placer import Search

        self.params, self.graph, self.cluster, self.solver = params, graph, cluster, solver
        self.objective, self.group = objective, groups_of(graph)
        self.start_seconds, self.stopped, self.us, self.bound = working_seconds(), False, np.inf, 0.0
        self.forbidden: list[list[int]] = []
        self.bound_of_forbidden = np.inf
        self.solves = 0
        solver.prepare()
        if objective.name == "throughput":
            self.bound = bounds(graph, cluster, period=True).best
        else:
            self.bound = bounds(graph, cluster, micro_batches=objective.micro_batches).best
        seconds = min(params.time_limit * params.warm_start, WARM_START_SECONDS)
        search = Search(
            time_limit=seconds,
            evaluations=EVALUATIONS[objective.name],
            seed=params.seed,
            workers=1,
            objective=objective.name,
            micro_batches=objective.micro_batches,
            schedule=objective.schedule,
            sum=objective.sum,
            callback=lambda _: self._stop(),
        )
        self.best = search.assign(graph, cluster).replace(info={})
        self.us = objective.measure(graph, cluster, self.best).us

    def placement(self) -> Placement:
        """Returns the best placement, with the proven bound in `info`."""
        while not (self._reaches(self.bound) or self._stop() or self._remaining_seconds() <= 0):
            self._measure_next()
        bound = min(self.bound, self.bound_of_forbidden, self.us)
        proven = self._reaches(bound)
        gap = 0.0 if proven else self.us / bound - 1.0 if bound > 0 else float("inf")
        info = {
            "status": "OPTIMAL" if proven else "FEASIBLE",
            "no_better_assignment": self._reaches(self.bound),
            "bound_us": bound,
            "gap": gap,
            "solves": self.solves,
            self.objective.key: self.us,
        }
        return self.best.replace(info=info)

    def _reaches(self, bound: float) -> bool:
        """Whether no placement can be better than the best one by more than the solver's tolerance."""
        return self.us <= bound * (1 + CLOSE) + 1e-12

    def _remaining_seconds(self) -> float:
        return self.params.time_limit - (working_seconds() - self.start_seconds)

    def _stop(self) -> bool:
        """Reports the progress; returns whether the callback has ended the proof."""
        if self.params.callback is not None and not self.stopped:
            progress = ExactProgress(working_seconds() - self.start_seconds, self.us, self.bound)
            self.stopped = self.params.callback(progress) is True
        return self.stopped

    def _measure_next(self) -> None:
        """Measures the assignment with the least bound among those left, and forbids it."""
        request = load_request(self.graph, self.cluster, self.objective, self.us)
        scale = request["scale"]
        horizon = int(self.us * scale)
        request |= {
            "kind": "loads",
            "horizon": horizon,
            "lowest": int(self.bound * scale * (1 - CLOSE)),
            "forbidden": self.forbidden,
            "seconds": max(self._remaining_seconds(), 0.01),
            "seed": self.params.seed,
            "workers": self.params.workers,
        }
        try:
            answer = self.solver.solve(self.graph, self.cluster, request, self._stop)
        except ExecutionError:  # what is known without the solver is the answer
            self.stopped = True
            return
        self.solves += 1
        if answer["status"] == "INFEASIBLE":  # all others take longer
            self.bound = self.us
            return
        if answer["bound"] is not None:
            self.bound = max(self.bound, min(float(answer["bound"]) / scale, self.us))
        if answer["device"] is not None:
            # Measures every numbering of equal devices: the simulator breaks ties by device index.
            devices = range(self.cluster.n)
            is_step_in_queues = self.objective.name == "step" and self.cluster.comm != "parallel"
            renumbers = request["equal"] and is_step_in_queues and self.cluster.n <= 4
            for number in permutations(devices) if renumbers else [devices]:
                device = np.array(number, dtype=np.int32)[np.array(answer["device"])][self.group]
                placement = Placement(device=device)
                try:
                    measurement = self.objective.measure(self.graph, self.cluster, placement)
                except InvalidInput:  # no pipeline for this schedule
                    continue
                us = self.objective.improved_us(self.graph, self.cluster, placement, measurement, self.us)
                if us < self.us:
                    self.best, self.us = placement, us
            self._forbid(answer["device"])

    def _forbid(self, units: list[int]) -> None:
        """Leaves a measured assignment of the units out of the model, and keeps what is proven of it in any order."""
        self.forbidden.append(units)
        placement = Placement(device=np.array(units, dtype=np.int32)[self.group])
        if self.objective.name == "step":
            proven = bounds(
                self.graph, self.cluster, placement=placement, micro_batches=self.objective.micro_batches
            ).best
        else:
            proven = throughput(self.graph, self.cluster, placement, sum=self.objective.sum).period_us
        self.bound_of_forbidden = min(self.bound_of_forbidden, max(proven, self.bound))
