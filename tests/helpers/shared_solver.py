"""One process of the CP-SAT solver for the tests of a file: its imports take a second, most proofs a tenth of that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import pytest

from baechi_lab.errors import InfeasiblePlacement
from baechi_lab.placers.exact import placer
from baechi_lab.placers.exact.process import Reply, SolverProcess
from baechi_lab.workers.pool import Pool


class SharedSolver(SolverProcess):
    """Uses the running process, or starts one; the end of a `with` block does not end it, unless by an error."""

    running: Pool | None = None

    def __enter__(self) -> SharedSolver:
        if SharedSolver.running is None:
            SharedSolver.running = super().__enter__().pool
        self.pool = SharedSolver.running
        return self

    def solve(self, *arguments: Any, **options: Any) -> Reply:
        reply = super().solve(*arguments, **options)
        if reply["status"] == "STOPPED":  # by killing the process
            SharedSolver.running = None
        return reply

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind not in (None, InfeasiblePlacement):
            super().__exit__(kind, error, trace)
            SharedSolver.running = None


@contextmanager
def sharing_solver() -> Iterator[None]:
    """Within the block, the placer `exact` uses one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placer, "SolverProcess", SharedSolver)
        yield
    if SharedSolver.running is not None:
        SharedSolver.running.kill()
        SharedSolver.running = None
