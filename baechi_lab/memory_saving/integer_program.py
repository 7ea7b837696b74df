"""Recomputation of any graph with least repeated work: Checkmate's integer program (Jain et al. 2020, arXiv:1910.02653).

Groups and stages are those of `recompute_groups`. A *gap* of a group ends with a stage that reads the group, and the next gap
begins after that stage. After the last of these stages there is no gap, and only groups that run again read the group. For
stage t and group i

    K[t, i]   i is held when stage t begins, and not by M                                  binary
    M[t, i]   i ran again in this gap by stage t, and is held to the end of the gap        binary, never falls in a gap
    E[t, i]   i runs again in stage t, and not for M                                       binary
    R[t, i] = M[t, i] - M[t - 1, i] + E[t, i]     i runs again in stage t

    K[t + 1, i] <= K[t, i] + E[t, i]                                                                (1)
    K[t, i] + M[t, i] <= 1, = 1 in the stage that ends the gap                                      (2)
    R[t, j] <= K[t, i] + M[t, i] + E[t, i]    for every group i that j reads                        (3)
    B[t, i, j] >= R[t, k] for readers k >= j of i, and i as it is held in the backward ops of t        (4)
    H[t, x] >= H[t + 1, x], R[t, i] for groups i that read x, which no plan drops                   (5)

and the program minimizes the repeated microseconds: those of M at the end of every gap, and of E. While group j runs, and then
in the backward ops, the budget bounds the bytes of K + M for each group i that has not run, of B for each that has, of H, and of
all other live tensors. It bounds them in the forward pass, too, which runs each group once, holds the outputs that are read
later, and decides K of stage 0. S = K + M[t - 1] and R are the variables of the paper, so both programs have the same plans: all
that repeat nothing before the first backward op. The relaxation is tight for two reasons: (4) bounds bytes from below, instead
of subtracting freed bytes, and a group that is held to the end of its gap has a variable of its own.

The form `once` has only the plans in which a group runs at most once again per gap and is then held: K is the same throughout a
gap, E is 0 there, and (3) is M[t, j] <= K[i] + M[t, i]. This program is small and its relaxation nearly integral: HiGHS
proves optima of hundreds of groups. If every group is one op, bytes are counted exactly, unless outputs lie in inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .memory_rows import MemoryRows
from .op_sequence import OpSequence
from .program_columns import Columns, ProgramColumns
from .program_rows import Answer, Rows, minus
from .rounding import round_plans

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
INFEASIBLE = "Infeasible"
"""Status texts of HiGHS for a program without a solution."""
ROUNDING = 0.25
"""Share of the time limit that rounding the relaxation may take."""
MARGINS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
"""Shares of the budget that stay free, since a rounded plan holds more than its relaxation."""


@dataclass(frozen=True, eq=False)
class ProgramPlan:
    """A plan (None if none was found), the lower bound of the repeated microseconds, and the solver's status."""

    plan: OpSequence | None
    bound_us: float
    status: str
    seconds: float
    values: dict[tuple[str, int, int], float] = field(default_factory=dict)  # by kind of column, stage and group


