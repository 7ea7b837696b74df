"""`planned`: by the order or the priorities that the placer planned."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import InvalidInput
from ...graph import Cluster, OpGraph, Placement
from ...params import Params
from .. import kernel
from .base import by_rank


@dataclass(frozen=True)
class Planned(Params):
    """The order or priorities that the placer planned."""

    name = "planned"

    def prepare(self, graph: OpGraph, cluster: Cluster, placement: Placement) -> kernel.Scheduler:
        if placement.rank is None:
            raise InvalidInput(
                f"scheduler 'planned' needs a placement with an order or priorities; {placement.placer!r} planned none"
            )
        return by_rank(placement.rank)
