"""`random`: a device per colocation group, drawn with equal odds: the floor that every learned placement must beat.

Each group draws among the devices that all of its members may run on (Mirhoseini et al.'s initial policy without its
networks). A draw whose simulation exceeds a memory limit is thrown away, at most `attempts` times; then the last one is
repaired. O(attempts x (groups + one simulation)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..checks import check_whole
from ..graph import Cluster, OpGraph, Placement
from ..simulator import makespan_and_peak
from .base import Placer
from .memory.feasible import within_memory
from .problem import allowed_group_devices, groups_of


@dataclass(frozen=True)
class Random(Placer):
    """A random allowed device for every colocation group (`seed=`), drawn again where memory does not suffice.

    Args:
        seed: of the random choices.
        attempts: how often it is drawn before devices that are too full are mended.
    """

    name: ClassVar[str] = "random"
    seed: int = 0
    attempts: int = 10

    def validate(self) -> None:
        for key, low in (("seed", 0), ("attempts", 1)):
            check_whole(key, getattr(self, key), low)

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        rng = np.random.default_rng(self.seed)
        group = groups_of(graph)
        allowed = allowed_group_devices(graph, cluster, group)
        for draw in range(1, self.attempts + 1):
            group_device = np.where(allowed, rng.random(allowed.shape), -1.0).argmax(axis=1)
            placement = Placement(device=group_device[group], info={"draws": draw})
            _, peak = makespan_and_peak(graph, cluster, placement)
            if np.all(peak <= cluster.memory_bytes):
                return placement
        return within_memory(graph, cluster, lambda limits, careful: placement)
