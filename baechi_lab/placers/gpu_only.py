"""`gpu-only`: everything on one GPU, a strong baseline where the model fits (Mirhoseini et al. 2018, section 3, baselines).

What a GPU may not run goes to its fastest allowed device, as TensorFlow places such ops on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..graph import Cluster, OpGraph, Placement
from .base import Placer
from .cpu_only import place_on_kind


@dataclass(frozen=True)
class GpuOnly(Placer):
    """Everything on the fastest device of kind 'gpu'; what may not run there, on its fastest allowed device."""

    name: ClassVar[str] = "gpu-only"

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        return place_on_kind(graph, cluster, "gpu", self.name)
