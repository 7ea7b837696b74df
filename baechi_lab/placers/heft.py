"""`heft`: Heterogeneous Earliest Finish Time, with Mayer et al.'s changes for feasibility and collocation.

Idea (Topcuoglu, Hariri, Wu 2002, doi:10.1109/71.993206): take the ops by upward rank, with mean durations and mean transfers.
Each goes to the device on which it finishes first, into a gap between earlier ops if it fits. O((ops + edges) x devices) and the
gaps visited.

Mayer et al. 2017, section 5.1 (doi:10.1145/3154842.3154843), change two things. Only devices with room for the op count. The
first op of a colocation group places the whole group, and its other members get their time when their turn comes.

It is one setting of the scheduler in `parametric.py`. The plan assumes that transfers never wait.
`info["planned_makespan_us"]` is the step that it expects. The simulated step differs if transfers queue, or if a device that
idles in the plan has a ready op, which the simulator then runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..graph import Cluster, OpGraph, Placement
from .base import Placer
from .parametric import ListScheduler


@dataclass(frozen=True)
class HEFT(Placer):
    """Highest upward rank first, on the device where it finishes first, gaps included (Topcuoglu et al. 2002)."""

    name = "heft"

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        return ListScheduler.point("heft").assign(graph, cluster)
