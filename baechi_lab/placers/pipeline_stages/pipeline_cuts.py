"""Measures the cuts of the dynamic programs and places the best one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ...errors import InvalidInput
from ...graph import Cluster, OpGraph, Placement
from ...graph.kernels.csr import Integers
from ...graph.units import format_bytes
from ..memory.feasible import repair_plan
from ..memory.packing import infeasible_placement, raise_if_impossible
from .dynamic_program import ChainStage
from .hill_climbing import climb_stage_borders, max_moves
from .objective import Measurement, Objective

ATTEMPTS = 6
"""Most attempts, each with lower memory limits."""


class PipelineCut(NamedTuple):
    """One division of a graph into pipeline stages.

    Args:
        unit: int32[n], the unit of every op; a unit is a set of ops that share a device.
        stage: int64[units], the stage of every unit.
        devices: the devices of every stage; several are replicas, which share its micro-batches.
        name: what made it, for example "stages under 1f1b".
        cost: of the dynamic program that made it, microseconds.
    """

    unit: Integers
    stage: Integers
    devices: tuple[tuple[int, ...], ...]
    name: str
    cost: float

    def placement(self) -> Placement:
        first = np.array([stage_devices[0] for stage_devices in self.devices], dtype=np.int32)
        groups = tuple(stage_devices for stage_devices in self.devices if len(stage_devices) > 1)
        return Placement(device=first[self.stage[self.unit]], replicas=groups, info={"split": self.name})


def make_pipeline_cut(
    unit: Integers, count: int, stages: Iterable[ChainStage], order: tuple[int, ...], name: str, cost: float
) -> PipelineCut:
    """Makes a cut of `count` units from stages on consecutive devices of `order`; `cost` and `name` as in `PipelineCut`."""
    stage = np.zeros(count, dtype=np.int64)
    devices: list[tuple[int, ...]] = []
    for units, first_device, device_count in stages:
        stage[units] = len(devices)
        devices.append(tuple(order[first_device : first_device + device_count]))
    return PipelineCut(unit, stage, tuple(devices), name, cost)


def data_parallel_cuts(unit: Integers, count: int, order: tuple[int, ...], max_replicas: int) -> Iterator[PipelineCut]:
    """Yields the cuts of data parallelism, one stage on 2 to `max_replicas` devices, which no dynamic program needs to find."""
    for r in range(2, max_replicas + 1):
        yield make_pipeline_cut(
            unit, count, [ChainStage(slice(None), 0, r)], order, f"{r} replicas of everything", np.inf
        )


def place_best_cut(
    graph: OpGraph, cluster: Cluster, objective: Objective, cuts: Callable[[Cluster], Iterator[PipelineCut]]
) -> Placement:
    """Returns the placement of the best measured cut that fits in memory; `cuts(limits)` makes cuts for these memory limits.

    For a step of micro-batches the borders of its stages are then improved (`climb_stage_borders`).

    `info`: `split`, the measured `period_us`, `step_us` or `planned_makespan_us`, and `candidates`, the number of cuts.
    If no cut fits, the result is a repaired placement, which need not be a cut; a step of micro-batches has none.
    Raises `InfeasiblePlacement` if nothing fits; it is a proof if the persistent bytes alone do not fit.
    """
    limits, least_overflowing = cluster, None
    for _ in range(ATTEMPTS):
        measured_cuts, count, refusal = _measure_cuts(graph, cluster, objective, cuts(limits))
        if not measured_cuts and limits is cluster:
            # Is memory the reason that there are none? With enough of it for the persistent bytes, there may be cuts.
            enough = np.maximum(cluster.memory_bytes, graph.persistent_bytes.sum()).tolist()
            measured_cuts, count, _ = _measure_cuts(graph, cluster, objective, cuts(cluster.with_memory(enough)))
            if refusal is not None and not measured_cuts:
                raise refusal
        overflows = []
        for measurement, cut in sorted(measured_cuts, key=lambda pair: pair[0].us):
            measurement_of_ops = objective.measure_ops(graph, cluster, cut.placement(), measurement)
            if measurement_of_ops.feasible:
                us = measurement.us
                if objective.name == "step":
                    cut, us = _improve_borders(graph, cluster, objective, cut, us)
                return _with_measurement(cut.placement(), objective, us, count)
            overflows.append(measurement_of_ops)
        raise_if_impossible(graph, cluster)
        if not measured_cuts:
            break
        # The next attempt may use fewer bytes on the devices that the nearest cut overfills.
        nearest = min(overflows, key=_overflow)
        if least_overflowing is None or _overflow(nearest) < _overflow(least_overflowing):
            least_overflowing = nearest
        limits = limits.with_memory(np.maximum(limits.memory_bytes - nearest.overflow_bytes, 0).tolist())
    start = next((cut.placement().replace(replicas=()) for _, cut in measured_cuts), None)
    repaired_placement = repair_plan(graph, cluster, start) if objective.name != "step" else None
    if repaired_placement is not None:
        measurement = objective.measure(graph, cluster, repaired_placement)
        if objective.measure_ops(graph, cluster, repaired_placement, measurement).feasible:
            repaired_placement = repaired_placement.replace(info={**repaired_placement.info, "repaired": True})
            return _with_measurement(repaired_placement, objective, measurement.us, count)
    raise infeasible_placement(_why_no_cut_fits(graph, cluster, least_overflowing), graph, cluster, is_proof=False)


def _why_no_cut_fits(graph: OpGraph, cluster: Cluster, least_overflowing: Measurement | None) -> str:
    """Returns the reason for a refusal; `least_overflowing` is the cut that lacks the fewest bytes, None if there is no cut."""
    if least_overflowing is None and int(graph.persistent_bytes.sum()) <= int(cluster.memory_bytes.min()):
        return "no cut into stages was found whose ops are all on devices that they may use"
    reason = "no cut into stages that fits was found, which is no proof that none exists"
    if least_overflowing is None or _overflow(least_overflowing) == 0:
        return reason
    fullest = int(least_overflowing.overflow_bytes.argmax())
    return (
        f"{reason} (the cut that lacks the fewest bytes needs {format_bytes(int(least_overflowing.peak_bytes[fullest]))} on "
        f"{cluster.names[fullest]}, which has {format_bytes(int(cluster.memory_bytes[fullest]))})"
    )


def _overflow(measurement: Measurement) -> int:
    """Returns the bytes above the memory of all devices together."""
    return int(measurement.overflow_bytes.sum())


def _measure_cuts(
    graph: OpGraph, cluster: Cluster, objective: Objective, cuts: Iterable[PipelineCut]
) -> tuple[list[tuple[Measurement, PipelineCut]], int, InvalidInput | None]:
    """Measures every cut that the schedule can run.

    Returns the different cuts, their number with repetitions, and the first error of a cut that the schedule cannot run.
    """
    measured_cuts: dict[object, tuple[Measurement, PipelineCut]] = {}
    count = 0  # several orders of the graph and goals of the dynamic program may lead to one cut
    refusal: InvalidInput | None = None
    for cut in cuts:
        placement = cut.placement()
        key = placement.device.tobytes(), placement.replicas
        try:
            if key not in measured_cuts:
                measured_cuts[key] = objective.measure(graph, cluster, placement), cut
            count += 1
        except InvalidInput as error:
            refusal = refusal or error
    return list(measured_cuts.values()), count, refusal


def _improve_borders(
    graph: OpGraph, cluster: Cluster, objective: Objective, cut: PipelineCut, us: float
) -> tuple[PipelineCut, float]:
    """Moves the borders of the cut's stages while its step gets shorter; returns the cut and its step."""
    best_us = us

    def cost(stage: Integers) -> float:
        nonlocal best_us
        placement = cut._replace(stage=stage).placement()
        try:
            measurement = objective.measure(graph, cluster, placement)
            improved_us = objective.improved_us(graph, cluster, placement, measurement, best_us)
        except InvalidInput:  # an order that blocks itself, or no pipeline for this schedule
            return np.inf
        best_us = min(best_us, improved_us)
        return improved_us

    stage, us = climb_stage_borders(cut.stage, us, cost, max_moves(graph.n * objective.micro_batches))
    return cut._replace(stage=stage), us


def _with_measurement(placement: Placement, objective: Objective, us: float, count: int) -> Placement:
    return placement.replace(info={**placement.info, objective.key: us, "candidates": count})
