"""A plan of recomputation as the sequence in which one device runs the ops, those that run again included.

The first run of an op is the op, later ones are copies. A run reads what the latest earlier run of the producer made.
Control dependencies are kept by first runs; copies come after those. What is held when follows from the sequence by the rules of
docs/simulated-time.md: an output from the start of its run until the last run that reads it has ended.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..graph import CONTROL_BYTES
from .training_graph import Parts

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NEVER = np.iinfo(np.int64).max


class Runs:
    """A sequence of ops, int64[runs]; every op of the graph is in it, and after what it reads.

    - `first`: bool[runs], the first run of its op.
    - `node`: int64[runs], the op's index for first runs; copies are numbered from n on, as `copies` lists them.

    >>> from baechi_lab import OpGraph
    >>> parts = Parts(OpGraph.from_edges([1, 1], [(0, 1, 8)], temp_bytes=[0, 5]))
    >>> Runs(parts, np.array([0, 1])).peak
    13
    """

    def __init__(self, parts: Parts, ops: Ints):
        self.parts, self.graph = parts, parts.graph
        self.ops = updates_last(parts, np.asarray(ops, dtype=np.int64))
        place = np.arange(len(self.ops))
        self.start = np.full(self.graph.n, len(self.ops), dtype=np.int64)  # position of the first run of each op
        np.minimum.at(self.start, self.ops, place)
        self.first: Bools = self.start[self.ops] == place
        self.copies = self._copies()
        self.node = self.ops.copy()
        self.node[self.copies] = self.graph.n + np.arange(len(self.copies))

    def _copies(self) -> Ints:
        """Positions of the runs that are copies: the second runs of all ops, then the third ones, each in topological order."""
        by_op = np.argsort(self.ops, kind="stable")
        same = np.searchsorted(self.ops[by_op], self.ops[by_op])  # where the runs of the op begin
        turn = np.empty(len(by_op), dtype=np.int64)
        turn[by_op] = np.arange(len(by_op)) - same
        order = np.lexsort((self.parts.rank[self.ops], turn))
        return order[turn[order] > 0]

    @cached_property
    def reads(self) -> tuple[Ints, Ints, Ints]:
        """Tensor, position of the run that made it, position of the run that reads it; one entry per read."""
        graph, total = self.graph, len(self.ops)
        pointer, tensors = graph.inputs
        count = np.diff(pointer)[self.ops]
        reader = np.repeat(np.arange(total), count)
        step = np.arange(len(reader)) - np.repeat(np.cumsum(count) - count, count)
        tensor = tensors[pointer[self.ops[reader]] + step].astype(np.int64)
        producer = graph.tensor_producer[tensor].astype(np.int64)
        known = np.sort(self.ops * total + np.arange(total))
        latest = known[np.searchsorted(known, producer * total + reader) - 1] % total if len(reader) else reader
        data = graph.tensor_bytes[tensor] > CONTROL_BYTES
        made = np.where(data, latest, self.start[producer])
        kept = (graph.tensor_bytes[tensor] != CONTROL_BYTES) | self.first[reader]
        return tensor[kept], made[kept], reader[kept]

    @cached_property
    def peak(self) -> int:
        """Most bytes held at once when one device runs the sequence, persistent ones included."""
        graph, total = self.graph, len(self.ops)
        if total == 0:
            return 0
        count = np.diff(graph.output_ptr)[self.ops]
        begin = np.cumsum(count) - count  # number of the first output of each run
        maker = np.repeat(np.arange(total), count)
        tensor = graph.output_ptr[self.ops[maker]] + np.arange(len(maker)) - begin[maker]
        size = np.where(self.first[maker] | (graph.tensor_bytes[tensor] > CONTROL_BYTES), graph.tensor_bytes[tensor], 0)
        last = maker.copy()
        read, made, reader = self.reads
        np.maximum.at(last, begin[made] + read - graph.output_ptr[self.ops[made]], reader)
        change = np.zeros(total + 1, dtype=np.int64)
        np.add.at(change, maker, size)
        np.add.at(change, last + 1, -size)
        held = np.cumsum(change[:-1]) + graph.temp_bytes[self.ops]
        return int(graph.persistent_bytes.sum() + held.max())

    @property
    def work_us(self) -> float:
        """Microseconds of the copies on the reference device."""
        return float(self.graph.duration_us[self.ops[~self.first]].sum())

    @cached_property
    def due(self) -> Ints:
        """int64[runs]: the op that a copy runs for, which is the next one in the sequence that runs for the first time."""
        place = np.where(self.first, np.arange(len(self.ops)), NEVER)
        following = np.minimum.accumulate(place[::-1])[::-1]
        return self.ops[np.minimum(following, len(self.ops) - 1)]

    def trigger(self, reader: int) -> int:
        """The op after which the copies run that the op `reader` is waiting for.

        It is the last gradient that the reader reads; without one, at the start of the backward pass, its last input.
        """
        pointer, predecessor = self.graph.predecessors
        before = predecessor[pointer[reader] : pointer[reader + 1]]
        late = before[self.parts.late[before]]
        candidates = late if len(late) else before
        if not len(candidates):  # it reads nothing: what ran before it
            return int(self.ops[np.flatnonzero(self.first[: self.start[reader]])[-1]])
        return int(candidates[self.start[candidates].argmax()])


def updates_last(parts: Parts, ops: Ints) -> Ints:
    """`ops` where an update of a variable that a later copy reads, and all that follows from it, comes last."""
    graph = parts.graph
    start = np.full(graph.n, len(ops), dtype=np.int64)
    np.minimum.at(start, ops, np.arange(len(ops)))
    end = np.full(graph.n, -1, dtype=np.int64)
    np.maximum.at(end, ops, np.arange(len(ops)))
    moved = np.zeros(graph.n, dtype=np.bool_)
    for op in np.flatnonzero(end > start).tolist():
        for update in parts.updates_read.get(op, ()):
            moved[update] |= start[update] < end[op]
    if not moved.any():
        return ops
    pointer, successor = (a.tolist() for a in graph.successors)
    for op in graph.order.tolist():
        if moved[op]:
            moved[successor[pointer[op] : pointer[op + 1]]] = True
    return np.concatenate([ops[~moved[ops]], ops[moved[ops]]])


def runs_of(parts: Parts, kept: Bools) -> Runs:
    """The sequence in which every op that is not kept runs at most once again, right before the first late op that needs it.

    `kept` is bool[n]; ops that may not be repeated are kept in any case.
    """
    due = due_with(parts, parts.may_repeat & ~kept)
    copied = parts.ordered[due[parts.ordered] < NEVER]
    ops = np.concatenate([copied, parts.ordered])
    when = np.concatenate([due[copied], parts.rank[parts.ordered]])
    return Runs(parts, ops[np.argsort(when, kind="stable")])


def due_with(parts: Parts, dropped: Bools) -> Ints:
    """int64[n]: rank of the first late op that needs a dropped op's copy, `NEVER` where none does or it is kept."""
    due = np.full(parts.graph.n, NEVER)
    for op in parts.ordered[::-1].tolist():
        if dropped[op]:
            readers = parts.readers(op)
            late = parts.late[readers]
            due[op] = min(parts.rank[readers[late]].min(initial=NEVER), due[readers[~late]].min(initial=NEVER))
    return due
