"""The order in which one thread of TensorFlow's executor runs ops: what became ready last runs first.

Ops that become ready by an op go on top of a stack. Usually later ops of the graph are above earlier ones. A session may number
ops anew. At worst the op with the most ops behind it is on top: then all gradients of weights wait for those of inputs. Ops that
only pass on or describe a tensor run at once. A step starts with a stack of its constants and, below them, the other ops without
inputs, in an order that differs per session. Those at the bottom wait until nothing else is left, and so does what they lead to,
such as all updates. O(ops + edges log edges).

Source: `ExecutorState::ScheduleReady` of TensorFlow, and `Schedule` of Eigen's non-blocking thread pool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..graph import OpGraph
from ..graph.kernels.csr import inverse

_CONTROL = frozenset({"Const", "IdentityN", "Identity", "Merge", "NoOp", "Switch"})
_GRADIENT_STOPS = frozenset({"PreventGradient", "Snapshot", "StopGradient"})
_SHAPE_OPS = frozenset({"ExpandDims", "Rank", "Reshape", "Shape", "ShapeN", "Size", "Squeeze"})
INLINE = _CONTROL | _GRADIENT_STOPS | _SHAPE_OPS
"""Types of ops that a thread runs at once: those whose kernels are not expensive (`IsExpensive` in TensorFlow's headers)."""
_VARIABLE = "VarHandleOp"


def has_executor_order(graph: OpGraph) -> bool:
    """Whether `graph` is a step of TensorFlow, op by op."""
    return graph.group_of is None and _VARIABLE in graph.op_types


def executor_orders(graph: OpGraph) -> tuple[NDArray[np.int64], ...]:
    """Returns the position of every op, int64[n], in three orders.

    The step starts with the last ops without inputs, with the first ones, and with the last ones while that op is on top which
    has the longest path behind it.

    >>> graph = OpGraph.from_edges([1] * 5, [(0, 2, 8), (0, 3, 8), (2, 4, 8)])
    >>> [order.tolist() for order in executor_orders(graph)]    # 1, 0, 3, 2, 4; 0, 3, 2, 4, 1; and 1, 0, 2, 4, 3
    [[1, 0, 3, 2, 4], [0, 4, 2, 1, 3], [1, 0, 2, 4, 3]]
    """
    pointer, successor = (a.tolist() for a in graph.successors)
    inline = [kind in INLINE for kind in graph.op_types]
    missing_inputs = np.diff(graph.predecessors[0])
    sources = np.flatnonzero(missing_inputs == 0).tolist()
    constants, kernels = [op for op in sources[::-1] if inline[op]], [op for op in sources if not inline[op]]

    ops_behind = [0] * graph.n  # on the longest path
    for op in graph.order[::-1].tolist():
        ops_behind[op] = max((ops_behind[reader] + 1 for reader in successor[pointer[op] : pointer[op + 1]]), default=0)

    def run(stack: list[int], key: Callable[[int], tuple[int, int]] | None = None) -> NDArray[np.int64]:
        missing, at_once, order = missing_inputs.tolist(), deque[int](), list[int]()
        while at_once or stack:
            op = at_once.popleft() if at_once else stack.pop()
            order.append(op)
            for reader in sorted(successor[pointer[op] : pointer[op + 1]], key=key):
                missing[reader] -= 1
                if missing[reader] == 0:
                    (at_once if inline[reader] else stack).append(reader)
        return inverse(np.array(order, dtype=np.int64))

    last_first = [*kernels, *constants]
    deepest_on_top = run([*last_first], key=lambda op: (ops_behind[op], -op))
    return run(last_first), run([*kernels[::-1], *constants]), deepest_on_top
