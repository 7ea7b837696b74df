"""A plan of recomputation: the sequence in which one device runs the ops, including those that run again.

The first run of an op is the op itself, later runs are copies. A run reads the output of the producer's latest earlier run.
First runs keep the control dependencies; copies run after them. By the rules of docs/simulated-time.md an output is live from
the start of its run until the last run that reads it has ended.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..graph import CONTROL_BYTES
from ..graph.kernels.csr import Bools, Ints, gather, interval_sum
from .training_graph import TrainingGraph

NEVER = np.iinfo(np.int64).max


class OpSequence:
    """A sequence of ops, int64[runs], with every op of the graph at least once, after the producers of its inputs.

    - `first`: bool[runs], the first run of its op.
    - `node`: int64[runs], the op's index for first runs; copies are numbered from n on, as `copies` lists them.

    >>> from baechi_lab import OpGraph
    >>> training = TrainingGraph(OpGraph.from_edges([1, 1], [(0, 1, 8)], temp_bytes=[0, 5]))
    >>> OpSequence(training, np.array([0, 1])).peak
    13
    """

    def __init__(self, training: TrainingGraph, ops: Ints):
        self.training, self.graph = training, training.graph
        self.ops = delay_updates(training, np.asarray(ops, dtype=np.int64))
        place = np.arange(len(self.ops))
        self.start = np.full(self.graph.n, len(self.ops), dtype=np.int64)  # position of the first run of each op
        np.minimum.at(self.start, self.ops, place)
        self.first: Bools = self.start[self.ops] == place
        # Positions of copies: the second runs of all ops, then the third ones, each in topological order.
        by_op = np.argsort(self.ops, kind="stable")
        same = np.searchsorted(self.ops[by_op], self.ops[by_op])  # where the runs of the op begin
        run_number = np.empty(len(by_op), dtype=np.int64)
        run_number[by_op] = np.arange(len(by_op)) - same
        by_run = np.lexsort((self.training.rank[self.ops], run_number))
        self.copies = by_run[run_number[by_run] > 0]
        self.node = self.ops.copy()
        self.node[self.copies] = self.graph.n + np.arange(len(self.copies))

    @cached_property
    def reads(self) -> tuple[Ints, Ints, Ints]:
        """Returns per read: the tensor, the position of the run that made it, the position of the run that reads it."""
        graph, total = self.graph, len(self.ops)
        pointer, tensors = gather(*graph.inputs, self.ops)
        tensor, reader = tensors.astype(np.int64), np.repeat(np.arange(total), np.diff(pointer))
        producer = graph.tensor_producer[tensor].astype(np.int64)
        run_keys = np.sort(self.ops * total + np.arange(total))
        latest = run_keys[np.searchsorted(run_keys, producer * total + reader) - 1] % total if len(reader) else reader
        data = graph.tensor_bytes[tensor] > CONTROL_BYTES
        source_run = np.where(data, latest, self.start[producer])
        is_read = (graph.tensor_bytes[tensor] != CONTROL_BYTES) | self.first[reader]
        return tensor[is_read], source_run[is_read], reader[is_read]

    @cached_property
    def peak(self) -> int:
        """The peak bytes of one device that runs the sequence, including persistent bytes."""
        graph, total = self.graph, len(self.ops)
        if total == 0:
            return 0
        count = np.diff(graph.output_ptr)[self.ops]
        first_output = np.cumsum(count) - count  # number of the first output of each run
        producer = np.repeat(np.arange(total), count)
        tensor = graph.output_ptr[self.ops[producer]] + np.arange(len(producer)) - first_output[producer]
        size = np.where(
            self.first[producer] | (graph.tensor_bytes[tensor] > CONTROL_BYTES), graph.tensor_bytes[tensor], 0
        )
        last = producer.copy()
        read, source_run, reader = self.reads
        np.maximum.at(last, first_output[source_run] + read - graph.output_ptr[self.ops[source_run]], reader)
        live_bytes = interval_sum(size, producer, last + 1, total) + graph.temp_bytes[self.ops]
        return int(graph.persistent_bytes.sum() + live_bytes.max())

    @property
    def work_us(self) -> float:
        """Microseconds of the copies on the reference device."""
        return float(self.graph.duration_us[self.ops[~self.first]].sum())

    @cached_property
    def due(self) -> Ints:
        """Returns int64[runs]: the op for which a copy runs, which is the next first run in the sequence."""
        place = np.where(self.first, np.arange(len(self.ops)), NEVER)
        following = np.minimum.accumulate(place[::-1])[::-1]
        return self.ops[np.minimum(following, len(self.ops) - 1)]

    def trigger(self, reader: int) -> int:
        """Returns the op after which the copies for the op `reader` run.

        It is the producer of the last gradient that the reader reads; without one, the producer of its last input.
        """
        pointer, predecessor = self.graph.predecessors
        before = predecessor[pointer[reader] : pointer[reader + 1]]
        backward_inputs = before[self.training.is_backward[before]]
        candidates = backward_inputs if len(backward_inputs) else before
        if not len(candidates):  # without inputs: the op that ran before it
            return int(self.ops[np.flatnonzero(self.first[: self.start[reader]])[-1]])
        return int(candidates[self.start[candidates].argmax()])


def delay_updates(training: TrainingGraph, ops: Ints) -> Ints:
    """Moves each update of a variable that a later copy reads, and all ops that depend on it, to the end of `ops`."""
    graph = training.graph
    start = np.full(graph.n, len(ops), dtype=np.int64)
    np.minimum.at(start, ops, np.arange(len(ops)))
    end = np.full(graph.n, -1, dtype=np.int64)
    np.maximum.at(end, ops, np.arange(len(ops)))
    is_delayed = np.zeros(graph.n, dtype=np.bool_)
    for op in np.flatnonzero(end > start).tolist():
        for update in training.updates_read.get(op, ()):
            is_delayed[update] |= start[update] < end[op]
    if not is_delayed.any():
        return ops
    pointer, successor = (a.tolist() for a in graph.successors)
    for op in graph.order.tolist():
        if is_delayed[op]:
            is_delayed[successor[pointer[op] : pointer[op + 1]]] = True
    return np.concatenate([ops[~is_delayed[ops]], ops[is_delayed[ops]]])


def recompute_sequence(training: TrainingGraph, is_kept: Bools) -> OpSequence:
    """Returns the sequence in which each op that is not kept runs again before the first backward op that needs it.

    `is_kept` is bool[n]; ops that may not be repeated are kept in any case.
    """
    is_dropped = training.may_repeat & ~is_kept
    due = np.full(training.graph.n, NEVER)  # rank of the first backward op that needs a copy of each dropped op
    for op in training.ordered[::-1].tolist():
        if is_dropped[op]:
            readers = training.readers(op)
            is_backward = training.is_backward[readers]
            own_rank = training.rank[readers[is_backward]].min(initial=NEVER)
            due[op] = min(own_rank, due[readers[~is_backward]].min(initial=NEVER))
    copied_ops = training.ordered[due[training.ordered] < NEVER]
    ops = np.concatenate([copied_ops, training.ordered])
    place = np.concatenate([due[copied_ops], training.rank[training.ordered]])
    return OpSequence(training, ops[np.argsort(place, kind="stable")])
