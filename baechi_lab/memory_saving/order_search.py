"""Recomputation with least repeated work in graphs of a few ops, over all orders of the ops and of their copies.

A plan is a path through states: the ops that have run, and the buffers with the tensors in them. A step of the path runs one
op, for the first time or again, and before that drops as few tensors as the memory requires. Live bytes are those of the
simulator on one device, with outputs that lie in inputs (`OpGraph.reuse`); if an output may lie in one of several inputs of its
size, each is tried. Dijkstra's algorithm finds the path of least work within a budget, or of least bytes. There may
be exponentially many states, so the search ends without an answer after `MOST_TRIED` sets of dropped tensors.
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
from .training_graph import TrainingGraph

MOST_OPS = 12
"""Most ops of a graph that is searched."""
MOST_TRIED = 5_000_000
"""Most sets of tensors to drop that one search compares."""

Set = frozenset[int]
Buffer = tuple[int, Set]
"""Bytes of a buffer, and the tensors that lie in it; views of persistent bytes lie in a buffer of 0 bytes."""
Cost = tuple[int, float, int]
"""The peak bytes in a search for the least peak, else 0; the repeated microseconds; the number of runs."""


class PlanState(NamedTuple):
    """The ops that have run, and the live buffers."""

    executed: Set = frozenset()
    buffers: frozenset[Buffer] = frozenset()


class Run(NamedTuple):
    """A run of an op in a state, with the live bytes during the run and the state after it."""

    op: int
    need: int
    us: float
    after: PlanState


Waiting = tuple[Cost, int, PlanState, tuple[PlanState, Run] | None]
"""An entry of the queue: cost, a number that breaks ties, the state, and the run that led to it."""


class OrderSearch:
    """Searches all plans of a graph; `least_bytes` and `sequence` are None if there are too many plans."""

    def __init__(self, training: TrainingGraph):
        self.graph = graph = training.graph
        self.size: list[int] = graph.tensor_bytes.tolist()
        self.reuse: list[int] = [OWN] * graph.n if graph.reuse is None else graph.reuse.tolist()
        self.temporary, self.us = graph.temp_bytes.tolist(), graph.duration_us.tolist()
        self.grows = np.where(np.array(self.reuse) == GROWS, graph.persistent_bytes, 0).tolist()
        self.persistent = int(graph.persistent_bytes.sum()) - sum(self.grows)
        self.before = [frozenset(row) for row in _rows(*graph.predecessors)]
        self.updates = [frozenset(training.updates_read.get(op, ())) for op in range(graph.n)]
        self.floor = least_of_one_op(graph)
        self._tries_left = MOST_TRIED
        # Tensors without bytes hold nothing. Copies neither read control dependencies nor make them.
        read = [[t for t in row if self.size[t]] for row in _rows(*graph.inputs)]
        made_tensors = [[t for t in graph.outputs(op) if self.size[t]] for op in range(graph.n)]
        read_by_copies = [[t for t in row if self.size[t] != CONTROL_BYTES] for row in read]
        data = [[t for t in row if self.size[t] > CONTROL_BYTES] for row in made_tensors]
        self.repeatable_ops = [op for op in np.flatnonzero(training.may_repeat).tolist() if data[op]]
        self.reads, self.makes = (read, read_by_copies), (made_tensors, data)  # of first runs, of copies
        self.readers = [frozenset(graph.tensor_consumers(t).tolist()) for t in range(graph.tensor_count)]
        self.read_again = {t for op in self.repeatable_ops for t in read_by_copies[op]}
        self.repeatable_tensors = {t for op in self.repeatable_ops for t in data[op]}

    @cached_property
    def least_bytes(self) -> int | None:
        """The least peak of all plans, in bytes."""
        path = self._path(None)
        return None if path is None else max((run.need for run in path), default=0)

    def sequence(self, budget: int) -> NDArray[np.int64] | None:
        """Returns int64[runs]: a plan of least work whose peak is at most `budget` bytes; None if there is none."""
        path = self._path(budget) or []
        return np.array([run.op for run in path], dtype=np.int64) if path or not self.graph.n else None

    def _path(self, budget: int | None) -> list[Run] | None:
        """Returns the runs of the best plan, an empty list if there is no plan, None if there are too many to try."""
        self._tries_left = MOST_TRIED
        end = frozenset(range(self.graph.n))
        previous: dict[PlanState, tuple[PlanState, Run] | None] = {}
        number = count()
        queue: list[Waiting] = [((0 if budget is not None else self.floor, 0.0, 0), next(number), PlanState(), None)]
        while queue:
            (peak, us, run_count), _, state, by = heappop(queue)
            if state in previous:
                continue
            previous[state] = by
            if state.executed == end:
                # The runs that led to the state.
                path: list[Run] = []
                while (at := previous[state]) is not None:
                    path.append(at[1])
                    state = at[0]
                return path[::-1]
            for run in self._next_runs(state, peak if budget is None else budget):
                if run.after not in previous and (budget is None or run.need <= budget):
                    cost = (0 if budget is not None else max(peak, run.need), us + run.us, run_count + 1)
                    heappush(queue, (cost, next(number), run.after, (state, run)))
            if self._tries_left <= 0:
                return None
        return []

    def _next_runs(self, state: PlanState, enough: int) -> Iterator[Run]:
        """Yields the runs that may follow, each with the fewest drops that hold at most `enough` bytes, or fewer bytes."""
        live_tensors = frozenset[int]().union(*(tensors for _, tensors in state.buffers))
        for op in range(self.graph.n):
            if (
                op not in state.executed
                and self.before[op] <= state.executed
                and live_tensors.issuperset(self.reads[0][op])
            ):
                yield from self._runs_of_op(state, live_tensors, op, False, enough)
        for op in self.repeatable_ops:
            if (
                op in state.executed
                and live_tensors.issuperset(self.reads[1][op])
                and live_tensors.isdisjoint(self.makes[1][op])
            ):
                if self.updates[op].isdisjoint(state.executed):  # it must read the variable before its update
                    yield from self._runs_of_op(state, live_tensors, op, True, enough)

    def _runs_of_op(self, state: PlanState, live_tensors: Set, op: int, is_copy: bool, enough: int) -> Iterator[Run]:
        """Yields the runs of an op, by the tensors that are dropped before it or that it overwrites."""
        read, outputs, executed_ops = self.reads[is_copy][op], self.makes[is_copy][op], state.executed | {op}
        finished_tensors = {
            t for t in (*read, *outputs) if self.readers[t] <= executed_ops and t not in self.read_again
        }
        not_droppable = finished_tensors if self.reuse[op] == OVERWRITES else finished_tensors.union(read)
        may = [
            t
            for t in sorted(live_tensors - not_droppable)
            if self.readers[t] <= executed_ops or t in self.repeatable_tensors
        ]
        other_bytes = self.persistent + sum(self.grows[k] for k in executed_ops) + self.temporary[op]
        attempts: list[tuple[int, set[int]]] = []  # bytes beyond `enough`, dropped tensors
        for dropped_tensors in chain.from_iterable(combinations(may, k) for k in range(len(may) + 1)):
            self._tries_left -= 1 + len(attempts)
            if self._tries_left <= 0:
                return
            if any(before <= set(dropped_tensors) and excess == 0 for excess, before in attempts):
                continue
            last = finished_tensors.union(dropped_tensors)
            dropped_before = last.difference(read, outputs)
            # The possible buffers after the op has made its outputs, by the rules of `memory.peak`.
            buffer_sets = [_drop_tensors(state.buffers, dropped_before)]
            for tensor in outputs:
                buffer_sets = [
                    (buffer_set - {before}) | {after}
                    for buffer_set in buffer_sets
                    for before, after in self._possible_buffers(buffer_set, op, tensor, read, last)
                ]
            for with_made in buffer_sets:
                need = other_bytes + sum(size for size, _ in with_made)
                excess = max(need - enough, 0)
                if all(excess < least for least, before in attempts if before < set(dropped_tensors)):
                    attempts.append((excess, set(dropped_tensors)))
                    after = PlanState(executed_ops, frozenset(_drop_tensors(with_made, last)))
                    yield Run(op, need, self.us[op] if is_copy else 0.0, after)

    def _possible_buffers(
        self, buffers: set[Buffer], op: int, tensor: int, read: list[int], last: set[int]
    ) -> list[tuple[Buffer | None, Buffer]]:
        """Returns the buffers in which an output may lie, before and after it does; the last is a new buffer."""
        size, buffer_tensors = self.size[tensor], frozenset((tensor,))
        inputs = [(self.size[t], buffer) for t in read for buffer in buffers if t in buffer[1]]
        candidates: list[Buffer] = []
        if self.reuse[op] == OVERWRITES:
            candidates = [
                buffer for of, buffer in inputs if of == size and buffer[0] and buffer[1] <= last.intersection(read)
            ]
        elif self.reuse[op] == VIEW:
            large = [of for of, buffer in inputs if of >= size and buffer[0]]
            candidates = [buffer for of, buffer in inputs if large and of == min(large) and buffer[0]]
            if not candidates and not large:
                return [(None, (0, buffer_tensors))]
        return [(buffer, (buffer[0], buffer[1] | buffer_tensors)) for buffer in candidates] or [
            (None, (size, buffer_tensors))
        ]


def _drop_tensors(buffers: Iterable[Buffer], tensors: set[int]) -> set[Buffer]:
    return {(size, remaining) for size, tensors_inside in buffers if (remaining := tensors_inside - tensors)}


def _rows(pointer: NDArray[np.int64], column: NDArray[np.int32]) -> list[list[int]]:
    return [column[a:b].tolist() for a, b in pairwise(pointer.tolist())]
