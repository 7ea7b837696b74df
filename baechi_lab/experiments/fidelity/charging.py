"""The costs that a kernel profile lacks, put into the simulator's inputs.

Sending and receiving take processor time from workers without transfer engines. So the overhead of each message is
added to the op that produces the tensor and, on each device that receives it, to the first op that reads it; the link
keeps only the wire. This is LogGP's model (o on the processors, L and G between them) expressed in a graph and a
cluster, without a factor fitted to the answers. `Link.overhead_us` says the same with one figure for both ends, so that a
cluster measured by `bl.measure_cluster` simulates it without a calibration; here the ends and their bytes are told apart.
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


def predicted_us(graph: OpGraph, cluster: Cluster, placement: Placement, calibration: Calibration) -> float:
    """Simulated step time in microseconds with the runtime's overheads; wires carry messages independently.

    Ready ops run first in, first out: TensorFlow's executor knows nothing of an order that a placer planned.
    """
    there = cluster.replace(link=calibration.wire, comm="parallel")
    charged = charged_graph(graph, placement, calibration)
    placed = placement.on(graph).replace(graph_key=charged.key)
    return simulate(charged, there, placed, "fifo").makespan_us + calibration.step_us


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
