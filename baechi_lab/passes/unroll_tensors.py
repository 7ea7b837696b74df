"""The tensors of an unrolled step and their readers (`unroll`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph import CONTROL_BYTES, OpGraph
from ..graph.kernels.csr import Ints
from ..graph.tensors import tensor_columns
from .unroll_layout import Layout, count_up


def unrolled_tensor_columns(graph: OpGraph, at: Layout) -> dict[str, Any]:
    """Returns producer, bytes, names and readers of all tensors, ordered by producer."""
    tensors, repeats = graph.tensor_count, at.repeats[graph.tensor_producer]
    copies = np.where(repeats, at.count, at.width[graph.tensor_producer])
    # Copy k of tensor t is row begin[t] + k, in no special order yet.
    first_row = np.concatenate([[0], np.cumsum(copies)])
    original_tensor = np.repeat(np.arange(tensors), copies)
    copy_number = np.arange(first_row[-1]) - first_row[original_tensor]
    producer = at.first[graph.tensor_producer[original_tensor]] + np.where(
        repeats[original_tensor], at.shift[copy_number % at.count], copy_number
    )
    # Each addition produces one tensor, in the rows after all copies; the tensors of rings follow.
    micro, tensor = np.nonzero(at.additions >= 0)
    row_of_sum = np.full(at.additions.shape, -1, dtype=np.int64)
    row_of_sum[micro, tensor] = first_row[-1] + np.arange(len(micro))
    producer = np.concatenate([producer, at.additions[micro, tensor], at.rings.producer])
    size = np.concatenate([graph.tensor_bytes[original_tensor], graph.tensor_bytes[at.summed[tensor]], at.rings.size])
    row, reader = _edges(graph, at, first_row, row_of_sum)
    rows, readers, makers = _ring_edges(graph, at, first_row, row_of_sum, first_row[-1] + len(micro))
    row, reader = np.concatenate([row, rows]), np.concatenate([reader, readers])
    producer = np.concatenate([producer, makers])
    size = np.concatenate([size, np.full(len(makers), CONTROL_BYTES)])
    labels = [graph.tensor_names[t] for t in original_tensor.tolist()]
    labels += ["0"] * len(micro) + [*at.rings.labels] + ["all-reduce"] * len(makers)
    return tensor_columns(producer, size, labels, row, reader, at.total)


def _edges(graph: OpGraph, at: Layout, first_row: Ints, row_of_sum: Ints) -> tuple[Ints, Ints]:
    """Returns (tensor row, reading op) of every edge of the micro-batch's graph, and of the sums."""
    tensor, reader = graph.edge_tensor.astype(np.int64), graph.consumers.astype(np.int64)
    source = graph.edge_source
    made_per_batch, read_per_batch = at.repeats[source], at.repeats[reader]
    summed = np.zeros(graph.tensor_count, dtype=np.bool_)
    summed[at.summed] = True
    to_sum = made_per_batch & at.updates[reader] & summed[tensor]
    together = (at.shares[source] == at.shares[reader]) & (at.shares[source] >= 0)
    width = at.width[reader]
    rows: list[Ints] = []
    readers: list[Ints] = []

    def add(row: Ints, op: Ints) -> None:
        rows.append(np.ravel(row))
        readers.append(np.ravel(op))

    def of_once(edges: Ints) -> tuple[Ints, Ints]:
        """Repeats every edge for each replica of its reader."""
        return np.repeat(edges, width[edges]), count_up(width[edges])

    edge, replica = of_once(np.flatnonzero(~made_per_batch & ~read_per_batch))
    add(first_row[tensor[edge]] + np.where(together[edge], replica, 0), at.first[reader[edge]] + replica)
    step = np.arange(at.count)[:, None]
    # One per micro-batch: from a copy, or from the op that runs once on its replica.
    edge = np.flatnonzero(read_per_batch)
    setup = np.where(together[edge], step % at.width[source[edge]], 0)
    add(
        first_row[tensor[edge]] + np.where(made_per_batch[edge], step, setup),
        at.first[reader[edge]] + at.shift[:, None],
    )
    # An update reads tensors that are no gradients from all micro-batches of its replica.
    edge = np.flatnonzero(made_per_batch & ~read_per_batch & ~to_sum)
    reader_replica = np.where(together[edge], step % width[edge], 0)
    add(first_row[tensor[edge]] + step + 0 * reader_replica, at.first[reader[edge]] + reader_replica)
    if len(at.summed):
        # Inputs of additions: the micro-batch's gradient, and the previous sum or gradient on the same replica.
        micro, number_of_sum = np.nonzero(at.additions >= 0)
        number = at.additions[micro, number_of_sum]
        before = micro - at.turn[number_of_sum]
        add(first_row[at.summed[number_of_sum]] + micro, number)
        earlier = row_of_sum[before, number_of_sum]
        add(np.where(earlier >= 0, earlier, first_row[at.summed[number_of_sum]] + before), number)
        edge, replica = of_once(np.flatnonzero(to_sum))
        place = np.empty(graph.tensor_count, dtype=np.int64)
        place[at.summed] = np.arange(len(at.summed))
        at_sum = place[tensor[edge]]
        sum_replica = np.where(together[edge], replica, 0)
        add(_last_row(at, first_row, row_of_sum, at_sum, sum_replica), at.first[reader[edge]] + replica)
    return np.concatenate(rows).astype(np.int64), np.concatenate(readers).astype(np.int64)


