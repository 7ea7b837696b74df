"""Groups of forward ops that run again together, and the stages of the backward pass that read their outputs.

Up to `MOST_SINGLE_OPS` ops, each op is a group. Larger graphs have up to `MOST_MERGED` groups: an op whose output only one
group reads, and no backward op, joins that group; if there are still too many groups, those of least bytes are held throughout.
Views (`OpGraph.reuse`) belong to the op in whose memory they lie. Then the bytes of running groups are upper bounds, and the
caller counts the exact bytes of a plan. A stage is a backward op that reads groups, with all ops up to the next such op.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..graph.kernels.csr import Bools, Ints
from ..graph.opgraph import VIEW
from .chain import Chain
from .checkpoints import is_read_by_backward_op
from .op_sequence import OpSequence
from .training_graph import TrainingGraph

MOST_SINGLE_OPS = 300
"""Most ops of a graph in which each op is a group."""
MOST_MERGED = 60
"""Most groups where ops are merged: in larger graphs, and in those with views."""


class RecomputeGroups:
    """`count` groups in topological order, `stages` in the order in which they run; bytes and microseconds as in the graph.

    - `us`, `bytes`, `inner`: per group, its time, the bytes that others read of it, and its other bytes while it runs.
    - `reads`, `readers`: per group, the groups that it reads and those that read it, ascending.
    - `needs`: per stage, the groups that it reads, ascending.
    - `due`, `live_forward_bytes`: per stage, the bytes of other tensors while groups run, and of forward values in its
      backward ops.
    - `undroppable_bytes`: forward values that no plan drops, as (the last stage that reads them, -1 for none; groups that read
      them; bytes). After that stage they are held only for those groups.

    >>> from baechi_lab import generators
    >>> groups = RecomputeGroups(TrainingGraph(generators.with_backward(generators.chain(4, size_bytes=(80, 80)))))
    >>> groups.count, groups.stages, groups.readers, groups.needs
    (2, 2, [[1], []], [[1], [0]])
    """

    def __init__(self, training: TrainingGraph, max_groups: int | None = None):
        self.training, repeatable = training, training.may_repeat
        while True:
            self.chain = Chain(training, pin=False, repeatable=repeatable)
            if max_groups is None:
                alone = len(self.chain.ops) <= MOST_SINGLE_OPS and (_viewed_ops(self.chain) < 0).all()
                max_groups = MOST_SINGLE_OPS if alone else MOST_MERGED
            self.group = _contract_ops(self.chain, max_groups)
            self.count = int(self.group.max(initial=-1)) + 1
            self._set_sizes()
            if self.count <= max_groups:
                break
            # Without the ops of the smallest groups, so that at most `max_groups` groups remain.
            least = np.argsort(self.bytes, kind="stable")[: self.count - max_groups]
            repeatable = repeatable.copy()
            repeatable[self.chain.ops[np.isin(self.group, least)]] = False
        self.stages = self.chain.stages if self.count else 0
        chain, last = self.chain, self.stages - 1
        self.needs: list[list[int]] = [[] for _ in range(self.stages)]
        self.ops: list[list[int]] = [[] for _ in range(self.stages)]  # positions of backward ops
        for k, (stage, positions) in enumerate(zip(chain.stage.tolist(), chain.read, strict=True)):
            if self.stages:
                self.ops[last - stage].append(k)
                self.needs[last - stage] += [int(self.group[p]) for p in positions]
        self.needs = [sorted(set(needed_groups)) for needed_groups in self.needs]
        self.due, self.live_forward_bytes = chain.due[::-1], chain.live_forward_bytes[::-1]
        self.undroppable_bytes = [
            (last - stage, sorted({int(self.group[p]) for p in positions}), count)
            for (stage, positions), count in chain.undroppable_bytes.items()
        ]

    def _set_sizes(self) -> None:
        """Sets the time, kept bytes and inner bytes of each group, and which groups read it."""
        chain, group, m = self.chain, self.group.tolist(), self.count
        self.us, self.bytes, self.inner = np.zeros(m), np.zeros(m, dtype=np.int64), np.zeros(m, dtype=np.int64)
        np.add.at(self.us, self.group, chain.us)
        reads: list[set[int]] = [set() for _ in range(m)]
        read_by_backward = is_read_by_backward_op(self.training)[chain.ops]
        inside = chain.training.graph.temp_bytes[chain.ops].copy()
        views = _viewed_ops(chain)
        for p, g in enumerate(group):
            reading_groups = {group[q] for q in chain.readers[p].tolist()} - {g}
            for k in reading_groups:
                reads[k].add(g)
            if views[p] >= 0:
                continue
            if reading_groups or read_by_backward[p] or any(views[q] == p for q in chain.readers[p].tolist()):
                self.bytes[g] += chain.size[p]
            else:
                last = int(chain.readers[p].max(initial=p)) + 1
                inside[p:last][self.group[p:last] == g] += chain.size[p]
        np.maximum.at(self.inner, self.group, inside)
        self.reads = [sorted(groups_read) for groups_read in reads]
        self.readers: list[list[int]] = [[] for _ in range(m)]
        for k, groups_read in enumerate(self.reads):
            for g in groups_read:
                self.readers[g].append(k)

    def backward_levels(self, stage: int) -> list[tuple[list[int], int]]:
        """Returns pairs: groups that the stage's backward ops have read for the last time, and the most other live bytes then."""
        last = {int(self.group[p]): k for k in self.ops[stage] for p in self.chain.read[k]}
        most_bytes: dict[tuple[int, ...], int] = {}
        for k in self.ops[stage]:
            finished_groups = tuple(sorted(i for i, end in last.items() if end < k))
            most_bytes[finished_groups] = max(most_bytes.get(finished_groups, 0), int(self.chain.backward_op_bytes[k]))
        return [(list(finished_groups), other_bytes) for finished_groups, other_bytes in most_bytes.items()]

    @cached_property
    def peak_without_recompute(self) -> int:
        """Returns the peak bytes of the backward pass if no group runs again, as they are counted here."""
        last = np.full(self.count, -1, dtype=np.int64)
        for stage, needed_groups in enumerate(self.needs):
            last[needed_groups] = stage
        level = [
            int(self.bytes[last >= stage].sum() - self.bytes[[g for g in finished_groups if last[g] == stage]].sum())
            + int(self.live_forward_bytes[stage])
            + other_bytes
            for stage in range(self.stages)
            for finished_groups, other_bytes in self.backward_levels(stage)
        ]
        return max(level, default=0) + int(self.training.graph.persistent_bytes.sum())

    @cached_property
    def is_exact(self) -> bool:
        """Whether every group is one op; then bytes are exact unless outputs share memory."""
        return self.count == len(self.chain.ops)

    def sequence(self, is_repeated: Bools) -> OpSequence:
        """Returns the plan in which the groups of `is_repeated`, bool[stages, groups], run again in these stages."""
        training, chain = self.training, self.chain
        members = [chain.ops[self.group == g] for g in range(self.count)]
        ops = [training.ordered[~training.is_backward[training.ordered]]]
        for stage in range(self.stages):
            ops += [members[g] for g in np.flatnonzero(is_repeated[stage]).tolist()]
            ops.append(chain.backward_ops[self.ops[stage]])
        return without_unread_copies(OpSequence(training, np.concatenate(ops)))


