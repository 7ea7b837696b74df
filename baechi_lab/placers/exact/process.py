"""The CP-SAT solver in a process of its own. Requests and answers are lines of JSON.

OR-tools and highspy each bring a copy of HiGHS under one name: the second import finds the other's copy and fails
(google/or-tools issue 5246). A process of its own avoids this, and lets an interrupted solver stop.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from ...errors import ExecutionError
from ...graph import Cluster, OpGraph
from ...graph.formats.json_format import to_document
from ...workers.isolated import die_with_parent, isolated

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
"""A problem and its limits, ready for JSON."""
Reply = dict[str, Any]
"""Status, bound, device and order of the best solution, and seconds, as read from JSON."""
DIED: Reply = {"status": "DIED", "seconds": 0.0, "bound": None, "device": None, "order": None}
STOPPED: Reply = {"status": "STOPPED", "seconds": 0.0, "bound": None, "device": None, "order": None}


class SolverProcess:
    """The solver's process, started at once so that its imports run during the warm start. It ends with the `with` block."""

    def __enter__(self) -> SolverProcess:
        self.process = subprocess.Popen(
            isolated("baechi_lab.placers.exact.process"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def solve(
        self, graph: OpGraph, cluster: Cluster, request: Request, stop: Callable[[], bool] = lambda: False
    ) -> Reply:
        """Returns status, bound (model units), device and order of the best solution, and seconds.

        `request["seconds"]` includes the start of the process and building the model. The process is killed and the answer is
        `STOPPED` once `GRACE_SECONDS` more have passed, or if `stop()` returns True.
        Raises `ExecutionError` if the process ended by itself (killed for its memory, say).
        """
        deadline = time.monotonic() + request["seconds"]  # of the machine, not of this process
        line = json.dumps(
            {**request, "deadline": deadline, "graph": to_document(graph), "cluster": to_document(cluster)}
        )
        source, sink = self.process.stdin, self.process.stdout
        if source is None or sink is None:
            raise ExecutionError("the solver's process has no pipes")
        try:
            source.write(line + "\n")
            source.flush()
        except BrokenPipeError:
            return self._died()
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.append(sink.readline()), daemon=True)
        reader.start()
        while reader.is_alive():
            if stop() or time.monotonic() > deadline + GRACE_SECONDS:
                self.process.kill()
                return STOPPED
            reader.join(ASK_SECONDS)
        try:
            reply: Reply = json.loads(lines[0])
        except (IndexError, ValueError):  # nothing, or half a line
            return self._died()
        return reply

    def _died(self) -> NoReturn:
        _, text = self.process.communicate()
        reason = text.strip().splitlines()[-1:] or ["no message"]
        raise ExecutionError(f"the solver's process ended with code {self.process.returncode}: {reason[0]}")


def answer_request(request: Request) -> Reply:
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

    from ...graph.formats.json_format import KINDS
    from .model import build_model
    from .times import scaled_times
    from .variables import ExactModel

    # Written by this package a moment ago: read without the check against the schema, whose import takes a second.
    graph, cluster = (KINDS[kind][2](request[kind]) for kind in ("graph", "cluster"))
    times = scaled_times(graph, cluster, max(request["within_us"], 1e-9))
    built = build_model(ExactModel(cp_model, graph, cluster, times, request["horizon"], request["strict"]))
    built.model.add(built.makespan >= request["lowest"])
    if request["device"] is not None:
        built.hint(request["device"], request["start_us"], request["end_us"])
    solver, status, has_solution = run_solver(cp_model, built.model, request)
    device, order = built.solution(solver) if has_solution else (None, None)
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


def main() -> None:
    """Answers requests line by line. The end of the input ends the process, also in the middle of a proof."""
    die_with_parent()
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    from ortools.sat.python import cp_model  # noqa: F401  (the slow import, done before the first request comes)

    while True:
        print(json.dumps(answer_request(json.loads(lines.get()))), flush=True)


def _read_lines(lines: queue.Queue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
