"""Ops that stand for names: what a forward's code holds until it returns (`Named` ops of profiled PyTorch steps).

Such an op reads a tensor and waits, by a control dependency, for the last call before which the name goes. In a pipeline every
stage is a forward of its own, and no name lives longer than its stage: there the dependency would order the stages.
"""

from __future__ import annotations

import numpy as np

from ..graph import CONTROL_BYTES, OpGraph
from ..graph.kernels.csr import offsets

NAMED = "Named"
"""Type of these ops."""


def without_name_waits(graph: OpGraph) -> OpGraph:
    """The graph without the control dependencies of `Named` ops; the given one where it has none.

    >>> types = ["Linear", "Linear", "Named"]
    >>> graph = OpGraph.from_edges([1, 1, 0], [(0, 1, 8), (0, 2, 8), (1, 2, 4)], op_types=types)
    >>> without_name_waits(graph).edge_count
    2
    """
    named = np.array([kind == NAMED for kind in graph.op_types], dtype=np.bool_)
    if not named.any():
        return graph
    remaining = ~named[graph.consumers] | (graph.tensor_bytes[graph.edge_tensor] > CONTROL_BYTES)
    return graph.replace(
        consumer_ptr=offsets(graph.edge_tensor[remaining], graph.tensor_count), consumers=graph.consumers[remaining]
    )
