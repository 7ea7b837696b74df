"""Every schedule that applies to a model, on stages of whole layers, simulated with the runtime's overheads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from baechi_lab.errors import InvalidInput
from baechi_lab.executors.tensorflow.calibration import Calibration
from baechi_lab.graph import Cluster, OpGraph, Placement, Timeline
from baechi_lab.simulator import simulate
from baechi_lab.simulator.schedules import RULES
from studies.pipelines.charges import charged_graph
from studies.pipelines.cores import step_us_on_cores
from studies.pipelines.layers import layer_stages


@dataclass(frozen=True)
class Plan:
    """One schedule on one placement: the simulated timeline, whose order the real step follows."""

    schedule: str
    graph: OpGraph
    placement: Placement
    timeline: Timeline
    simulated_us: float


def placements(graph: OpGraph, devices: int) -> dict[str, Placement]:
    """By schedule, stages that suit it; schedules that do not apply to this graph are left out."""
    placement_of = {}
    for name, rule in RULES.items():
        try:
            placement_of[name] = _placement(rule.shape, graph, devices)
        except InvalidInput:
            continue  # too few layers for stages of this shape
    return placement_of


def _placement(shape: str, graph: OpGraph, devices: int) -> Placement:
    """Stages of whole layers: one per device, or two per device that go round or there and back."""
    stages = layer_stages(graph, devices if shape == "chain" else 2 * devices)
    device = {"chain": stages, "loop": stages % devices, "v": np.minimum(stages, 2 * devices - 1 - stages)}[shape]
    return Placement(device=device.astype(np.int32), placer="layers", graph_key=graph.key)


def plans(
    placements: Mapping[str, Placement], graph: OpGraph, cluster: Cluster, costs: Calibration, micro_batches: int
) -> dict[str, Plan]:
    """By schedule, the simulated step; schedules whose stages form no pipeline of their shape are left out."""
    plan_of = {}
    for name, placement in placements.items():
        try:
            plan_of[name] = planned(name, graph, cluster, placement, costs, micro_batches)
        except InvalidInput:
            continue
    return plan_of


def planned(
    schedule: str, graph: OpGraph, cluster: Cluster, placement: Placement, costs: Calibration, micro_batches: int
) -> Plan:
    """Simulate the step with the runtime's overheads; wires carry messages independently, workers may share cores."""
    graph_with_charges = charged_graph(graph, placement, costs)
    wire_cluster = cluster.replace(link=costs.wire, comm="parallel")
    timeline = simulate(graph_with_charges, wire_cluster, placement, micro_batches=micro_batches, schedule=schedule)
    step_us = step_us_on_cores(
        graph_with_charges, wire_cluster, placement, timeline, micro_batches, len(os.sched_getaffinity(0))
    )
    return Plan(schedule, graph_with_charges, placement, timeline, step_us + costs.step_us)
