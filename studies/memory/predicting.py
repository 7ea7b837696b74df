"""The simulated peak of a placement, in the orders in which an executor may run it.

TensorFlow's executor runs some ready ops first in, first out and others last in, first out. What is held at once depends
on it. So a step is simulated in both orders, and the larger peak of each device counts. PyTorch's CPU devices are one process,
which calls one layer after another, in the order of the code, whichever device it is on.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from baechi_lab.graph import CONTROL_BYTES, Cluster, OpGraph, Placement, Timeline
from baechi_lab.graph.tensors import TensorTable
from baechi_lab.memory.code_order import code_order
from baechi_lab.simulator import simulate


def last_in_first_out(graph: OpGraph) -> NDArray[np.int64]:
    """int64[n]: the place of each op where the op that became ready last runs first.

    >>> graph = OpGraph.from_edges([1, 1, 1, 1], [(0, 2, 1), (1, 3, 1)])
    >>> last_in_first_out(graph).tolist()  # 1, 3, 0, 2
    [2, 0, 3, 1]
    """
    pointer, successor = (a.tolist() for a in graph.successors)
    missing = np.diff(graph.predecessors[0]).tolist()
    ready = [op for op in range(graph.n) if missing[op] == 0]
    place = np.zeros(graph.n, dtype=np.int64)
    for k in range(graph.n):
        op = ready.pop()
        place[op] = k
        for reader in successor[pointer[op] : pointer[op + 1]]:
            missing[reader] -= 1
            if missing[reader] == 0:
                ready.append(reader)
    return place


def in_both_orders(graph: OpGraph, cluster: Cluster, placement: Placement) -> tuple[Timeline, Timeline]:
    """Simulated first in, first out, and last in, first out."""
    plain = placement.on(graph).replace(order=None, priority=None)
    latest = plain.replace(order=last_in_first_out(graph))
    return simulate(graph, cluster, plain, "fifo"), simulate(graph, cluster, latest, "planned")


def one_after_another(graph: OpGraph) -> OpGraph:
    """The profile of a PyTorch step with control dependencies that leave no order but that of the code.

    Autograd goes through the backward ops by their index, too. Parts of a tensor are there as soon as the tensor is.

    >>> graph = OpGraph.from_edges([1] * 5, [(0, 1, 30), (2, 3, 30), (1, 4, 1), (3, 4, 1)])    # two branches
    >>> alone = Cluster.uniform(1)
    >>> [int(simulate(g, alone, Placement(device=[0] * 5)).peak_bytes[0]) for g in (graph, one_after_another(graph))]
    [61, 40]
    """
    table = TensorTable()
    for tensor, producer in enumerate(graph.tensor_producer.tolist()):
        readers = graph.tensor_consumers(tensor).tolist()
        table.add(producer, str(tensor), int(graph.tensor_bytes[tensor]), readers)
    for op, following in pairwise(code_order(graph).tolist()):
        table.add(op, "next", CONTROL_BYTES, [following])
    return graph.replace(**table.columns())


def parts_at_peak(timeline: Timeline, device: int) -> tuple[int, ...]:
    """Persistent, outputs, temporary and received bytes when a device held most; zeros where it held nothing."""
    return tuple(timeline.peak_parts(device).values())
