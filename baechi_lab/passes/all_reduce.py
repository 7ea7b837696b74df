"""Ops and tensors of a ring all-reduce, which adds up gradients among the replicas of a pipeline stage.

The gradients of a stage, together G bytes, are cut into r parts. In each of 2 (r - 1) rounds every replica sends one part
to the next replica and receives one from the previous one. After r - 1 rounds each part is added up on one replica, after the
others on all. Each replica sends and receives 2 (r - 1) / r of G, in ordinary transfers; adding takes no time. (Patarasuk,
Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.) On equal links, if a device sends and receives at once, this takes
`ring_us`; a queue that sends and receives share takes twice as long.

Op (round s, replica k) sends the part of round s. It waits for the part that the previous replica sent in round s - 1, and for
its own op of that round. The last ops only receive; the updates of their replica wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..graph import CONTROL_BYTES, Cluster, OpGraph
from ..graph.kernels.csr import Ints
from .roles import SETUP, UPDATE, roles


def gradient_bytes(graph: OpGraph) -> NDArray[np.int64]:
    """Returns int64[n]: the bytes of the gradients that each op produces for the updates of parameters.

    In a graph without updates, such as PyTorch's layer graphs, they are the persistent bytes (the parameters) of ops with a
    backward op. They are 0 in a graph without backward ops.

    >>> gradient_bytes(OpGraph.from_edges([1, 2], [(0, 1, 4)], persistent_bytes=[100, 0], forward_of=[-1, 0])).tolist()
    [100, 0]
    """
    gradient_sizes = np.zeros(graph.n, dtype=np.int64)
    trained_ops = graph.forward_of[graph.forward_of >= 0]
    if not len(trained_ops):
        return gradient_sizes
    role = roles(graph)
    runs_per_micro_batch = (role != SETUP) & (role != UPDATE)
    edges = (role[graph.consumers] == UPDATE) & runs_per_micro_batch[graph.edge_source]
    read = np.unique(graph.edge_tensor[edges])
    read = read[graph.tensor_bytes[read] > CONTROL_BYTES]
    np.add.at(gradient_sizes, graph.tensor_producer[read], graph.tensor_bytes[read])
    if not len(read):
        gradient_sizes[trained_ops] = graph.persistent_bytes[trained_ops]
    return gradient_sizes


def ring_us(cluster: Cluster, devices: Sequence[int], size_bytes: float) -> float:
    """Returns the microseconds of a ring all-reduce among r `devices`: 2 (r - 1) parts of `size_bytes / r` on the slowest link.

    (Patarasuk, Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.)

    >>> from baechi_lab import Link
    >>> ring_us(Cluster.uniform(3, link=Link(1.0, 0.5)), (0, 1, 2), 30.0)    # 4 parts of 10 bytes: 4 * (1 + 5)
    24.0
    """
    if size_bytes <= 0 or len(devices) < 2:
        return 0.0
    ring = list(devices)
    pairs = np.ix_(ring, ring)
    is_link = ~np.eye(len(ring), dtype=bool)
    latency = float(cluster.latency_us[pairs][is_link].max())
    per_byte = float(cluster.us_per_byte[pairs][is_link].max())
    return 2.0 * (len(ring) - 1) * (latency + per_byte * size_bytes / len(ring))


ALL_REDUCE = "AllReduce"
"""Type of the ops between the transfers of a ring."""


class Ring(NamedTuple):
    """The ring of one group of replicas.

    Args:
        group: its position in the placement's `replicas`.
        first: per replica, its first op.
        end: per replica, the tensor that its updates wait for.
        in_place_adders: backward ops of the micro-batch's graph that add to gradients in place.
    """

    group: int
    first: list[int]
    end: list[int]
    in_place_adders: Ints


class Rings(NamedTuple):
    """The ops and tensors of all rings.

    Args:
        names: of the ops.
        origin: per op, its original op in the micro-batch's graph.
        replica: per op.
        producer: per tensor, the number of its op in the unrolled graph.
        size: bytes per tensor.
        labels: names of the tensors.
        edge_tensor, edge_reader: which tensor is read by which op.
        rings: one per group with gradients.
    """

    names: list[str]
    origin: Ints
    replica: Ints
    producer: Ints
    size: Ints
    labels: list[str]
    edge_tensor: Ints
    edge_reader: Ints
    rings: list[Ring]

    @property
    def ops(self) -> int:
        """The number of ops."""
        return len(self.names)


def make_rings(graph: OpGraph, group_of_op: Ints, replicas: Sequence[tuple[int, ...]], start: int) -> Rings:
    """Makes the rings of all groups with gradients; ops are numbered from `start`.

    `group_of_op` int64[n]: the group in `replicas` of each op's stage, or -1.
    """
    names: list[str] = []
    origin: list[int] = []
    replica: list[int] = []
    tensors: list[tuple[int, int, str]] = []
    edges: list[tuple[int, int]] = []
    rings: list[Ring] = []
    gradient_sizes = gradient_bytes(graph) if len(replicas) else np.zeros(graph.n, dtype=np.int64)
    op_names = set(graph.names)
    for g, group in enumerate(replicas):
        gradient_ops = np.flatnonzero((group_of_op == g) & (gradient_sizes > 0))
        if not len(gradient_ops):
            continue
        r, rounds, first = len(group), 2 * (len(group) - 1), start + len(names)
        # Even replicas come first: where one queue sends and receives, every other link is used first.
        replica_order = [*range(0, r, 2), *range(1, r, 2)]
        op_of = {(s, k): first + s * r + place for s in range(rounds + 1) for place, k in enumerate(replica_order)}
        label = f"all-reduce{g}"
        while any(name.startswith(label) for name in op_names):
            label = f"_{label}"
        part_bytes = -(-int(gradient_sizes[gradient_ops].sum()) // r)
        end = [0] * r
        for (s, k), op in op_of.items():
            names.append(f"{label}/round{s}/replica{k}")
            origin.append(int(gradient_ops[0]))
            replica.append(k)
            end[k] = len(tensors)
            tensors.append((op, CONTROL_BYTES, "order"))
            if s < rounds:
                edges.append((len(tensors) - 1, op_of[s + 1, k]))
                edges.append((len(tensors), op_of[s + 1, (k + 1) % r]))
                tensors.append((op, part_bytes, "part"))
        # Backward ops add in place to gradients that no op reads.
        adders: Ints = np.flatnonzero((graph.forward_of >= 0) & np.isin(graph.forward_of, gradient_ops))
        rings.append(Ring(g, [op_of[0, k] for k in range(r)], end, adders))
    column: Any = np.array(tensors, dtype=object).reshape(-1, 3)
    pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
    return Rings(
        names=names,
        origin=np.array(origin, dtype=np.int64),
        replica=np.array(replica, dtype=np.int64),
        producer=column[:, 0].astype(np.int64),
        size=column[:, 1].astype(np.int64),
        labels=column[:, 2].tolist(),
        edge_tensor=pairs[:, 0],
        edge_reader=pairs[:, 1],
        rings=rings,
    )
