"""`ideals`: the best cut of a graph into pipeline stages, among all convex ones, by dynamic programming.

Idea: whatever the first k devices of a pipeline do is downward closed: it holds all that comes before its members. A
programme over all pairs of nested closed sets therefore finds the pipeline with the least period, on graphs that are
nearly chains, as networks by layers are. See `pipeline_stages/closed_sets.py` (Tarnawski et al., NeurIPS 2020, "Efficient
Algorithms for Device Placement of DNN Graph Operators", section 5.1.1) and, for pipeline stages that several devices share,
PipeDream (Narayanan et al. 2019, doi:10.1145/3341301.3359646, section 3.1).

Deviations:

- Forward and backward ops stay together where a colocation group says so (`pipeline_stages/pipeline_units.py`).
- Devices may differ: each order of their kinds is tried.
- The program charges a tensor that several later pipeline stages read once to its sender. The result is measured as
  `bl.throughput` does.

Complexity: see `closed_sets`. The cost of a cut along a line bounds what is searched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..checks import check_whole
from ..graph import Cluster, OpGraph, Placement
from .base import Placer
from .pipeline_stages.closed_sets import closed_sets, cut_sets
from .pipeline_stages.device_sequences import chain_along, device_orders, device_sequences
from .pipeline_stages.dynamic_program import pack_on_first_devices
from .pipeline_stages.line_cuts import cut_line
from .pipeline_stages.link_levels import cuts_by_link_level
from .pipeline_stages.objective import Objective
from .pipeline_stages.pipeline_cuts import PipelineCut, data_parallel_cuts, make_pipeline_cut, place_best_cut
from .pipeline_stages.pipeline_units import make_pipeline_units

MOST_SETS = 50_000  # closed sets of a graph
LARGE = 5_000
"""Closed sets above which one order of devices and one goal is all there is time for."""


@dataclass(frozen=True)
class Ideals(Placer):
    """The best pipeline: dynamic programming over all downward-closed sets; exact where graphs are nearly chains.

    Args:
        objective: "throughput" (the period), "step" (`micro_batches` under a `schedule`) or "latency" (one step).
        replicas: let several equal devices share a pipeline stage (not for "latency").
        sum: a device computes or transfers, never both at once (`bl.throughput`).
        most_sets: closed sets that are looked at; a graph with more is refused with the count.
    """

    name = "ideals"
    objective: str = "throughput"
    micro_batches: int = 8
    schedule: str | None = "1f1b"
    replicas: bool = False
    sum: bool = False
    most_sets: int = MOST_SETS

    def validate(self) -> None:
        self._goal.validate()
        check_whole("most_sets", self.most_sets)

    @property
    def _goal(self) -> Objective:
        return Objective(self.objective, self.micro_batches, self.schedule, self.sum, self.replicas)

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        if graph.n == 0:
            return Placement(device=np.zeros(0, dtype=np.int32))
        units = make_pipeline_units(graph, cluster, micro_batches=self._goal.micro_batches_per_update)
        sets = closed_sets(units, self.most_sets)
        few = len(sets) <= LARGE

        def cuts(limits: Cluster) -> Iterator[PipelineCut]:
            orders = device_orders(cluster, units.allowed)[: None if few else 1]
            for sequence in (sequence for order in orders for sequence in device_sequences(self._goal, order)):
                chain = chain_along(sequence, units, limits, self._goal)
                for goal in self._goal.program_goals[: None if few else 1]:
                    bound, _ = cut_line(units, chain, goal)
                    cost, stages = cut_sets(units, chain, goal, sets, bound)
                    for packed_stages in pack_on_first_devices(stages, chain) if stages else ():
                        yield make_pipeline_cut(
                            units.unit, units.n, packed_stages, sequence.devices, "closed sets", cost
                        )
                if sequence.with_replicas and self.objective == "step":
                    max_replicas = min(int(chain.run[0]), self.micro_batches)
                    yield from data_parallel_cuts(units.unit, units.n, sequence.devices, max_replicas)
            if self.replicas:
                yield from cuts_by_link_level(units, limits, "line", sum=self.sum)

        placement = place_best_cut(graph, cluster, self._goal, cuts)
        return placement.replace(info={**placement.info, "closed_sets": len(sets), "units": units.n})
