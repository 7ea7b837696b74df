"""`heft`: Heterogeneous Earliest Finish Time, with paper C's changes for feasibility and collocation.

Idea (Topcuoglu, Hariri, Wu 2002, doi:10.1109/71.993206): ops by upward rank (mean durations, mean transfers), each to the
device on which it finishes first, in a gap between earlier ops where it fits. Paper C section 5.1
(doi:10.1145/3154842.3154843): only feasible devices are looked at, and the first op of a colocation group places the
whole group, whose other members get their time when their turn comes. O((ops + edges) x devices) and the gaps visited.

It is one point of `parametric.py`. The plan assumes that transfers never wait; `info["planned_makespan_us"]` tells what
it expects, the simulation what comes of it: with queued transfers, or where a device that idles in the plan takes
a ready op (the simulator never idles while it has one), the two differ.
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
