"""The least work to repeat in graphs of a few ops, over all orders of the ops and all ways to run them again.

A plan is a path through states: which ops have run, and which tensors are held in which buffers. A step runs one op, for the
first time or again, and drops before it as little as memory asks for. What is held on the way is what
the simulator counts on one device, with outputs that lie in inputs (`OpGraph.reuse`); where one of several inputs of one size
has to be taken, each is tried. Dijkstra's algorithm finds the path of least work within a budget, or of least bytes. There may
be exponentially many states, so the search ends without an answer after `MOST_TRIED` ways to drop tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from heapq import heappop, heappush
from itertools import chain, combinations, count, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..graph import CONTROL_BYTES
from ..graph.opgraph import GROWS, OVERWRITES, OWN, VIEW
from ..memory.peak import least_of_one_op
from .training_graph import Parts

MOST_OPS = 12
"""Ops of the graphs that are small enough for it."""
MOST_TRIED = 5_000_000
"""Sets of tensors to drop that one search compares with each other."""

Set = frozenset[int]
Buffer = tuple[int, Set]
"""Bytes of a buffer, and the tensors that lie in it; views of persistent bytes lie in one of 0 bytes."""
Cost = tuple[int, float, int]
"""The peak where the least is looked for, else 0; microseconds that are repeated; runs."""


class State(NamedTuple):
    """The ops that have run, and the buffers that are held."""

    ran: Set = frozenset()
    held: frozenset[Buffer] = frozenset()


class Run(NamedTuple):
    """A run of an op in a state: what is held meanwhile in bytes, and the state after it."""

    op: int
    need: int
    us: float
    after: State


Waiting = tuple[Cost, int, State, tuple[State, Run] | None]
"""A state in the queue: what it costs, a number, itself, and the run that led there."""


class Orders:
    """All plans of a graph; `least` and `sequence` are None where there are too many to look at."""

    def __init__(self, parts: Parts):
        self.graph = graph = parts.graph
        self.size: list[int] = graph.tensor_bytes.tolist()
        self.reuse: list[int] = [OWN] * graph.n if graph.reuse is None else graph.reuse.tolist()
        self.temporary, self.us = graph.temp_bytes.tolist(), graph.duration_us.tolist()
        self.grows = np.where(np.array(self.reuse) == GROWS, graph.persistent_bytes, 0).tolist()
        self.persistent = int(graph.persistent_bytes.sum()) - sum(self.grows)
        self.before = [frozenset(row) for row in _rows(*graph.predecessors)]
        self.updates = [frozenset(parts.updates_read.get(op, ())) for op in range(graph.n)]
        self.floor = least_of_one_op(graph)
        self._left = MOST_TRIED
        # Tensors without bytes hold nothing. Copies neither read control dependencies nor make them.
        read = [[t for t in row if self.size[t]] for row in _rows(*graph.inputs)]
        made = [[t for t in graph.outputs(op) if self.size[t]] for op in range(graph.n)]
        again = [[t for t in row if self.size[t] != CONTROL_BYTES] for row in read]
        data = [[t for t in row if self.size[t] > CONTROL_BYTES] for row in made]
        self.able = [op for op in np.flatnonzero(parts.may_repeat).tolist() if data[op]]
        self.reads, self.makes = (read, again), (made, data)  # of first runs, of copies
        self.readers = [frozenset(graph.tensor_consumers(t).tolist()) for t in range(graph.tensor_count)]
        self.read_again = {t for op in self.able for t in again[op]}
        self.made_again = {t for op in self.able for t in data[op]}

    @cached_property
    def least(self) -> int | None:
        """Least peak of any plan in bytes."""
        path = self._path(None)
        return None if path is None else max((run.need for run in path), default=0)

    def sequence(self, budget: int) -> NDArray[np.int64] | None:
        """int64[runs]: the ops of a plan of least work whose peak is at most `budget` bytes, None if there is none."""
        path = self._path(budget) or []
        return np.array([run.op for run in path], dtype=np.int64) if path or not self.graph.n else None

    def _path(self, budget: int | None) -> list[Run] | None:
        """The runs of the best plan; none where there is no plan. None where too much would have to be tried."""
        self._left = MOST_TRIED
        end = frozenset(range(self.graph.n))
        came: dict[State, tuple[State, Run] | None] = {}
        number = count()
        queue: list[Waiting] = [((0 if budget is not None else self.floor, 0.0, 0), next(number), State(), None)]
        while queue:
            (peak, us, runs), _, state, by = heappop(queue)
            if state in came:
                continue
            came[state] = by
            if state.ran == end:
                return _followed(came, state)
            for run in self._runs(state, peak if budget is None else budget):
                if run.after not in came and (budget is None or run.need <= budget):
                    cost = (0 if budget is not None else max(peak, run.need), us + run.us, runs + 1)
                    heappush(queue, (cost, next(number), run.after, (state, run)))
            if self._left <= 0:
                return None
        return []

    def _runs(self, state: State, enough: int) -> Iterator[Run]:
        """What may run next, each dropping as little as holds at most `enough` bytes, or less than with fewer drops."""
        held = frozenset[int]().union(*(tensors for _, tensors in state.held))
        for op in range(self.graph.n):
            if op not in state.ran and self.before[op] <= state.ran and held.issuperset(self.reads[0][op]):
                yield from self._ways(state, held, op, False, enough)
        for op in self.able:
            if op in state.ran and held.issuperset(self.reads[1][op]) and held.isdisjoint(self.makes[1][op]):
                if self.updates[op].isdisjoint(state.ran):  # it must see the variable as it was
                    yield from self._ways(state, held, op, True, enough)

    def _ways(self, state: State, held: Set, op: int, again: bool, enough: int) -> Iterator[Run]:
        """The ways to run an op, by what is dropped before it, or with it where the op may write over it."""
        read, made, ran = self.reads[again][op], self.makes[again][op], state.ran | {op}
        gone = {t for t in (*read, *made) if self.readers[t] <= ran and t not in self.read_again}
        over = gone if self.reuse[op] == OVERWRITES else gone.union(read)
        may = [t for t in sorted(held - over) if self.readers[t] <= ran or t in self.made_again]
        beside = self.persistent + sum(self.grows[k] for k in ran) + self.temporary[op]
        found: list[tuple[int, set[int]]] = []  # bytes beyond `enough`, what is dropped for that
        for some in chain.from_iterable(combinations(may, k) for k in range(len(may) + 1)):
            self._left -= 1 + len(found)
            if self._left <= 0:
                return
            if any(before <= set(some) and excess == 0 for excess, before in found):
                continue
            last = gone.union(some)
            early = last.difference(read, made)
            for with_made in self._made(_without(state.held, early), op, read, made, last):
                need = beside + sum(size for size, _ in with_made)
                excess = max(need - enough, 0)
                if all(excess < least for least, before in found if before < set(some)):
                    found.append((excess, set(some)))
                    after = State(ran, frozenset(_without(with_made, last)))
                    yield Run(op, need, self.us[op] if again else 0.0, after)

    def _made(self, held: set[Buffer], op: int, read: list[int], made: list[int], last: set[int]) -> list[set[Buffer]]:
        """What may be held with what an op makes, by the rules of `memory.reuse_peak`."""
        ways = [held]
        for tensor in made:
            ways = [(way - {old}) | {new} for way in ways for old, new in self._places(way, op, tensor, read, last)]
        return ways

    def _places(
        self, held: set[Buffer], op: int, tensor: int, read: list[int], last: set[int]
    ) -> list[tuple[Buffer | None, Buffer]]:
        """The buffers that an output may lie in, as they were and as they are with it; it may be a new one."""
        size, added = self.size[tensor], frozenset((tensor,))
        inputs = [(self.size[t], buffer) for t in read for buffer in held if t in buffer[1]]
        found: list[Buffer] = []
        if self.reuse[op] == OVERWRITES:
            found = [
                buffer for of, buffer in inputs if of == size and buffer[0] and buffer[1] <= last.intersection(read)
            ]
        elif self.reuse[op] == VIEW:
            large = [of for of, buffer in inputs if of >= size and buffer[0]]
            found = [buffer for of, buffer in inputs if large and of == min(large) and buffer[0]]
            if not found and not large:
                return [(None, (0, added))]
        return [(buffer, (buffer[0], buffer[1] | added)) for buffer in found] or [(None, (size, added))]


def _without(held: Iterable[Buffer], tensors: set[int]) -> set[Buffer]:
    return {(size, rest) for size, within in held if (rest := within - tensors)}


def _followed(came: dict[State, tuple[State, Run] | None], state: State) -> list[Run]:
    """The runs that led to a state."""
    found: list[Run] = []
    while (at := came[state]) is not None:
        found.append(at[1])
        state = at[0]
    return found[::-1]


def _rows(pointer: NDArray[np.int64], column: NDArray[np.int32]) -> list[list[int]]:
    return [column[a:b].tolist() for a, b in pairwise(pointer.tolist())]
