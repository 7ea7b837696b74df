"""The order in which layers are to be submitted, and which of them must wait.

Source: Shetty 2022, section 1.3.2. All of it is plain Python on integers: op `i` is the i-th call in code order.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

CRITERIA = ("gpu", "global", "none")
"""`gpu`: order within each device (the paper's GPU-topo criterion); `global`: one order over all devices; `none`: code order."""

Parents = Sequence[Sequence[int]]


def submission_order(parents: Parents, rank: Sequence[float] | None) -> list[int]:
    """Orders all ops: parents first, then the lowest `rank` among the ready ops, ties by op index. O((n + e) log n).

    A placer's order is followed as far as dependencies allow. Without a rank, the order is that of the code.

    >>> submission_order([(), (), (0,)], [2, 0, 1])
    [1, 0, 2]
    """
    n = len(parents)
    ranks = [float(i) for i in range(n)] if rank is None else [float(r) for r in rank]
    children: list[list[int]] = [[] for _ in range(n)]
    missing = [0] * n
    for op, above in enumerate(parents):
        for parent in set(above):
            children[parent].append(op)
            missing[op] += 1
    ready = [(ranks[i], i) for i in range(n) if missing[i] == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, op = heapq.heappop(ready)
        order.append(op)
        for child in children[op]:
            missing[child] -= 1
            if missing[child] == 0:
                heapq.heappush(ready, (ranks[child], child))
    return order


def topo_parents(order: Sequence[int], device: Sequence[int], criterion: str) -> list[int]:
    """Returns, per op, the op submitted right before it on its device (`gpu`) or on any device (`global`); -1 for none."""
    before = [-1] * len(order)
    if criterion == "none":
        return before
    last: dict[int, int] = {}
    for op in order:
        line = int(device[op]) if criterion == "gpu" else 0
        before[op] = last.get(line, -1)
        last[line] = op
    return before


@dataclass(frozen=True)
class Order:
    """The submission order, as the gate needs it that holds a call back until its blockers are submitted.

    Args:
        parents: per op, the ops whose outputs it reads.
        blockers: per op, its parents and the op that is submitted right before it.
        dependents: per op, the ops that it blocks.
        waiting: the ops that wait in a thread when the code reaches the ops in index order.
    """

    parents: tuple[tuple[int, ...], ...]
    blockers: tuple[tuple[int, ...], ...]
    dependents: tuple[tuple[int, ...], ...]
    waiting: frozenset[int]

    @property
    def n(self) -> int:
        return len(self.blockers)


def add_fences(parents: Parents, fixed_ops: Collection[int]) -> list[tuple[int, ...]]:
    """Adds dependencies so that every op of `fixed_ops` follows all ops before it in the code and precedes all after it.

    This takes O(n + e). A fixed op thus never waits, because all that it may wait for was reached before it.

    >>> add_fences([(), (), (), ()], {1})
    [(), (0,), (1,), (1,)]
    """
    parents_of: list[tuple[int, ...]] = []
    last, since = -1, []  # the last fixed op, and the ops behind it
    for op, above in enumerate(parents):
        behind = {last} if last >= 0 else set()
        since.append(op)
        if op in fixed_ops:
            behind.update(since[:-1])
            last, since = op, []
        parents_of.append(tuple(sorted(behind.union(above))))
    return parents_of


def make_order(
    parents: Parents,
    rank: Sequence[float] | None,
    device: Sequence[int],
    criterion: str = "gpu",
    fixed_ops: Collection[int] = (),
) -> Order:
    """Returns the order for `criterion`, with the ops that will wait. Ops of `fixed_ops` keep their place in the code.

    >>> make_order([(), (0,), (0,)], [0, 2, 1], [0, 0, 0]).waiting   # op 2 goes before op 1, on the same device
    frozenset({1})
    """
    parents = add_fences(parents, frozenset(fixed_ops))
    before = topo_parents(submission_order(parents, rank), device, criterion)
    blockers = [tuple(sorted({*above, *([b] if b >= 0 else [])})) for above, b in zip(parents, before, strict=True)]
    dependents: list[list[int]] = [[] for _ in blockers]
    for op, above in enumerate(blockers):
        for b in above:
            dependents[b].append(op)
    frozen = tuple(tuple(d) for d in dependents)
    settled_ops = Settled(blockers, frozen)
    return Order(
        tuple(tuple(sorted(set(p))) for p in parents),
        tuple(blockers),
        frozen,
        frozenset(op for op in range(len(blockers)) if not settled_ops.reach(op)),
    )


class Settled:
    """`isNotWaiting` with its cache (Shetty 2022, section 1.3.2).

    An op is not waiting if it is reached and none of its blockers (the previous op of its device, its graph parents) is
    waiting. Once true, this stays true. So it is passed on to the dependents instead of tracing the ancestors at every check:
    all checks of one forward cost O(n + e) together, and no recursion is needed.
    """

    __slots__ = ("dependents", "missing")

    def __init__(self, blockers: Parents, dependents: Parents):
        self.dependents = dependents
        self.missing = [len(b) + 1 for b in blockers]  # plus one until the op is reached

    def __getitem__(self, op: int) -> bool:
        return self.missing[op] <= 0

    def reach(self, op: int) -> bool:
        """Notes that the host has reached `op`. Returns whether it is not waiting."""
        stack = [op]
        while stack:
            current = stack.pop()
            self.missing[current] -= 1
            if self.missing[current] == 0:
                stack.extend(self.dependents[current])
        return self.missing[op] <= 0
