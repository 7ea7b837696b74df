"""Columns of `integer_program`: whether each group is held, and whether it runs again, by stage."""

from __future__ import annotations

import numpy as np

from .program_rows import Rows, Terms
from .recompute_groups import RecomputeGroups

Columns = dict[tuple[int, int], int]
"""Columns by (stage, group)."""


class ProgramColumns:
    """The columns K, M and E of the program of `groups`; with `once` a group runs at most once per gap."""

    def __init__(self, groups: RecomputeGroups, once: bool = False):
        self.groups, self.once, m = groups, once, groups.count
        reading_stages: list[list[int]] = [[] for _ in range(m)]  # stages that read each group
        for stage, needed in enumerate(groups.needs):
            for i in needed:
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

    def add_columns(self) -> Rows:
        """Create the program with its columns, without rows."""
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
        return rows

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
