"""`pct`: Highest Path Computation Time first (Mayer et al. 2017, section 4.1, doi:10.1145/3154842.3154843).

Among the ready ops of a device the one with the longest way to the end of the step runs first. Equation 12:

    PCT(i) = max over successors j of (PCT(j) + trans(i, j)) + duration of i on its device,

where trans is 0 within a device and the link's cost (its latency included) between devices. Computed once per
placement in O(ops + edges).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...graph import Cluster, OpGraph, Placement, durations
from ...params import Params
from .. import kernel
from ..paths import tails
from .base import by_rank


def path_computation_time(graph: OpGraph, cluster: Cluster, placement: Placement) -> NDArray[np.float64]:
    """Returns float64[n]: equation 12, in microseconds.

    >>> from baechi_lab import Link
    >>> graph, cluster = OpGraph.from_edges([2, 3], [(0, 1, 10)]), Cluster.uniform(2, link=Link(0.0, 0.5))
    >>> path_computation_time(graph, cluster, Placement(device=[0, 1])).tolist()
    [10.0, 3.0]
    """
    weight = durations(graph, cluster)[np.arange(graph.n), placement.device]
    source, target = placement.device[graph.edge_source], placement.device[graph.consumers]
    cost = cluster.latency_us[source, target]
    cost = cost + cluster.us_per_byte[source, target] * graph.tensor_bytes[graph.edge_tensor]
    return tails(graph.order, weight, cost, graph.output_ptr, graph.consumer_ptr, graph.consumers) + weight


@dataclass(frozen=True)
class Pct(Params):
    """The longest way to the end first, transfers included (Mayer et al. 2017, equation 12)."""

    name = "pct"

    def prepare(self, graph: OpGraph, cluster: Cluster, placement: Placement) -> kernel.Scheduler:
        return by_rank(-path_computation_time(graph, cluster, placement))
