"""The tensors of an unrolled step and their readers (`unroll`).

`OpNumbering` numbers the ops of the unrolled step. Here a *row* is the number of one of its tensors: first the copies of each
tensor of the micro-batch's graph, then the sums of gradients, then what the rings of all-reduces send.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..graph import CONTROL_BYTES, OpGraph, Placement
from ..graph.kernels.csr import Ints
from ..graph.tensors import tensor_columns
from .all_reduce import make_rings
from .roles import SETUP, UPDATE


class OpNumbering:
    """Numbers of all ops: setup, then the copies and additions of each micro-batch, then rings, then updates.

    - `setup_ops`, `repeated_ops`, `update_ops`: the ops that run once before, once per micro-batch, and once after.
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
        self.setup_ops, self.update_ops = (graph.order[role_in_order == k].astype(np.int64) for k in (SETUP, UPDATE))
        self.repeated_ops = graph.order[(role_in_order != SETUP) & (role_in_order != UPDATE)].astype(np.int64)
        self.is_repeated = np.zeros(graph.n, dtype=np.bool_)
        self.is_repeated[self.repeated_ops] = True
        self.is_update = role == UPDATE
        is_read = np.zeros(graph.tensor_count, dtype=np.bool_)
        is_read[graph.edge_tensor[self.is_update[graph.consumers] & self.is_repeated[graph.edge_source]]] = True
        self.tensors_to_sum = np.flatnonzero(is_read & (graph.tensor_bytes > CONTROL_BYTES))  # tensors to accumulate
        # A replica adds the gradients of every `sum_stride`-th micro-batch.
        self.sum_stride = self.width[graph.tensor_producer[self.tensors_to_sum]]
        # The first micro-batch of every replica needs no addition.
        needs_addition = np.arange(count)[:, None] >= self.sum_stride[None, :]
        setup, block = int(self.width[self.setup_ops].sum()), len(self.repeated_ops) + needs_addition.sum(axis=1)
        self.start = setup + np.concatenate([[0], np.cumsum(block)[:-1]])
        self.ring_start = setup + int(block.sum())
        self.rings = make_rings(
            graph, self.replica_group, [] if placement is None else placement.replicas, self.ring_start
        )
        self.first = np.empty(graph.n, dtype=np.int64)  # number of an op's only or first copy
        self.first[self.setup_ops] = start_numbers(self.width[self.setup_ops], 0)
        self.first[self.repeated_ops] = setup + np.arange(len(self.repeated_ops))
        update_start = self.ring_start + self.rings.ops
        self.first[self.update_ops] = start_numbers(self.width[self.update_ops], update_start)
        self.total = update_start + int(self.width[self.update_ops].sum())
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


def unrolled_tensor_columns(graph: OpGraph, numbering: OpNumbering) -> dict[str, Any]:
    """Returns producer, bytes, names and readers of all tensors, ordered by producer."""
    tensors, repeats = graph.tensor_count, numbering.is_repeated[graph.tensor_producer]
    copies = np.where(repeats, numbering.count, numbering.width[graph.tensor_producer])
    # Copy k of tensor t is row first_row[t] + k, in no special order yet.
    first_row = np.concatenate([[0], np.cumsum(copies)])
    original_tensor = np.repeat(np.arange(tensors), copies)
    copy_number = np.arange(first_row[-1]) - first_row[original_tensor]
    producer = numbering.first[graph.tensor_producer[original_tensor]] + np.where(
        repeats[original_tensor], numbering.shift[copy_number % numbering.count], copy_number
    )
    # Each addition produces one tensor, in the rows after all copies; the tensors of rings follow.
    micro, tensor = np.nonzero(numbering.additions >= 0)
    row_of_sum = np.full(numbering.additions.shape, -1, dtype=np.int64)
    row_of_sum[micro, tensor] = first_row[-1] + np.arange(len(micro))
    producer = np.concatenate([producer, numbering.additions[micro, tensor], numbering.rings.producer])
    size = np.concatenate(
        [
            graph.tensor_bytes[original_tensor],
            graph.tensor_bytes[numbering.tensors_to_sum[tensor]],
            numbering.rings.size,
        ]
    )
    row, reader = _edges(graph, numbering, first_row, row_of_sum)
    ring_rows, ring_readers, ring_producers = _ring_edges(
        graph, numbering, first_row, row_of_sum, first_row[-1] + len(micro)
    )
    row, reader = np.concatenate([row, ring_rows]), np.concatenate([reader, ring_readers])
    producer = np.concatenate([producer, ring_producers])
    size = np.concatenate([size, np.full(len(ring_producers), CONTROL_BYTES)])
    labels = [graph.tensor_names[t] for t in original_tensor.tolist()]
    labels += ["0"] * len(micro) + [*numbering.rings.labels] + ["all-reduce"] * len(ring_producers)
    return tensor_columns(producer, size, labels, row, reader, numbering.total)


