"""The costs that a kernel profile lacks, put into the simulator's inputs.

Sending and receiving take processor time from workers without transfer engines: LogGP's model (o on the processors, L and
G between them), expressed in a graph and a cluster, without a factor fitted to the answers. `with_messages` makes ops of
both ends of every message. They wait for their turn among the ops of their device, as they do in a worker of one thread,
and many tensors for one op can arrive before it is ready. `charged_graph` adds the ends to the ops that make and first
read a tensor, which leaves the graph as it is; `Link.overhead_us` says the same with one figure for both ends, so that a
cluster measured by `bl.measure_cluster` simulates it without a calibration.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...executors.tensorflow.calibration import Calibration
from ...graph import Cluster, OpGraph, Placement
from ...simulator import simulate


def charged_graph(graph: OpGraph, placement: Placement, calibration: Calibration) -> OpGraph:
    """`graph` with the runtime's overheads under this placement added to its durations.

    >>> from baechi_lab.graph import Link
    >>> free, a = Link(0.0, 0.0), Link(5.0, 0.5)
    >>> g = OpGraph.from_edges([10.0, 10.0], [(0, 1, 8)])
    >>> costs = Calibration(op_us=1.0, step_us=0.0, send=a, receive=Link(2.0, 0.0), wire=free, busy_share=1.0)
    >>> charged_graph(g, Placement(device=[0, 1]), costs).duration_us.tolist()  # 10 + 1 + 5 + 4, 10 + 1 + 2
    [20.0, 13.0]
    """
    device = placement.on(graph).device
    duration = graph.duration_us + calibration.op_us
    for tensor, reader in _messages(graph, device):
        size = int(graph.tensor_bytes[tensor])
        duration[graph.tensor_producer[tensor]] += calibration.send.cost_us(size)
        duration[reader] += calibration.receive.cost_us(size)
    return graph.replace(duration_us=np.maximum(duration, 0.0), duration_by_kind={})


def with_messages(graph: OpGraph, placement: Placement, calibration: Calibration) -> tuple[OpGraph, Placement]:
    """`graph` with an op that sends and an op that receives for every message under this placement, and where all are.

    Only times: nothing has bytes but what is on the wire.

    >>> from baechi_lab.graph import Link
    >>> free = Link(0.0, 0.0)
    >>> costs = Calibration(op_us=1.0, step_us=0.0, send=Link(5.0, 0.5), receive=Link(2.0, 0.0), wire=free, busy_share=1.0)
    >>> both, placed = with_messages(OpGraph.from_edges([10.0, 10.0], [(0, 1, 8)]), Placement(device=[0, 1]), costs)
    >>> both.duration_us.tolist(), placed.device.tolist()
    ([11.0, 11.0, 9.0, 2.0], [0, 1, 0, 1])
    """
    device = placement.on(graph).device.astype(np.int64)
    count = int(device.max(initial=0)) + 1
    crosses = device[graph.edge_source] != device[graph.consumers]
    message, of = np.unique(graph.edge_tensor[crosses] * count + device[graph.consumers[crosses]], return_inverse=True)
    tensor, target = message // count, message % count
    producer, size = graph.tensor_producer[tensor], graph.tensor_bytes[tensor]
    send, receive = graph.n + np.arange(len(message)), graph.n + len(message) + np.arange(len(message))
    ends = [link.latency_us + link.us_per_byte * size for link in (calibration.send, calibration.receive)]
    own = np.maximum(graph.duration_us + calibration.op_us, 0.0)
    edges = [
        (graph.edge_source[~crosses], graph.consumers[~crosses], 0), (producer, send, 0), (send, receive, size),
        (receive[of], graph.consumers[crosses], 0),
    ]  # fmt: skip
    rows = np.concatenate([np.stack(np.broadcast_arrays(*edge), axis=1) for edge in edges])
    both = OpGraph.from_edges(np.concatenate([own, *ends]), rows)
    return both, Placement(device=np.concatenate([device, device[producer], target]))


def predicted_us(graph: OpGraph, cluster: Cluster, placement: Placement, calibration: Calibration) -> float:
    """Simulated step time in microseconds with the runtime's overheads; wires carry messages independently.

    Ready ops run first in, first out: TensorFlow's executor knows nothing of an order that a placer planned.
    """
    there = cluster.replace(link=calibration.wire, comm="parallel")
    both, placed = with_messages(graph, placement, calibration)
    return simulate(both, there, placed, "fifo").makespan_us + calibration.step_us


def _messages(graph: OpGraph, device: NDArray[np.int32]) -> list[tuple[int, int]]:
    """(tensor, first op that reads it there) of every tensor that crosses devices, once per target device."""
    rank = graph.position
    first: dict[tuple[int, int], int] = {}
    rows = zip(graph.edge_tensor.tolist(), graph.edge_source.tolist(), graph.consumers.tolist(), strict=True)
    for tensor, source, reader in rows:
        if device[source] == device[reader]:
            continue
        key = (tensor, int(device[reader]))
        if key not in first or rank[reader] < rank[first[key]]:
            first[key] = reader
    return [(tensor, reader) for (tensor, _), reader in sorted(first.items())]
