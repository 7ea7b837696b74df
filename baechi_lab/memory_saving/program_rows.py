"""A mixed-integer program that grows column by column and row by row, for HiGHS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..highs import row_program, silent_highs

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