def _viewed_ops(chain: Chain) -> Ints:
    """Returns int64[ops]: the position of the op in whose memory each output lies, -1 if none that may run again."""
    graph, viewed_op = chain.training.graph, np.full(len(chain.ops), -1, dtype=np.int64)
    if graph.reuse is None:
        return viewed_op
    for p, readers in enumerate(chain.readers):
        for q in set(readers.tolist()):
            viewed_op[q] = p if viewed_op[q] == -1 and graph.reuse[chain.ops[q]] == VIEW else -2
    return np.where(viewed_op >= 0, viewed_op, -1)


def _contract_ops(chain: Chain, max_groups: int) -> Ints:
    """Returns int64[ops]: the group of every op, numbered by the position of the op that other groups read."""
    n, base = len(chain.ops), np.arange(len(chain.ops))
    for p, lies_in in enumerate(_viewed_ops(chain).tolist()):
        if lies_in >= 0:
            base[p] = base[lies_in]
    if len(np.unique(base)) > max_groups:
        read_by_backward = np.zeros(n, dtype=np.bool_)
        np.logical_or.at(read_by_backward, base, is_read_by_backward_op(chain.training)[chain.ops])
        main = np.arange(n)
        read_by: list[set[int]] = [set() for _ in range(n)]
        for p in range(n):
            read_by[base[p]] |= {int(base[q]) for q in chain.readers[p].tolist()} - {int(base[p])}
        for g in range(n - 1, -1, -1):
            into = {int(main[k]) for k in read_by[g]}
            if base[g] == g and not read_by_backward[g] and len(into) == 1:
                main[g] = into.pop()
        base = main[base]
    return np.unique(base, return_inverse=True)[1].reshape(-1).astype(np.int64)


def without_unread_copies(plan: OpSequence) -> OpSequence:
    """Returns the sequence without copies that no run reads."""
    while True:
        read = np.zeros(len(plan.ops), dtype=np.bool_)
        read[plan.reads[1]] = True
        if (read | plan.first).all():
            return plan
        plan = OpSequence(plan.training, plan.ops[read | plan.first])
