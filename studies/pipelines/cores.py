"""More processes than processor cores: the simulated step where some of them share one.

`LocalCluster` pins worker i to core i modulo the cores there are. Workers of one core take turns, which no simulator of
devices knows, so the cores are made the devices: each runs what all its workers would, and each worker's ops keep their order.
"""

from __future__ import annotations

import numpy as np

from baechi_lab.graph import Cluster, OpGraph, Placement, Timeline
from baechi_lab.simulator import simulate
from baechi_lab.simulator.pipelined_graph import make_pipelined_graph


def step_us_on_cores(
    graph: OpGraph, cluster: Cluster, placement: Placement, timeline: Timeline, micro_batches: int, cores: int
) -> float:
    """Microseconds of the pipelined step of `timeline` with so many cores for the cluster's devices.

    Tensors between workers of one core take no time but what their ends are charged.

    >>> from baechi_lab.graph import Link
    >>> graph = OpGraph.from_edges([2.0, 1.0, 3.0], [(0, 1, 8), (1, 2, 8)])
    >>> cluster, placed = Cluster.uniform(3, link=Link(0.0, 0.0)), Placement(device=[0, 1, 2])
    >>> line = simulate(graph, cluster, placed, micro_batches=2, schedule="gpipe")
    >>> line.makespan_us, step_us_on_cores(graph, cluster, placed, line, 2, cores=2)  # 0 twice before 2 twice
    (9.0, 10.0)
    """
    if cores >= cluster.n:
        return timeline.makespan_us
    pipelined_graph = make_pipelined_graph(graph, cluster, placement, micro_batches, timeline.schedule_lines)
    device = np.asarray(pipelined_graph.placement.device)
    start = np.zeros(pipelined_graph.graph.n)
    start[timeline.op] = timeline.start_us
    turn_edges = []
    for own_device in range(cluster.n):
        op = np.flatnonzero(device == own_device)
        op = op[np.lexsort((pipelined_graph.graph.position[op], start[op]))]
        turn_edges += [(a, b, 0) for a, b in zip(op[:-1].tolist(), op[1:].tolist(), strict=True)]
    edges = zip(
        pipelined_graph.graph.edge_source.tolist(),
        pipelined_graph.graph.consumers.tolist(),
        pipelined_graph.graph.tensor_bytes[pipelined_graph.graph.edge_tensor].tolist(),
        strict=True,
    )
    graph_on_cores = OpGraph.from_edges(pipelined_graph.graph.duration_us, [*edges, *turn_edges])
    cluster_of_cores = Cluster.uniform(cores, link=cluster.link_between(0, 1), comm=cluster.comm)
    return simulate(graph_on_cores, cluster_of_cores, Placement(device=device % cores), "fifo").makespan_us
