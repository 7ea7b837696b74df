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

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..graph.kernels.csr import Bools
from ..highs import row_program, silent_highs
from .op_sequence import OpSequence
from .recompute_groups import RecomputeGroups

Columns = dict[tuple[int, int], int]
"""Columns by (stage, group)."""
INFEASIBLE = "Infeasible"
"""Status texts of HiGHS for a program without a solution."""
ROUNDING = 0.25
"""Share of the time limit that rounding the relaxation may take."""
MARGINS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
"""Shares of the budget that stay free, since a rounded plan holds more than its relaxation."""
ROUNDED = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
"""Thresholds of rounding: a group of which a larger share is dropped is dropped as a whole."""
UNITS = 1e3
"""Bytes of all values together in the program's units of memory, so that no coefficient is far from 1."""


@dataclass(frozen=True, eq=False)
class ProgramPlan:
    """A plan (None if none was found), the lower bound of the repeated microseconds, and the solver's status."""

    plan: OpSequence | None
    bound_us: float
    status: str
    seconds: float
    values: dict[tuple[str, int, int], float] = field(default_factory=dict)  # by kind of column, stage and group


class Program:
    """The integer program of the groups of a graph; `once` chooses its small form.

    >>> from baechi_lab import generators
    >>> from baechi_lab.memory_saving.recompute_groups import RecomputeGroups
    >>> from baechi_lab.memory_saving.training_graph import TrainingGraph
    >>> graph = generators.with_backward(generators.chain(8, size_bytes=(1 << 20, 1 << 20)))
    >>> solved = Program(RecomputeGroups(TrainingGraph(graph)), once=True).solve(6 << 20)
    >>> solved.status, solved.plan.peak <= 6 << 20
    ('Optimal', True)
    """

    # -- the columns ---------------------------------------------------------------------------------

    def __init__(self, groups: RecomputeGroups, once: bool = False):
        self.groups, self.once, m = groups, once, groups.count
        reading_stages: list[list[int]] = [[] for _ in range(m)]  # stages that read each group
        for stage, needed_groups in enumerate(groups.needs):
            for i in needed_groups:
                reading_stages[i].append(stage)
        self.last = [stages[-1] if stages else -1 for stages in reading_stages]
        self.until = list(self.last)  # the last stage in which each group may run again
        for i in range(m - 1, -1, -1):
            self.until[i] = max([self.until[i], *(self.until[j] for j in groups.readers[i])])
        self.gap_end = [np.repeat(stages, np.diff([-1, *stages])).tolist() for stages in reading_stages]
        self.gap_begin = [
            np.repeat([0, *(e + 1 for e in stages)][:-1], np.diff([-1, *stages])).tolist() for stages in reading_stages
        ]

    def ends_gap(self, t: int, i: int) -> bool:
        """Whether stage t reads the group, so that its gap ends."""
        return self.in_gap(t, i) and t == self.gap_end[i][t]

    def in_gap(self, stage: int, i: int) -> bool:
        """Whether this stage or a later one reads the group."""
        return stage <= self.last[i]

    def run_terms(self, t: int, i: int) -> Terms:
        """Returns the terms of R[t, i], none where the group cannot run."""
        terms = [(self.E[t, i], 1.0)] if (t, i) in self.E else []
        if (t, i) in self.M:
            terms.append((self.M[t, i], 1.0))
            if t > self.gap_begin[i][t]:
                terms.append((self.M[t - 1, i], -1.0))
        return terms

    def terms_before(self, t: int, i: int) -> Terms:
        """Returns the terms of group i that are held when stage t begins."""
        terms = [(self.K[t, i], 1.0)] if (t, i) in self.K else []
        if (t, i) in self.M and t > self.gap_begin[i][t]:
            terms.append((self.M[t - 1, i], 1.0))
        return terms

    def terms_after(self, t: int, i: int) -> Terms:
        """Returns the terms of group i that are held in the backward ops of stage t, if the stage does not read i."""
        terms = [(self.K[t + 1, i], 1.0)] if (t + 1, i) in self.K else []
        return [*terms, (self.M[t, i], 1.0)] if (t, i) in self.M else terms

    # -- the rows ------------------------------------------------------------------------------------

    def build_rows(self, budget: float) -> Rows:
        """Returns the program for a budget of bytes besides the persistent ones."""
        rows, self.K, self.M, self.E = Rows(), {}, {}, {}  # type: Rows, Columns, Columns, Columns
        for i, us in enumerate(self.groups.us.tolist()):
            useful = max((self.until[j] for j in self.groups.readers[i]), default=-1)
            for t in range(self.until[i] + 1):
                within = self.in_gap(t, i)
                free = not (within and self.once)
                if within:
                    self.M[t, i] = rows.integer(us if t == self.gap_end[i][t] else 0.0)
                if free or t == self.gap_begin[i][t]:
                    self.K[t, i] = rows.integer()
                else:
                    self.K[t, i] = self.K[t - 1, i]
                if free and t <= useful and not self.ends_gap(t, i):
                    self.E[t, i] = rows.integer(us)
        for i in range(self.groups.count):
            for t in range(self.until[i] + 1):
                self._add_held_rows(rows, t, i)
                for j in self.groups.readers[i]:
                    self._add_read_rows(rows, t, i, j)
        MemoryRows(self, rows, budget).add()
        return rows

    def _add_held_rows(self, rows: Rows, t: int, i: int) -> None:
        """Adds rows (1), (2), and that M never falls in a gap."""
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
        """Adds row (3) for group j that reads i. With `once`, one row covers all runs of j since the gaps of both began."""
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

    def solve(
        self,
        budget: int,
        time_limit: float | None = None,
        start: ProgramPlan | None = None,
        node_limit: int | None = None,
    ) -> ProgramPlan:
        """Finds the plan of least work that holds at most `budget` bytes on one device, including persistent bytes.

        `start` is a plan of the form `once`, from which the solver starts. If most of `time_limit` seconds pass without a plan,
        the relaxation is rounded in the remaining time. `node_limit` ends the search after so many nodes of branch and bound:
        unlike a time limit, it gives the same plan on every machine.
        """
        budget_without_persistent = budget - int(self.groups.training.graph.persistent_bytes.sum())
        if self.groups.count == 0 or budget_without_persistent < 0:
            return ProgramPlan(None, 0.0, "Infeasible", 0.0)
        rows = self.build_rows(budget_without_persistent)
        solver_seconds = None if time_limit is None else time_limit * (1.0 - ROUNDING)
        values_of_start = None if start is None else self.columns_of(start)
        answer = rows.solve(solver_seconds, start=values_of_start, node_limit=node_limit)
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
        """Returns the columns of all plans by stage and group."""
        return ("K", self.K), ("M", self.M), ("E", self.E)

    def columns_of(self, start: ProgramPlan) -> dict[int, float]:
        """Returns the values of the program's columns for a plan."""
        return {
            column: start.values.get((kind, *key), 0.0)
            for kind, columns in self.kinds()
            for key, column in columns.items()
        }

    def _solve_rounded(self, budget: int, answer: Answer, time_limit: float | None) -> ProgramPlan:
        """Rounds the relaxation to a plan (section 5 of the paper), for budgets that leave some bytes free.

        Groups whose share exceeds a threshold are dropped, and run again when they are due. Half of the time is for the whole
        budget, which gives the bound."""
        bound, seconds = answer.bound, answer.seconds
        budget_without_persistent = budget - int(self.groups.training.graph.persistent_bytes.sum())
        for step, margin in enumerate(MARGINS):
            limit = None if time_limit is None else time_limit * ROUNDING / 2 ** (step + 1)
            relaxation = self.build_rows(budget_without_persistent * (1.0 - margin)).solve(limit, integer=False)
            seconds += relaxation.seconds
            if relaxation.values is None:
                break
            bound = max(bound, relaxation.bound) if margin == 0.0 else bound
            share = {key: float(relaxation.values[column]) for key, column in self.M.items() if self.ends_gap(*key)}
            dropped_gaps = [{key for key in share if share[key] > least} for least in ROUNDED]
            plans = [self.groups.sequence(self._repeated_when_due(keys)) for keys in dropped_gaps]
            fits = [plan for plan in plans if plan.peak <= budget]
            if fits:
                return ProgramPlan(min(fits, key=lambda plan: plan.work_us), bound, "Rounded", seconds)
        return ProgramPlan(None, bound, "Rounded", seconds)

    def _repeated_when_due(self, dropped_gaps: set[tuple[int, int]]) -> Bools:
        """Returns bool[stages, groups]: the groups that run again if not held in the gaps `dropped_gaps` (last stage, group)."""
        groups = self.groups
        is_repeated = np.zeros((groups.stages, groups.count), dtype=np.bool_)
        live_groups = {
            i for i in range(groups.count) if self.in_gap(0, i) and (self.gap_end[i][0], i) not in dropped_gaps
        }
        for t, needed_groups in enumerate(groups.needs):
            required_groups = set(needed_groups)
            for i in range(groups.count - 1, -1, -1):
                if i in required_groups and i not in live_groups:
                    is_repeated[t, i] = True
                    required_groups.update(groups.reads[i])
                    live_groups |= {i} if self.in_gap(t, i) else set()
            for i in needed_groups:
                if not self.in_gap(t + 1, i) or (self.gap_end[i][t + 1], i) in dropped_gaps:
                    live_groups.discard(i)
        return is_repeated