def _edges(graph: OpGraph, numbering: OpNumbering, first_row: Ints, row_of_sum: Ints) -> tuple[Ints, Ints]:
    """Returns (tensor row, reading op) of every edge of the micro-batch's graph, and of the sums."""
    tensor, reader = graph.edge_tensor.astype(np.int64), graph.consumers.astype(np.int64)
    source = graph.edge_source
    produced_per_batch, read_per_batch = numbering.is_repeated[source], numbering.is_repeated[reader]
    is_summed = np.zeros(graph.tensor_count, dtype=np.bool_)
    is_summed[numbering.tensors_to_sum] = True
    to_sum = produced_per_batch & numbering.is_update[reader] & is_summed[tensor]
    on_same_replicas = (numbering.replica_group[source] == numbering.replica_group[reader]) & (
        numbering.replica_group[source] >= 0
    )
    width = numbering.width[reader]
    rows: list[Ints] = []
    readers: list[Ints] = []

    def add(row: Ints, op: Ints) -> None:
        rows.append(np.ravel(row))
        readers.append(np.ravel(op))

    def per_replica(edges: Ints) -> tuple[Ints, Ints]:
        """Repeats every edge for each replica of its reader."""
        return np.repeat(edges, width[edges]), count_up(width[edges])

    edge, replica = per_replica(np.flatnonzero(~produced_per_batch & ~read_per_batch))
    add(first_row[tensor[edge]] + np.where(on_same_replicas[edge], replica, 0), numbering.first[reader[edge]] + replica)
    step = np.arange(numbering.count)[:, None]
    # One per micro-batch: from a copy, or from the op that runs once on its replica.
    edge = np.flatnonzero(read_per_batch)
    setup = np.where(on_same_replicas[edge], step % numbering.width[source[edge]], 0)
    add(
        first_row[tensor[edge]] + np.where(produced_per_batch[edge], step, setup),
        numbering.first[reader[edge]] + numbering.shift[:, None],
    )
    # An update reads tensors that are no gradients from all micro-batches of its replica.
    edge = np.flatnonzero(produced_per_batch & ~read_per_batch & ~to_sum)
    reader_replica = np.where(on_same_replicas[edge], step % width[edge], 0)
    add(first_row[tensor[edge]] + step + 0 * reader_replica, numbering.first[reader[edge]] + reader_replica)
    if len(numbering.tensors_to_sum):
        # Inputs of additions: the micro-batch's gradient, and the previous sum or gradient on the same replica.
        micro, number_of_sum = np.nonzero(numbering.additions >= 0)
        number = numbering.additions[micro, number_of_sum]
        earlier_batch = micro - numbering.sum_stride[number_of_sum]
        add(first_row[numbering.tensors_to_sum[number_of_sum]] + micro, number)
        earlier_sum = row_of_sum[earlier_batch, number_of_sum]
        add(
            np.where(earlier_sum >= 0, earlier_sum, first_row[numbering.tensors_to_sum[number_of_sum]] + earlier_batch),
            number,
        )
        edge, replica = per_replica(np.flatnonzero(to_sum))
        sum_of_tensor = np.empty(graph.tensor_count, dtype=np.int64)
        sum_of_tensor[numbering.tensors_to_sum] = np.arange(len(numbering.tensors_to_sum))
        at_sum = sum_of_tensor[tensor[edge]]
        sum_replica = np.where(on_same_replicas[edge], replica, 0)
        add(_last_row(numbering, first_row, row_of_sum, at_sum, sum_replica), numbering.first[reader[edge]] + replica)
    return np.concatenate(rows).astype(np.int64), np.concatenate(readers).astype(np.int64)


def _last_row(numbering: OpNumbering, first_row: Ints, row_of_sum: Ints, sum_number: Ints, replica: Ints) -> Ints:
    """Returns the row of the complete sum of summed tensor `sum_number` on a replica."""
    last = numbering.count - 1 - (numbering.count - 1 - replica) % numbering.sum_stride[sum_number]
    sums = row_of_sum[last, sum_number]
    return np.where(sums >= 0, sums, first_row[numbering.tensors_to_sum[sum_number]] + last)


def _ring_edges(
    graph: OpGraph, numbering: OpNumbering, first_row: Ints, row_of_sum: Ints, ring_row: int
) -> tuple[Ints, Ints, Ints]:
    """Returns rows and ops of the edges within rings, to them and from them, and producers for which only rings wait.

    The rings' tensors are the rows from `ring_row` on; those of the producers follow them.
    """
    rows, readers = [ring_row + numbering.rings.edge_tensor], [numbering.rings.edge_reader]
    producers: list[int] = []
    for ring in numbering.rings.rings:
        group_sums = np.flatnonzero(
            numbering.replica_group[graph.tensor_producer[numbering.tensors_to_sum]] == ring.group
        )
        updates = [
            op for op in numbering.update_ops.tolist() if _reads(graph, op, numbering.tensors_to_sum[group_sums])
        ]
        for k, (first, end) in enumerate(zip(ring.first, ring.end, strict=True)):
            row = _last_row(numbering, first_row, row_of_sum, group_sums, np.full(len(group_sums), k))
            if not len(group_sums):
                # Gradients are added in place, in any order, so the ring waits for all of this replica.
                replica_batches = np.arange(k, numbering.count, len(ring.first))
                last_ring_ops = (
                    numbering.first[ring.in_place_adders][None, :] + numbering.shift[replica_batches][:, None]
                ).ravel()
                row = ring_row + len(numbering.rings.producer) + len(producers) + np.arange(len(last_ring_ops))
                producers += last_ring_ops.tolist()
            waiting_updates = [numbering.first[op] + k for op in updates if numbering.replica_group[op] == ring.group]
            if k == 0:
                waiting_updates += [
                    numbering.first[op] + j
                    for op in updates
                    if numbering.replica_group[op] != ring.group
                    for j in range(numbering.width[op])
                ]
            rows += [row, np.full(len(waiting_updates), ring_row + end)]
            readers += [np.full(len(row), first), np.array(waiting_updates, dtype=np.int64)]
    return np.concatenate(rows), np.concatenate(readers), np.array(producers, dtype=np.int64)


def _reads(graph: OpGraph, op: int, tensors: Ints) -> bool:
    """Whether an op reads one of `tensors`."""
    pointer, inputs = graph.inputs
    return bool(np.isin(inputs[pointer[op] : pointer[op + 1]], tensors).any())
