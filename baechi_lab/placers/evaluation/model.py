"""What a search simulates, as arrays: `Model` stays the same throughout, `Work` is scratch space."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, allowed_devices, durations
from ...graph.cluster import COMMUNICATION_MODES
from ...simulator.bounds.merge import merge_problem, paid_heads
from ...simulator.paths import heads_and_tails
from ..problem import output_bytes
from .marks import FLYING, MARKS
from .ready import bit_words

Arrays = TypeVar("Arrays", bound=tuple[Any, ...])

LINES, PAGE = 256, 4096
"""Bytes kept free around small arrays, some lines of a processor's cache; and how large an array is left where it is."""


class Model(NamedTuple):
    """What stays the same: `table` float64[n, D] durations, `tail` float64[n] the least time from the end of an op to the
    end of the step, `edge_ptr`, `edge_to`, `edge_tensor` (op -> its tensors' consumers, by tensor), `ready_to` (the same
    consumers by op index), `sources` (ops without inputs), the inputs of each op in CSR form (all int32), bytes (int64;
    `unread` those that nobody reads) and links."""

    table: Any
    tail: Any
    degree: Any
    sources: Any
    edge_ptr: Any
    edge_to: Any
    edge_tensor: Any
    ready_to: Any
    input_ptr: Any
    inputs: Any
    producer: Any
    size_bytes: Any
    made: Any
    unread: Any
    temp: Any
    persistent: Any
    limit: Any
    latency: Any
    per_byte: Any
    comm: int


class Work(NamedTuple):
    """Scratch space, allocated once per search; after `evaluate`, `start` float64[n] and `peak` int64[D] are results.

    `missing` int32[n]: inputs that an op still lacks; `line` int32[D (n + 1)]: ready ops by device; `slot_*`: transfers;
    `base_start` float64[n] and `mark_*`: the candidate to continue from (`evaluation.marks`).
    """

    missing: Any
    bits: Any
    line: Any
    head: Any
    tail: Any
    fresh: Any
    fresh_at: Any
    running: Any
    busy_until: Any
    queue_out: Any
    queue_in: Any
    list_head: Any
    list_tail: Any
    alloc_next: Any
    slot_end: Any
    slot_receive: Any
    slot_info: Any
    heap: Any
    readers: Any
    local_left: Any
    sends_left: Any
    copy_left: Any
    level: Any
    peak: Any
    start: Any
    moved: Any
    total: Any
    spent: Any
    base_start: Any
    mark_time: Any
    mark_ints: Any
    mark_floats: Any
    mark_bank: Any


def make_model(graph: OpGraph, cluster: Cluster, table: Any = None) -> Model:
    """The arrays of `graph` on `cluster`; `table` float64[n, D] replaces the durations (samples of a profile error)."""
    costs = durations(graph, cluster) if table is None else np.asarray(table, dtype=np.float64)
    ints = lambda a: np.array(a, dtype=np.int32)  # noqa: E731
    own = lambda a: np.array(a, order="C")  # noqa: E731  (writable: one compiled signature for all callers)
    unread = np.zeros(graph.n, dtype=np.int64)
    lonely = np.diff(graph.consumer_ptr) == 0
    np.add.at(unread, graph.tensor_producer[lonely], graph.tensor_bytes[lonely])
    degree = np.diff(graph.inputs[0])
    return Model(
        own(costs), _tails(graph, cluster, costs, exact=table is None), ints(degree), ints(np.flatnonzero(degree == 0)),
        edge_ptr=ints(graph.consumer_ptr[graph.output_ptr]), edge_to=ints(graph.consumers),
        edge_tensor=ints(graph.edge_tensor), ready_to=ints(graph.consumers[np.lexsort((graph.consumers, graph.edge_source))]),
        input_ptr=ints(graph.inputs[0]), inputs=ints(graph.inputs[1]),
        producer=ints(graph.tensor_producer), size_bytes=own(graph.tensor_bytes), made=output_bytes(graph), unread=unread,
        temp=own(graph.temp_bytes), persistent=own(graph.persistent_bytes), limit=own(cluster.memory_bytes),
        latency=own(cluster.latency_us), per_byte=own(cluster.us_per_byte), comm=COMMUNICATION_MODES.index(cluster.comm),
    )  # fmt: skip


def _tails(graph: OpGraph, cluster: Cluster, costs: NDArray[np.float64], exact: bool) -> NDArray[np.float64]:
    """What must follow each op at least: consumers are local or paid for, or, where links may vary, transfers are free.

    A little less than computed, so that rounding never drops a candidate that meets a threshold exactly.
    """
    if exact and cluster.n > 1 and graph.n:
        tail = paid_heads(merge_problem(graph, cluster, reach=False))[1]
    else:
        tail = heads_and_tails(graph, np.where(allowed_devices(graph, cluster), costs, np.inf).min(axis=1))[1]
    return tail * (1.0 - 1e-12)


def apart(arrays: Arrays) -> Arrays:
    """A named tuple of arrays with the small ones moved away from all others: threads that write to neighbouring memory
    wait for each other, although each has its own arrays.
    """

    def moved(a: NDArray[Any]) -> NDArray[Any]:
        if a.nbytes > PAGE:
            return a
        around = LINES // a.itemsize
        mine = np.zeros(a.size + 2 * around, a.dtype)[around : around + a.size].reshape(a.shape)
        mine[...] = a
        return mine

    return type(arrays)(*(moved(a) for a in arrays))


def make_work(model: Model) -> Work:
    """Scratch space for `model`."""
    n, devices = len(model.degree), len(model.limit)
    tensors = len(model.producer)
    slots = int(np.minimum(np.bincount(model.edge_tensor, minlength=tensors), devices - 1).sum()) + 1
    ints = lambda size: np.zeros(size, np.int32)  # noqa: E731
    work = Work(
        ints(n), np.zeros(devices * bit_words(n)[1], np.uint64), ints(devices * (n + 1)), ints(devices),
        ints(devices), ints(devices), np.zeros(devices),
        ints(devices), np.zeros(devices), np.zeros(devices), np.zeros(devices), ints(devices), ints(devices),
        ints(devices), np.zeros(slots), np.zeros(slots), ints(3 * slots), ints(slots),
        ints(devices), ints(tensors), ints(tensors), ints(tensors * devices),
        np.zeros(devices, np.int64), np.zeros(devices, np.int64), np.zeros(n), np.zeros(1), np.zeros(devices), np.zeros(devices),
        np.zeros(n), np.full((2, MARKS), np.inf), np.zeros((2, MARKS, 2 * n + 4 * devices + 4 * FLYING + 4), np.int32),
        np.zeros((2, MARKS, 4 * devices + FLYING + 1)), ints(MARKS),
    )  # fmt: skip
    return apart(work)


def memory_matters(model: Model) -> bool:
    """Whether any placement could exceed a limit: everything at once, all tensors copied, is more than a device has."""
    most = int(model.persistent.sum() + model.temp.sum() + model.size_bytes.sum())
    return bool(np.any(model.limit < most))


def positions(rank: NDArray[Any] | None, n: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Position int32[n] of each op by rank (ties by index), and its inverse; the index order for None."""
    at = np.arange(n, dtype=np.int32) if rank is None else np.argsort(rank, kind="stable").astype(np.int32)
    position = np.empty(n, dtype=np.int32)
    position[at] = np.arange(n, dtype=np.int32)
    return position, at
