"""`critical-path`: the whole critical path on the fastest device, everything else where the work is done soonest.

Idea (paper C section 3.2.2, doi:10.1145/3154842.3154843): the longest path bounds the step, so it should pay for no
transfer and run on the fastest device. Where several paths are equally long, each further one goes to the next fastest
device: beside each other they run in parallel. A path that no device can hold is divided among the fastest ones, from its
source on. Every other unit k goes, by total rank, to the device i with the least

    sum of durations already on i + duration of k on i                                            (equation 7).

Colocation groups move as one, so a group with one member on the path follows it. The path is the longest in
computation; `communication=True` counts mean transfers as well. O(paths x (ops + edges) + groups x devices).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import check_whole
from ..graph import Cluster, OpGraph, Placement
from ..graph.kernels.jit import njit
from ..simulator.paths import heads_and_tails
from ..simulator.ranks import longest_path, rank_costs
from .base import Placer
from .memory.feasible import within_memory
from .partition import Units, by_rank, emptiest, feasible, make_units, put

TIE = 1e-12
"""Paths are equally long when they differ by less than this share."""


@dataclass(frozen=True)
class CriticalPath(Placer):
    """The critical path whole on the fastest device, the rest by balanced work (paper C).

    `paths`: how many equally long critical paths get a device of their own (None: as many as there are devices).
    """

    name = "critical-path"
    paths: int | None = None
    communication: bool = False

    def validate(self) -> None:
        if self.paths is not None:
            check_whole("paths", self.paths, also=", or None")

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        return within_memory(graph, cluster, lambda limits, careful: self._plan(graph, limits))

    def _plan(self, graph: OpGraph, cluster: Cluster) -> Placement:
        units = make_units(graph, cluster)
        home = np.full(len(units.need), -1, dtype=np.int32)
        load = np.zeros(cluster.n)
        used_held, used = np.zeros(cluster.n, dtype=np.int64), np.zeros(cluster.n, dtype=np.int64)
        most = cluster.n if self.paths is None else self.paths
        found = 0
        for found, path in enumerate(self._paths(graph, cluster, units, home, most), 1):
            for g, d in _path_devices(path, units, found - 1, used_held, used):
                put(g, d, units.held, units.need, used_held, used, home)
                load[d] += units.cost[g, d]
        _balance(
            by_rank(units), units.cost, load, units.able, units.held, units.need, units.limit, used_held, used, home
        )  # fmt: skip
        return Placement(device=home[units.group], info={"critical_paths": found})

    def _paths(
        self, graph: OpGraph, cluster: Cluster, units: Units, home: NDArray[np.int32], most: int
    ) -> Iterator[NDArray[np.int64]]:
        """Units of each critical path in order, those placed already left out; `home` is read between paths."""
        weight, edge = rank_costs(graph, cluster if self.communication else None, self.communication)
        head, tail = heads_and_tails(graph, weight, edge)
        length = head + weight + tail
        critical = length >= length.max(initial=0.0) * (1 - TIE)
        for _ in range(most):
            path = longest_path(graph, weight, edge, critical & (home[units.group] < 0))
            if len(path) == 0:
                return
            member = units.group[path]
            yield member[np.sort(np.unique(member, return_index=True)[1])]


def _path_devices(
    path: NDArray[np.int64], units: Units, number: int, used_held: NDArray[Any], used: NDArray[Any]
) -> list[tuple[int, int]]:
    """(unit, device) along a path: the fastest device that can hold all, path `number` starting with the next fastest."""
    fastest = np.lexsort((np.arange(len(units.limit)), units.cost[path].sum(axis=0), -units.pace)).tolist()
    turn = number % len(fastest)
    devices = fastest[turn:] + fastest[:turn]
    held, need, able = int(units.held[path].sum()), int(units.need[path].sum()), units.able[path].all(axis=0)
    for d in devices:
        if able[d] and used_held[d] + held <= units.limit[d] and used[d] + need <= units.limit[d]:
            return [(int(g), d) for g in path.tolist()]
    return _divided(path, units, devices, used_held.copy(), used.copy())


def _divided(
    path: NDArray[np.int64], units: Units, devices: list[int], used_held: NDArray[Any], used: NDArray[Any]
) -> list[tuple[int, int]]:
    """Fill the fastest devices one after the other along the path."""
    found, mask = [], np.zeros(len(devices), dtype=np.bool_)
    for g in path.tolist():
        roomy = feasible(g, units.able, units.held, units.need, used_held, used, units.limit, mask)
        d = next(p for p in devices if mask[p]) if roomy else int(emptiest(mask, used, units.limit))
        used_held[d] += units.held[g]
        used[d] += units.need[g]
        found.append((g, d))
    return found


@njit(cache=True)
def _balance(
    sequence: Any,
    cost: Any,
    load: Any,
    able: Any,
    held: Any,
    need: Any,
    limit: Any,
    used_held: Any,
    used: Any,
    home: Any,
) -> None:
    """Equation 7 for every unit that is not placed: least load when it is done; ties by device index."""
    mask = np.zeros(len(limit), np.bool_)
    for g in sequence:
        if home[g] >= 0:
            continue
        roomy = feasible(g, able, held, need, used_held, used, limit, mask)
        best = -1
        for d in range(len(limit)):
            if roomy and mask[d] and (best < 0 or load[d] + cost[g, d] < load[best] + cost[g, best]):
                best = d
        if best < 0:
            best = emptiest(mask, used, limit)
        load[best] += cost[g, best]
        put(g, best, held, need, used_held, used, home)
