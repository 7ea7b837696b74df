"""Step times of many placements of one graph, in one compiled call that releases the interpreter lock: rewards of a policy.

Ops run first in, first out. A simulation follows memory only if some placement may exceed a device's memory.

Complexity: that of `evaluation.evaluate` per placement.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph
from ...graph.kernels.jit import njit
from .assignment import Assignment, Limits, positions
from .evaluate import evaluate, overflow
from .model import Model, make_model, memory_matters
from .work import Work, make_work


class Batch:
    """Evaluates placements of `graph` on `cluster`. One object serves one thread at a time.

    >>> from baechi_lab import Link
    >>> graph = OpGraph.from_edges([2e6, 3e6, 1e6], [(0, 2, 8), (1, 2, 8)])
    >>> batch = Batch(graph, Cluster.uniform(2, memory_bytes=100, link=Link(5e5, 0.0)))
    >>> batch.seconds(np.array([[0, 0, 0], [0, 1, 1]], dtype=np.int32)).tolist()
    [6.0, 4.0]
    """

    def __init__(self, graph: OpGraph, cluster: Cluster):
        self.model = make_model(graph, cluster)
        self.order = positions(None, graph.n)  # read by nobody, as ops run first in, first out
        self.work, self.limits = make_work(self.model), Limits(memory_matters(self.model), np.inf, 0.0)

    def for_another_thread(self) -> Batch:
        """Returns a copy for another thread, with its own scratch space."""
        batch = object.__new__(Batch)
        batch.__dict__.update(self.__dict__)
        batch.work = make_work(self.model)
        return batch

    def seconds(self, rows: NDArray[np.int32]) -> NDArray[np.float64]:
        """Returns the step times float64[s], in seconds, of `s` placements `rows` int32[s, n].

        A placement that exceeds a device's memory takes infinitely long.
        """
        result = np.empty(len(rows))
        _seconds(self.model, self.work, np.ascontiguousarray(rows, dtype=np.int32), *self.order, self.limits, result)
        return result


@njit(cache=True, nogil=True)
def _seconds(
    model: Model,
    work: Work,
    rows: NDArray[np.int32],
    position: NDArray[np.int32],
    at: NDArray[np.int32],
    limits: Limits,
    result: NDArray[np.float64],
) -> None:
    """Fill `result` as `Batch.seconds` returns it."""
    for k in range(len(rows)):
        time_us = evaluate(model, work, Assignment(rows[k], position, at, False), limits)
        result[k] = 1e-6 * time_us if not limits.track or overflow(model, work) == 0 else np.inf
