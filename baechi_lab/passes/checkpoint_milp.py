"""The least work to repeat on groups of ops of any shape, by Checkmate's integer program (Jain et al. 2020, arXiv:1910.02653).

The groups of `checkpoint_chain` in topological order, without the rule that a group reads only the one before; the late
ops follow in stages from the last to 0. For stage t and group i

    R[t, i]     group i runs again in stage t                                     binary
    S[t, i]     what group i makes is held when stage t begins                    binary
    F[t, i, k]  it is freed in stage t after group k has run                      0..1
    U[t, k]     bytes of the groups' values when group k has run in stage t
    H[t, x]     what no plan drops, and late ops before stage t read last, is held for groups             0..1

    R[t, i] <= R[t, p] + S[t, p]            for every group p that i reads        (1)
    R[t, i] + S[t, i] >= 1                  for every group that stage t reads    (2)
    S[t - 1, i] <= S[t, i] + R[t, i]                                              (3)
    F[t, i, k] <= R[t, k], 1 - S[t - 1, i], 1 - R[t, j] for readers j > k of i    (4)
    U[t, k] = U[t, k - 1] - bytes freed after k - 1 + bytes[k] R[t, k] <= budget  (5)
    R[t, i], S[t, i] <= S[t - 1, i] + sum of R[t, j] for readers j of i            (6)
    H[t, x] >= H[t - 1, x], R[t, i] for groups i that read x                      (7)

and the repeated microseconds are the least. (1) to (5), where the budget is what H leaves of it, are equations 1 to 8 of the
paper, and (6), for groups that stage t does not read, cuts off what is of no use. There are stages for late ops only: the
forward pass runs each group once, holds what is read later on, and decides S at the first stage. (4) is the linear form of
FREE by single inequalities, which is tighter than the paper's sum. It is solved by HiGHS; beyond `EXACT` binaries, or when
time is over without a plan, its relaxation is rounded in two phases (section 5 there): S at one half, then R as needed for it.

Of single ops the bytes are counted exactly, and the optimum is that of all plans in one order that repeat nothing before the
first late op, unless outputs lie in inputs. What larger groups take while they run, and what their stages hold besides, are
upper bounds: then the bound says that no plan of this form does better. What a plan really holds is counted by `Runs.peak`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..highs import silent_highs
from .checkpoint_chain import Chain
from .repeatable import Parts
from .runs import Runs

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST_GROUPS = 40
"""Groups of graphs with more ops than `MOST_OPS`."""
MOST_OPS = 80
"""Forward ops up to which each is a group, and late ops are stages, so that bytes are counted exactly."""
EXACT = 12_000
"""Binaries up to which the integer program itself is tried."""
SLACKS = (0.0, 0.05, 0.1)
"""Shares by which the program's memory is above the budget, as plans may hold less than it counts."""
SMALL = 0.5
"""Bytes that are not counted exactly, of the thousand units that all values have."""
MARGINS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
"""Shares of the budget for values that rounding leaves free, as rounded plans may hold more."""


@dataclass(frozen=True, eq=False)
class Solved:
    """A plan, None where none was found; `bound_us`: no plan of this form repeats less; `status` as the solver has it."""

    runs: Runs | None
    bound_us: float
    status: str
    seconds: float


