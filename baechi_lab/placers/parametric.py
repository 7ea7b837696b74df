"""List schedulers as points of one space: which op next, which device, and may it fill a gap?

    HEFT = (upward-rank, earliest-finish, insertion)        Topcuoglu, Hariri, Wu 2002, doi:10.1109/71.993206
    MCP  = (latest-start, earliest-start, insertion)        Wu, Gajski 1990, doi:10.1109/71.80160
    ETF  = (earliest-start, earliest-start, at the end)     Hwang, Chow, Anger, Lee 1989, doi:10.1137/0218016
    FIFO = (ready-time, earliest-start, at the end)

The plan knows no waiting transfers (see `insertion.py`). Complexity: O((ops + edges) x devices) and the gaps looked at;
the priority "earliest-start" compares all ready ops at every step, O(ops x ready ops x devices).

Deviations: equal priorities go by topological position (HEFT leaves it open, MCP compares descendants); memory,
allowed devices and colocation groups as in Mayer et al. 2017, section 5.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..checks import check_flag
from ..errors import UnknownNameError
from ..graph import Cluster, OpGraph, Placement
from ..graph.kernels.csr import inverse
from ..simulator.ranks import downward_rank, total_rank, upward_rank
from .base import Placer
from .list_scheduling.insertion import (
    DEVICE_BY_DURATION,
    DEVICE_BY_FINISH,
    DEVICE_BY_FREE_TIME,
    DEVICE_BY_START,
    OP_BY_KEY,
    OP_BY_READY_TIME,
    OP_BY_START,
    Plan,
    insertion_schedule,
    start_order,
)
from .memory.feasible import within_memory
from .problem import make_problem

PRIORITIES = {
    "upward-rank": "longest way to the end first, mean transfers counted (HEFT)",
    "computation-rank": "longest way to the end first, transfers not counted (HLFET)",
    "latest-start": "smallest latest start time first: critical path minus upward rank (MCP)",
    "downward-rank": "shortest way from the start first",
    "total-rank": "longest path through the op first, among the ready ops",
    "topological": "in topological order",
    "ready-time": "first ready, first served (FIFO)",
    "earliest-start": "the op that can start earliest on the device it would get (ETF)",
}
"""Which op comes next; name -> what it means."""
CHOICES = {
    "earliest-finish": DEVICE_BY_FINISH,
    "earliest-start": DEVICE_BY_START,
    "fastest": DEVICE_BY_DURATION,
    "first-free": DEVICE_BY_FREE_TIME,
}
POINTS = {
    "heft": ("upward-rank", "earliest-finish", True),
    "mcp": ("latest-start", "earliest-start", True),
    "etf": ("earliest-start", "earliest-start", False),
    "fifo": ("ready-time", "earliest-start", False),
}
"""Known algorithms as (priority, choice, insertion)."""
DIGITS = 12
"""Priorities are equal when they agree to this many digits of the largest."""


@dataclass(frozen=True)
class ListScheduler(Placer):
    """A list scheduler composed of a priority, a choice of device, and insertion.

    Args:
        priority: one of `PRIORITIES`: upward-rank, computation-rank, latest-start, downward-rank, total-rank,
            topological, ready-time, earliest-start.
        choice: earliest-finish, earliest-start, fastest (shortest duration), first-free (whatever the inputs).
        insertion: whether an op may fill a gap between ops that were scheduled before.

    >>> from baechi_lab import place
    >>> graph = OpGraph.from_edges([2, 2, 2], [(0, 1, 1), (0, 2, 1)])
    >>> place(graph, Cluster.uniform(2), ListScheduler.point("heft")).device.tolist()
    [0, 0, 0]
    """

    name = "list-scheduler"
    priority: str = "upward-rank"
    choice: str = "earliest-finish"
    insertion: bool = True

    @classmethod
    def point(cls, algorithm: str) -> ListScheduler:
        """Returns the point of the space at which a known algorithm lies: heft, mcp, etf, fifo."""
        if algorithm not in POINTS:
            raise UnknownNameError.of("list scheduler", algorithm, POINTS)
        return cls(*POINTS[algorithm])

    def validate(self) -> None:
        if self.priority not in PRIORITIES:
            raise UnknownNameError.of("priority", self.priority, PRIORITIES)
        if self.choice not in CHOICES:
            raise UnknownNameError.of("choice", self.choice, CHOICES)
        check_flag("insertion", self.insertion)

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        return within_memory(graph, cluster, lambda limits, careful: self._plan(graph, limits, careful))

    def plan(self, graph: OpGraph, cluster: Cluster, careful: bool = False) -> Plan:
        """Returns the schedule of every op; `careful` counts outputs and temporaries as bytes needed throughout the step."""
        self.validate()
        problem = make_problem(graph, cluster)
        need = problem.promised_bytes
        if careful:
            need = need + np.bincount(problem.group, graph.output_bytes + graph.temp_bytes, minlength=len(need)).astype(
                np.int64
            )
        op_rule = {"ready-time": OP_BY_READY_TIME, "earliest-start": OP_BY_START}.get(self.priority, OP_BY_KEY)
        return insertion_schedule(
            problem, self.op_keys(graph, cluster), op_rule, CHOICES[self.choice], bool(self.insertion), need
        )

    def _plan(self, graph: OpGraph, cluster: Cluster, careful: bool) -> Placement:
        plan = self.plan(graph, cluster, careful)
        info = {"planned_makespan_us": float(plan.finish.max(initial=0.0)), "overflows": plan.overflows}
        return Placement(device=plan.device, order=start_order(plan).astype(np.float64), info=info)

    def op_keys(self, graph: OpGraph, cluster: Cluster) -> NDArray[np.float64]:
        """Returns float64[n], smallest first, without equal numbers: the topological position decides between equals."""
        position = graph.position.astype(np.float64)
        if self.priority in ("topological", "ready-time", "earliest-start"):
            return position
        value = _value(self.priority, graph, cluster)
        # Sums that are equal on paper differ in their last bits: in HEFT's published example t3 and t4 both have 80.
        value = np.round(value / max(np.abs(value).max(initial=0.0), 1e-300), DIGITS)
        return inverse(np.lexsort((position, value))).astype(np.float64)


def _value(priority: str, graph: OpGraph, cluster: Cluster) -> NDArray[np.float64]:
    """Returns float64[n]: the numbers by which a priority orders the ops, smallest first."""
    if priority == "computation-rank":
        return -upward_rank(graph, cluster, communication=False)
    if priority == "downward-rank":
        return downward_rank(graph, cluster)
    if priority == "total-rank":
        return -total_rank(graph, cluster)
    rank = upward_rank(graph, cluster)
    return rank.max(initial=0.0) - rank if priority == "latest-start" else -rank