def _last_row(at: Layout, first_row: Ints, row_of_sum: Ints, sum_number: Ints, replica: Ints) -> Ints:
    """Returns the row of the complete sum of summed tensor `sum_number` on a replica."""
    last = at.count - 1 - (at.count - 1 - replica) % at.turn[sum_number]
    sums = row_of_sum[last, sum_number]
    return np.where(sums >= 0, sums, first_row[at.summed[sum_number]] + last)


def _ring_edges(
    graph: OpGraph, at: Layout, first_row: Ints, row_of_sum: Ints, ring_row: int
) -> tuple[Ints, Ints, Ints]:
    """Returns rows and ops of the edges within rings, to them and from them, and producers for which only rings wait.

    The rings' tensors are the rows from `ring_row` on; those of the producers follow them.
    """
    rows, readers = [ring_row + at.rings.edge_tensor], [at.rings.edge_reader]
    makers: list[int] = []
    for ring in at.rings.each:
        group_sums = np.flatnonzero(at.shares[graph.tensor_producer[at.summed]] == ring.group)
        updates = [o for o in at.update.tolist() if _reads(graph, o, at.summed[group_sums])]
        for k, (first, end) in enumerate(zip(ring.first, ring.end, strict=True)):
            row = _last_row(at, first_row, row_of_sum, group_sums, np.full(len(group_sums), k))
            if not len(group_sums):
                # Gradients are added in place, in any order, so the ring waits for all of this replica.
                replica_batches = np.arange(k, at.count, len(ring.first))
                ended = (at.first[ring.in_place_adders][None, :] + at.shift[replica_batches][:, None]).ravel()
                row = ring_row + len(at.rings.producer) + len(makers) + np.arange(len(ended))
                makers += ended.tolist()
            waiting_updates = [at.first[o] + k for o in updates if at.shares[o] == ring.group]
            if k == 0:
                waiting_updates += [
                    at.first[o] + j for o in updates if at.shares[o] != ring.group for j in range(at.width[o])
                ]
            rows += [row, np.full(len(waiting_updates), ring_row + end)]
            readers += [np.full(len(row), first), np.array(waiting_updates, dtype=np.int64)]
    return np.concatenate(rows), np.concatenate(readers), np.array(makers, dtype=np.int64)


def _reads(graph: OpGraph, op: int, tensors: Ints) -> bool:
    pointer, inputs = graph.inputs
    return bool(np.isin(inputs[pointer[op] : pointer[op + 1]], tensors).any())