class Program:
    """The program of a graph for any budget.

    >>> from baechi_lab import generators
    >>> graph = generators.with_backward(generators.chain(8, size_bytes=(1 << 20, 1 << 20)))
    >>> solved = Program(Parts(graph)).solve(6 << 20, time_limit=20.0)
    >>> solved.status, solved.runs.peak <= 6 << 20
    ('Optimal', True)
    """

    def __init__(self, parts: Parts, most: int | None = None):
        if most is None:
            most = MOST_OPS if np.count_nonzero(parts.may_repeat) <= MOST_OPS else MOST_GROUPS
        self.parts, self.chain = parts, Chain(parts, most, pin=False)
        chain, m = self.chain, self.chain.count
        self.m, self.stages, self.persistent = m, chain.stages, int(parts.graph.persistent_bytes.sum())
        self.us, self.bytes, self.inner = np.zeros(m), np.zeros(m, dtype=np.int64), np.zeros(m, dtype=np.int64)
        self.reads: list[set[int]] = [set() for _ in range(m)]  # group -> groups that it reads
        self.needs: list[set[int]] = [set() for _ in range(self.stages)]  # stage -> groups that it reads
        for stage, positions in zip(chain.stage.tolist(), chain.read, strict=True):
            self.needs[stage] |= {int(chain.group[p]) for p in positions}
        self._groups()
        # In units at which no coefficient is far from 1.
        self.unit = max(float(self.bytes.sum() + chain.backward.max(initial=0)) / 1e3, 1.0)
        self.size, self.within = self.bytes / self.unit, self.inner / self.unit
        self.due, self.kept, self.late = chain.due / self.unit, chain.kept / self.unit, chain.late_bytes / self.unit
        self.undecided = self._undecided()
        self.readers = [[k for k in range(m) if i in self.reads[k]] for i in range(m)]
        self._useful()

    def _groups(self) -> None:
        chain = self.chain
        late = {p for positions in chain.read for p in positions}
        inside = chain.parts.graph.temp_bytes[chain.ops].copy()
        for p in range(len(chain.ops)):
            g = int(chain.group[p])
            self.us[g] += chain.us[p]
            others = [int(chain.group[q]) for q in chain.readers[p].tolist() if chain.group[q] != g]
            for k in others:
                self.reads[k].add(g)
            if others or p in late:
                self.bytes[g] += chain.size[p]
            else:
                inside[p : int(chain.readers[p].max(initial=p)) + 1] += chain.size[p]
        for g in range(self.m):
            self.inner[g] = inside[chain.group == g].max(initial=0)

    def _undecided(self) -> list[tuple[int, tuple[int, ...], float]]:
        """What the plan does not drop: the stages before this one hold it only for groups that run again in them or later on.

        What is small is counted in all these stages: each costs columns.
        """
        found = []
        for (stage, groups), count in self.chain.undecided.items():
            size = count / self.unit
            if size >= SMALL:
                found.append((stage, groups, size))
            else:
                self.due[:stage] += size
                self.kept[:stage] += size
        return found

    def _useful(self) -> None:
        """bool[stage, group]: whether a stage from here on reads the group, or one that needs it."""
        found = np.zeros((self.stages, self.m), dtype=np.bool_)
        for t in range(self.stages):
            if t:
                found[t] = found[t - 1]
            found[t, list(self.needs[t])] = True
            for i in range(self.m - 1, -1, -1):
                if found[t, i]:
                    found[t, list(self.reads[i])] = True
        self.useful = found

    @property
    def binaries(self) -> int:
        """How many R and S there are."""
        return 2 * int(self.useful.sum())

    # -- the program ---------------------------------------------------------------------------------

    def _build(self, budget: float) -> _Rows:
        rows = _Rows()
        R, S = np.full((self.stages, self.m), -1), np.full((self.stages, self.m), -1)
        for t, i in np.argwhere(self.useful).tolist():
            R[t, i], S[t, i] = rows.column(float(self.us[i])), rows.column(0.0)
        rows.R, rows.S = R, S
        self._forward(rows, budget)
        held = [-1] * len(self.undecided)  # the column of H in the stage before
        for t in range(self.stages):
            groups = np.flatnonzero(self.useful[t]).tolist()
            for i in groups:
                if i not in self.needs[t]:
                    self._of_use(rows, t, i)
                rows.add([(R[t, i], 1.0), (S[t, i], 1.0)], 1.0 if i in self.needs[t] else 0.0, 1.0)  # (2)
                for p in self.reads[i]:
                    rows.add([(R[t, p], 1.0), (S[t, p], 1.0), (R[t, i], -1.0)], 0.0, np.inf)  # (1)
                if t and self.useful[t - 1, i]:
                    rows.add([(S[t, i], 1.0), (R[t, i], 1.0), (S[t - 1, i], -1.0)], 0.0, np.inf)  # (3)
            later = self._held_beside(rows, t, held)
            self._memory(rows, t, groups, (self._beside(t, held), later), budget)
        return rows

    def _of_use(self, rows: _Rows, t: int, i: int) -> None:
        """(6) of one group that the stage does not read."""
        uses = [(int(rows.R[t, j]), 1.0) for j in self.readers[i] if rows.R[t, j] >= 0]
        if t and self.useful[t - 1, i]:
            uses.append((int(rows.S[t - 1, i]), 1.0))
        rows.add([*uses, (int(rows.R[t, i]), -1.0)], 0.0, np.inf)
        rows.add([*uses, (int(rows.S[t, i]), -1.0)], 0.0, np.inf)

    def _beside(self, t: int, held: list[int]) -> list[tuple[int, float]]:
        """Columns of H and bytes of what stage t holds besides."""
        return [(held[k], size) for k, (stage, _, size) in enumerate(self.undecided) if t < stage and held[k] >= 0]

    def _held_beside(self, rows: _Rows, t: int, held: list[int]) -> list[tuple[int, float]]:
        """(7) of one stage: what is still held in its late ops; `held` has the columns of stage t - 1, and then of stage t."""
        found = self._beside(t, held)
        for k, (stage, groups, _) in enumerate(self.undecided):
            runs = [int(rows.R[t, g]) for g in groups if rows.R[t, g] >= 0]
            if t >= stage or (held[k] < 0 and not runs):
                continue
            column = rows.column(0.0)
            for other in (*runs, *([held[k]] if held[k] >= 0 else [])):
                rows.add([(column, 1.0), (other, -1.0)], 0.0, np.inf)
            held[k] = column
        return found

    def _memory(
        self, rows: _Rows, t: int, groups: list[int], beside: tuple[list[tuple[int, float]], ...], budget: float
    ) -> None:
        """(4) and (5) of one stage; `beside` is held while groups run and while late ops do."""
        R, S = rows.R, rows.S
        free: list[tuple[int, float]] = [(int(S[t, i]), float(self.size[i])) for i in groups]
        before = -1  # the column of U
        for k in groups:
            room = budget - float(self.due[t])
            level = rows.column(0.0, max(room, 0.0))
            entries = [*free, (int(R[t, k]), float(self.size[k])), (level, -1.0)]
            rows.add([*entries, (before, 1.0)] if before >= 0 else entries, 0.0, 0.0)
            rows.add([(level, 1.0), (int(R[t, k]), float(self.within[k])), *beside[0]], -np.inf, room)
            before, free = level, []
            for i in (*sorted(self.reads[k]), k):
                if i in self.needs[t] or not self.bytes[i]:
                    continue
                column = rows.column(0.0, 1.0)
                rows.add([(column, 1.0), (int(R[t, k]), -1.0)], -np.inf, 0.0)
                if t and self.useful[t - 1, i]:
                    rows.add([(column, 1.0), (int(S[t - 1, i]), 1.0)], -np.inf, 1.0)
                for j in self.readers[i]:
                    if j > k and R[t, j] >= 0:
                        rows.add([(column, 1.0), (int(R[t, j]), 1.0)], -np.inf, 1.0)
                free.append((column, -float(self.size[i])))
        if before >= 0:
            for gone, most in self._late(t):
                entries = [(int(S[t - 1, i]), float(self.size[i])) for i in gone if t and self.useful[t - 1, i]]
                room = budget - float(self.kept[t]) - most + sum(float(self.size[i]) for i in gone)
                rows.add([(before, 1.0), *free, *beside[1], *entries], -np.inf, room)

    def _late(self, t: int) -> list[tuple[list[int], float]]:
        """Groups that the late ops of stage t have read for the last time, and what they hold besides at most from then on."""
        ops = np.flatnonzero(self.chain.stage == t).tolist()
        last = {int(self.chain.group[p]): k for k in ops for p in self.chain.read[k]}
        most: dict[tuple[int, ...], float] = {}
        for k in ops:
            gone = tuple(sorted(i for i, end in last.items() if end < k))
            most[gone] = max(most.get(gone, 0.0), float(self.late[k]))
        return [(list(gone), held) for gone, held in most.items()]

    def _forward(self, rows: _Rows, budget: float) -> None:
        """What the forward pass holds when each group runs: what is read later on, and what the first stage is to find."""
        last = self.stages - 1
        until = [max(self.readers[i], default=i) for i in range(self.m)]
        for k in range(self.m):
            held = [i for i in range(k) if until[i] < k and self.useful[last, i]]
            fixed = sum(float(self.size[i]) for i in range(k + 1) if until[i] >= k or i == k) + float(self.within[k])
            rows.add([(int(rows.S[last, i]), float(self.size[i])) for i in held], -np.inf, budget - fixed)

    # -- solving -------------------------------------------------------------------------------------

    def solve(self, budget: int, time_limit: float = 60.0, start: Runs | None = None) -> Solved:
        """The plan of least work whose peak on one device is at most `budget` bytes, persistent ones included.

        `start` is a plan to begin with; where the program counts more bytes for it than there are, it helps nothing.
        """
        room = (budget - self.persistent) / self.unit
        if self.m == 0 or room < 0:
            return Solved(None, 0.0, "Infeasible", 0.0)
        if self.binaries > EXACT:
            return self._rounded(budget, 0.0, "Relaxed", 0.0, time_limit)
        found: list[Runs] = []
        seconds = 0.0
        first: Any = None
        slacks = SLACKS if self.m < len(self.chain.ops) else SLACKS[:1]
        held = None if start is None else self._held(start)
        for slack in slacks:
            rows = self._build(room * (1.0 + slack))
            begin = None if held is None else (self._repeats(held), held)
            answer = rows.solve(time_limit / len(slacks), integer=True, start=begin)
            seconds, first = seconds + answer.seconds, first or answer
            runs = None if answer.values is None else self._checked(self._decode(answer.R > 0.5), budget)
            found += [] if runs is None else [runs]
        if not found:
            return self._rounded(budget, first.bound, first.status, seconds, time_limit)
        return Solved(min(found, key=lambda runs: runs.work_us), first.bound, first.status, seconds)

    def _rounded(self, budget: int, bound: float, status: str, seconds: float, time_limit: float) -> Solved:
        """The best of several roundings of the relaxation that keeps within the budget."""
        found: list[Runs] = []
        for margin in MARGINS:
            left = time_limit - seconds  # at least a second: without any, not even a bound is known
            if margin and left <= 0:
                break
            room = (budget - self.persistent) / self.unit * (1.0 - margin)
            answer = self._build(room).solve(max(left, 1.0), integer=False)
            seconds += answer.seconds
            if margin == 0.0:
                bound = max(bound, answer.bound)
            if answer.values is None:
                break
            for least in (0.5, 0.9):
                runs = self._checked(self._decode(self._repeats(np.greater_equal(answer.S, least))), budget)
                found += [] if runs is None else [runs]
            if found:
                break
        return Solved(min(found, key=lambda runs: runs.work_us, default=None), bound, status, seconds)

    def _held(self, runs: Runs) -> NDArray[np.bool_]:
        """bool[stage, group]: S of a plan, of whatever ops are held of a group."""
        chain = self.chain
        group = np.where(chain.place >= 0, chain.group[chain.place], -1)[runs.ops]
        stage = np.full(runs.graph.n, -1, dtype=np.int64)
        stage[chain.late_ops] = chain.stage
        late = stage[runs.ops]
        stages = np.maximum.accumulate(late[::-1])[::-1]  # of a run: that of the next late op, as stages only go down
        held = np.zeros((self.stages, self.m), dtype=np.bool_)
        _, made, reader = runs.reads
        for source, position in zip(made.tolist(), reader.tolist(), strict=True):
            if group[source] >= 0 and (late[position] >= 0 or not runs.first[position]):
                held[stages[position] : self.stages if runs.first[source] else stages[source], group[source]] = True
        return held & self.useful

    def _repeats(self, held: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """bool[stage, group]: R as needed for S (bool[stage, group])."""
        again, held = np.zeros_like(held), held & self.useful
        for t in range(self.stages - 1, -1, -1):
            wanted = set(self.needs[t]) | (set(np.flatnonzero(held[t - 1]).tolist()) if t else set())
            for i in range(self.m - 1, -1, -1):
                if i in wanted and not held[t, i]:
                    again[t, i] = True
                    wanted |= self.reads[i]
        return again

    def _checked(self, runs: Runs, budget: int) -> Runs | None:
        return runs if runs.peak <= budget else None

    def _decode(self, again: NDArray[np.bool_]) -> Runs:
        """The sequence of ops: the forward pass, then in every stage what runs again and the late ops."""
        chain, parts = self.chain, self.parts
        sequence = [parts.ordered[~parts.late[parts.ordered]]]
        for t in range(self.stages - 1, -1, -1):
            sequence += [chain.ops[chain.group == i] for i in np.flatnonzero(again[t]).tolist()]
            sequence.append(chain.late_ops[chain.stage == t])
        return pruned(Runs(parts, np.concatenate(sequence)))


def pruned(runs: Runs) -> Runs:
    """The sequence without runs of copies that nobody reads."""
    while True:
        read = np.zeros(len(runs.ops), dtype=np.bool_)
        read[runs.reads[1]] = True
        if (read | runs.first).all():
            return runs
        runs = Runs(runs.parts, runs.ops[read | runs.first])


@dataclass(frozen=True, eq=False)
class _Answer:
    values: Floats | None
    bound: float
    status: str
    seconds: float
    R: Any = None
    S: Any = None


class _Rows:
    """Columns and rows that grow, for HiGHS."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.upper: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self.start, self.index, self.value = [0], [], []  # type: list[int], list[int], list[float]
        self.R = self.S = np.zeros((0, 0), dtype=np.int64)

    def column(self, cost: float, upper: float = 1.0) -> int:
        """A new variable from 0 to `upper`."""
        self.cost.append(cost)
        self.upper.append(upper)
        return len(self.cost) - 1

    def add(self, entries: list[tuple[int, float]], low: float, high: float) -> None:
        """low <= sum of coefficients times columns <= high."""
        self.index += [column for column, _ in entries]
        self.value += [value for _, value in entries]
        self.start.append(len(self.index))
        self.low.append(low)
        self.high.append(high)

    def solve(
        self, time_limit: float, *, integer: bool, start: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None = None
    ) -> _Answer:
        """Values of all columns, the proven bound and what the solver says; `start` are R and S to begin with."""
        import highspy

        solver = silent_highs(threads=1, time_limit=time_limit, random_seed=0)
        model, infinite = highspy.HighsLp(), highspy.kHighsInf
        model.num_row_, model.num_col_ = len(self.low), len(self.cost)
        model.col_cost_, model.col_lower_ = np.array(self.cost), np.zeros(len(self.cost))
        model.col_upper_ = np.array(self.upper)
        model.row_lower_ = np.where(np.isinf(self.low), -infinite, self.low)
        model.row_upper_ = np.where(np.isinf(self.high), infinite, self.high)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_, model.a_matrix_.index_ = np.array(self.start), np.array(self.index)
        model.a_matrix_.value_ = np.array(self.value, dtype=np.float64)
        chosen = np.concatenate([self.R[self.R >= 0], self.S[self.S >= 0]])
        if integer:
            kinds = [highspy.HighsVarType.kContinuous] * len(self.cost)
            for column in chosen.tolist():
                kinds[column] = highspy.HighsVarType.kInteger
            model.integrality_ = kinds
        solver.passModel(model)
        if start is not None:
            known = self.R >= 0
            values = np.concatenate([start[0][known], start[1][known]]).astype(np.float64)
            solver.setSolution(len(values), np.concatenate([self.R[known], self.S[known]]).astype(np.int32), values)
        solver.run()
        status = solver.modelStatusToString(solver.getModelStatus())
        info, seconds = solver.getInfo(), float(solver.getRunTime())
        if info.primal_solution_status != 2:  # none that is feasible
            bound = float(info.mip_dual_bound) if integer and np.isfinite(info.mip_dual_bound) else 0.0
            return _Answer(None, max(bound, 0.0), status, seconds)
        values = np.array(solver.getSolution().col_value)
        bound = float(info.mip_dual_bound if integer else info.objective_function_value)
        both = (np.where(columns >= 0, values[columns], 0.0) for columns in (self.R, self.S))
        return _Answer(values, max(bound, 0.0), status, seconds, *both)
