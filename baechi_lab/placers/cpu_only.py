"""`cpu-only`: everything on the CPU, where large models fit that no accelerator holds.

Source: a baseline of Mirhoseini et al. 2018, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import InvalidInput
from ..graph import Cluster, OpGraph, Placement
from .base import Placer
from .single import different_devices, on_first_with_room


def place_on_kind(graph: OpGraph, cluster: Cluster, kind: str, name: str) -> Placement:
    """Places everything on the fastest device of `kind` with room; ops that may not run there, on their fastest allowed one.

    Raises `InvalidInput` if the cluster has no such device, `InfeasiblePlacement` if memory does not suffice.
    """
    matching_devices = [d for d, device in enumerate(cluster.devices) if device.family == kind]
    if not matching_devices:
        kinds = ", ".join(sorted({d.kind for d in cluster.devices}))
        raise InvalidInput(f"placer {name!r} needs a device of kind {kind!r}; the cluster has devices of kind {kinds}")
    candidates = [d for d in different_devices(graph, cluster) if d in matching_devices]
    return on_first_with_room(graph, cluster, candidates)


@dataclass(frozen=True)
class CpuOnly(Placer):
    """Everything on the fastest device of kind 'cpu'."""

    name: ClassVar[str] = "cpu-only"

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        return place_on_kind(graph, cluster, "cpu", self.name)
