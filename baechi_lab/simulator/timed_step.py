"""A timeline with its graph, cluster and placement, for the checks of `validity`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..graph import Cluster, OpGraph, Placement, Timeline
from ..graph.kernels.csr import Floats

_TOLERANCE = 1e-9  # relative to the makespan: sums of microseconds are floating point


@dataclass(frozen=True, eq=False)
class TimedStep:
    """A timeline with the graph, the cluster and the placement of its simulation."""

    graph: OpGraph
    cluster: Cluster
    placement: Placement
    timeline: Timeline

    @cached_property
    def start(self) -> Floats:
        """float64[n]: start of each op in microseconds."""
        return self._by_op(self.timeline.start_us)

    @cached_property
    def end(self) -> Floats:
        """float64[n]: end of each op in microseconds."""
        return self._by_op(self.timeline.end_us)

    @cached_property
    def lane(self) -> NDArray[np.int64]:
        """int64[n]: device of each op; for a collective, which runs on the lane of communication, `cluster.n` more."""
        return self.placement.device + self.cluster.n * self.graph.on_communication_lane.astype(np.int64)

    @property
    def slack(self) -> float:
        """Allowed rounding error in microseconds."""
        return _TOLERANCE * max(self.timeline.makespan_us, 1.0)

    def _by_op(self, times: Floats) -> Floats:
        time_of_op = np.empty(self.graph.n)
        time_of_op[self.timeline.op] = times
        return time_of_op
