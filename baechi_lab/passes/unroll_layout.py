"""Numbers of the ops of an unrolled step (`unroll`): copies, additions and rings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..graph import CONTROL_BYTES, OpGraph, Placement
from ..graph.kernels.csr import Ints
from .all_reduce import make_rings
from .roles import SETUP, UPDATE


class OpNumbering:
    """Numbers of all ops: setup, then the copies and additions of each micro-batch, then rings, then updates.

    - `setup`, `repeated_ops`, `update`: the ops that run once before, once per micro-batch, and once after.
    - `width` int64[n]: the number of replicas of an op's stage; `replica_group` int64[n]: the group of these replicas, or -1.
    - `first` int64[n]: the number of an op's only or first copy; `shift` int64[micro-batches]: what later copies add to it.
    - `tensors_to_sum`: the tensors that are added up; `additions` int64[micro-batches, tensors_to_sum]: the op that adds
      each, or -1.
    """

    def __init__(self, graph: OpGraph, role: NDArray[np.int8], count: int, placement: Placement | None = None):
        role_in_order = role[graph.order]
        self.count = count
        self.width, self.replica_group = np.ones(graph.n, dtype=np.int64), np.full(graph.n, -1, dtype=np.int64)
        for g, group in enumerate(() if placement is None else placement.replicas):
            on_first_device = placement.device == group[0]  # type: ignore[union-attr]
            self.width[on_first_device], self.replica_group[on_first_device] = len(group), g
        self.setup, self.update = (graph.order[role_in_order == k].astype(np.int64) for k in (SETUP, UPDATE))
        self.repeated_ops = graph.order[(role_in_order != SETUP) & (role_in_order != UPDATE)].astype(np.int64)
        self.is_repeated = np.zeros(graph.n, dtype=np.bool_)
        self.is_repeated[self.repeated_ops] = True
        self.updates = role == UPDATE
        is_read = np.zeros(graph.tensor_count, dtype=np.bool_)
        is_read[graph.edge_tensor[self.updates[graph.consumers] & self.is_repeated[graph.edge_source]]] = True
        self.tensors_to_sum = np.flatnonzero(is_read & (graph.tensor_bytes > CONTROL_BYTES))  # tensors to accumulate
        # A replica adds the gradients of every `sum_stride`-th micro-batch.
        self.sum_stride = self.width[graph.tensor_producer[self.tensors_to_sum]]
        # The first micro-batch of every replica needs no addition.
        needs_addition = np.arange(count)[:, None] >= self.sum_stride[None, :]
        setup, block = int(self.width[self.setup].sum()), len(self.repeated_ops) + needs_addition.sum(axis=1)
        self.start = setup + np.concatenate([[0], np.cumsum(block)[:-1]])
        self.ring_start = setup + int(block.sum())
        self.rings = make_rings(
            graph, self.replica_group, [] if placement is None else placement.replicas, self.ring_start
        )
        self.first = np.empty(graph.n, dtype=np.int64)  # number of an op's only or first copy
        self.first[self.setup] = start_numbers(self.width[self.setup], 0)
        self.first[self.repeated_ops] = setup + np.arange(len(self.repeated_ops))
        update_start = self.ring_start + self.rings.ops
        self.first[self.update] = start_numbers(self.width[self.update], update_start)
        self.total = update_start + int(self.width[self.update].sum())
        self.shift = self.start - self.start[0]
        # [micro-batch, op of `repeated_ops`].
        self.copies = self.start[:, None] + np.arange(len(self.repeated_ops))[None, :]
        # [micro-batch, summed tensor]: the op that adds the gradient of that micro-batch, or -1
        addition_number = self.start[:, None] + len(self.repeated_ops) + np.cumsum(needs_addition, axis=1) - 1
        self.additions = np.where(needs_addition, addition_number, -1)


def start_numbers(width: Ints, first: int) -> Ints:
    """Returns the first number of each op, if every op gets `width` consecutive numbers from `first` on."""
    return first + np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(width)[:-1]])[: len(width)]


def number_replicas(numbering: OpNumbering, ops: Ints) -> tuple[Ints, Ints]:
    """Returns number and replica of every copy of ops that run once."""
    width = numbering.width[ops]
    replica = count_up(width)
    return np.repeat(numbering.first[ops], width) + replica, replica


def count_up(width: Ints) -> Ints:
    """Returns 0 .. w - 1 for every width w, concatenated."""
    step: Ints = np.arange(int(width.sum())) - np.repeat(start_numbers(width, 0), width)
    return step
