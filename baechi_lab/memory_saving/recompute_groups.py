"""Groups of forward ops that run again together, and in which stages of the backward pass what they make is read.

Up to `MOST` ops each is a group. In larger graphs there are up to `MOST_MERGED`: an op whose output one group alone reads,
and no late op, runs again with that group; and where there are still too many, the groups of least bytes hold what they make
throughout. Views (`OpGraph.reuse`) belong to the op whose memory they lie in. Then what groups hold while they run is counted
from above, and what a plan really holds is counted by who asks for it. A stage is a late op that reads groups, and what
follows up to the next such op.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..graph.opgraph import VIEW
from .chain import Chain
from .checkpoints import held_for_backward
from .op_sequence import Runs
from .training_graph import Parts

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MOST = 300
"""Ops up to which each is a group."""
MOST_MERGED = 60
"""Groups at most where ops are merged, as they are in larger graphs and in those with views."""


class Groups:
    """`count` groups in topological order, `stages` in the order in which they run; bytes and microseconds as in the graph.

    - `us`, `bytes`, `inner`: of each group, its time, what others read of it, and what it holds besides while it runs.
    - `reads`, `readers`: of each group, the groups that it reads and those that read it, ascending.
    - `needs`: of each stage, the groups that it reads, ascending.
    - `due`, `kept`: of each stage, bytes held besides groups' while groups run, and of forward values in its late ops.
    - `undecided`: forward values that no plan drops, as (the last stage that reads them, -1 for none; groups that read
      them; bytes): after that stage they are held only for those groups.

    >>> from baechi_lab import generators
    >>> groups = Groups(Parts(generators.with_backward(generators.chain(4, size_bytes=(80, 80)))))
    >>> groups.count, groups.stages, groups.readers, groups.needs
    (2, 2, [[1], []], [[1], [0]])
    """

    def __init__(self, parts: Parts, most: int | None = None):
        self.parts, able = parts, parts.may_repeat
        while True:
            self.chain = Chain(parts, pin=False, able=able)
            if most is None:
                alone = len(self.chain.ops) <= MOST and (_views(self.chain) < 0).all()
                most = MOST if alone else MOST_MERGED
            self.group = _contracted(self.chain, most)
            self.count = int(self.group.max(initial=-1)) + 1
            self._sizes()
            if self.count <= most:
                break
            able = self._without_least(able, most)
        self.stages = self.chain.stages if self.count else 0
        self._stages()

    def _without_least(self, able: Bools, most: int) -> Bools:
        """`able` without the ops of the groups of least bytes, as many as there are too many."""
        least = np.argsort(self.bytes, kind="stable")[: self.count - most]
        less = able.copy()
        less[self.chain.ops[np.isin(self.group, least)]] = False
        return less

    def _sizes(self) -> None:
        chain, group, m = self.chain, self.group.tolist(), self.count
        self.us, self.bytes, self.inner = np.zeros(m), np.zeros(m, dtype=np.int64), np.zeros(m, dtype=np.int64)
        np.add.at(self.us, self.group, chain.us)
        reads: list[set[int]] = [set() for _ in range(m)]
        late, inside = held_for_backward(self.parts)[chain.ops], chain.parts.graph.temp_bytes[chain.ops].copy()
        views = _views(chain)
        for p, g in enumerate(group):
            others = {group[q] for q in chain.readers[p].tolist()} - {g}
            for k in others:
                reads[k].add(g)
            if views[p] >= 0:
                continue
            if others or late[p] or any(views[q] == p for q in chain.readers[p].tolist()):
                self.bytes[g] += chain.size[p]
            else:
                last = int(chain.readers[p].max(initial=p)) + 1
                inside[p:last][self.group[p:last] == g] += chain.size[p]
        np.maximum.at(self.inner, self.group, inside)
        self.reads = [sorted(found) for found in reads]
        self.readers: list[list[int]] = [[] for _ in range(m)]
        for k, found in enumerate(self.reads):
            for g in found:
                self.readers[g].append(k)

    def _stages(self) -> None:
        chain, last = self.chain, self.stages - 1
        self.needs: list[list[int]] = [[] for _ in range(self.stages)]
        self.ops: list[list[int]] = [[] for _ in range(self.stages)]  # places of late ops
        for k, (stage, positions) in enumerate(zip(chain.stage.tolist(), chain.read, strict=True)):
            if self.stages:
                self.ops[last - stage].append(k)
                self.needs[last - stage] += [int(self.group[p]) for p in positions]
        self.needs = [sorted(set(found)) for found in self.needs]
        self.due, self.kept = chain.due[::-1], chain.kept[::-1]
        self.undecided = [
            (last - stage, sorted({int(self.group[p]) for p in positions}), count)
            for (stage, positions), count in chain.undecided.items()
        ]

    def late(self, stage: int) -> list[tuple[list[int], int]]:
        """Groups that the late ops of a stage have read for the last time, and what these hold besides at most from then on."""
        last = {int(self.group[p]): k for k in self.ops[stage] for p in self.chain.read[k]}
        most: dict[tuple[int, ...], int] = {}
        for k in self.ops[stage]:
            gone = tuple(sorted(i for i, end in last.items() if end < k))
            most[gone] = max(most.get(gone, 0), int(self.chain.late_bytes[k]))
        return [(list(gone), held) for gone, held in most.items()]

    @cached_property
    def plain_peak(self) -> int:
        """Bytes that the backward pass holds at most, as they are counted here, when nothing runs again."""
        last = np.full(self.count, -1, dtype=np.int64)
        for stage, needed in enumerate(self.needs):
            last[needed] = stage
        found = [
            int(self.bytes[last >= stage].sum() - self.bytes[[g for g in gone if last[g] == stage]].sum())
            + int(self.kept[stage]) + most
            for stage in range(self.stages)
            for gone, most in self.late(stage)
        ]  # fmt: skip
        return max(found, default=0) + int(self.parts.graph.persistent_bytes.sum())

    @cached_property
    def exact(self) -> bool:
        """Whether every group is an op, so that bytes are counted exactly where outputs have bytes of their own."""
        return self.count == len(self.chain.ops)

    def sequence(self, again: Bools) -> Runs:
        """The plan in which groups run again in stages as `again`, bool[stages, groups], says."""
        parts, chain = self.parts, self.chain
        members = [chain.ops[self.group == g] for g in range(self.count)]
        found = [parts.ordered[~parts.late[parts.ordered]]]
        for stage in range(self.stages):
            found += [members[g] for g in np.flatnonzero(again[stage]).tolist()]
            found.append(chain.late_ops[self.ops[stage]])
        return pruned(Runs(parts, np.concatenate(found)))


def _views(chain: Chain) -> Ints:
    """int64[ops]: position of the op in whose memory the output of each lies, -1 for none that may run again."""
    graph, found = chain.parts.graph, np.full(len(chain.ops), -1, dtype=np.int64)
    if graph.reuse is None:
        return found
    for p, readers in enumerate(chain.readers):
        for q in set(readers.tolist()):
            found[q] = p if found[q] == -1 and graph.reuse[chain.ops[q]] == VIEW else -2
    return np.where(found >= 0, found, -1)


def _contracted(chain: Chain, most: int) -> Ints:
    """int64[ops]: the group of every op, numbered by where the op stands that others read."""
    n, base = len(chain.ops), np.arange(len(chain.ops))
    for p, lies_in in enumerate(_views(chain).tolist()):
        if lies_in >= 0:
            base[p] = base[lies_in]
    if len(np.unique(base)) > most:
        late = np.zeros(n, dtype=np.bool_)
        np.logical_or.at(late, base, held_for_backward(chain.parts)[chain.ops])
        main = np.arange(n)
        read_by: list[set[int]] = [set() for _ in range(n)]
        for p in range(n):
            read_by[base[p]] |= {int(base[q]) for q in chain.readers[p].tolist()} - {int(base[p])}
        for g in range(n - 1, -1, -1):
            into = {int(main[k]) for k in read_by[g]}
            if base[g] == g and not late[g] and len(into) == 1:
                main[g] = into.pop()
        base = main[base]
    return np.unique(base, return_inverse=True)[1].reshape(-1).astype(np.int64)


def pruned(runs: Runs) -> Runs:
    """The sequence without runs of copies that nobody reads."""
    while True:
        read = np.zeros(len(runs.ops), dtype=np.bool_)
        read[runs.reads[1]] = True
        if (read | runs.first).all():
            return runs
        runs = Runs(runs.parts, runs.ops[read | runs.first])
