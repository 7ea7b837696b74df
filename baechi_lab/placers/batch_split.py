"""`batch-split`: the ops of the highest total rank to the fastest device, the next batch to the next, and so on.

Idea (Mayer et al. 2017, section 3.2.1, doi:10.1145/3154842.3154843): ops on long paths matter most, and a total rank
(longest path through the op) says so without looking for the path itself. Units are taken by total rank, highest first, each
to the fastest device that has room; a batch ends where a device is full. O(groups log groups + groups x devices).

As in the paper only memory ends a batch: where one device can hold the whole graph, all of it goes to the fastest.
`batches="work"` ends a batch when the device has its share of the work, in proportion to its speed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import UnknownNameError
from ..graph import Cluster, OpGraph, Placement
from ..graph.kernels.jit import has_few_entries, njit
from .base import Placer
from .memory.feasible import within_memory
from .partition import DeviceUsage, assign_unit, emptiest, empty_usage, feasible, make_units, units_by_rank

BATCHES = ("memory", "work")


@dataclass(frozen=True)
class BatchSplit(Placer):
    """Highest total rank first, each to the fastest device with room (Mayer et al. 2017).

    Args:
        batches: what ends a batch: "memory" (the device is full) or "work" (it has its share).
    """

    name = "batch-split"
    batches: str = "memory"

    def validate(self) -> None:
        if self.batches not in BATCHES:
            raise UnknownNameError.of("kind of batches", self.batches, BATCHES)

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        return within_memory(graph, cluster, lambda limits, careful: self.first_plan(graph, limits))

    def first_plan(self, graph: OpGraph, cluster: Cluster) -> Placement:
        """Returns the placement before it is simulated or repaired."""
        units = make_units(graph, cluster)
        # A device that has worked for this long has its share: all devices together get the whole graph done in it.
        share = np.inf if self.batches == "memory" else units.cost.min(axis=1).sum() / max(units.pace.sum(), 1e-300)
        usage = empty_usage(units)
        _assign_batches(units_by_rank(units), units.cost, units.pace, share, usage)
        return Placement(device=usage.unit_device[units.group])


@njit(cache=True, interpreted_if=has_few_entries)
def _assign_batches(
    sequence: NDArray[np.int64], cost: NDArray[np.float64], pace: NDArray[np.float64], share: float, usage: DeviceUsage
) -> None:
    """Places each unit on the fastest feasible device (ties: faster for the whole graph, then device index)."""
    devices = len(pace)
    mask, load = np.zeros(devices, np.bool_), np.zeros(devices)
    for g in sequence:
        roomy = feasible(g, usage, mask)
        best = -1
        for d in range(devices):
            if not mask[d] or not roomy or load[d] >= share:
                continue
            if best < 0 or cost[g, d] < cost[g, best] or (cost[g, d] == cost[g, best] and pace[d] > pace[best]):
                best = d
        if best < 0:
            best = emptiest(mask, usage)
        load[best] += cost[g, best]
        assign_unit(g, best, usage)
