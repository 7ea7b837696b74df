"""The objective of a placement: one step, the period, or a step of several micro-batches under a schedule."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...checks import check_whole
from ...errors import InvalidInput, UnknownNameError
from ...graph import Cluster, OpGraph, Placement
from ...graph.placement import with_keys_of
from ...internal_warnings import collected_warnings
from ...simulator import simulate, throughput
from ...simulator.pipelined_graph import pipeline_options

OBJECTIVES = ("latency", "throughput", "step")


class Measurement(NamedTuple):
    """Microseconds of the period or step, int64[devices] peak bytes and bytes above memory, and whether every rule is kept."""

    us: float
    peak_bytes: NDArray[np.int64]
    overflow_bytes: NDArray[np.int64]
    feasible: bool


class Objective(NamedTuple):
    """`name` is one of OBJECTIVES. `micro_batches` and `schedule` define a "step"; with None, devices choose among ready ops.

    `sum`: compute and transfers add up in the period. `replicas`: equal devices may share a stage.
    """

    name: str = "latency"
    micro_batches: int = 8
    schedule: str | None = "1f1b"
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
    def micro_batches_per_update(self) -> int:
        """Micro-batches per update: those of a step. For a period every op counts each time, so it is 1."""
        return int(self.micro_batches) if self.name == "step" else 1

    @property
    def key(self) -> str:
        """The key of `info` that holds the measured microseconds."""
        return {"latency": "planned_makespan_us", "throughput": "period_us", "step": "step_us"}[self.name]

    @property
    def program_goals(self) -> list[tuple[float, float]]:
        """Goals of the dynamic programs, see `dynamic_program`: bounds of a step, and the period."""
        if self.name == "throughput":
            return [(0.0, 1.0)]
        count = float(self.micro_batches) if self.name == "step" else 1.0
        return [(1.0, count), (0.5, count), (0.0, count)]

    def measure(self, graph: OpGraph, cluster: Cluster, placement: Placement) -> Measurement:
        """Measures `placement`. For a period, memory is that of one micro-batch.

        Raises `InvalidInput` if the schedule of a step cannot run on it.
        """
        pipeline: dict[str, Any] = {}
        if self.name == "step":
            pipeline = {"micro_batches": int(self.micro_batches), "schedule": self.schedule}
        # In a single micro-batch each replica holds what the first of its group holds.
        placement_without_replicas = placement if pipeline else placement.replace(replicas=())
        # Of groups nothing is said: what is chosen is measured by its ops (`measure_ops`).
        with nullcontext() if graph.original is None else collected_warnings():
            timeline = simulate(graph, cluster, placement_without_replicas, **pipeline)
        us = timeline.makespan_us
        if self.name == "throughput":
            us = throughput(graph, cluster, placement, sum=self.sum).period_us
        overflow_bytes = np.maximum(timeline.peak_bytes - cluster.memory_bytes, 0)
        return Measurement(us, timeline.peak_bytes, overflow_bytes, timeline.feasible)

    def measure_ops(self, graph: OpGraph, cluster: Cluster, placement: Placement, groups: Measurement) -> Measurement:
        """Measures the ops of the groups that `graph` has. The result is `groups` if these do not fit or `graph` has none.

        Ops of several groups of a device may run in turns, so that they hold more bytes than their groups. Placements that
        are chosen are measured by their ops; all others only by groups, which are fewer.

        Args:
            graph, cluster, placement: those that were measured.
            groups: what `measure` returned for this placement.
        """
        if graph.original is None or not groups.feasible:
            return groups
        try:
            return self.measure(graph.original, cluster, with_keys_of(graph, placement))
        except InvalidInput:  # the ops form no pipeline for the schedule
            return groups._replace(feasible=False)

    def improved_us(
        self, graph: OpGraph, cluster: Cluster, placement: Placement, measurement: Measurement, best_us: float
    ) -> float:
        """Returns `measurement.us` if it is below `best_us` and the ops of the placement fit, else infinity."""
        if not (measurement.feasible and measurement.us < best_us):
            return np.inf
        return measurement.us if self.measure_ops(graph, cluster, placement, measurement).feasible else np.inf
