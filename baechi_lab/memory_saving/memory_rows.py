"""Rows of `integer_program` that keep the live bytes within a budget: its rows (4) and (5).

Live bytes are followed through every stage: a level when it begins, plus what each group adds when it runs again, minus what is
freed after its last reader. A row is only needed before bytes are freed, where a group holds more while it runs, and at the end
of each stage.
"""

from __future__ import annotations

import numpy as np

from .program_columns import ProgramColumns
from .program_rows import Rows, Terms, minus, times

UNITS = 1e3
"""Bytes of all values together in the program's units of memory, so that no coefficient is far from 1."""


class MemoryRows:
    """Adds the rows for a budget of bytes, without persistent bytes."""

    def __init__(self, program: ProgramColumns, rows: Rows, budget: float):
        groups = program.groups
        self.program, self.groups, self.rows = program, groups, rows
        self.unit = max(float(groups.bytes.sum() + groups.due.max(initial=0)) / UNITS, 1.0)
        self.size, self.inner = (groups.bytes / self.unit).tolist(), (groups.inner / self.unit).tolist()
        self.budget_units = budget / self.unit
        # The terms of H times bytes, by stage.
        self.undecided_terms: dict[int, Terms] = {t: [] for t in range(groups.stages + 1)}

    def add(self) -> None:
        """Add all rows."""
        # Rows (5): values that no plan drops are held for groups that run again.
        program, rows = self.program, self.rows
        for after, groups, byte_count in self.groups.undecided:
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
            finished = [i for i in range(k) if not readers[i] or readers[i][-1] < k]
            live_size = sum(self.size[i] for i in range(k + 1)) - sum(self.size[i] for i in finished) + self.inner[k]
            finished_terms = [term for i in finished for term in times(self.size[i], self.program.terms_before(0, i))]
            self.rows.add(finished_terms, -np.inf, self.budget_units - live_size)
        for t in range(self.groups.stages):
            self._add_backward_rows(t, self._add_repeat_rows(t))

    def _add_repeat_rows(self, t: int) -> Terms:
        """Add rows for the groups that run again in stage t; returns the level at its end."""
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
        """Add a column equal to a sum of terms, so that rows stay short."""
        column = self.rows.column(upper=np.inf)
        self.rows.add([(column, 1.0), *minus(terms)], 0.0, 0.0)
        return [(column, 1.0)]

    def _add_backward_rows(self, t: int, level: Terms) -> None:
        """Add rows for the bytes live in the backward ops of stage t: each group that they read is held until its last read."""
        backward_budget = self.budget_units - float(self.groups.kept[t]) / self.unit
        for finished, other_bytes in self.groups.backward_levels(t):
            finished_size = sum(self.size[i] for i in finished)
            finished_terms = [
                term for i in finished for term in times(self.size[i], self.program.terms_before(t + 1, i))
            ]
            self.rows.add(
                [*level, *finished_terms, *self.undecided_terms[t + 1]],
                -np.inf,
                backward_budget - other_bytes / self.unit + finished_size,
            )
