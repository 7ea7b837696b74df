"""The CP-SAT solver in a process of its own.

OR-tools and highspy each bring a copy of HiGHS under one name: the second import finds the other's copy and fails
(google/or-tools issue 5246). A process of its own avoids this, and lets an interrupted solver stop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, wait
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ...errors import ExecutionError, describe_error
from ...graph import Cluster, OpGraph
from ...workers.pool import Pool

if TYPE_CHECKING:
    from types import ModuleType

    from ortools.sat.python.cp_model import CpModel, CpSolver

ASK_SECONDS = 0.1
"""Interval at which `stop` is asked."""
GRACE_SECONDS = 1.0
"""Time for the solver to report its solution after its time limit."""
LEAST_SECONDS = 0.01
"""Least time limit; the solver takes 0 as no limit."""
Request = dict[str, Any]
"""A problem and its limits."""
Reply = dict[str, Any]
"""Status, bound, device and order of the best solution, and seconds."""
DIED: Reply = {"status": "DIED", "seconds": 0.0, "bound": None, "device": None, "order": None}
STOPPED: Reply = {**DIED, "status": "STOPPED"}
"""The replies of a solver whose process ended, and of one that was told to stop."""


class SolverProcess:
    """The solver's process. It starts with the first request, or with `prepare`, and ends with the `with` block."""

    def __enter__(self) -> SolverProcess:
        self.pool = Pool(1, tries=1, imports_main=False)
        return self

    def prepare(self) -> None:
        """Starts the process, so that its imports run during the warm start."""
        self.pool.submit(_import_solver)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.kill()

    def solve(
        self, graph: OpGraph, cluster: Cluster, request: Request, stop: Callable[[], bool] = lambda: False
    ) -> Reply:
        """Returns status, bound (model units), device and order of the best solution, and seconds.

        `request["seconds"]` includes the start of the process and building the model. The process is killed and the answer is
        `STOPPED` once `GRACE_SECONDS` more have passed, or if `stop()` returns True.
        Raises `ExecutionError` if the process ended by itself (killed for its memory, say), or the model cannot be built.
        """
        deadline = time.monotonic() + request["seconds"]  # of the machine, not of this process
        try:
            future = self.pool.submit(answer_request, {**request, "deadline": deadline}, graph, cluster)
            while not wait([future], ASK_SECONDS).done:
                if stop() or time.monotonic() > deadline + GRACE_SECONDS:
                    self.pool.kill()
                    return STOPPED
            reply: Reply = future.result()
        except (BrokenExecutor, RuntimeError, KeyError, TypeError, ValueError) as error:
            raise ExecutionError(f"the solver's process failed: {describe_error(error)}") from error
        return reply


def _import_solver() -> None:
    """Imports the solver in its process, before the first request comes."""
    from ortools.sat.python import cp_model  # noqa: F401


def answer_request(request: Request, graph: OpGraph, cluster: Cluster) -> Reply:
    """Builds and solves the model of one request, in the solver's process."""
    from ortools.sat.python import cp_model

    from .load_program import LoadProgram

    if request.get("kind") == "loads":
        program = LoadProgram(cp_model, request)
        solver, status, has_solution = run_solver(cp_model, program.model, request)
        return {
            "status": solver.status_name(status),
            "seconds": solver.wall_time,
            "bound": solver.best_objective_bound if status != cp_model.INFEASIBLE else None,
            "device": program.unit_devices(solver) if has_solution else None,
        }

    from .model import build_model
    from .variables import ExactModel, scaled_times

    times = scaled_times(graph, cluster, max(request["within_us"], 1e-9))
    model = build_model(ExactModel(cp_model, graph, cluster, times, request["horizon"], request["strict"]))
    model.model.add(model.makespan >= request["lowest"])
    if request["device"] is not None:
        model.hint(request["device"], request["start_us"], request["end_us"])
    solver, status, has_solution = run_solver(cp_model, model.model, request)
    device, order = model.solution(solver) if has_solution else (None, None)
    return {
        "status": solver.status_name(status),
        "seconds": solver.wall_time,
        "bound": solver.best_objective_bound if status != cp_model.INFEASIBLE else None,
        "device": None if device is None else device.tolist(),
        "order": None if order is None else order.tolist(),
    }


def run_solver(cp_model: ModuleType, model: CpModel, request: Request) -> tuple[CpSolver, int, bool]:
    """Returns the solver, its status, and whether it has a solution."""
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(request["deadline"] - time.monotonic(), LEAST_SECONDS)
    solver.parameters.random_seed = request["seed"]
    # Gives few threads to searches without linear relaxation, which prove such instances in half the time.
    workers = request["workers"]
    solver.parameters.num_workers = workers
    if workers == 1:
        solver.parameters.linearization_level = 0
    elif workers == 2:
        solver.parameters.subsolvers.extend(["no_lp", "quick_restart_no_lp"])
    status = solver.solve(model)
    return solver, status, status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
