"""The order in which PyTorch runs a training step: that of the code, whichever device an op is on."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph
from ..graph.tensors import PARTS_TYPE, RECOMPUTED


def has_code_order(graph: OpGraph) -> bool:
    """Whether `graph` is one step of layers in code order, in which the backward op of `x` is named `x/backward`.

    >>> graph = OpGraph.from_edges([1, 1], [(0, 1, 8)], names=["x", "x/backward"], forward_of=[-1, 0])
    >>> has_code_order(graph), has_code_order(graph.replace(names=("x", "gradients/x")))
    (True, False)
    """
    if graph.micro_batch is not None:
        return False
    backward = np.flatnonzero(graph.forward_of >= 0).tolist()
    return any(graph.names[op] == f"{graph.names[graph.forward_of[op]]}/backward" for op in backward)


def code_order(graph: OpGraph) -> NDArray[np.int64]:
    """Returns int64[n], PyTorch's order: the first ready op by index, and ops that take no time before all others.

    Autograd also runs backward ops by index. Parts of a tensor are available as soon as the tensor is. A checkpointed region is
    recomputed as soon as it has a gradient.

    >>> graph = OpGraph.from_edges([1] * 5, [(0, 1, 30), (2, 3, 30), (1, 4, 1), (3, 4, 1)])    # two branches
    >>> code_order(graph).tolist()
    [0, 1, 2, 3, 4]
    """
    pointer, successor = (a.tolist() for a in graph.successors)
    missing = np.diff(graph.predecessors[0]).tolist()
    rank = [(kind not in (PARTS_TYPE, RECOMPUTED), op) for op, kind in enumerate(graph.op_types)]
    ready = [rank[op] for op in range(graph.n) if missing[op] == 0]
    heapify(ready)
    order: list[int] = []
    while ready:
        order.append(heappop(ready)[1])
        for reader in successor[pointer[order[-1]] : pointer[order[-1] + 1]]:
            missing[reader] -= 1
            if missing[reader] == 0:
                heappush(ready, rank[reader])
    return np.array(order, dtype=np.int64)
