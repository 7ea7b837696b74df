"""The columns of the integer program of recomputation (`integer_program`): what is held and what runs, by stage and group."""

from __future__ import annotations

import numpy as np

from .program_rows import Rows, Terms
from .recompute_groups import Groups

Columns = dict[tuple[int, int], int]
"""By stage and group."""


class ProgramColumns:
    """The columns K, M and E of the program of some groups; `once` asks for the form in which a group runs once per gap."""

    def __init__(self, groups: Groups, once: bool = False):
        self.groups, self.once, m = groups, once, groups.count
        ends: list[list[int]] = [[] for _ in range(m)]  # stages that read each group
        for stage, needed in enumerate(groups.needs):
            for i in needed:
                ends[i].append(stage)
        self.last = [found[-1] if found else -1 for found in ends]
        self.until = list(self.last)  # the last stage in which each group may run again
        for i in range(m - 1, -1, -1):
            self.until[i] = max([self.until[i], *(self.until[j] for j in groups.readers[i])])
        self.end = [np.repeat(found, np.diff([-1, *found])).tolist() for found in ends]
        self.begin = [np.repeat([0, *(e + 1 for e in found)][:-1], np.diff([-1, *found])).tolist() for found in ends]

    def ends(self, t: int, i: int) -> bool:
        """Whether stage t reads the group, so that its gap ends."""
        return self.in_gap(t, i) and t == self.end[i][t]

    def in_gap(self, stage: int, i: int) -> bool:
        """Whether a stage from this one on reads the group."""
        return stage <= self.last[i]

    def add_columns(self) -> Rows:
        """Rows without a row yet, and their columns."""
        rows, self.K, self.M, self.E = Rows(), {}, {}, {}  # type: Rows, Columns, Columns, Columns
        for i, us in enumerate(self.groups.us.tolist()):
            useful = max((self.until[j] for j in self.groups.readers[i]), default=-1)
            for t in range(self.until[i] + 1):
                within = self.in_gap(t, i)
                free = not (within and self.once)
                if within:
                    self.M[t, i] = rows.integer(us if t == self.end[i][t] else 0.0)
                if free or t == self.begin[i][t]:
                    self.K[t, i] = rows.integer()
                else:
                    self.K[t, i] = self.K[t - 1, i]
                if free and t <= useful and not self.ends(t, i):
                    self.E[t, i] = rows.integer(us)
        return rows

    def runs(self, t: int, i: int) -> Terms:
        """R[t, i], empty where the group cannot run."""
        found = [(self.E[t, i], 1.0)] if (t, i) in self.E else []
        if (t, i) in self.M:
            found.append((self.M[t, i], 1.0))
            if t > self.begin[i][t]:
                found.append((self.M[t - 1, i], -1.0))
        return found

    def before(self, t: int, i: int) -> Terms:
        """What is held of the group when stage t begins."""
        found = [(self.K[t, i], 1.0)] if (t, i) in self.K else []
        if (t, i) in self.M and t > self.begin[i][t]:
            found.append((self.M[t - 1, i], 1.0))
        return found

    def after(self, t: int, i: int) -> Terms:
        """What is held of the group in the late ops of stage t, if it is not one of those that the stage reads."""
        found = [(self.K[t + 1, i], 1.0)] if (t + 1, i) in self.K else []
        return [*found, (self.M[t, i], 1.0)] if (t, i) in self.M else found
