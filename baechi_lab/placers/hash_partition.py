"""`hash`: a random device per colocation group, with odds in proportion to the devices' capacity.

Idea (Mayer et al. 2017, section 3.1, doi:10.1145/3154842.3154843): spread the graph evenly without looking at it. A group's
draw is a hash of the seed and the name of its first op, so it does not depend on the rest of the graph; devices that are
not allowed or have no room left are excluded. O(groups x devices).

The paper's capacity is memory; `capacity="speed"` spreads work instead.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..checks import check_whole
from ..errors import UnknownNameError
from ..graph import Cluster, OpGraph, Placement
from ..graph.kernels.jit import has_few_entries, njit
from .base import Placer
from .memory.feasible import within_memory
from .partition import DeviceUsage, assign_unit, empty_usage, feasible, make_units

CAPACITIES = ("memory", "speed")


@dataclass(frozen=True)
class Hash(Placer):
    """A random device per group, odds by memory (or speed): blind to the graph (baseline of Mayer et al. 2017).

    Args:
        seed: of the random choices.
        capacity: what makes a device likelier: "memory" or "speed".
    """

    name = "hash"
    seed: int = 0
    capacity: str = "memory"

    def validate(self) -> None:
        check_whole("seed", self.seed, low=0)
        if self.capacity not in CAPACITIES:
            raise UnknownNameError.of("capacity", self.capacity, CAPACITIES)

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        return within_memory(graph, cluster, lambda limits, careful: self._plan(graph, limits))

    def _plan(self, graph: OpGraph, cluster: Cluster) -> Placement:
        units = make_units(graph, cluster)
        _, first = np.unique(units.group, return_index=True)
        # The name of a unit's first op gives a number in [0, 1).
        names = [graph.names[i] for i in first.tolist()]
        key = int(self.seed).to_bytes(16, "little")
        digests = b"".join([hashlib.blake2b(name.encode(), digest_size=8, key=key).digest() for name in names])
        draw = np.frombuffer(digests, dtype="<u8") / 2.0**64
        weight = units.pace if self.capacity == "speed" else cluster.memory_bytes.astype(np.float64)
        usage = empty_usage(units)
        spread_units(draw, weight, usage)
        return Placement(device=usage.unit_device[units.group])


@njit(cache=True, interpreted_if=has_few_entries)
def spread_units(draw: NDArray[np.float64], weight: NDArray[np.float64], usage: DeviceUsage) -> None:
    """Places each unit on the feasible device into whose share of the weights its draw falls."""
    devices = len(weight)
    mask = np.zeros(devices, np.bool_)
    for g in range(len(draw)):
        feasible(g, usage, mask)
        total, last = 0.0, -1
        for d in range(devices):
            if mask[d]:
                total += weight[d]
                last = d
        below = 0.0
        for d in range(devices):
            if mask[d]:
                below += weight[d]
                if draw[g] * total < below:
                    last = d
                    break
        assign_unit(g, last, usage)