class Program(ProgramColumns):
    """The integer program of the groups of a graph; `once` chooses its small form.

    >>> from baechi_lab import generators
    >>> from baechi_lab.memory_saving.recompute_groups import RecomputeGroups
    >>> from baechi_lab.memory_saving.training_graph import TrainingGraph
    >>> graph = generators.with_backward(generators.chain(8, size_bytes=(1 << 20, 1 << 20)))
    >>> solved = Program(RecomputeGroups(TrainingGraph(graph)), once=True).solve(6 << 20)
    >>> solved.status, solved.plan.peak <= 6 << 20
    ('Optimal', True)
    """

    # -- the rows ------------------------------------------------------------------------------------

    def _build(self, budget: float) -> Rows:
        rows = self.add_columns()
        for i in range(self.groups.count):
            for t in range(self.until[i] + 1):
                self._add_held_rows(rows, t, i)
                for j in self.groups.readers[i]:
                    self._add_read_rows(rows, t, i, j)
        MemoryRows(self, rows, budget).add()
        return rows

    def _add_held_rows(self, rows: Rows, t: int, i: int) -> None:
        """Add rows (1), (2), and that M never falls in a gap."""
        within = self.in_gap(t, i)
        if within and t > self.gap_begin[i][t]:
            rows.add([(self.M[t, i], 1.0), (self.M[t - 1, i], -1.0)], 0.0)
        if self.ends_gap(t, i):
            rows.add([(self.K[t, i], 1.0), (self.M[t, i], 1.0)], 1.0, 1.0)
            return
        if within and not self.once:
            rows.add([(self.K[t, i], 1.0), (self.M[t, i], 1.0)], -np.inf, 1.0)
        if (t + 1, i) in self.K and self.K[t + 1, i] != self.K[t, i]:
            extra = [(self.E[t, i], 1.0)] if (t, i) in self.E else []
            rows.add([(self.K[t, i], 1.0), *extra, (self.K[t + 1, i], -1.0)], 0.0)

    def _add_read_rows(self, rows: Rows, t: int, i: int, j: int) -> None:
        """Add row (3) for group j that reads i; in the form `once` for all runs of j since the gaps of both began."""
        run = self.run_terms(t, j)
        if not run or self.ends_gap(t, i):
            return
        if self.once and self.in_gap(t, i) and self.in_gap(t, j):
            first = self.gap_begin[i][t]
            run = [(self.M[t, j], 1.0)]
            if self.gap_begin[j][t] < first:
                run.append((self.M[first - 1, j], -1.0))
        held_terms = [(column[t, i], 1.0) for column in (self.K, self.M, self.E) if (t, i) in column]
        rows.add([*held_terms, *minus(run)], 0.0)

    # -- solving -------------------------------------------------------------------------------------

    def solve(self, budget: int, time_limit: float | None = None, start: ProgramPlan | None = None) -> ProgramPlan:
        """Find the plan of least work that holds at most `budget` bytes on one device, including persistent bytes.

        `start` is a plan of the form `once`, from which the solver starts. If most of `time_limit` seconds pass without a plan,
        the relaxation is rounded in the remaining time.
        """
        budget_without_persistent = budget - int(self.groups.training.graph.persistent_bytes.sum())
        if self.groups.count == 0 or budget_without_persistent < 0:
            return ProgramPlan(None, 0.0, "Infeasible", 0.0)
        rows = self._build(budget_without_persistent)
        solver_seconds = None if time_limit is None else time_limit * (1.0 - ROUNDING)
        answer = rows.solve(solver_seconds, start=None if start is None else self._columns_of(start))
        if answer.values is None and answer.status != INFEASIBLE:
            return self._solve_rounded(budget, answer, time_limit)
        if answer.values is None:
            return ProgramPlan(None, answer.bound, answer.status, answer.seconds)
        values = {
            (kind, *key): float(answer.values[column])
            for kind, columns in self.kinds()
            for key, column in columns.items()
        }
        # The groups that run again, by the values of the columns.
        is_repeated = np.zeros((self.groups.stages, self.groups.count), dtype=np.bool_)
        for t, i in {**self.M, **self.E}:
            is_repeated[t, i] = sum(value * answer.values[column] for column, value in self.run_terms(t, i)) > 0.5
        plan = self.groups.sequence(is_repeated)
        return ProgramPlan(plan, answer.bound, answer.status, answer.seconds, values)

    def kinds(self) -> tuple[tuple[str, Columns], ...]:
        """The columns of all plans by stage and group."""
        return ("K", self.K), ("M", self.M), ("E", self.E)

    def _columns_of(self, start: ProgramPlan) -> dict[int, float]:
        return {
            column: start.values.get((kind, *key), 0.0)
            for kind, columns in self.kinds()
            for key, column in columns.items()
        }

    def _solve_rounded(self, budget: int, answer: Answer, time_limit: float | None) -> ProgramPlan:
        """Round the relaxation to a plan (section 5 of the paper), for budgets that leave some bytes free.

        Groups whose share exceeds a threshold are dropped, and run again when they are due. Half of the time is for the whole
        budget, which gives the bound."""
        bound, seconds = answer.bound, answer.seconds
        budget_without_persistent = budget - int(self.groups.training.graph.persistent_bytes.sum())
        for step, margin in enumerate(MARGINS):
            limit = None if time_limit is None else time_limit * ROUNDING / 2 ** (step + 1)
            relaxed = self._build(budget_without_persistent * (1.0 - margin)).solve(limit, integer=False)
            seconds += relaxed.seconds
            if relaxed.values is None:
                break
            bound = max(bound, relaxed.bound) if margin == 0.0 else bound
            fits = [plan for plan in round_plans(self, relaxed.values) if plan.peak <= budget]
            if fits:
                return ProgramPlan(min(fits, key=lambda plan: plan.work_us), bound, "Rounded", seconds)
        return ProgramPlan(None, bound, "Rounded", seconds)
