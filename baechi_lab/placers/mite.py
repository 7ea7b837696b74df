"""`mite`: Memory, Importance, Traffic, Execution time: the device with the least product of the four.

Idea (Mayer et al. 2017, section 3.3.1, doi:10.1145/3154842.3154843): units are taken by total rank, so that those on long paths
choose first, and unit i goes to the device l with the least

    mem(l) x imp(i, l) x traffic(i, l) x execTime(i, l)                                           (equation 8),

mem: utilization of l; imp = 1 - rank(i) / max rank x speed(l) / max speed (equation 9); traffic: time to bring the inputs
that are placed already (equation 10; a unit's inputs from inside do not count); execTime: duration on l over the
largest on any device. O(groups log groups + (groups + edges) x devices).

If products are equal, most often 0 because some device needs no transfer, the product without traffic decides,
then the speed, then the device index; the paper does not say. Utilization counts the unit itself, as otherwise
every empty device would have the product 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, OpGraph, Placement
from ..graph.kernels.jit import has_few_entries, njit
from .base import Placer
from .memory.feasible import within_memory
from .partition import (
    DeviceUsage,
    Incoming,
    assign_unit,
    emptiest,
    empty_usage,
    feasible,
    incoming,
    make_units,
    traffic,
    units_by_rank,
)


@dataclass(frozen=True)
class Mite(Placer):
    """Least memory use x unimportance x traffic x execution time, long paths first (MITE: Mayer et al. 2017)."""

    name = "mite"

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        return within_memory(graph, cluster, lambda limits, careful: first_plan(graph, limits))


def first_plan(graph: OpGraph, cluster: Cluster) -> Placement:
    """Returns the placement before it is simulated or repaired."""
    units = make_units(graph, cluster)
    edges, usage = incoming(graph, cluster, units.group), empty_usage(units)
    importance = units.rank / max(units.rank.max(initial=0.0), 1e-300)
    _choose_devices(units_by_rank(units), units.cost, units.pace, importance, edges, usage)
    return Placement(device=usage.unit_device[units.group])


@njit(cache=True, interpreted_if=has_few_entries)
def _choose_devices(
    sequence: NDArray[np.int64],
    cost: NDArray[np.float64],
    pace: NDArray[np.float64],
    importance: NDArray[np.float64],
    edges: Incoming,
    usage: DeviceUsage,
) -> None:
    """Puts group after group on the device with the least product of memory, time and transfers, in place."""
    allowed, need, limit, used = usage.allowed, usage.need, usage.limit, usage.used
    devices = len(limit)
    mask, transfer_us = np.zeros(devices, np.bool_), np.zeros(devices)
    for g in sequence:
        some_device_fits = feasible(g, usage, mask)
        traffic(g, edges, usage.unit_device, transfer_us)
        slowest = 0.0
        for d in range(devices):
            if allowed[g, d]:
                slowest = max(slowest, cost[g, d])
        best, least, least_product = -1, np.inf, np.inf
        for d in range(devices):
            if not mask[d] or not some_device_fits:
                continue
            memory = (used[d] + need[g]) / limit[d] if limit[d] > 0 else 1.0
            time = cost[g, d] / slowest if slowest > 0 else 1.0
            product = memory * (1.0 - importance[g] * pace[d]) * time
            score = product * transfer_us[d]
            equal = best >= 0 and score == least
            if (
                best < 0
                or score < least
                or (equal and product < least_product)
                or (equal and product == least_product and pace[d] > pace[best])
            ):
                best, least, least_product = d, score, product
        if best < 0:
            best = emptiest(mask, usage)
        assign_unit(g, best, usage)