class MemoryRows:
    """Adds rows (4) and (5), which keep the live bytes within a budget of bytes, without persistent bytes.

    Live bytes are followed through every stage: a level when it begins, plus what each group adds when it runs again, minus what
    is freed after its last reader. A row is only needed before bytes are freed, where a group holds more while it runs, and at
    the end of each stage.
    """

    def __init__(self, program: Program, rows: Rows, budget: float):
        groups = program.groups
        self.program, self.groups, self.rows = program, groups, rows
        self.unit = max(float(groups.bytes.sum() + groups.due.max(initial=0)) / UNITS, 1.0)
        self.size, self.inner = (groups.bytes / self.unit).tolist(), (groups.inner / self.unit).tolist()
        self.budget_units = budget / self.unit
        # The terms of H times bytes, by stage.
        self.undecided_terms: dict[int, Terms] = {t: [] for t in range(groups.stages + 1)}

    def add(self) -> None:
        """Adds all rows."""
        # Rows (5): values that no plan drops are held for groups that run again.
        program, rows = self.program, self.rows
        for after, groups, byte_count in self.groups.undroppable_bytes:
            column = -1
            for t in range(max((program.until[g] for g in groups), default=-1), after, -1):
                following, column = column, rows.column()
                for run in (program.run_terms(t, g) for g in groups):
                    if run:
                        rows.add([(column, 1.0), *minus(run)], 0.0)
                if following >= 0:
                    rows.add([(column, 1.0), (following, -1.0)], 0.0)
                self.undecided_terms[t].append((column, byte_count / self.unit))
        # A row per group for the bytes live in the forward pass: those read later in it, and K of stage 0.
        readers = self.groups.readers
        for k in range(self.groups.count):
            finished_groups = [i for i in range(k) if not readers[i] or readers[i][-1] < k]
            live_size = (
                sum(self.size[i] for i in range(k + 1)) - sum(self.size[i] for i in finished_groups) + self.inner[k]
            )
            finished_terms = [
                term for i in finished_groups for term in times(self.size[i], self.program.terms_before(0, i))
            ]
            self.rows.add(finished_terms, -np.inf, self.budget_units - live_size)
        for t in range(self.groups.stages):
            self._add_backward_rows(t, self._add_repeat_rows(t))

    def _add_repeat_rows(self, t: int) -> Terms:
        """Adds rows for the groups that run again in stage t; returns the level at its end."""
        program, stage_budget = self.program, self.budget_units - float(self.groups.due[t]) / self.unit
        level = self._level_column(
            [term for i in range(self.groups.count) for term in times(self.size[i], program.terms_before(t, i))]
        )
        freed_after: dict[int, Terms] = {}  # after each group has run
        for k in range(self.groups.count):
            run, change = program.run_terms(t, k), self._level_change(t, k, freed_after)
            level = level + change
            if run and (self.inner[k] or k in freed_after):
                level = self._level_column(level)
                self.rows.add([*level, *times(self.inner[k], run), *self.undecided_terms[t]], -np.inf, stage_budget)
            level = level + freed_after.get(k, [])
        level = self._level_column(level)
        self.rows.add([*level, *self.undecided_terms[t]], -np.inf, stage_budget)
        return level

    def _level_change(self, t: int, k: int, freed_after: dict[int, Terms]) -> Terms:
        """Returns the change of the level when group k runs again, and adds rows (4) for the values that it frees."""
        program, size = self.program, self.size[k]
        if program.once and program.in_gap(t, k):
            return times(size, program.run_terms(t, k))
        before, after = program.terms_before(t, k), program.terms_after(t, k)
        if program.ends_gap(t, k):
            full_column = self.rows.column()
            self.rows.add([(full_column, 1.0)], 1.0)
            return times(size, [(full_column, 1.0), *minus(before)])
        reader_runs = [(j, run) for j in self.groups.readers[k] if (run := program.run_terms(t, j))]
        shares = [[(self.rows.column(), 1.0)] for _ in reader_runs] + [after]
        for place, (j, _) in enumerate(reader_runs):
            for least in [after, *(run for _, run in reader_runs[place:])]:
                self.rows.add([*shares[place], *minus(least)], 0.0)
            freed_after[j] = freed_after.get(j, []) + times(size, [*shares[place + 1], *minus(shares[place])])
        return times(size, [*shares[0], *minus(before)])

    def _level_column(self, terms: Terms) -> Terms:
        """Adds a column equal to a sum of terms, so that rows stay short."""
        column = self.rows.column(upper=np.inf)
        self.rows.add([(column, 1.0), *minus(terms)], 0.0, 0.0)
        return [(column, 1.0)]

    def _add_backward_rows(self, t: int, level: Terms) -> None:
        """Adds rows for the bytes live in the backward ops of stage t: each group that they read is held until its last read."""
        backward_budget = self.budget_units - float(self.groups.live_forward_bytes[t]) / self.unit
        for finished_groups, other_bytes in self.groups.backward_levels(t):
            finished_size = sum(self.size[i] for i in finished_groups)
            finished_terms = [
                term for i in finished_groups for term in times(self.size[i], self.program.terms_before(t + 1, i))
            ]
            self.rows.add(
                [*level, *finished_terms, *self.undecided_terms[t + 1]],
                -np.inf,
                backward_budget - other_bytes / self.unit + finished_size,
            )


