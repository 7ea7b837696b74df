"""The base class of schedulers: an object that prepares the arrays by which the simulator's devices choose."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from ...graph import Cluster, OpGraph, Placement
from .. import kernel

NO_COLUMN = np.zeros(0)
NO_POINTERS = np.zeros(1, dtype=np.int64)
NO_DEVICES = np.zeros(0, dtype=np.int32)


@runtime_checkable
class SchedulerLike(Protocol):
    """Anything that prepares the kernel's `Scheduler` for a graph, cluster and placement."""

    def prepare(self, graph: OpGraph, cluster: Cluster, placement: Placement) -> kernel.Scheduler:
        """Returns the arrays by which devices choose."""


def by_rank(rank: object) -> kernel.Scheduler:
    """Runs the ready op with the lowest rank first; ties by op index."""
    column = np.ascontiguousarray(rank, dtype=np.float64)
    return kernel.Scheduler(kernel.BY_RANK, column, NO_COLUMN, NO_POINTERS, NO_DEVICES, 0.0)
