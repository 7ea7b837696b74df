"""`critical-path`: the whole critical path on the fastest device, everything else where the work is done soonest.

Idea (Mayer et al. 2017, section 3.2.2, doi:10.1145/3154842.3154843): the longest path bounds the step, so it should pay for no
transfer and run on the fastest device. A path that no device can hold is divided among the fastest ones, from its
source on. Every other unit k goes, by total rank, to the device i with the least

    sum of durations already on i + duration of k on i                                            (equation 7).

Colocation groups move as one, so a group with one member on the path follows it. The path is the longest in
computation; `communication=True` counts mean transfers as well.

Deviation: where several paths are equally long, each further one goes to the next fastest device, since beside each other
they run in parallel. The paper has one critical path: `paths=1`. O(paths x (ops + edges) + groups x devices).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..checks import check_whole
from ..graph import Cluster, OpGraph, Placement
from ..graph.kernels.jit import has_few_entries, njit
from ..simulator.paths import heads_and_tails
from ..simulator.ranks import longest_path, rank_costs
from .base import Placer
from .memory.feasible import within_memory
from .partition import DeviceUsage, Units, assign_unit, emptiest, empty_usage, feasible, make_units, units_by_rank

TIE = 1e-12
"""Paths are equally long when they differ by less than this share."""


@dataclass(frozen=True)
class CriticalPath(Placer):
    """The critical path whole on the fastest device, the rest by balanced work (Mayer et al. 2017).

    `paths`: how many equally long critical paths get a device of their own (None: as many as there are devices).
    `communication`: transfers count in the length of a path, too.
    """

    name = "critical-path"
    paths: int | None = None
    communication: bool = False

    def validate(self) -> None:
        if self.paths is not None:
            check_whole("paths", self.paths, also=", or None")

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        return within_memory(graph, cluster, lambda limits, careful: self.first_plan(graph, limits))

    def first_plan(self, graph: OpGraph, cluster: Cluster) -> Placement:
        """Returns the placement before it is simulated or repaired."""
        units = make_units(graph, cluster)
        usage, load = empty_usage(units), np.zeros(cluster.n)
        max_paths = cluster.n if self.paths is None else self.paths
        path_count = 0
        for path_count, path in enumerate(self.longest_paths(graph, cluster, units, usage.unit_device, max_paths), 1):
            for g, d in _path_devices(path, units, path_count - 1, usage):
                assign_unit(g, d, usage)
                load[d] += units.cost[g, d]
        _balance_work(units_by_rank(units), units.cost, load, usage)
        return Placement(device=usage.unit_device[units.group], info={"critical_paths": path_count})

    def longest_paths(
        self, graph: OpGraph, cluster: Cluster, units: Units, unit_device: NDArray[np.int32], max_paths: int
    ) -> Iterator[NDArray[np.int32]]:
        """Yields the units of each critical path in order, without those placed already; `unit_device` is read between paths."""
        weight, edge = rank_costs(graph, cluster if self.communication else None, self.communication)
        head, tail = heads_and_tails(graph, weight, edge)
        length = head + weight + tail
        critical = length >= length.max(initial=0.0) * (1 - TIE)
        for _ in range(max_paths):
            path = longest_path(graph, weight, edge, critical & (unit_device[units.group] < 0))
            if len(path) == 0:
                return
            member = units.group[path]
            yield member[np.sort(np.unique(member, return_index=True)[1])]


def _path_devices(path: NDArray[np.int32], units: Units, number: int, usage: DeviceUsage) -> list[tuple[int, int]]:
    """Returns (unit, device) along a path: the first that holds all of it, from the `number`-th fastest device on."""
    fastest = np.lexsort((np.arange(len(units.limit)), units.cost[path].sum(axis=0), -units.pace)).tolist()
    first_device = number % len(fastest)
    devices = fastest[first_device:] + fastest[:first_device]
    persistent_bytes = int(units.persistent_bytes[path].sum())
    need = int(units.need[path].sum())
    allowed = np.all(units.allowed[path], axis=0)
    for d in devices:
        if (
            allowed[d]
            and usage.used_persistent[d] + persistent_bytes <= usage.limit[d]
            and usage.used[d] + need <= usage.limit[d]
        ):
            return [(int(g), d) for g in path.tolist()]
    trial = usage._replace(**{name: getattr(usage, name).copy() for name in ("used_persistent", "used", "unit_device")})
    # Fills the fastest devices one after the other along the path.
    assignments, mask = [], np.zeros(len(devices), dtype=np.bool_)
    for g in path.tolist():
        roomy = feasible(g, trial, mask)
        d = next(p for p in devices if mask[p]) if roomy else int(emptiest(mask, trial))
        assign_unit(g, d, trial)
        assignments.append((g, d))
    return assignments


@njit(cache=True, interpreted_if=has_few_entries)
def _balance_work(
    sequence: NDArray[np.int64], cost: NDArray[np.float64], load: NDArray[np.float64], usage: DeviceUsage
) -> None:
    """Equation 7 for every unit that is not placed: least load after the unit; ties by device index."""
    mask = np.zeros(len(load), np.bool_)
    for g in sequence:
        if usage.unit_device[g] >= 0:
            continue
        roomy = feasible(g, usage, mask)
        best = -1
        for d in range(len(load)):
            if roomy and mask[d] and (best < 0 or load[d] + cost[g, d] < load[best] + cost[g, best]):
                best = d
        if best < 0:
            best = emptiest(mask, usage)
        load[best] += cost[g, best]
        assign_unit(g, best, usage)
