"""The peak memory of running a whole graph on one device, exactly by the rules of docs/simulated-time.md."""

from __future__ import annotations

import numpy as np

from ..graph import OpGraph


def single_device_peak(graph: OpGraph) -> int:
    """Peak bytes when one device runs every op in topological order (smallest index first among the ready).

    Persistent bytes are held throughout; outputs and temporaries appear when their op starts; temporaries go when it
    ends, an output when its last reader has ended. O(ops + edges).

    >>> g = OpGraph.from_edges([1.0, 1.0, 1.0], [(0, 1, 10), (1, 2, 20)], persistent_bytes=[5, 0, 0])
    >>> single_device_peak(g)    # 5 + 10 + 20 while op 1 runs
    35
    """
    if graph.n == 0:
        return 0
    position = graph.position
    last = position[graph.tensor_producer].copy()
    np.maximum.at(last, graph.edge_tensor, position[graph.consumers])
    change = np.zeros(graph.n + 1, dtype=np.int64)
    np.add.at(change, position[graph.tensor_producer], graph.tensor_bytes)
    np.add.at(change, last + 1, -graph.tensor_bytes)
    held = np.cumsum(change[:-1]) + graph.temp_bytes[graph.order]
    return int(graph.persistent_bytes.sum() + held.max())
