"""`fifo`: by the time at which ops become ready (Mayer et al.'s baseline, there with random ties; here by op index)."""

from __future__ import annotations

from dataclasses import dataclass

from ...graph import Cluster, OpGraph, Placement
from ...params import Params
from .. import kernel
from .base import NO_COLUMN, NO_DEVICES, NO_POINTERS


@dataclass(frozen=True)
class Fifo(Params):
    """First ready, first run; ties by op index."""

    name = "fifo"

    def prepare(self, graph: OpGraph, cluster: Cluster, placement: Placement) -> kernel.Scheduler:
        return kernel.Scheduler(kernel.BY_READY_TIME, NO_COLUMN, NO_COLUMN, NO_POINTERS, NO_DEVICES, 0.0)
