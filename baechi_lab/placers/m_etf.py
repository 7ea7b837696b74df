"""m-ETF: Earliest Task First under memory limits (Jeon et al. 2020, sections 2.3, 3.1, 3.4, 4.2; doi:10.1145/3419111.3421302).

The queue of (op, device) pairs in order of earliest start; a pair whose device lacks the memory is dropped. Placing the
first op of a colocation group places the group and promises its persistent bytes, so that a later member always
finds them. Waits in the communication queues are part of the earliest start.

Memory while planning is the exact timeline of the plan; `reservation=True` is Jeon et al.'s rule instead, which also
reserves the largest temporary and largest output of each group until the group has run.

Deviations: a group's dropped pairs are looked at again once the group has been promised that device; a plan whose
simulation exceeds a limit is repaired (`feasible.py`) instead of ending in an exception.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..graph import Cluster, OpGraph, Placement
from .base import Placer
from .list_scheduling.schedule import schedule
from .memory.feasible import within_memory


@dataclass(frozen=True)
class METF(Placer):
    """Earliest Task First under memory limits (Jeon et al. 2020): the op and device that can start earliest, if it fits.

    Args:
        reservation: keep room for the largest temporary and output of a colocation group too, until it has run.
        explain: keep a log of all decisions in `info["decisions"]`.
    """

    name = "m-etf"
    reservation: bool = False
    explain: bool = False

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        def attempt(limits: Cluster, careful: bool) -> Placement:
            return schedule(graph, limits, reservation=self.reservation or careful, explain=self.explain)

        return within_memory(graph, cluster, attempt)
