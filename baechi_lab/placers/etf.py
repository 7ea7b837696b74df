"""Classical ETF, Earliest Task First: no memory limits.

Repeatedly start the op that can start earliest on the device where it can (Jeon et al. 2020, section 2.3 after Hwang, Chow,
Anger and Lee 1989, doi:10.1137/0218016). With uniform devices and parallel transfers the makespan is within
`2 + rho - 1/n` of the optimum under the SCT assumption. Complexity: see `earliest_start.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..graph import Cluster, OpGraph, Placement
from .base import Placer
from .list_scheduling.schedule import schedule


@dataclass(frozen=True)
class ETF(Placer):
    """Classical Earliest Task First, blind to memory (for teaching; `m-etf` is the one to use)."""

    name = "etf"
    uses_memory = False
    explain: bool = False

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        return schedule(graph, cluster, memory_limits=False, explain=self.explain)
