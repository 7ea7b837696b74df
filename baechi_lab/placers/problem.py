"""A graph on a cluster as arrays for compiled placers, with colocation groups, output bytes and mean transfer times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, OpGraph, allowed_devices, durations
from ..graph.cluster import COMMUNICATION_MODES
from ..graph.kernels.csr import Integers, grouped_sum, inverse, offsets


class Problem(NamedTuple):
    """A graph of n ops on a cluster of D devices, as arrays for compiled kernels.

    Every op belongs to one group: its colocation group, or a group of its own.

    Args:
        table: float64[n, D], durations in microseconds.
        allowed: bool[n, D].
        group: int32[n], the group of every op.
        group_size, member_ptr, members: int64, the ops of each group, in CSR form.
        promised_bytes: int64[groups], persistent bytes.
        reserve: int64[groups], largest temporary plus largest output (Jeon et al. 2020, section 4.2); 0 without reservation.
        output_bytes, temp: int64[n], bytes.
        limit: int64[D], bytes.
        producer, size_bytes: int32 and int64[tensors].
        consumer_ptr, consumers: the ops that read a tensor, in CSR form.
        output_ptr: int64[n + 1], the first tensor of each op.
        input_ptr, inputs: the tensors that an op reads, in CSR form.
        latency, per_byte: float64[D, D], of the links.
        comm: the index of the cluster's communication mode.
    """

    table: NDArray[np.float64]
    allowed: NDArray[np.bool_]
    group: NDArray[np.int32]
    group_size: NDArray[np.int64]
    member_ptr: NDArray[np.int64]
    members: NDArray[np.int64]
    promised_bytes: NDArray[np.int64]
    reserve: NDArray[np.int64]
    output_bytes: NDArray[np.int64]
    temp: NDArray[np.int64]
    limit: NDArray[np.int64]
    producer: NDArray[np.int32]
    size_bytes: NDArray[np.int64]
    consumer_ptr: NDArray[np.int64]
    consumers: NDArray[np.int32]
    output_ptr: NDArray[np.int64]
    input_ptr: NDArray[np.int64]
    inputs: NDArray[np.int32]
    latency: NDArray[np.float64]
    per_byte: NDArray[np.float64]
    comm: int


UNLIMITED = np.iinfo(np.int64).max // 4  # bytes; sums of a few stay within 64 bits


def groups_of(graph: OpGraph) -> NDArray[np.int32]:
    """Returns the group int32[n] of each op: its colocation group, or a group of its own; numbered by first member."""
    _, first, group = np.unique(graph.device_unit, return_index=True, return_inverse=True)
    return inverse(np.argsort(first, kind="stable")).astype(np.int32)[group.reshape(-1)]


def allowed_group_devices(graph: OpGraph, cluster: Cluster, group: Integers) -> NDArray[np.bool_]:
    """Returns bool[groups, devices]: the devices on which every op of a group may run; `group` is int[n]."""
    allowed = np.ones((int(group.max(initial=-1)) + 1, cluster.n), dtype=np.bool_)
    np.logical_and.at(allowed, group, allowed_devices(graph, cluster))
    return allowed


def every_assignment(allowed: NDArray[np.bool_], limit: int) -> Iterator[NDArray[np.int64]]:
    """Yields every device int64[groups] that `allowed` bool[groups, devices] permits; nothing if there are more than `limit`.

    >>> [assignment.tolist() for assignment in every_assignment(np.array([[True, True], [False, True]]), 4)]
    [[0, 1], [1, 1]]
    """
    if prod(allowed.sum(axis=1).tolist()) <= limit:  # of Python's integers, since floats would overflow
        for assignment in product(*(np.flatnonzero(row).tolist() for row in allowed)):
            yield np.array(assignment, dtype=np.int64)


def transfer_us(graph: OpGraph, cluster: Cluster) -> NDArray[np.float64]:
    """Returns float64[tensors]: the transfer time, the mean over all ordered pairs of devices (0 for one device)."""
    pairs = ~np.eye(cluster.n, dtype=bool)
    links = cluster.latency_us, cluster.us_per_byte
    latency, per_byte = (float(cost[pairs].mean()) if pairs.any() else 0.0 for cost in links)
    return np.asarray(latency + per_byte * graph.tensor_bytes.astype(np.float64))


def both_directions(
    source: Integers, target: Integers, weights: Sequence[NDArray[np.float64]], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[NDArray[np.float64]]]:
    """Returns the edges between `count` vertices in both directions, in CSR form; the weights of equal edges add up.

    >>> both_directions(np.array([0, 0]), np.array([1, 1]), [np.array([2.0, 3.0])], 2)[2][0].tolist()
    [5.0, 5.0]
    """
    a, b = source.astype(np.int64), target.astype(np.int64)
    unique, place = np.unique(np.concatenate([a * count + b, b * count + a]), return_inverse=True)
    place = place.reshape(-1)
    sums = [np.bincount(place, np.tile(weight, 2), len(unique)).astype(np.float64) for weight in weights]
    return offsets(unique // count, count), unique % count, sums


def devices_are_equal(graph: OpGraph, cluster: Cluster) -> bool:
    """Whether renumbering the devices keeps the length of every schedule (with copies sent in any order)."""
    kinds = {(d.kind, d.memory_bytes, d.speed) for d in cluster.devices}
    pairs = ~np.eye(cluster.n, dtype=bool)
    links = all(len(np.unique(cost[pairs])) <= 1 for cost in (cluster.latency_us, cluster.us_per_byte))
    return len(kinds) == 1 and links and bool(allowed_devices(graph, cluster).all())


def memory_may_run_out(graph: OpGraph, cluster: Cluster, micro_batches: int = 1) -> bool:
    """Whether some device cannot hold all ops and tensors at once, in a step of several micro-batches those of each."""
    # Additions of gradients have further outputs, at most one of the size of each tensor.
    copies = 2 * micro_batches if micro_batches > 1 else 1
    total_bytes = int(graph.persistent_bytes.sum()) + copies * int(graph.temp_bytes.sum() + graph.tensor_bytes.sum())
    return bool(np.any(cluster.memory_bytes < total_bytes))


def make_problem(graph: OpGraph, cluster: Cluster, *, memory_limits: bool = True, reservation: bool = False) -> Problem:
    """Returns the arrays of `graph` on `cluster`; `memory_limits=False` ignores memory, as classical placers do."""
    group = groups_of(graph)
    count = int(group.max(initial=-1)) + 1
    promised_bytes = grouped_sum(graph.persistent_bytes, group, count)
    largest_temp, largest_output = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    np.maximum.at(largest_temp, group, graph.temp_bytes)
    np.maximum.at(largest_output, group, graph.output_bytes)
    reserve = largest_temp + largest_output if reservation else np.zeros(count, dtype=np.int64)
    limit = cluster.memory_bytes if memory_limits else np.full(cluster.n, UNLIMITED)
    size, members = np.bincount(group, minlength=count), np.argsort(group, kind="stable")
    return Problem(
        durations(graph, cluster),
        allowed_devices(graph, cluster),
        group,
        size,
        offsets(group, count),
        members,
        promised_bytes,
        reserve,
        graph.output_bytes,
        graph.temp_bytes,
        limit,
        graph.tensor_producer,
        graph.tensor_bytes,
        graph.consumer_ptr,
        graph.consumers,
        graph.output_ptr,
        *graph.inputs,
        cluster.latency_us,
        cluster.us_per_byte,
        COMMUNICATION_MODES.index(cluster.comm),
    )
