"""What a placement is made for: one step, a period, or a step of several micro-batches under a schedule."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...checks import check_whole
from ...errors import InvalidInput, UnknownNameError
from ...graph import Cluster, OpGraph, Placement
from ...simulator import simulate, throughput
from ...simulator.pipelined_graph import pipeline_options

OBJECTIVES = ("latency", "throughput", "step")


class Measured(NamedTuple):
    """Microseconds of a period or a step; int64[devices] peak bytes, and those above memory; is every rule kept?"""

    us: float
    peak_bytes: NDArray[np.int64]
    over: NDArray[np.int64]
    feasible: bool


class Objective(NamedTuple):
    """`name` of OBJECTIVES; `micro_batches` and `schedule` say what a "step" is; `sum`: how loads add up in a period;
    `replicas`: may equal devices share a stage."""

    name: str = "latency"
    micro_batches: int = 8
    schedule: str = "1f1b"
    sum: bool = False
    replicas: bool = False

    def validate(self) -> None:
        if self.name not in OBJECTIVES:
            raise UnknownNameError.of("objective", self.name, OBJECTIVES)
        check_whole("micro_batches", self.micro_batches)
        if self.name == "step":
            pipeline_options(self.micro_batches, self.schedule)
        if self.replicas and self.name == "latency":
            raise InvalidInput(
                "replicas is True with objective 'latency'; replicas share micro-batches, of which 'throughput' and 'step' know"
            )

    @property
    def widths(self) -> tuple[bool, ...]:
        """With and without replicas: a step is tried both ways, since its programme minimises bounds only."""
        return (False, True) if self.replicas and self.name == "step" else (self.replicas,)

    @property
    def batches(self) -> int:
        """Micro-batches that have one update: those of a step; of a period, where every op counts each time, one."""
        return int(self.micro_batches) if self.name == "step" else 1

    @property
    def key(self) -> str:
        """What `info` calls the measured microseconds."""
        return {"latency": "planned_makespan_us", "throughput": "period_us", "step": "step_us"}[self.name]

    @property
    def goals(self) -> list[tuple[float, float]]:
        """What the dynamic programmes minimise, see `cut`: for a step, bounds of it and the period."""
        if self.name == "throughput":
            return [(0.0, 1.0)]
        count = float(self.micro_batches) if self.name == "step" else 1.0
        return [(1.0, count), (0.5, count), (0.0, count)]

    def measure(self, graph: OpGraph, cluster: Cluster, placement: Placement) -> Measured:
        """What `placement` is worth; memory is that of one micro-batch for a period.

        Raises `InvalidInput` when the schedule of a step cannot work on it.
        """
        pipeline: dict[str, Any] = {}
        if self.name == "step":
            pipeline = {"micro_batches": int(self.micro_batches), "schedule": self.schedule}
        # In a single micro-batch each replica holds what the first of its group holds.
        shown = placement if pipeline else placement.replace(replicas=())
        timeline = simulate(graph, cluster, shown, **pipeline)
        us = timeline.makespan_us
        if self.name == "throughput":
            us = throughput(graph, cluster, placement, sum=self.sum).period_us
        over = np.maximum(timeline.peak_bytes - cluster.memory_bytes, 0)
        return Measured(us, timeline.peak_bytes, over, timeline.feasible)
