"""A graph on a cluster as arrays for the compiled evaluation; they do not change while candidates are evaluated."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, allowed_devices, durations
from ...graph.cluster import COMMUNICATION_MODES
from ...graph.kernels.csr import grouped_sum
from ...simulator.bounds.merge import merge_problem, paid_heads
from ...simulator.paths import heads_and_tails

SURELY = 1.0 - 1e-12
"""Factor for lower bounds of a candidate's time: rounding must not drop a candidate that meets a threshold exactly."""


class Model(NamedTuple):
    """A graph of n ops on D devices, as arrays for compiled kernels.

    Args:
        table: float64[n, D], durations.
        lane: int32[n], D for a collective, which runs on its device's communication lane; else 0.
        tail: float64[n], the least time from the end of an op to the end of the step.
        degree: int32[n], the number of inputs.
        sources: int32, the ops without inputs.
        edge_ptr, edge_to, edge_tensor: int32, the consumers of an op's tensors in CSR form, by tensor.
        ready_to: int32, the same consumers by op index.
        input_ptr, inputs: int32, the tensors that an op reads, in CSR form.
        producer, size_bytes: int32 and int64[tensors].
        output_bytes, unread: int64[n], bytes of all outputs, and of those that no op reads.
        temp, persistent: int64[n], bytes.
        limit: int64[D], bytes.
        latency, per_byte: float64[D, D], of the links.
        comm: the index of the cluster's communication mode.
    """

    table: NDArray[np.float64]
    lane: NDArray[np.int32]
    tail: NDArray[np.float64]
    degree: NDArray[np.int32]
    sources: NDArray[np.int32]
    edge_ptr: NDArray[np.int32]
    edge_to: NDArray[np.int32]
    edge_tensor: NDArray[np.int32]
    ready_to: NDArray[np.int32]
    input_ptr: NDArray[np.int32]
    inputs: NDArray[np.int32]
    producer: NDArray[np.int32]
    size_bytes: NDArray[np.int64]
    output_bytes: NDArray[np.int64]
    unread: NDArray[np.int64]
    temp: NDArray[np.int64]
    persistent: NDArray[np.int64]
    limit: NDArray[np.int64]
    latency: NDArray[np.float64]
    per_byte: NDArray[np.float64]
    comm: int


def make_model(graph: OpGraph, cluster: Cluster, table: object = None) -> Model:
    """Makes the arrays of `graph` on `cluster`; `table` float64[n, D] replaces the durations (samples of a profile error)."""
    costs = durations(graph, cluster) if table is None else np.asarray(table, dtype=np.float64)
    ints = lambda a: np.array(a, dtype=np.int32)  # noqa: E731
    writable_copy = lambda a: np.array(a, order="C")  # noqa: E731  (writable: one compiled signature for all callers)
    has_no_reader = np.diff(graph.consumer_ptr) == 0
    degree = np.diff(graph.inputs[0])
    return Model(
        writable_copy(costs),
        ints(cluster.n * graph.on_communication_lane),
        _tails(graph, cluster, costs, exact=table is None and not graph.on_communication_lane.any()),
        ints(degree),
        ints(np.flatnonzero(degree == 0)),
        edge_ptr=ints(graph.consumer_ptr[graph.output_ptr]),
        edge_to=ints(graph.consumers),
        edge_tensor=ints(graph.edge_tensor),
        ready_to=ints(graph.consumers[np.lexsort((graph.consumers, graph.edge_source))]),
        input_ptr=ints(graph.inputs[0]),
        inputs=ints(graph.inputs[1]),
        producer=ints(graph.tensor_producer),
        size_bytes=writable_copy(graph.tensor_bytes),
        output_bytes=writable_copy(graph.output_bytes),
        unread=grouped_sum(graph.tensor_bytes * has_no_reader, graph.tensor_producer, graph.n),
        temp=writable_copy(graph.temp_bytes),
        persistent=writable_copy(graph.persistent_bytes),
        limit=writable_copy(cluster.memory_bytes),
        latency=writable_copy(cluster.latency_us),
        per_byte=writable_copy(cluster.us_per_byte),
        comm=COMMUNICATION_MODES.index(cluster.comm),
    )


def _tails(graph: OpGraph, cluster: Cluster, costs: NDArray[np.float64], exact: bool) -> NDArray[np.float64]:
    """Returns float64[n]: the least time from the end of each op to the end of the step.

    With `exact`, a consumer is on the op's device or its transfer counts. Otherwise, because costs or links vary or some ops
    are collectives, transfers are free.
    """
    if exact and cluster.n > 1 and graph.n:
        tail = paid_heads(merge_problem(graph, cluster, reach=False))[1]
    else:
        tail = heads_and_tails(graph, np.where(allowed_devices(graph, cluster), costs, np.inf).min(axis=1))[1]
    return tail * SURELY


def memory_matters(model: Model) -> bool:
    """Whether some placement may exceed a limit: all ops and tensors at once, with all copies, exceed a device's memory."""
    most_bytes = int(model.persistent.sum() + model.temp.sum() + model.size_bytes.sum())
    return bool(np.any(model.limit < most_bytes))
