"""The rows of `integer_program` that keep what is held within a budget, (4) and (5) there.

Bytes are followed through every stage: a level when it begins, what each group adds when it runs again, what goes after its last
reader. A row is only needed before something goes, where a group holds more while it runs, and at the end of each step.
"""

from __future__ import annotations

import numpy as np

from .program_columns import ProgramColumns
from .program_rows import Rows, Terms, minus, times

UNITS = 1e3
"""Units in which all values together are counted, so that no coefficient is far from 1."""


class Memory:
    """Rows for a budget in bytes, persistent ones left out."""

    def __init__(self, program: ProgramColumns, rows: Rows, budget: float):
        groups = program.groups
        self.program, self.groups, self.rows = program, groups, rows
        self.unit = max(float(groups.bytes.sum() + groups.due.max(initial=0)) / UNITS, 1.0)
        self.size, self.inner = (groups.bytes / self.unit).tolist(), (groups.inner / self.unit).tolist()
        self.room = budget / self.unit
        self.beside: dict[int, Terms] = {t: [] for t in range(groups.stages + 1)}  # of each stage, H times bytes

    def add(self) -> None:
        """All rows."""
        self._undecided()
        self._forward()
        for t in range(self.groups.stages):
            self._late(t, self._again(t))

    def _undecided(self) -> None:
        """(5): what no plan drops is held for groups that run again."""
        program, rows = self.program, self.rows
        for after, groups, count in self.groups.undecided:
            held = -1
            for t in range(max((program.until[g] for g in groups), default=-1), after, -1):
                following, held = held, rows.column()
                for run in (program.runs(t, g) for g in groups):
                    if run:
                        rows.add([(held, 1.0), *minus(run)], 0.0)
                if following >= 0:
                    rows.add([(held, 1.0), (following, -1.0)], 0.0)
                self.beside[t].append((held, count / self.unit))

    def _forward(self) -> None:
        """What the forward pass holds when each group runs: what is read later on, and what the first stage is to find."""
        readers = self.groups.readers
        for k in range(self.groups.count):
            gone = [i for i in range(k) if not readers[i] or readers[i][-1] < k]
            under_way = sum(self.size[i] for i in range(k + 1)) - sum(self.size[i] for i in gone) + self.inner[k]
            held = [term for i in gone for term in times(self.size[i], self.program.before(0, i))]
            self.rows.add(held, -np.inf, self.room - under_way)

    def _again(self, t: int) -> Terms:
        """Rows while groups run again in stage t; the level at the end."""
        program, room = self.program, self.room - float(self.groups.due[t]) / self.unit
        level = self._level(
            [term for i in range(self.groups.count) for term in times(self.size[i], program.before(t, i))]
        )
        goes: dict[int, Terms] = {}  # after each group has run
        for k in range(self.groups.count):
            run, more = program.runs(t, k), self._appears(t, k, goes)
            level = level + more
            if run and (self.inner[k] or k in goes):
                level = self._level(level)
                self.rows.add([*level, *times(self.inner[k], run), *self.beside[t]], -np.inf, room)
            level = level + goes.get(k, [])
        level = self._level(level)
        self.rows.add([*level, *self.beside[t]], -np.inf, room)
        return level

    def _appears(self, t: int, k: int, goes: dict[int, Terms]) -> Terms:
        """By what the level changes when group k runs again, or would; (4) of what goes after its readers."""
        program, size = self.program, self.size[k]
        if program.once and program.in_gap(t, k):
            return times(size, program.runs(t, k))
        before, after = program.before(t, k), program.after(t, k)
        if program.ends(t, k):
            whole = self.rows.column()
            self.rows.add([(whole, 1.0)], 1.0)
            return times(size, [(whole, 1.0), *minus(before)])
        runs = [(j, run) for j in self.groups.readers[k] if (run := program.runs(t, j))]
        shares = [[(self.rows.column(), 1.0)] for _ in runs] + [after]
        for place, (j, _) in enumerate(runs):
            for least in [after, *(run for _, run in runs[place:])]:
                self.rows.add([*shares[place], *minus(least)], 0.0)
            goes[j] = goes.get(j, []) + times(size, [*shares[place + 1], *minus(shares[place])])
        return times(size, [*shares[0], *minus(before)])

    def _level(self, terms: Terms) -> Terms:
        """A column for a sum of terms, so that rows stay short."""
        column = self.rows.column(upper=np.inf)
        self.rows.add([(column, 1.0), *minus(terms)], 0.0, 0.0)
        return [(column, 1.0)]

    def _late(self, t: int, level: Terms) -> None:
        """What the late ops of stage t hold: all groups that they read, until they have read them for the last time."""
        kept = self.room - float(self.groups.kept[t]) / self.unit
        for gone, most in self.groups.late(t):
            less = sum(self.size[i] for i in gone)
            held = [term for i in gone for term in times(self.size[i], self.program.before(t + 1, i))]
            self.rows.add([*level, *held, *self.beside[t + 1]], -np.inf, kept - most / self.unit + less)