Terms = list[tuple[int, float]]
"""Columns with their coefficients; a column may occur several times."""
FEASIBLE, OPTIMAL = 2, "Optimal"
"""HiGHS's status number of a feasible solution, and its status text of an optimal one."""


def minus(terms: Terms) -> Terms:
    """Returns the terms with opposite signs."""
    return [(column, -value) for column, value in terms]


def times(factor: float, terms: Terms) -> Terms:
    """Returns the terms with their coefficients multiplied by `factor`."""
    return [(column, factor * value) for column, value in terms]


@dataclass(frozen=True, eq=False)
class Answer:
    """The values of all columns (None if no solution was found), the proven bound, the solver's status, and seconds."""

    values: NDArray[np.float64] | None
    bound: float
    status: str
    seconds: float


class Rows:
    """A program that minimizes the sum of cost times column; columns lie between 0 and their upper bounds.

    >>> rows = Rows()
    >>> a, b = rows.integer(2.0), rows.integer(3.0)
    >>> rows.add([(a, 1.0), (b, 2.0)], 2.0)
    >>> rows.solve(None).values.round().astype(int).tolist(), rows.solve(None, integer=False).bound
    ([0, 1], 3.0)
    """

    def __init__(self) -> None:
        # Rows in compressed form: row r has `index[start[r]:start[r + 1]]` as columns and `value` as coefficients.
        self.cost: list[float] = []
        self.upper: list[float] = []
        self.integers: list[int] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self.start, self.index, self.value = [0], [], []  # type: list[int], list[int], list[float]

    def column(self, cost: float = 0.0, upper: float = 1.0) -> int:
        """Adds a continuous variable; returns its column."""
        self.cost.append(cost)
        self.upper.append(upper)
        return len(self.cost) - 1

    def integer(self, cost: float = 0.0) -> int:
        """Adds a variable that is 0 or 1; returns its column."""
        self.integers.append(self.column(cost))
        return self.integers[-1]

    def add(self, terms: Terms, low: float, high: float = np.inf) -> None:
        """Adds the row low <= sum of the terms <= high."""
        total: dict[int, float] = {}
        for column, value in terms:
            total[column] = total.get(column, 0.0) + value
        self.index += [column for column, value in total.items() if value]
        self.value += [value for value in total.values() if value]
        self.start.append(len(self.index))
        self.low.append(low)
        self.high.append(high)

    def solve(
        self,
        time_limit: float | None,
        *,
        integer: bool = True,
        start: Mapping[int, float] | None = None,
        node_limit: int | None = None,
    ) -> Answer:
        """Solves the program, for at most `time_limit` seconds and `node_limit` nodes of branch and bound.

        `start` has values of columns from which to start.
        """
        import highspy

        limits: dict[str, float] = {} if time_limit is None else {"time_limit": float(time_limit)}
        if node_limit is not None:
            limits["mip_max_nodes"] = node_limit
        solver = silent_highs(threads=1, random_seed=0, mip_rel_gap=0.0, **limits)
        model = row_program(
            np.array(self.cost),
            (np.zeros(len(self.cost)), np.array(self.upper)),
            (np.array(self.low), np.array(self.high)),
            (np.array(self.start), np.array(self.index, dtype=np.int32), np.array(self.value, dtype=np.float64)),
        )
        if integer:
            kinds = [highspy.HighsVarType.kContinuous] * len(self.cost)
            for column in self.integers:
                kinds[column] = highspy.HighsVarType.kInteger
            model.integrality_ = kinds
        solver.passModel(model)
        if start:
            columns = np.array(list(start), dtype=np.int32)
            solver.setSolution(len(columns), columns, np.array(list(start.values()), dtype=np.float64))
        solver.run()
        status, info = solver.modelStatusToString(solver.getModelStatus()), solver.getInfo()
        seconds, is_solved = float(solver.getRunTime()), info.primal_solution_status == FEASIBLE
        # Before it is optimal, it is no bound.
        relaxed_bound = info.objective_function_value if status == OPTIMAL else 0.0
        bound = float(info.mip_dual_bound if integer else relaxed_bound)
        values = np.array(solver.getSolution().col_value) if is_solved else None
        return Answer(values, max(bound, 0.0) if np.isfinite(bound) else 0.0, status, seconds)
