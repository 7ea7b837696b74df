"""`Named` ops of profiled PyTorch steps: each keeps a tensor alive for as long as a variable of the forward code holds it.

Such an op reads the tensor and waits, by a control dependency, for the last call before the variable ends. In a pipeline every
stage is a separate forward, and no variable lives longer than its stage, so the dependency would wrongly order the stages.
"""

from __future__ import annotations

import numpy as np

from ..graph import CONTROL_BYTES, OpGraph
from ..graph.kernels.csr import offsets
from ..graph.tensors import NAMED


def without_name_waits(graph: OpGraph) -> OpGraph:
    """Returns the graph without the control dependencies of `Named` ops; the given graph if it has none.

    >>> types = ["Linear", "Linear", "Named"]
    >>> graph = OpGraph.from_edges([1, 1, 0], [(0, 1, 8), (0, 2, 8), (1, 2, 4)], op_types=types)
    >>> without_name_waits(graph).edge_count
    2
    """
    is_name = np.array([kind == NAMED for kind in graph.op_types], dtype=np.bool_)
    if not is_name.any():
        return graph
    remaining = ~is_name[graph.consumers] | (graph.tensor_bytes[graph.edge_tensor] > CONTROL_BYTES)
    return graph.replace(
        consumer_ptr=offsets(graph.edge_tensor[remaining], graph.tensor_count), consumers=graph.consumers[remaining]
    )
